# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""The start of an engine, as a state machine without a clock or a host of its own.

It is told what is seen (the unit, lines of its log, looks at its answers), each with the time on the caller's clock,
and says what the engine does now and, once that is certain, how the start ended and why.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.inference.plugins.module_utils._engines import (
    ACCESS_LOG,
    CAUSES,
    JOINING,
    LOADING,
    PROGRESS,
    Cause,
    Engine,
)
from ansible_collections.gpuops.inference.plugins.module_utils._ready import Look
from ansible_collections.gpuops.inference.plugins.module_utils._units import Unit

STARTING = "starting"

# After the end, the last lines are still on their way through the journal: wait for it to fall silent, not for ever.
_SILENCE = 0.5
_LAST_WORDS = 2.0

# After its final words an engine usually ends by itself, which tells more.
_AGONY = 5.0

# A healthy engine that does not complete a request for this long never will; it may say so much earlier.
_MUTE = 150.0
_WRONG = 10.0

_TAIL = 200

_EXCEPTION = re.compile(r"(?:^|\s)((?:\w+\.)*\w*(?:Error|Exception): .+)$")
_SYSTEMD = re.compile(r"^\S+\.service: |^(?:Started|Starting|Stopped|Stopping|Failed to start|Scheduled restart) ")

_CLD_EXITED = 1


@dataclass(frozen=True)
class Verdict:
    """How a start ended: ready, or the reason in words."""

    ready: bool
    reason: str = ""
    stop: bool = False
    """The unit still holds the GPUs, or would come back, for nothing: stop it."""
    who: str = ""
    """What somebody else may have, whom the reason does not name: `gpu` or `port`."""


@dataclass(frozen=True)
class Stage:
    """A stretch of the start: what the engine did, and from when on."""

    phase: str
    began: float


