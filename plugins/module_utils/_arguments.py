# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Arguments and results that the GPU modules share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu
from ansible_collections.gpuops.inference.plugins.module_utils._plan import Judged
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import Snapshot
from ansible_collections.gpuops.inference.plugins.module_utils._units import systemd_runs

GPU_ARGUMENTS: dict[str, Any] = {
    "gpus": {"type": "list", "elements": "str", "default": ["all"]},
    "gpu_count": {"type": "int"},
    "protect": {"type": "list", "elements": "str", "default": []},
}

RELEASE_ARGUMENTS: dict[str, Any] = {
    "threshold_mib": {"type": "int", "default": 512},
    "stable_for": {"type": "float", "default": 3.0},
}

LONGEST_LIST = 64
"""A result is read by people and kept in logs: beyond this the count says the rest."""


def capped(items: Sequence[Any]) -> list[Any]:
    """At most LONGEST_LIST items; the last then tells how many were left out."""
    if len(items) <= LONGEST_LIST:
        return list(items)
    return [*items[: LONGEST_LIST - 1], {"left_out": len(items) - LONGEST_LIST + 1}]


def process_rows(judged: Iterable[Judged]) -> list[dict[str, Any]]:
    return capped([item.as_dict() for item in judged])


def gpu_rows(gpus: Iterable[Gpu]) -> list[dict[str, Any]]:
    return [gpu.as_dict() for gpu in gpus]


def host_facts(snapshot: Snapshot) -> dict[str, Any]:
    """What every GPU module returns about how it looked."""
    reading = snapshot.reading
    problems = [*reading.problems, *([snapshot.blind] if snapshot.blind else [])]
    if not systemd_runs():
        problems.append("systemd does not run on this host: no units are known, and nothing can be held")
    return {
        "driver_version": reading.driver_version,
        "nvml_version": reading.nvml_version,
        "source": reading.source,
        "problems": problems,
    }


def gpu_table(gpus: Iterable[Gpu], judged: Iterable[Judged] = ()) -> str:
    """One line per GPU: memory in MiB and who uses it. For diffs and summaries."""
    users: dict[int, list[str]] = {}
    for item in judged:
        for index in item.seen.used:
            users.setdefault(index, []).append(f"{item.seen.process.comm}[{item.seen.process.pid}]")
    lines = []
    for gpu in gpus:
        memory = f"{gpu.memory.used:>6} / {gpu.memory.total} MiB" if gpu.memory else gpu.error or "memory not reported"
        names = " ".join(users.get(gpu.index, [])) or "-"
        lines.append(f"GPU {gpu.index}  {memory}  {names}\n")
    return "".join(lines)
