# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""What dead engines leave on a host beside the GPUs, and what stops the next one: segments in /dev/shm, a bound port.

A segment is left over when its name is one an engine gives, nobody maps it or has it open, and whoever could have made
it is gone. What cannot be told counts as in use.
"""

from __future__ import annotations

import os
import pwd
import re
import stat as stat_modes
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._engines import argument, serving
from ansible_collections.gpuops.inference.plugins.module_utils._holders import Process, process_table, read_process
from ansible_collections.gpuops.inference.plugins.module_utils._masking import printable
from ansible_collections.gpuops.inference.plugins.module_utils._plan import ORPHAN, TARGET, Judged, is_up
from ansible_collections.gpuops.inference.plugins.module_utils._ports import listeners
from ansible_collections.gpuops.inference.plugins.module_utils._probe import Probe
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import PROBE_TIMEOUT, Snapshot

SHM = Path("/dev/shm")

SEGMENT_NAMES = (
    "psm_",
    "sem.mp-",
    "sem.loky-",
    "nccl-",
    "cuda.shm.",
    "sglang_loads_",
    "sgl_shm_",
    "torch_",
    "kvcached_",
    "VLLM_OBJECT_STORAGE_SHM_BUFFER",
)
"""How the names begin that Python's multiprocessing, torch, NCCL, CUDA and the engines themselves give."""

_PID = re.compile(r"^(?:sgl_shm_[a-z]+|torch)_(\d+)(?:_|$)")


@dataclass(frozen=True)
class Segment:
    """A file in /dev/shm, pinned by device and inode. `changed` is seconds since the epoch, not before its making."""

    name: str
    size: int
    uid: int
    device: int
    inode: int
    changed: float

    def as_dict(self) -> dict[str, Any]:
        return {"name": printable(self.name), "mib": round(self.size / (1 << 20), 1), "uid": self.uid}


@dataclass(frozen=True)
class Leftovers:
    """What was found. `unclear` says why segments could not be judged; then none is in the list."""

    segments: tuple[Segment, ...] = ()
    ports: tuple[str, ...] = ()
    unclear: str = ""
    total_mib: int = 0
    free_mib: int = 0

    @property
    def mib(self) -> int:
        return sum(segment.size for segment in self.segments) >> 20

    def as_dict(self) -> dict[str, Any]:
        return {
            "shm_total_mib": self.total_mib,
            "shm_free_mib": self.free_mib,
            "segments": [segment.as_dict() for segment in self.segments],
            "ports": list(self.ports),
            "unclear": self.unclear,
        }

    def lines(self) -> list[str]:
        """For people, one line for each kind."""
        told = [self.unclear] if self.unclear else []
        if self.segments:
            told.append(
                f"/dev/shm: {counted(self.segments)} of dead engines, {self.mib} MiB, {self.free_mib} of "
                f"{self.total_mib} MiB free; gpu_drain with remove_leftovers (gpuops_remove_leftovers) removes them"
            )
        return [*told, *self.ports]


def counted(segments: Sequence[Segment]) -> str:
    return f"{len(segments)} segment{'s' * (len(segments) != 1)}"


def find_leftovers(
    probe: Probe,
    snapshot: Snapshot,
    judged: Iterable[Judged],
    shm: Path = SHM,
    table: Callable[[], Mapping[int, Process]] = process_table,
) -> Leftovers:
    """Look for all of it. Processes are looked at again: the snapshot may be older than the segments."""
    figures = os.statvfs(shm)
    segments, unclear = find_segments(shm), ""
    if segments:
        segments, unclear = _dead(segments, probe, table(), judged)
    return Leftovers(
        segments=tuple(segments),
        ports=tuple(_bound_ports(snapshot)),
        unclear=unclear,
        total_mib=figures.f_blocks * figures.f_frsize >> 20,
        free_mib=figures.f_bavail * figures.f_frsize >> 20,
    )


def find_segments(shm: Path = SHM) -> list[Segment]:
    """Regular files with an engine's kind of name, in use or not."""
    found = []
    for entry in os.scandir(shm):
        if entry.name.startswith(SEGMENT_NAMES):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat_modes.S_ISREG(status.st_mode):
                found.append(
                    Segment(
                        entry.name, status.st_blocks * 512, status.st_uid, status.st_dev, status.st_ino, status.st_ctime
                    )
                )
    return sorted(found, key=lambda segment: segment.name)