class Start:
    """One start of one unit. Times in seconds on the caller's clock; the two timeouts count from `now`.

    invocation_before is the invocation that the unit had before it was told to start, None to attach to a start that
    is on its way.
    """

    def __init__(
        self,
        engine: Engine,
        now: float,
        ready_timeout: float,
        stall_timeout: float,
        invocation_before: Optional[str] = None,
    ) -> None:
        self._engine = engine
        self._ready_timeout = ready_timeout
        self._stall_timeout = stall_timeout
        self._began = now
        self._invocation_before = invocation_before
        self._attached = invocation_before is None
        self._unit: Optional[Unit] = None
        self._first: Optional[Unit] = None
        self._bytes = 0
        self._moved_at = now
        self._line_at = now
        self._ended: Optional[str] = None
        self._ended_at = now
        self._loops = False
        self._refused: Optional[str] = None
        self._position = -1
        self._causes: list[tuple[Cause, str]] = []
        self._overcome: Optional[tuple[Cause, str]] = None
        self._exception = ""
        self._last_words = ""
        self._lost_at: Optional[float] = None
        self._look: Optional[Look] = None
        self._wrong_since: Optional[float] = None
        self.stages = [Stage(STARTING, now)]
        self.done = 0
        self.total = 0
        self.passed: dict[str, float] = {}
        self.tail: deque[str] = deque(maxlen=_TAIL)

    # --- what is seen

    @property
    def invocation(self) -> str:
        """The invocation whose log is to be read; '' while there is none yet."""
        return self._first.invocation_id if self._first else ""

    @property
    def phase(self) -> str:
        """What the engine does, in words that fit after `while`."""
        return self.stages[-1].phase

    @property
    def status(self) -> str:
        """The phase, and how far it is where the engine counts."""
        counts = self.done and self.phase == LOADING
        return f"{self.phase}, shard {self.done} of {self.total}" if counts else self.phase

    @property
    def model(self) -> str:
        """The served model that answered, '' while none did."""
        return self._look.model if self._look is not None else ""

    def see_unit(self, now: float, unit: Unit, io_bytes: int = 0) -> None:
        """The unit as it is now, and the bytes that its processes have moved so far."""
        self._unit = unit
        if self._first is None:
            self._await_invocation(unit)
        if self._first is not None and self._ended is None:
            self._watch(now, unit, self._first)
        if io_bytes > self._bytes:
            self._bytes = io_bytes
            self._moved_at = now

    def see_line(self, now: float, line: str) -> None:
        """A line of this invocation's log."""
        if ACCESS_LOG.search(line):
            return
        self._line_at = self._moved_at = now
        counted = PROGRESS.search(line)
        if counted:
            self.done, self.total = int(counted.group("done")), int(counted.group("total"))
            self._advance(now, next(n for n, stone in enumerate(self._engine.milestones) if stone.phase == LOADING))
        for position, milestone in enumerate(self._engine.milestones):
            if milestone.line.search(line):
                self._advance(now, position)
                break
        else:
            if not counted:
                self._note(now, line)
        if counted and self.tail and PROGRESS.search(self.tail[-1]):
            self.tail.pop()
        self.tail.append(line)

    def see_look(self, now: float, look: Look) -> None:
        """How far a look at its answers got."""
        self._look = look
        if not look.wrong:
            self._wrong_since = None
        elif self._wrong_since is None:
            self._wrong_since = now
        for name, at in look.passed.items():
            self.passed.setdefault(name, at)

    # --- what follows

    def verdict(self, now: float) -> Optional[Verdict]:
        """How it ended; None while that is open."""
        if self._refused is not None:
            return Verdict(False, self._refused)
        if self._ended is not None:
            quiet = now - self._line_at >= _SILENCE and now - self._ended_at >= _SILENCE
            if not quiet and now - self._ended_at < _LAST_WORDS:
                return None
            return self._explained(self._ended, stop=self._loops)
        if self._look is not None and self._look.ready:
            return Verdict(True)
        if self._lost_at is not None and now - self._lost_at >= _AGONY:
            return self._explained("it hangs instead of ending", stop=True)
        return self._impatience(now)

    def _impatience(self, now: float) -> Optional[Verdict]:
        said = f"; {self._look.problem}" if self._look is not None else ""
        if self._look is not None and self._look.hopeless:
            # Where not even the answer is its own, it loads for nothing.
            return Verdict(False, self._look.problem, stop=not self._look.passed)
        mute = "health" in self.passed and now - self.passed["health"] >= _MUTE
        if mute or (self._wrong_since is not None and now - self._wrong_since >= _WRONG):
            return Verdict(False, f"it calls itself healthy and does not complete a request{said}")
        if self._first is not None and now - self._moved_at >= self._stall_timeout:
            hint = self._cause()[1] or (
                "GPU peer-to-peer transfers may not work on this host (IOMMU, ACS): try NCCL_P2P_DISABLE=1"
                if self.phase == JOINING
                else ""
            )
            text = f"stalled, no new log line and no disk traffic for {self._stall_timeout:g} s"
            return Verdict(False, f"{text}; {hint}" if hint else text)
        if now - self._began >= self._ready_timeout:
            return Verdict(False, f"that took longer than {self._ready_timeout:g} s{said}")
        return None

    def _await_invocation(self, unit: Unit) -> None:
        if self._attached or unit.invocation_id not in ("", self._invocation_before):
            self._first = unit
        elif not unit.job and not unit.running and not unit.restarting:
            if not unit.assert_result or not unit.condition_result:
                self._refused = f"systemd refused the start: an Assert or Condition of {unit.name} does not hold"
            else:
                self._refused = (
                    f"systemd dropped the start of {unit.name}: a unit that it needs failed, or its start limit is hit"
                )

    def _watch(self, now: float, unit: Unit, first: Unit) -> None:
        # The count of an attached start has a past; ours began at nothing, even if the first crash was quicker than
        # our first look.
        before = first.n_restarts if self._attached else 0
        self._loops = unit.restarting or unit.n_restarts > before
        if self._loops:
            self._end(now, f"{_how(unit)}, and systemd would start it again and again")
        elif unit.active_state in ("inactive", "failed"):
            self._end(now, _how(unit))
        elif unit.active_state == "deactivating":
            self._end(now, _how(unit) if unit.exec_main_code else "somebody stops it")
        elif unit.invocation_id != first.invocation_id:
            self._end(now, "somebody started it again meanwhile")

    def _end(self, now: float, how: str) -> None:
        self._ended = how
        self._ended_at = now

    def _advance(self, now: float, position: int) -> None:
        # Eight workers report, and not in step: only forward counts.
        if position <= self._position:
            return
        self._position = position
        # Most likely, whatever was said before was overcome.
        self._overcome = next((known for known in self._causes if not known[0].vague), self._overcome)
        self._causes.clear()
        self._exception = ""
        self._last_words = ""
        self._lost_at = None
        phase = self._engine.milestones[position].phase
        if phase != self.phase:
            self.stages.append(Stage(phase, now))

    def _note(self, now: float, line: str) -> None:
        vague = False
        for cause in (*self._engine.causes, *CAUSES):
            match = cause.line.search(line)
            if match:
                vague = cause.vague
                self._causes.append((cause, _fill(cause.reason, match)))
                if cause.final and self._lost_at is None:
                    self._lost_at = now
                break
        exception = _EXCEPTION.search(line)
        if exception and not vague and not self._exception:
            self._exception = exception.group(1)
        if not _SYSTEMD.match(line):
            self._last_words = line.strip()

    def _cause(self) -> tuple[Optional[Cause], str]:
        """What most likely made it fail, None and '' where nothing was said."""
        for cause, text in self._causes:
            if not cause.vague:
                return cause, text
        if self._exception:
            return None, self._exception
        return (self._overcome or self._causes[0]) if self._causes else (None, "")

    def _explained(self, how: str, stop: bool) -> Verdict:
        cause, words = self._cause()
        if not words and self._unit is not None and self._unit.exec_main_code in (0, _CLD_EXITED):
            # It ended by itself: its last line may say why. Who is killed does not know.
            words = self._last_words
        return Verdict(False, f"{words} ({how})" if words else how, stop, cause.who if cause is not None else "")


def _fill(reason: str, match: re.Match[str]) -> str:
    return reason.format(**{name: (text or "").strip() for name, text in match.groupdict().items()})


def _how(unit: Unit) -> str:
    """How the unit ended, from what systemd keeps of it."""
    if unit.result == "oom-kill":
        return "the kernel killed it: the host's memory, or the unit's MemoryMax=, was used up"
    if unit.result == "timeout":
        return "systemd gave up on it: a timeout of the unit"
    if unit.result == "watchdog":
        return "systemd ended it: it missed the unit's WatchdogSec="
    if unit.result == "start-limit-hit":
        return "systemd does not start it any more: it was started too often"
    if not unit.exec_main_code:
        # systemd forgets a unit that ended well and that nothing refers to.
        ended = "it ended without an error: somebody stopped it, or it stopped by itself"
        return ended if unit.result == "success" else f"it failed before its engine ran ({unit.result})"
    if unit.exec_main_code == _CLD_EXITED:
        return f"it ended with exit status {unit.exec_main_status}"
    return f"it was killed by {_signal(unit.exec_main_status)}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
