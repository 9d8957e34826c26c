# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Whether each GPU is free: one verdict per look, and a watch that wants the same answer for a while.

`free` is said only when every source agrees. A source that could not be read gives `unknown`, never `free`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu
from ansible_collections.gpuops.inference.plugins.module_utils._masking import printable
from ansible_collections.gpuops.inference.plugins.module_utils._owners import restarts
from ansible_collections.gpuops.inference.plugins.module_utils._plan import (
    FOREIGN,
    ORPHAN,
    PROTECTED,
    TARGET,
    UNKNOWN,
    Judged,
    command_text,
)
from ansible_collections.gpuops.inference.plugins.module_utils._reserves import MOST_RESERVED_MIB
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import Snapshot

FREE = "free"
HELD = "held"
UNKILLABLE = "unkillable"
EXITING = "exiting"
RESPAWNING = "respawning"
LEAKED = "leaked"
GHOST = "ghost"
INCONCLUSIVE = "inconclusive"
GPU_LOST = "gpu_lost"
CANNOT_TELL = "unknown"

FINAL = (UNKILLABLE, RESPAWNING, INCONCLUSIVE, GPU_LOST, CANNOT_TELL)
"""Verdicts that waiting does not change."""

LOST_ERRORS = ("GPU_IS_LOST", "RESET_REQUIRED")
POLL = 0.2
"""Seconds between two looks: a look at 8 GPUs and 300 processes takes about a tenth of that."""

Identity = tuple[int, int]


@dataclass(frozen=True)
class Verdict:
    """What one GPU is, and why, in words for the person who has to act."""

    verdict: str
    why: str
    may_pass: bool = False
    """Waiting may change it, though it does not change others of its kind."""

    @property
    def final(self) -> bool:
        return self.verdict in FINAL and not self.may_pass

    def as_dict(self) -> dict[str, str]:
        return {"verdict": self.verdict, "why": self.why}


def verdict_of(
    gpu: Gpu,
    snapshot: Snapshot,
    judged: Iterable[Judged],
    threshold_mib: int,
    known: Collection[Identity],
    stuck: Collection[Identity],
) -> Verdict:
    """One GPU at one moment.

    known holds those that held a GPU before the watch began: any other holder is a newcomer. stuck holds those that
    were sent SIGKILL longer ago than the caller is willing to wait.
    """
    if not snapshot.reading.usable:
        return Verdict(CANNOT_TELL, "; ".join(snapshot.reading.problems) or "the driver cannot be asked")
    if gpu.error:
        lost = gpu.error in LOST_ERRORS
        return Verdict(GPU_LOST if lost else CANNOT_TELL, f"NVML answers {gpu.error}: reset the GPU or reboot")
    if snapshot.blind:
        return Verdict(CANNOT_TELL, snapshot.blind)
    judged = list(judged)
    holders = [item for item in judged if item.cls in (TARGET, ORPHAN, FOREIGN, PROTECTED) and gpu.index in item.held]
    if holders:
        return _held(holders, judged, snapshot, known, stuck)
    if gpu.index in snapshot.ghosts:
        pids = ", ".join(str(pid) for pid in sorted(snapshot.ghosts[gpu.index]))
        return Verdict(GHOST, f"NVML lists pid {pids}, which holds no GPU node: reset the GPU or reboot")
    strangers = [item for item in judged if item.cls == UNKNOWN and gpu.index in item.seen.attached]
    if strangers and snapshot.reading.source != "nvml":
        return Verdict(CANNOT_TELL, f"{_names(strangers)} has it open, and without NVML nobody vouches for it")
    if gpu.memory is None:
        return Verdict(INCONCLUSIVE, "no holder, but this platform does not report the GPU's memory")
    if gpu.memory.used < threshold_mib:
        return Verdict(FREE, f"no holder, {gpu.memory.used} MiB in use")
    if gpu.memory.version == 1 and not gpu.memory.reserved:
        # No driver reserves that much: it is on its way back.
        why = (
            f"no holder, {gpu.memory.used} MiB that this old driver may reserve: a drain while nothing runs here "
            "learns how much, or raise threshold_mib above it"
        )
        return Verdict(INCONCLUSIVE, why, may_pass=gpu.memory.used >= MOST_RESERVED_MIB)
    return Verdict(LEAKED, f"{gpu.memory.used} MiB in use and no process that holds them: reset the GPU or reboot")


