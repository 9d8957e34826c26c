# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real CUDA process: takes memory on GPU 0, computes once, says so on its stdout, and stays."""

import os
import signal

import torch

if os.environ.get("IGNORE_SIGTERM"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
taken = torch.ones(int(os.environ["MIB"]) << 20, dtype=torch.uint8, device="cuda:0")
torch.cuda.synchronize()
print("holds", flush=True)
# What was printed is all that anybody reads.
os.close(1)
os.close(2)
while True:
    signal.pause()
