# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Holds: while one stands, systemd refuses to start the unit, loudly, and says nothing else of it changes.

A hold is a file that tells people who holds and why, and a drop-in that makes systemd look for it. `Assert` refuses
starts and restarts; `Restart=no` is there because systemd 257 skips asserts in automatic restarts.

The sockets, timers and paths that start the unit are refused as well, and stopped by the drain: a socket or path whose
unit is refused a few times in a row fails for good (trigger-limit-hit), and would not be what it was afterwards.

With its hold goes the only word that a unit ran, and whoever was to start it again may be gone by then. So its start is
owed from before the hold is lifted: a file with the words of the hold, which outlives a reboot if that did. It is paid
when the engine answers, and moot when another one went into service, or runs when the next drain comes. An undrain that
starts nothing leaves it owed, and a drain that finds no engine running takes it over.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._holders import read_process
from ansible_collections.gpuops.inference.plugins.module_utils._masking import printable
from ansible_collections.gpuops.inference.plugins.module_utils._paths import (
    HOLDS,
    KEPT_HOLDS,
    KEPT_OWED,
    OWED,
    RUNTIME_UNITS,
    SYSTEM_UNITS,
)
from ansible_collections.gpuops.inference.plugins.module_utils._record import RecordError, read_json, write_json
from ansible_collections.gpuops.inference.plugins.module_utils._units import Unit, Units, UnitsError, parse_duration

UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]{0,244}\.service\Z")
"""systemd.unit(5): what a unit may be called. A name that does not fit cannot leave the directories below."""

DROP_IN_NAME = "90-gpuops-hold.conf"
DRAIN = "drain"
PIVOT = "pivot"
TRIGGER_TYPES = (".socket", ".timer", ".path")
ENDS = 10.0
"""Seconds for the end of a hold that has just begun: it removes files and reloads systemd."""
SETTLE = 2.0
"""Seconds for a trigger to be active again: it listens or waits, there is nothing to load."""


class HoldError(Exception):
    """A name that cannot be a service unit's, or a time that cannot be the end of a hold."""


@dataclass(frozen=True)
class Hold:
    """Who keeps a unit from starting. Times are seconds since the epoch; `until` 0 means until it is lifted.

    A hold for the length of one drain carries that drain's pid and start time: it ends with the process, so that a
    drain that was killed leaves no unit held for ever.
    """

    unit: str
    reason: str
    who: str
    since: float = field(default_factory=time.time)
    until: float = 0.0
    pid: int = 0
    start: int = 0
    controller: str = ""
    purpose: str = DRAIN
    """What it is part of: an undrain lifts those of a drain, and leaves those of a pivot."""
    over_reboot: bool = False
    ran: bool = False
    """The unit ran when a drain first held it. What a pivot stops is the pivot's to start again."""
    triggers: Mapping[str, str] = field(default_factory=dict)
    """The sockets, timers and paths of the unit, with the state (ActiveState) that each was first seen in."""

    def over(self, now: float) -> str:
        """Why it holds no longer; '' while it does."""
        if self.until and now >= self.until:
            return f"its time was up at {local_time(self.until)}"
        if not self.pid:
            return ""
        holder = read_process(self.pid)
        return "" if holder is not None and holder.start == self.start else "the drain that placed it was killed"

    def while_we_live(self) -> Hold:
        ourselves = read_process(os.getpid())
        return self if ourselves is None else replace(self, pid=ourselves.pid, start=ourselves.start)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "triggers": dict(self.triggers)}

    @property
    def end(self) -> str:
        """When it ends by itself, for people."""
        return (f"until {local_time(self.until)}" if self.until else "until it is lifted") + (
            ", over reboots" if self.over_reboot else "" if self.until else " or the host reboots"
        )

    @property
    def words(self) -> str:
        origin = f" from {self.controller}" if self.controller not in ("", "local", f"sudo by {self.who}") else ""
        return printable(f"held since {local_time(self.since)} by {self.who}{origin}: {self.reason} ({self.end})", 1000)

    def __str__(self) -> str:
        return f"{self.unit} is {self.words}"


