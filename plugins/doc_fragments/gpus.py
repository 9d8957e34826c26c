# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options about GPUs that several modules share."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  gpus:
    description:
      - The GPUs this is about, by NVML index (as C(nvidia-smi) shows it) or by UUID.
      - V(all) takes every GPU of the host.
    type: list
    elements: str
    default: [all]
  gpu_count:
    description:
      - How many GPUs the host must have. With fewer or more the module fails, whichever GPUs were asked for.
      - By default the GPU nodes in C(/dev) are counted.
    type: int
  protect:
    description:
      - Processes that are never ended, beside the collection's own table of management and monitoring programs.
      - Each is a pid, the absolute path of an executable, the name of the unit that owns the process, or
        C(container:NAME) (or a container's id) for all that is in a container.
    type: list
    elements: str
    default: []
"""

    RELEASE = r"""
options:
  threshold_mib:
    description: A GPU with this much memory in use, in MiB, is not free even where no process holds it.
    type: int
    default: 512
  stable_for:
    description: How long all GPUs must stay free without a break, in seconds, before it counts.
    type: float
    default: 3
"""
