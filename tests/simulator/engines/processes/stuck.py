# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An orphaned worker of vLLM in uninterruptible sleep, as in a wedged driver: stuck.py GPU MIB FILE.

FILE lies on a frozen file system: the write does not come back, and SIGKILL does not end it.
"""

import sys

sys.path.insert(0, "/usr/local/lib/gpusim")

import gpusim
import setproctitle

gpu = int(sys.argv[1])
file = sys.argv[3]
nodes = gpusim.open_nodes()
memory = gpusim.allocate(gpu, int(sys.argv[2]))
setproctitle.setproctitle(f"VLLM::Worker_TP{gpu}")
with open(file, "wb") as stream:
    stream.write(b"1")