def hold_of(data: Mapping[str, Any], unit: str) -> Hold:
    """TypeError or ValueError where the data are no hold's of this unit."""
    hold = Hold(**data)
    if hold.unit != unit:
        raise ValueError(f"unit is {hold.unit!r}")
    for name, like in asdict(Hold("", "", "", 0.0)).items():
        value = getattr(hold, name)
        right = 0 <= value < 1e11 if isinstance(like, float) else isinstance(value, type(like))
        if not right or (name == "triggers" and not all(map(_is_trigger, value.items()))):
            raise ValueError(f"{name} is {value!r}")
    return hold


def _is_trigger(item: tuple[str, Any]) -> bool:
    name, state = item
    return name.endswith(TRIGGER_TYPES) and bool(UNIT_NAME.match(f"{name}.service")) and isinstance(state, str)


def local_time(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def end_of_hold(text: str, now: float) -> float:
    """The moment meant by a time span (`4h`, `1d 12h`) or an ISO 8601 time, local where it names no zone."""
    words = text.split()
    if words and all(re.fullmatch(r"\d+(s|min|h|d|w)", word) for word in words):
        moment = now + parse_duration(text)
    else:
        try:
            moment = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text.strip())).timestamp()
        except (ValueError, OverflowError, OSError):
            raise HoldError(
                f"{text!r} is neither a time span (90min, 4h, 1d 12h) nor an ISO 8601 time (2027-01-31T06:00)"
            ) from None
    if moment <= now:
        raise HoldError(f"{text!r} is {local_time(moment)} here, which is past")
    return moment


def triggers_of(units: Iterable[str], loaded: Mapping[str, Unit], systemd: Units) -> dict[str, list[Unit]]:
    """The sockets, timers and paths that start each unit, those that are not active too."""
    names = {
        name: {
            *(other for other in loaded[name].triggered_by if other.endswith(TRIGGER_TYPES)),
            # systemd knows only those in its memory, and these need not be.
            *(name[: -len(".service")] + ending for ending in TRIGGER_TYPES),
        }
        for name in units
        if name in loaded
    }
    shown = systemd.show(sorted({name for group in names.values() for name in group}))
    return {
        name: [unit for other in sorted(group) if (unit := shown[other]).exists and name in unit.triggers]
        for name, group in names.items()
    }


def is_stopped_for_a_hold(trigger: Unit) -> bool:
    """Whether a hold stops this trigger.

    A timer that counts from the boot is left running: started again, it would at once do what it did long ago. Timers
    do not fail of refusals.
    """
    return trigger.active_state == "active" and not trigger.since_boot


