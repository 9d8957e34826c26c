# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A training job on one GPU: train.py GPU MIB."""

import signal
import sys

sys.path.insert(0, "/usr/local/lib/gpusim")

import gpusim

nodes = gpusim.open_nodes()
memory = gpusim.allocate(int(sys.argv[1]), int(sys.argv[2]))
signal.pause()
