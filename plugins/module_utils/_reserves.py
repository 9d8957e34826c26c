# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""What a driver before R510 counts as used though nobody uses it: its own reserve, which newer ones tell apart.

It is learnt while nobody is on a GPU, and taken off from then on. Only little is ever learnt: of memory that leaked
before, no more than LEARNABLE_MIB could pass for a reserve.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, GpuReading, Memory
from ansible_collections.gpuops.inference.plugins.module_utils._paths import RESERVES
from ansible_collections.gpuops.inference.plugins.module_utils._record import write_json

MOST_RESERVED_MIB = 2048
"""More than any driver keeps to itself: an idle GPU shows a few hundred MiB in the old view of its memory."""
LEARNABLE_MIB = 1024


def without_reserves(reading: GpuReading, path: Path = RESERVES) -> GpuReading:
    """The reading with what was learnt of these GPUs under this driver told as reserved, and not as used."""
    if not any(_old_view(gpu) for gpu in reading.gpus):
        return reading
    known = _known(reading, path)
    return replace(reading, gpus=tuple(_without(gpu, known.get(gpu.uuid, 0)) for gpu in reading.gpus))


def learn_reserves(reading: GpuReading, touched: Collection[int], path: Path = RESERVES) -> None:
    """Remember what the GPUs show that nobody touches. touched holds the indexes of all others."""
    known = _known(reading, path)
    seen = {
        gpu.uuid: gpu.memory.used + gpu.memory.reserved
        for gpu in reading.gpus
        if gpu.memory and _old_view(gpu) and not gpu.error and not gpu.processes and gpu.index not in touched
    }
    learnt = {uuid: min(mib, known.get(uuid, mib)) for uuid, mib in seen.items() if uuid and 0 < mib <= LEARNABLE_MIB}
    if reading.usable and learnt and {**known, **learnt} != known:
        write_json(path, {"driver": reading.driver_version, "mib": {**known, **learnt}})


def _old_view(gpu: Gpu) -> bool:
    return gpu.memory is not None and gpu.memory.version == 1


def _known(reading: GpuReading, path: Path) -> Mapping[str, int]:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    # Another driver, another reserve.
    if not isinstance(stored, dict) or stored.get("driver") != reading.driver_version:
        return {}
    sizes = stored.get("mib")
    return {str(uuid): mib for uuid, mib in (sizes.items() if isinstance(sizes, dict) else ()) if isinstance(mib, int)}


def _without(gpu: Gpu, reserve: int) -> Gpu:
    memory = gpu.memory
    if memory is None or memory.version != 1 or not reserve:
        return gpu
    reserved = min(reserve, memory.used)
    return replace(gpu, memory=Memory(memory.total, reserved, memory.used - reserved, memory.free, 1))
