# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A job whose first thread has ended while another one lives on and holds a GPU: zombie.py GPU MIB.

It shows as a zombie, and its descriptors only below the living thread.
"""

import ctypes
import sys
import threading

sys.path.insert(0, "/usr/local/lib/gpusim")

import gpusim

SYS_EXIT = {"x86_64": 60, "aarch64": 93}[__import__("platform").machine()]

nodes = gpusim.open_nodes()
memory = gpusim.allocate(int(sys.argv[1]), int(sys.argv[2]))
threading.Thread(target=threading.Event().wait).start()
ctypes.CDLL(None).syscall(SYS_EXIT, 0)