class Holds:
    """The holds of this host: those that end with a reboot in /run, the others in /var and /etc."""

    def __init__(
        self,
        directory: Path = HOLDS,
        units: Path = RUNTIME_UNITS,
        kept: Path = KEPT_HOLDS,
        kept_units: Path = SYSTEM_UNITS,
        owed: Path = OWED,
        kept_owed: Path = KEPT_OWED,
    ) -> None:
        self.directory = directory
        self.units = units
        self._places = {True: (kept, kept_units), False: (directory, units)}
        self._owed = {True: kept_owed, False: owed}

    def read(self, unit: str) -> Optional[Hold]:
        """The standing hold of a unit; one that is over is none. Raises RecordError if its file is broken."""
        hold = self._read(unit)
        return None if hold is None or hold.over(time.time()) else hold

    def left_over(self, units: Iterable[str]) -> dict[str, str]:
        """Those of the units that are still refused though their hold is over, and why it is."""
        found = {}
        for unit in units:
            hold = self._read(unit)
            why = hold.over(time.time()) if hold is not None else "nobody knows who placed it"
            if why and (hold is not None or any(self._drop_in(unit, kept).exists() for kept in (True, False))):
                found[unit] = why
        return found

    def all(self) -> list[Hold]:
        """Those that stand, and those that are over and were not lifted. RecordError names a file that is broken."""
        names = set(_names(directory for directory, _units in self._places.values()))
        for _directory, units in self._places.values():
            names.update(path.parent.stem for path in units.glob(f"*.service.d/{DROP_IN_NAME}"))
        # Where somebody moved its words away, it is to be lifted all the same.
        return [self._read(name) or Hold(name, "what it said is gone", "somebody") for name in sorted(names)]

    def owed(self) -> list[Hold]:
        """The lifted holds of units that ran before a drain and have not answered since."""
        directories = self._owed.values()
        return [hold for name in _names(directories) if (hold := _words(directories, name)) is not None]

    def forget_owed(self, units: Optional[Iterable[str]] = None) -> None:
        """These, or all, answer or are not to be started any more."""
        directories = self._owed.values()
        for unit in _names(directories) if units is None else units:
            for directory in directories:
                (directory / _checked(unit)).unlink(missing_ok=True)

    def wanting(self, holds: Iterable[Hold]) -> list[Hold]:
        """What has to be written so that these stand: new ones, those of which a part is missing, those to be kept.

        An older hold keeps its own words, but for one of a drain that a pivot takes over: that must not end while the
        pivot is at work. What was first seen of a unit and its triggers is never forgotten, not even with a hold that
        is over: later looks see what that hold made of them.
        """
        wanted = []
        for new in holds:
            old = self._read(new.unit)
            if old is None:
                wanted.append(new)
            elif old.over(time.time()):
                ran = new.ran or (old.ran and new.purpose == DRAIN)
                wanted.append(replace(new, ran=ran, triggers={**new.triggers, **old.triggers}))
            elif (old.purpose, new.purpose) == (DRAIN, PIVOT):
                kept = old.over_reboot or new.over_reboot
                wanted.append(replace(new, over_reboot=kept, triggers={**new.triggers, **old.triggers}))
            elif (
                new.over_reboot > old.over_reboot
                or not self._drop_in(old.unit, old.over_reboot).exists()
                or set(new.triggers) - set(old.triggers)
            ):
                kept = old.over_reboot or new.over_reboot
                wanted.append(replace(old, over_reboot=kept, triggers={**new.triggers, **old.triggers}))
        return wanted

    def place(self, holds: Iterable[Hold], systemd: Units) -> list[str]:
        """Hold the units that are not held yet. Returns those for which something was written."""
        return self._write(self.wanting(holds), systemd)

    def put_back(self, holds: Iterable[Hold], systemd: Units) -> None:
        """Place these as they were before a pivot took them over. What would have ended meanwhile ends now."""
        holds = list(holds)
        self._write(holds, systemd)
        self.lift([hold.unit for hold in holds if hold.over(time.time())], systemd)

    def _write(self, wanted: list[Hold], systemd: Units) -> list[str]:
        for hold in wanted:
            old = self._read(hold.unit)
            over = old is not None and bool(old.over(time.time()))
            if old is not None and (over or old.purpose != hold.purpose):
                if old.ran and not hold.ran:
                    self._owe(old)
                self._stop_ends([old], systemd)
                # Words and refusals stay until the new ones are read: what systemd has in memory refers to them.
                _remove(self._files(old, old.over_reboot) if over else self._end_files(old, old.over_reboot))
            directory, units = self._places[hold.over_reboot]
            write_json(directory / _checked(hold.unit), hold.as_dict())
            marker = str(directory / hold.unit).replace("%", "%%")
            refuse = f"[Unit]\nAssertPathExists=!{marker}\n"
            _write(self._drop_in(hold.unit, hold.over_reboot), refuse + "\n[Service]\nRestart=no\n")
            for trigger in hold.triggers:
                _write(self._drop_in(trigger, hold.over_reboot), refuse)
            if hold.until:
                self._write_end(hold, directory / hold.unit, units)
        if wanted:
            systemd.daemon_reload()
        for hold in wanted:
            # One that moves stands twice until here, so that there is no moment without it.
            (self._places[not hold.over_reboot][0] / hold.unit).unlink(missing_ok=True)
            _remove(self._files(hold, not hold.over_reboot))
            if hold.until:
                systemd.start(_ender(hold.unit, ".timer"))
        return [hold.unit for hold in wanted]

    def lift(self, units: Iterable[str], systemd: Units, owe: bool = True) -> list[str]:
        """Take holds away, those that are over too, and give their triggers back. Returns the units that had one.

        owe False is for a hold that nobody was told to keep: what ran before it is not owed. Killed at any point, what
        is left is either still a hold or hinders nothing, and the next lift goes on from it: the words, with what is to
        be given back, go last. UnitsError if a trigger does not start again.
        """
        lifted = {unit: self._read(unit) for unit in units if self._traces(unit)}
        if not lifted:
            return []
        for hold in lifted.values():
            if owe and hold is not None and hold.ran:
                self._owe(hold)
        self._stop_ends([hold for hold in lifted.values() if hold is not None], systemd)
        for unit, hold in lifted.items():
            for kept in (True, False):
                _remove(self._files(hold or Hold(unit, "", ""), kept))
        systemd.daemon_reload()
        due = sorted(
            trigger for hold in lifted.values() if hold for trigger, state in hold.triggers.items() if state == "active"
        )
        # If systemd does not answer the words stay, and the next lift starts what they name.
        failed = _give_back(due, systemd)
        for unit in lifted:
            for directory, _units in self._places.values():
                (directory / unit).unlink(missing_ok=True)
        if failed:
            raise UnitsError(
                f"the hold is lifted, but {', '.join(failed)}, active before it, cannot be started again: "
                f"see `systemctl status {failed[0]}`"
            )
        return list(lifted)

    def unread(self, loaded: Mapping[str, Unit]) -> list[str]:
        """Units for which systemd goes by another hold than is written down: somebody was killed before the reload."""

        def written(name: str) -> list[str]:
            # The one in /etc goes before the one in /run.
            paths = [self._drop_in(name, kept) for kept in (True, False)]
            return [str(path) for path in paths if path.exists()][:1]

        return [
            name
            for name, unit in loaded.items()
            if [path for path in unit.drop_in_paths if path.endswith(f"/{DROP_IN_NAME}")] != written(name)
        ]

    def _stop_ends(self, holds: Iterable[Hold], systemd: Units) -> None:
        """Before the files go: a timer whose unit vanishes has failed, and one that just came would take ours away."""
        units = [hold.unit for hold in holds if hold.until]
        timers = systemd.show([_ender(unit, ".timer") for unit in units])
        systemd.stop([name for name, timer in timers.items() if timer.active_state == "active"])
        deadline = time.monotonic() + ENDS
        while any(
            service.active_state == "activating"
            for service in systemd.show([_ender(unit, ".service") for unit in units]).values()
        ):
            if time.monotonic() >= deadline:
                raise UnitsError(
                    f"the hold of {', '.join(units)} ends just now and does not come to its end: run again"
                )
            time.sleep(0.05)

    def _owe(self, hold: Hold) -> None:
        write_json(self._owed[hold.over_reboot] / hold.unit, hold.as_dict())

    # --- files

    def _read(self, unit: str) -> Optional[Hold]:
        return _words((directory for directory, _units in self._places.values()), unit)

    def _traces(self, unit: str) -> bool:
        return any((directory / _checked(unit)).exists() for directory, _units in self._places.values()) or any(
            self._drop_in(unit, kept).exists() for kept in (True, False)
        )

    def _drop_in(self, unit: str, kept: bool) -> Path:
        name = unit if unit.endswith(TRIGGER_TYPES) else _checked(unit)
        return self._places[kept][1] / f"{name}.d" / DROP_IN_NAME

    def _files(self, hold: Hold, kept: bool) -> Iterator[Path]:
        """All that a hold wrote for systemd."""
        yield from (self._drop_in(name, kept) for name in (hold.unit, *hold.triggers))
        yield from self._end_files(hold, kept)

    def _end_files(self, hold: Hold, kept: bool) -> Iterator[Path]:
        units = self._places[kept][1]
        if hold.until:
            yield units / "timers.target.wants" / _ender(hold.unit, ".timer")
            yield units / _ender(hold.unit, ".timer")
            yield units / _ender(hold.unit, ".service")

    # --- the end of a hold with an end

    def _write_end(self, hold: Hold, marker: Path, units: Path) -> None:
        """A timer that lifts the hold when its time is up, as `lift` does: nobody of ours may be there then."""
        timer, service = _ender(hold.unit, ".timer"), _ender(hold.unit, ".service")
        moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(hold.until + 1))
        drop_ins = [self._drop_in(name, hold.over_reboot) for name in (hold.unit, *hold.triggers)]
        own = list(self._end_files(hold, hold.over_reboot))
        due = [trigger for trigger, state in hold.triggers.items() if state == "active"]
        owed = self._owed[hold.over_reboot]
        commands = [
            ["/bin/systemctl", "stop", timer],
            ["/bin/rm", "-f", *map(str, drop_ins)],
            ["-/bin/rmdir", *(str(path.parent) for path in drop_ins)],
            ["/bin/systemctl", "daemon-reload"],
            *([["-/bin/systemctl", "start", "--no-block", *due]] if due else []),
            *(
                [["/bin/mkdir", "-p", "-m", "700", str(owed)], ["/bin/mv", "-f", str(marker), str(owed / hold.unit)]]
                if hold.ran
                else []
            ),
            ["/bin/rm", "-f", str(marker), *map(str, own)],
        ]
        _write(
            units / service,
            f"[Unit]\nDescription=Lift the hold of {hold.unit}\n\n[Service]\nType=oneshot\n"
            # It is asked after each boot, too.
            f"ExecCondition=/bin/sh -c 'test \"$(date +%%s)\" -ge {int(hold.until)}'\n"
            + "".join(f"ExecStart={' '.join(map(_word, command))}\n" for command in commands),
        )
        _write(
            units / timer,
            f"[Unit]\nDescription=End of the hold of {hold.unit}\n\n"
            # A moment that passed while the host was off never comes.
            f"[Timer]\nOnCalendar={moment}\nAccuracySec=1s\n" + "OnBootSec=10s\n" * hold.over_reboot,
        )
        if hold.over_reboot:
            wants = units / "timers.target.wants" / timer
            wants.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                wants.symlink_to(f"../{timer}")


