# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a simulated host, as root, until stdin is closed: peak memory of the next module that asks the GPUs.

Prints {"module": MiB, "worker": MiB}. A worker's note in /run/gpuops names both processes; the kernel keeps the peak.
"""

from __future__ import annotations

import json
import select
import sys
from pathlib import Path
from typing import Optional

NOTES = Path("/run/gpuops/workers")
PERIOD = 0.01


def peak(pid: int) -> float:
    """MiB; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def noted() -> Optional[tuple[int, int]]:
    """Module and worker, as soon as there are any."""
    for note in NOTES.glob("*-*"):
        try:
            return json.loads(note.read_text())["client"][0], int(note.name.partition("-")[0])
        except (FileNotFoundError, ValueError):
            continue
    return None


def main() -> None:
    peaks = {"module": 0.0, "worker": 0.0}
    pair: Optional[tuple[int, int]] = None
    while not select.select([sys.stdin], [], [], PERIOD)[0]:
        pair = pair or noted()
        for name, pid in zip(peaks, pair or ()):
            peaks[name] = max(peaks[name], peak(pid))
    print(json.dumps(peaks))


if __name__ == "__main__":
    main()