def _dead(
    segments: Sequence[Segment], probe: Probe, processes: Mapping[int, Process], judged: Iterable[Judged]
) -> tuple[list[Segment], str]:
    others = [process for process in processes.values() if not process.kernel_thread and not process.dead]
    device = segments[0].device
    pids = [process.pid for process in others if process.identity not in probe.workers]
    names = [segment.name for segment in segments]
    answers = probe.shared(pids, (os.major(device), os.minor(device)), names, PROBE_TIMEOUT)
    silent = [process for process in others if process.pid in pids and process.pid not in answers and _lives(process)]
    if silent:
        told = ", ".join(f"pid {process.pid} ({process.comm})" for process in silent[:3])
        return [], f"/dev/shm: not judged, what {told} has mapped cannot be read"
    now = time.time()
    makers = [
        (item.seen.process.uid, now - item.seen.age)
        for item in judged
        if item.cls in (TARGET, ORPHAN) and item.seen.process.pid in answers
    ]
    in_use = frozenset[int]().union(*answers.values())
    return dead_segments(segments, in_use, {process.pid for process in others}, makers), ""


def _lives(process: Process) -> bool:
    now = read_process(process.pid)
    return now is not None and now.start == process.start and not now.dead


def dead_segments(
    segments: Iterable[Segment], in_use: Collection[int], alive: Collection[int], makers: Iterable[tuple[int, float]]
) -> list[Segment]:
    """Those that nobody uses and nobody can still hand to somebody.

    in_use holds inodes, alive pids, makers the user and the start (seconds since the epoch) of each living engine
    process: a segment of its user that is younger may be its own, made and not yet mapped by whom it is for.
    """
    makers = list(makers)
    return [
        segment
        for segment in segments
        if segment.inode not in in_use
        and _named_pid(segment.name) not in alive
        and not any(uid == segment.uid and started <= segment.changed for uid, started in makers)
    ]


def _named_pid(name: str) -> Optional[int]:
    match = _PID.match(name)
    return int(match[1]) if match and len(match[1]) < 10 else None


def _bound_ports(snapshot: Snapshot) -> Iterator[str]:
    """Ports of engine units that do not run, which somebody has all the same."""
    for name, engine_unit in sorted(snapshot.units.items()):
        if is_up(engine_unit.unit):
            continue
        argv = engine_unit.unit.exec_start
        port = serving(engine_unit.engine, argv).port
        for listener in listeners(port, argument(argv, "--host") or "0.0.0.0"):
            holder = listener.cgroup.rstrip("/").rpartition("/")[2]
            if holder not in snapshot.units or not is_up(snapshot.units[holder].unit):
                yield f"port {port} of {name}, which does not run, is held by {listener}: end that first"


# --- removal ----------------------------------------------------------------------------------------------------------


def engine_uids(snapshot: Snapshot, judged: Iterable[Judged]) -> frozenset[int]:
    """The users that engines of this host run as: nobody else's segments are removed, whatever their names."""
    uids = {item.seen.process.uid for item in judged if item.cls in (TARGET, ORPHAN)}
    for engine_unit in snapshot.units.values():
        user = engine_unit.unit.user or "root"
        with suppress(KeyError):
            uids.add(int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid)
    return frozenset(uids)


def remove_segments(segments: Iterable[Segment], shm: Path = SHM) -> list[Segment]:
    """Unlink those that are still the same file of the same user. Returns what was removed."""
    removed = []
    directory = os.open(shm, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for segment in segments:
            try:
                status = os.stat(segment.name, dir_fd=directory, follow_symlinks=False)
                same = (status.st_dev, status.st_ino, status.st_uid) == (segment.device, segment.inode, segment.uid)
                if same:
                    os.unlink(segment.name, dir_fd=directory)
                    removed.append(segment)
            except FileNotFoundError:
                # Somebody cleans up as well.
                continue
    finally:
        os.close(directory)
    return removed
