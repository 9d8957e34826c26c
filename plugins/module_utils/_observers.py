# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""The management and monitoring programs that belong on a GPU host and are never ended.

A program is known by the name of its file AND by the file being root's alone to change: a user cannot gain protection
by calling a job `dcgmi`. Extend the table, or name one host's own programs in `protect`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

OBSERVERS = {
    "nv-hostengine": "DCGM host engine",
    "dcgmi": "DCGM command line",
    "dcgm-exporter": "DCGM exporter",
    "nvidia-persistenced": "persistence daemon",
    "nv-fabricmanager": "fabric manager",
    "nvidia-imex": "IMEX daemon",
    "nvlsm": "NVLink subnet manager",
    "nvidia-smi": "nvidia-smi",
    "nvidia_gpu_exporter": "GPU exporter",
    "nvsm_core": "NVIDIA system management",
    "nvsm_api_gateway": "NVIDIA system management",
    "nvidia-device-plugin": "Kubernetes device plugin",
    "gpu-feature-discovery": "GPU feature discovery",
    "nvitop": "nvitop",
    "nvtop": "nvtop",
    "gpustat": "gpustat",
    "gpud": "gpud",
    "netdata": "netdata",
    "telegraf": "telegraf",
    "node_exporter": "node exporter",
}
"""File name of the program (or of the script an interpreter runs) and what it is."""


def observer_name(pid: int, executable: str, argv: Sequence[str], proc: str = "/proc") -> str:
    """What the table calls this process; '' if it is not in it, or its file is not root's alone to change."""
    script = argv[1] if len(argv) > 1 and argv[1].startswith("/") else ""
    # Looked at through /proc, so that a program inside a container is judged by its own file.
    for path, file in ((executable, f"{proc}/{pid}/exe"), (script, f"{proc}/{pid}/root{script}")):
        name = OBSERVERS.get(path.rsplit("/", 1)[-1], "")
        if name and _only_root_may_change(file):
            return name
    return ""


def _only_root_may_change(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        # Gone, or not ours to look at: without proof of identity it gets no protection.
        return False
    return status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
