# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Ending processes: SIGTERM, wait, SIGKILL, wait. Each is pinned by a pidfd first, so a reused pid is never hit."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Optional

from ansible_collections.gpuops.inference.plugins.module_utils._holders import Process, read_process

Told = Callable[[str, "Pinned"], None]
"""Called with the name of each signal as it is sent."""


@dataclass(frozen=True)
class Ended:
    """A process that is gone. `signal` is the last one it was sent; '' where it left with the others."""

    pid: int
    start: int
    name: str
    signal: str
    seconds: float


class Pinned:
    """One process held by its pidfd; signals reach it or nobody."""

    def __init__(self, process: Process, descriptor: int) -> None:
        self.process = process
        self.descriptor = descriptor
        self.signal = ""

    def send(self, number: signal.Signals) -> bool:
        """False if it was gone already."""
        try:
            signal.pidfd_send_signal(self.descriptor, number)
        except ProcessLookupError:
            return False
        self.signal = number.name
        return True


def pin(process: Process) -> Optional[Pinned]:
    """Take hold of exactly this process; None if it is gone, also where a stranger has its pid now."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as error:
        # EINVAL (ENOENT on newer kernels): the number lives on as a session's, or as a thread's.
        if error.errno not in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
            raise
        return None
    now = read_process(process.pid)
    if now is None or now.identity != process.identity:
        os.close(descriptor)
        return None
    return Pinned(process, descriptor)


class Ending:
    """A set of pinned processes that is to be gone. A context manager: it closes the pidfds."""

    def __init__(self, processes: Iterable[Process], clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.began = clock()
        self.alive = {pinned.descriptor: pinned for process in processes if (pinned := pin(process))}
        self.ended: list[Ended] = []
        self._poll = select.poll()
        for descriptor in self.alive:
            self._poll.register(descriptor, select.POLLIN)

    def __enter__(self) -> Ending:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        for descriptor in self.alive:
            os.close(descriptor)
        self.alive = {}

    @property
    def survivors(self) -> list[Process]:
        return [pinned.process for pinned in self.alive.values()]

    def end(self, term: Collection[int], term_timeout: float, kill_timeout: float, told: Told) -> None:
        """SIGTERM to the pids in `term`, SIGKILL to all that are left after term_timeout seconds.

        Returns when all are gone, or kill_timeout seconds after SIGKILL with the survivors left in `alive`.
        """
        self._signal(signal.SIGTERM, [item for item in self.alive.values() if item.process.pid in term], told)
        self._wait(term_timeout)
        self._signal(signal.SIGKILL, list(self.alive.values()), told)
        self._wait(kill_timeout)

    def _signal(self, number: signal.Signals, targets: Iterable[Pinned], told: Told) -> None:
        for pinned in targets:
            if pinned.send(number):
                told(number.name, pinned)

    def _wait(self, timeout: float) -> None:
        """Wait on the pidfds: readable once the whole thread group is gone, zombie leaders included."""
        deadline = self.clock() + timeout
        while self.alive and (left := deadline - self.clock()) > 0:
            for descriptor, _event in self._poll.poll(left * 1000):
                self._poll.unregister(descriptor)
                pinned = self.alive.pop(descriptor)
                os.close(descriptor)
                process = pinned.process
                self.ended.append(
                    Ended(
                        process.pid,
                        process.start,
                        process.comm,
                        pinned.signal,
                        round(self.clock() - self.began, 3),
                    )
                )