def _held(
    holders: list[Judged],
    judged: list[Judged],
    snapshot: Snapshot,
    known: Collection[Identity],
    stuck: Collection[Identity],
) -> Verdict:
    hopeless = [item for item in holders if item.seen.process.identity in stuck]
    if hopeless:
        states = ", ".join(sorted({item.seen.process.state for item in hopeless}))
        return Verdict(UNKILLABLE, f"{_names(hopeless)} does not die of SIGKILL (state {states}): reset or reboot")
    if all(item.seen.sigkill_pending for item in holders):
        return Verdict(EXITING, f"{_names(holders)} is dying")
    newcomers = [item for item in holders if item.seen.process.identity not in known]
    if newcomers:
        return Verdict(RESPAWNING, f"{_names(newcomers)} appeared meanwhile; {_origin(newcomers[0], judged, snapshot)}")
    return Verdict(HELD, f"held by {_names(holders)}")


def _origin(newcomer: Judged, judged: list[Judged], snapshot: Snapshot) -> str:
    """Who brought it, as far as the process table tells: the first ancestor that is not of its own engine."""
    group = {item.seen.process.pid for item in judged if item.group == newcomer.group}
    process = newcomer.seen.process
    while process.ppid in group and process.ppid in snapshot.processes:
        process = snapshot.processes[process.ppid]
    parent = snapshot.processes.get(process.ppid)
    starter = f", started by pid {parent.pid} ({printable(parent.comm)})" if parent and parent.pid != 1 else ""
    owner = newcomer.seen.owner
    advice = f"; if {owner.name} brings it back, name it in `units`" if restarts(owner) and not newcomer.unit else ""
    return f"owner: {owner}{starter}{advice}"


def _names(items: list[Judged]) -> str:
    named = ", ".join(f"pid {item.seen.process.pid} ({command_text(item.seen)[:60]})" for item in items[:3])
    return named + (f" and {len(items) - 3} more" if len(items) > 3 else "")


@dataclass
class Watch:
    """Looks until every GPU has been free for stable_for seconds, or waiting cannot change what is seen.

    look takes the identities of stuck processes and returns the verdict of each GPU by index, with the identities
    that have SIGKILL pending. Times are in seconds.
    """

    look: Callable[[Collection[Identity]], tuple[Mapping[int, Verdict], Collection[Identity]]]
    stable_for: float
    timeout: float
    kill_timeout: float = 60.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)

    def wait(self) -> bool:
        """True when all are proven free; `verdicts` holds the last look either way."""
        deadline = self.clock() + self.timeout
        free_since: dict[int, float] = {}
        dying_since: dict[Identity, float] = {}
        while True:
            now = self.clock()
            stuck = {who for who, since in dying_since.items() if now - since >= self.kill_timeout}
            self.verdicts, dying = self.look(stuck)
            dying_since = {who: dying_since.get(who, now) for who in dying}
            free = {index for index, verdict in self.verdicts.items() if verdict.verdict == FREE}
            # Free from the moment the look began: what is seen is at least that recent.
            free_since = {index: free_since.get(index, now) for index in free}
            after = self.clock()
            proven = {index for index, since in free_since.items() if after - since >= self.stable_for}
            open_questions = [
                index for index, verdict in self.verdicts.items() if index not in proven and not verdict.final
            ]
            if not open_questions:
                return len(proven) == len(self.verdicts)
            if after >= deadline and not self._almost(free_since, after, deadline):
                return False
            self.sleep(POLL)

    def _almost(self, free_since: Mapping[int, float], now: float, deadline: float) -> bool:
        """Whether all are free and only the stable window runs on: it may end a little after the deadline."""
        return len(free_since) == len(self.verdicts) and now < deadline + self.stable_for
