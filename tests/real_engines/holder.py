# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let a real worker without any GPU hold a simulated one: imported at the start of each of the engine's processes.

All else about the process is the real engine's own; this only opens the nodes and takes memory, as CUDA would, once
the worker has its rank in its title.
"""

import re

import gpusim
import setproctitle

MIB = 20000
WORKER = re.compile(r"(?:VLLM::Worker|sglang::scheduler)_TP(\d+)")

held = []
set_title = setproctitle.setproctitle


def titled(title: str) -> None:
    set_title(title)
    rank = WORKER.fullmatch(title)
    if rank and not held:
        held.append((gpusim.open_nodes(), gpusim.allocate(int(rank[1]), MIB)))


setproctitle.setproctitle = titled
