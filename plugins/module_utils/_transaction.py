# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""A pivot as data: what was observed, what is so now, and what follows from the two. Nothing here touches the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

VERSION = 1
"""Of the record's format; a record of another version is never guessed at."""

FORWARD = ("begun", "drained", "started", "ready", "enabled")
"""Each is written when its step is complete, `started` when the start is about to be asked for."""
BACKWARD = ("rolling_back", "rollback_failed")
FINISHED = ("done", "rolled_back")

NEW, RESUME, GO_BACK, OVER, SETTLED = "new", "resume", "go back", "over", "settled"
RETURN, NEVER = "return", "never"


class TransactionError(Exception):
    """The pivot must not go on from here; the message says why and what to do."""


@dataclass(frozen=True)
class FileState:
    """A file as it was: its content's digest, who may use it, and where it points if it is a link."""

    sha256: str
    mode: int
    uid: int
    gid: int
    link: Optional[str] = None


@dataclass(frozen=True)
class UnitState:
    """An engine unit as it was observed."""

    unit: str
    engine: str = ""
    exists: bool = True
    unit_file_state: str = ""
    active: bool = False
    """It runs, or is on its way to: what must run again after a rollback."""
    invocation_id: str = ""
    argv: tuple[str, ...] = ()
    """The main process's own command line, () if nothing runs."""
    command: tuple[str, ...] = ()
    """ExecStart, split on spaces."""
    profiling: tuple[str, ...] = ()
    files: Mapping[str, Optional[FileState]] = field(default_factory=dict)
    """By path: fragment, drop-ins, environment files; None where there was none."""
    dependents: tuple[str, ...] = ()
    """Active units that stop when this one stops."""

    @property
    def enabled(self) -> bool:
        return self.unit_file_state == "enabled"

    @property
    def runs_its_own_command(self) -> bool:
        """Whether the running arguments are the unit's; a script's interpreter comes before its own name."""
        running = " ".join(self.argv).split()
        wanted = list(self.command)
        return bool(wanted) and len(running) - len(wanted) in (0, 1, 2) and running[-len(wanted) :] == wanted

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "argv": list(self.argv),
            "command": list(self.command),
            "profiling": list(self.profiling),
            "dependents": list(self.dependents),
            "files": {path: state and dict(state.__dict__) for path, state in self.files.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> UnitState:
        return cls(
            **{
                **data,
                "argv": tuple(data["argv"]),
                "command": tuple(data["command"]),
                "profiling": tuple(data["profiling"]),
                "dependents": tuple(data["dependents"]),
                "files": {path: state and FileState(**state) for path, state in data["files"].items()},
            }
        )


@dataclass(frozen=True)
class Loose:
    """An engine process that no engine unit answers for: it can be ended, and nobody could start it again."""

    pid: int
    engine: str
    main: bool
    """It is a server, not a worker left behind by one."""
    owner: str
    command: str

    def __str__(self) -> str:
        return f"{self.engine} pid {self.pid} ({self.owner}): {self.command}"


@dataclass(frozen=True)
class Scene:
    """What is so now."""

    units: Mapping[str, UnitState]
    loose: tuple[Loose, ...] = ()
    gpus: Optional[frozenset[int]] = None
    """Indexes of the GPUs that this is about; None for all of the host."""

    @property
    def active(self) -> set[str]:
        return {name for name, unit in self.units.items() if unit.active}

    @property
    def enabled(self) -> set[str]:
        return {name for name, unit in self.units.items() if unit.enabled}

    @property
    def servers(self) -> tuple[Loose, ...]:
        return tuple(loose for loose in self.loose if loose.main)


@dataclass(frozen=True)
class Decision:
    """How a pivot goes on: `keep` means that the record's observation stays the one to go back to."""

    mode: str
    drain: bool
    keep: bool
    why: str


def unfinished(record: Optional[Mapping[str, Any]]) -> bool:
    """Whether a record tells of a pivot that neither arrived nor came back. TransactionError if it cannot be read."""
    if record is None:
        return False
    if record.get("version") != VERSION or record.get("phase") not in FORWARD + BACKWARD + FINISHED:
        raise TransactionError(
            f"the pivot's record is of version {record.get('version')!r}, phase {record.get('phase')!r}, which this "
            "release does not know; finish that pivot with the release that began it, or move the record away"
        )
    return record["phase"] not in FINISHED


def refuse_overlap(others: Iterable[Mapping[str, Any]], scene: Scene) -> None:
    """Each set of GPUs has a record of its own. Raises TransactionError if one that shares a GPU is unfinished."""
    for record in others:
        indexes = record.get("gpus")
        if unfinished(record) and (indexes is None or scene.gpus is None or scene.gpus & {*indexes}):
            gpus = "all GPUs" if indexes is None else f"the GPUs {', '.join(map(str, indexes))}"
            raise TransactionError(
                f"a pivot of {gpus} to {record['target']} was left in phase {record['phase']}: run it again, or "
                "restore_production.yml, with those GPUs (gpuops_instance or gpuops_gpus as it was then)"
            )


def observed(record: Mapping[str, Any]) -> dict[str, UnitState]:
    """The units as the record's pivot found them."""
    return {name: UnitState.from_dict(data) for name, data in record["observed"].items()}


def untouched(before: Mapping[str, UnitState], scene: Scene) -> bool:
    """Whether every observed unit still is as it was: same start, same files, same enablement."""
    return all(
        name in scene.units
        and (unit.active, unit.invocation_id, unit.unit_file_state, dict(unit.files))
        == (
            scene.units[name].active,
            scene.units[name].invocation_id,
            scene.units[name].unit_file_state,
            dict(scene.units[name].files),
        )
        for name, unit in before.items()
    )


def decide(record: Optional[Mapping[str, Any]], target: str, scene: Scene) -> Decision:
    """What a pivot to `target` has to do, given what an earlier one left and what runs now."""
    others = scene.active - {target}
    up = target in scene.active and not others and not scene.servers
    running = ", ".join(sorted(others)) or ", ".join(map(str, scene.servers)) or "nothing"
    if not unfinished(record) or record is None:
        if up:
            return Decision(SETTLED, False, False, f"{target} runs, and no other engine does")
        return Decision(NEW, True, False, f"{running} runs now")
    left = f"an earlier pivot to {record['target']} was left in phase {record['phase']}"
    outgoing = {name for name, unit in observed(record).items() if unit.active}
    if outgoing and others == outgoing and target not in scene.active:
        # Whoever brought production back may also have changed it: what runs now is what must come back.
        return Decision(NEW, True, False, f"{left}, and {running} runs again")
    if target == record["target"] and record["phase"] in FORWARD:
        return Decision(RESUME, not up, True, f"{left}; this one finishes it")
    if target in outgoing:
        return Decision(GO_BACK, not up, True, f"{left}; this one goes back to {target}")
    return Decision(OVER, not up, True, f"{left}; this one takes its place")


def as_it_was(before: Mapping[str, UnitState], scene: Scene) -> bool:
    """Whether the observed units run, start at boot and read what they did; started again counts as the same."""
    now = scene.units
    return scene.active == {name for name, unit in before.items() if unit.active} and all(
        name in now
        and now[name].unit_file_state == unit.unit_file_state
        and dict(now[name].files) == {**dict.fromkeys(now[name].files), **unit.files}
        for name, unit in before.items()
    )


@dataclass(frozen=True)
class Return:
    """What going back from the last finished pivot means."""

    before: Mapping[str, UnitState]
    source: Mapping[str, Any]
    """The record of the pivot that is taken back."""
    start: tuple[str, ...]
    done: bool
    """It is so already."""
    why: str


def find_return(record: Mapping[str, Any], scene: Scene) -> Return:
    """What the engine before the last finished pivot was. TransactionError where there is no going back to it."""
    if unfinished(record):
        raise TransactionError(
            f"a pivot to {record['target']} was left in phase {record['phase']}: run it again to finish it, or "
            "restore_production.yml to undo it"
        )
    source = record.get("undoes") or record
    before = observed(source)
    start = tuple(sorted(name for name, unit in before.items() if unit.active))
    ended = record["phases"][-1]["at"]
    went = "failed and was undone" if record["phase"] == "rolled_back" else "was finished"
    if source is not record:
        went = "was to be taken back, and was not" if record["phase"] == "rolled_back" else "was taken back"
    why = f"the pivot to {source['target']} {went}, {ended}"
    if as_it_was(before, scene):
        runs = ", ".join(start) or "no engine"
        return Return(before, source, start, True, f"already back: {why}, and {runs} runs, as before it")
    if (source is record) == (record["phase"] == "rolled_back"):
        raise TransactionError(f"{why}; what is different since then is no pivot's doing: use restore_production.yml")
    if not start:
        raise TransactionError(f"{why}, and no engine ran before it: drain.yml stops what runs now")
    return Return(before, source, start, False, why)


def changed_since(record: Mapping[str, Any], scene: Scene) -> list[str]:
    """Files of the engine units that are not as the pivot left them."""
    found = []
    for name, left in record.get("arrived", {}).items():
        files = scene.units[name].files if name in scene.units else {}
        for path in sorted({*left, *files}):
            was = left.get(path) and FileState(**left[path])
            state = files.get(path)
            if was != state:
                found.append(f"{path} {'is new' if was is None else 'is gone' if state is None else 'has changed'}")
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Production:
    """The unit that is to serve, why it is that one, and whether the earlier pivot's changes are to be undone."""

    unit: str
    why: str
    undo: bool


def find_production(record: Optional[Mapping[str, Any]], named: str, scene: Scene) -> Production:
    """The production unit: the one named, or what an unfinished pivot found, or the one enabled engine unit.

    Raises TransactionError, saying what to pass, when that is not exactly one.
    """
    pending = record is not None and unfinished(record) and record["phase"] != "enabled"
    before = observed(record) if record is not None and pending else {}
    was = {name for name, unit in before.items() if unit.active} or {
        name for name, unit in before.items() if unit.enabled
    }
    if named:
        if named not in scene.units or (not scene.units[named].exists and named not in was):
            raise TransactionError(f"{named} is no engine unit of this host: check gpuops_production_unit")
        return Production(named, "named by the caller", undo=named in was)
    if len(was) == 1:
        return Production(was.pop(), "what ran before the unfinished pivot", undo=True)
    enabled = scene.enabled
    if len(enabled) != 1:
        found = ", ".join(sorted(enabled)) or "none"
        raise TransactionError(
            f"production is the one enabled engine unit, and {len(enabled)} are enabled ({found}): pass "
            f"gpuops_production_unit, one of {', '.join(sorted(scene.units)) or 'the engine units you deploy'}"
            + (", or the GPUs of one of them (gpuops_gpus, gpuops_instance)" if len(enabled) > 1 else "")
        )
    return Production(enabled.pop(), "the enabled engine unit", undo=False)


def at_rest(production: Production, scene: Scene) -> bool:
    """Whether production alone runs, as its unit says, so that nothing needs to be ended."""
    unit = scene.units[production.unit]
    return scene.active == {production.unit} and not scene.loose and not unit.profiling and unit.runs_its_own_command


def seconds_text(stages: Sequence[Mapping[str, Any]]) -> str:
    """`drain 12.3 s, load 41.0 s` from stages of {name, seconds}."""
    return ", ".join(f"{stage['name']} {float(stage['seconds']):.1f} s" for stage in stages)
