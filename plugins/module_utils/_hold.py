# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Holds: while one stands, systemd refuses to start the unit, loudly, and says nothing else of it changes.

A hold is a file that tells people who holds and why, and a drop-in that makes systemd look for it. `Assert` refuses
starts and restarts; `Restart=no` is there because systemd 257 skips asserts in automatic restarts.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Optional

from ansible_collections.gpuops.inference.plugins.module_utils._holders import read_process
from ansible_collections.gpuops.inference.plugins.module_utils._paths import HOLDS, RUNTIME_UNITS
from ansible_collections.gpuops.inference.plugins.module_utils._record import RecordError, read_json, write_json

UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]{0,244}\.service\Z")
"""systemd.unit(5): what a unit may be called. A name that does not fit cannot leave the directories below."""

DROP_IN_NAME = "90-gpuops-hold.conf"


class HoldError(Exception):
    """The name cannot be a service unit's."""


@dataclass(frozen=True)
class Hold:
    """Who keeps a unit from starting. Times are seconds since the epoch; `until` 0 means until it is lifted.

    A hold for the length of one drain carries that drain's pid and start time: it ends with the process, so that a
    drain that was killed leaves no unit held for ever.
    """

    unit: str
    reason: str
    who: str
    since: float
    until: float = 0.0
    pid: int = 0
    start: int = 0

    def over(self, now: float) -> bool:
        if self.until and now >= self.until:
            return True
        if not self.pid:
            return False
        holder = read_process(self.pid)
        return holder is None or holder.start != self.start

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"{self.unit} is held since {since} by {self.who}: {self.reason}"


class Holds:
    """The holds of this host. Every change needs a daemon-reload afterwards, which is the caller's to batch."""

    def __init__(self, directory: Path = HOLDS, units: Path = RUNTIME_UNITS) -> None:
        self.directory = directory
        self.units = units

    def read(self, unit: str) -> Optional[Hold]:
        """The standing hold of a unit; one that is over is none. Raises RecordError if its file is broken."""
        data = read_json(self.directory / _checked(unit))
        try:
            hold = Hold(**data) if data is not None else None
        except TypeError as error:
            raise RecordError(
                f"{self.directory / unit} is no hold of this release ({error}); look at it, then remove it"
            ) from error
        return None if hold is None or hold.over(time.time()) else hold

    def left_over(self, units: Iterable[str]) -> list[str]:
        """Those of the units that are still refused though their hold is over: its drain was killed, or time is up."""
        return [unit for unit in units if self._drop_in(unit).exists() and self.read(unit) is None]

    def all(self) -> list[Hold]:
        try:
            names = sorted(name for name in os.listdir(self.directory) if name.endswith(".service"))
        except FileNotFoundError:
            return []
        except PermissionError as error:
            raise RecordError(f"only root reads {self.directory}: run with `become: true`") from error
        return [hold for name in names if (hold := self.read(name)) is not None]

    def place(self, units: Iterable[str], reason: str, who: str, until: float = 0.0, lasting: bool = True) -> list[str]:
        """Hold the units that are not held yet; an older hold keeps its own words. Returns those newly held.

        One that is not lasting is over when this process is.
        """
        placed = [unit for unit in units if self.read(unit) is None]
        ourselves = None if lasting else read_process(os.getpid())
        for unit in placed:
            hold = Hold(unit, reason, who, time.time(), until)
            if ourselves is not None:
                hold = replace(hold, pid=ourselves.pid, start=ourselves.start)
            write_json(self.directory / unit, asdict(hold))
            drop_in = self._drop_in(unit)
            drop_in.parent.mkdir(parents=True, exist_ok=True)
            marker = str(self.directory / unit).replace("%", "%%")
            drop_in.write_text(f"[Unit]\nAssertPathExists=!{marker}\n\n[Service]\nRestart=no\n", encoding="ascii")
        return placed

    def lift(self, units: Iterable[str]) -> list[str]:
        """Take holds away, those that are over too. Returns the units that had one."""
        lifted = []
        for unit in units:
            drop_in = self._drop_in(unit)
            if drop_in.exists() or (self.directory / unit).exists():
                lifted.append(unit)
            (self.directory / unit).unlink(missing_ok=True)
            drop_in.unlink(missing_ok=True)
            if drop_in.parent.is_dir() and not any(drop_in.parent.iterdir()):
                drop_in.parent.rmdir()
        return lifted

    def _drop_in(self, unit: str) -> Path:
        return self.units / f"{_checked(unit)}.d" / DROP_IN_NAME


def _checked(unit: str) -> str:
    if not UNIT_NAME.match(unit):
        raise HoldError(f"{unit!r} is no name of a service unit")
    return unit