def _give_back(names: list[str], systemd: Units) -> list[str]:
    """Start these triggers again, and see that they are. Returns those that are not."""
    deadline = time.monotonic() + SETTLE
    failed = []
    for name in names:
        if systemd.show([name])[name].active_state == "active":
            continue
        try:
            systemd.start(name)
        except UnitsError:
            failed.append(name)
    waiting = [name for name in names if name not in failed]
    while waiting:
        waiting = [name for name, unit in systemd.show(waiting).items() if unit.active_state != "active"]
        if waiting and time.monotonic() >= deadline:
            failed += waiting
            break
        if waiting:
            time.sleep(0.05)
    return failed


def _names(directories: Iterable[Path]) -> list[str]:
    """The units that have a file in these."""
    names: set[str] = set()
    for directory in directories:
        try:
            names.update(name for name in os.listdir(directory) if UNIT_NAME.match(name))
        except FileNotFoundError:
            continue
        except PermissionError as error:
            raise RecordError(f"only root reads {directory}: run with `become: true`") from error
    return sorted(names)


def _words(directories: Iterable[Path], unit: str) -> Optional[Hold]:
    """The words of a unit's hold in the first of these that has some."""
    for directory in directories:
        path = directory / _checked(unit)
        data = read_json(path)
        if data is not None:
            try:
                return hold_of(data, unit)
            except (TypeError, ValueError) as error:
                raise RecordError(
                    f"{path} is no hold of this release ({error}); look at it, then move it away"
                ) from error
    return None


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
        if path.parent.suffix in (".d", ".wants"):
            with suppress(OSError):
                path.parent.rmdir()


def _ender(unit: str, ending: str) -> str:
    return f"gpuops-hold-{unit[: -len('.service')]}{ending}"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def _word(text: str) -> str:
    """One argument of an ExecStart=; the dash before a program stays outside of the quotes."""
    escaped = text.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    return f'-"{escaped[1:]}"' if text.startswith("-/") else f'"{escaped}"'


def _checked(unit: str) -> str:
    if not UNIT_NAME.match(unit):
        raise HoldError(f"{unit!r} is no name of a service unit")
    return unit
