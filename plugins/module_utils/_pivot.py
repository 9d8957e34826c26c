# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""The pivot's record on the host: written before anything is touched, and read first by whoever comes next."""

from __future__ import annotations

import glob
import hashlib
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._backup import (
    differs,
    forget,
    keep,
    kept,
    look,
    put_back,
)
from ansible_collections.gpuops.inference.plugins.module_utils._engines import argument, serving
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import select_gpus
from ansible_collections.gpuops.inference.plugins.module_utils._hold import (
    DRAIN,
    DROP_IN_NAME,
    Holds,
    hold_of,
)
from ansible_collections.gpuops.inference.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.inference.plugins.module_utils._masking import mask_command, mask_text
from ansible_collections.gpuops.inference.plugins.module_utils._paths import (
    BACKUPS,
    CONFIG,
    LOCK,
    PIVOT,
    RECORDS,
    SYSTEM_UNITS,
)
from ansible_collections.gpuops.inference.plugins.module_utils._ports import listeners
from ansible_collections.gpuops.inference.plugins.module_utils._probe import Probe
from ansible_collections.gpuops.inference.plugins.module_utils._record import (
    Lock,
    now,
    read_json,
    whoami,
    write_json,
)
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import (
    Snapshot,
    concerns,
    load_units,
    take_snapshot,
)
from ansible_collections.gpuops.inference.plugins.module_utils._transaction import (
    BACKWARD,
    FORWARD,
    NEVER,
    RETURN,
    SETTLED,
    VERSION,
    FileState,
    Loose,
    Return,
    Scene,
    TransactionError,
    UnitState,
    at_rest,
    changed_since,
    decide,
    find_production,
    find_return,
    observed,
    refuse_overlap,
    seconds_text,
    unfinished,
    untouched,
)
from ansible_collections.gpuops.inference.plugins.module_utils._units import Unit, Units

KEPT = 5
"""Finished pivots whose record and files stay on the host."""

Result = dict[str, Any]


# --- what is so now ------------------------------------------------------------------------------------------------


def observe(units: Units, named: Sequence[str], gpus: Sequence[str] = ("all",)) -> Scene:
    """Look at the engine units (the named ones, and any other that runs or is enabled) and at engines without a unit.

    With only some GPUs selected, other engines matter that use one of them, or would if they ran: their neighbours are
    none of our business.
    Raises TransactionError for a named unit that runs something else, UnitsError, RecordError, GpuSelectionError.
    """
    with Probe() as probe:
        snapshot = take_snapshot(probe, load_units(units, named), named)
    return make_scene(units, snapshot, named, gpus)


def make_scene(units: Units, snapshot: Snapshot, named: Sequence[str], gpus: Sequence[str]) -> Scene:
    """What a snapshot means for a pivot on these GPUs."""
    users = selected = None
    if not _whole_host(gpus):
        selected = frozenset(gpu.index for gpu in select_gpus(snapshot.reading, gpus))
        users = {pid for pid, seen in snapshot.seen.items() if seen.uses(selected)}
    found = {}
    for name, engine_unit in snapshot.units.items():
        unit = engine_unit.unit
        matters = _active(unit) or unit.unit_file_state == "enabled"
        if users is not None and selected is not None:
            matters = not users.isdisjoint(engine_unit.pids) or (matters and concerns(engine_unit, selected, snapshot))
        if name in named or matters:
            found[name] = _state(units, unit, engine_unit.engine, snapshot)
    absent = units.show([name for name in named if name not in found])
    for name, unit in absent.items():
        if unit.exists and unit.load_state != "masked":
            raise TransactionError(snapshot.rejected_units.get(name, f"{name} runs no engine"))
        # A mask is no unit that a drain could hold: nothing starts it.
        found[name] = UnitState(name, exists=False, unit_file_state=unit.unit_file_state, files=look(_paths(unit)))
    return Scene(found, _loose(snapshot, users), selected)


def _whole_host(gpus: Sequence[str]) -> bool:
    return any(name.strip().lower() == "all" for name in gpus)


def _active(unit: Unit) -> bool:
    return unit.running and unit.active_state != "deactivating"


def _state(units: Units, unit: Unit, engine: str, snapshot: Snapshot) -> UnitState:
    seen = snapshot.seen.get(unit.main_pid)
    argv = seen.argv if seen is not None and _active(unit) else ()
    return UnitState(
        unit=unit.name,
        engine=engine,
        unit_file_state=unit.unit_file_state,
        active=_active(unit),
        invocation_id=unit.invocation_id if _active(unit) else "",
        argv=argv,
        command=unit.exec_start,
        profiling=serving(engine, argv).profiling if argv else (),
        files=look(_paths(unit)),
        dependents=active_dependents(units, unit),
    )


def _paths(unit: Unit) -> list[str]:
    """Every file that makes the unit what it is, and every file that a deployment may put there."""
    ours = (SYSTEM_UNITS / unit.name, *(CONFIG / f"{unit.name}.{kind}" for kind in ("env", "secrets", "yaml")))
    # A leading `-` and glob patterns are allowed in EnvironmentFile=.
    environment = [path for entry in unit.environment_files for path in sorted(glob.glob(entry.lstrip("-")))]
    drop_ins = [path for path in unit.drop_in_paths if not path.endswith(f"/{DROP_IN_NAME}")]
    fragment = [unit.fragment_path] if unit.fragment_path else []
    return list(dict.fromkeys([*fragment, *drop_ins, *environment, *map(str, ours)]))


def active_dependents(units: Units, unit: Unit) -> tuple[str, ...]:
    """Active units that systemd stops when it stops this one, through any number of steps."""
    found: dict[str, None] = {}
    wave = [unit]
    while wave:
        names = {name for each in wave for name in (*each.required_by, *each.bound_by)} - set(found) - {unit.name}
        wave = [each for each in units.show(sorted(names)).values() if _active(each)]
        found.update((each.name, None) for each in wave)
    return tuple(found)


def _loose(snapshot: Snapshot, users: Optional[Collection[int]]) -> tuple[Loose, ...]:
    members = {pid for engine_unit in snapshot.units.values() for pid in engine_unit.pids}
    alive = {
        pid: seen
        for pid, seen in sorted(snapshot.seen.items())
        if seen.recognition is not None and pid not in members and not seen.process.dead
    }
    # A server uses no GPU itself. It shares its session with the workers that do.
    sessions = {seen.process.session for pid, seen in alive.items() if users is None or pid in users}
    return tuple(
        Loose(
            pid,
            seen.recognition.engine,
            seen.recognition.role == "main",
            str(seen.owner),
            mask_command(seen.argv),
        )
        for pid, seen in alive.items()
        if seen.recognition is not None and seen.process.session in sessions
    )


# --- the record ----------------------------------------------------------------------------------------------------


def record_path(gpus: Sequence[str]) -> Path:
    """Where the record of a pivot of these GPUs is: half a host is pivoted while the other half goes its own way."""
    if _whole_host(gpus):
        return PIVOT
    names = sorted({name.strip().lower() for name in gpus}, key=lambda name: (len(name), name))
    # A UUID says nothing to people, and eight of them are longer than a file's name may be.
    plain = all(name.isdigit() for name in names)
    told = "-".join(names) if plain else hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]
    return PIVOT.with_name(f"{PIVOT.stem}-{told}{PIVOT.suffix}")


class PivotRecord:
    """The states of the module pivot_record. Each returns the module's result; check mode writes nothing."""

    def __init__(
        self,
        units: Units,
        named: Sequence[str],
        lock_timeout: float,
        check: bool,
        gpus: Sequence[str] = ("all",),
        observer: Callable[[Units, Sequence[str], Sequence[str]], Scene] = observe,
        journal: Optional[Journal] = None,
        holds: Optional[Holds] = None,
    ) -> None:
        self._units = units
        self._holds = holds or Holds()
        self._named = list(named)
        self._gpus = list(gpus)
        self._path = record_path(gpus)
        self._observer = observer
        self._lock_timeout = lock_timeout
        self._check = check
        self._journal = journal

    def show(self, production_unit: str) -> Result:
        """What runs, what is production, and what an earlier pivot left. Read-only."""
        record = self._read()
        scene = self._observe(self._with_recorded(record))
        result = {**_public(scene), "record": self._summary(record), "unfinished": unfinished(record)}
        try:
            refuse_overlap(self._others(), scene)
            production = find_production(record, production_unit, scene)
        except TransactionError as error:
            return {**result, "changed": False, "production": None, "msg": str(error)}
        others = sorted(scene.active - {production.unit}) + [str(loose) for loose in scene.loose]
        unit = scene.units[production.unit]
        return {
            **result,
            "changed": False,
            "production": {
                "unit": production.unit,
                "why": production.why,
                "undo": production.undo,
                "at_rest": at_rest(production, scene),
                "others": others,
            },
            "msg": f"production is {production.unit} ({production.why}): "
            + _condition(unit)
            + (f"; also here: {'; '.join(others)}" if others else ""),
        }

    def begin(self, target: str, allow_no_rollback: bool) -> Result:
        """Decide how a pivot to `target` goes on, and write down what it can go back to."""
        with self._lock():
            record = self._read()
            scene = self._observe([*self._with_recorded(record), target])
            refuse_overlap(self._others(), scene)
            if scene.units[target].unit_file_state.startswith("masked"):
                raise TransactionError(
                    f"{target} is masked: `systemctl unmask {target}`, if whoever did that agrees that it runs again"
                )
            decision = decide(record, target, scene)
            if scene.servers and not allow_no_rollback:
                raise TransactionError(_no_way_back(scene))
            run = uuid.uuid4().hex[:8]
            if record is not None and decision.keep:
                # From here on it is a pivot to a layout's unit, whatever it was.
                record = {**record, "target": target, "run": run, "by": whoami("pivot"), "undoes": None}
                if decision.drain:
                    record = _in_phase(record, "begun")
            else:
                record = self._new_record(record, run, target, scene)
            if not self._check:
                self._write(record)
            return self._begun(record, scene, decision.mode, run, decision.drain, decision.why)

    def begin_back(self, allow_no_rollback: bool, discard_changes: bool) -> Result:
        """The same for going back to what ran before the last finished pivot."""
        with self._lock():
            record = self._read()
            scene = self._observe([*self._named, *((record or {}).get("observed", {})), *_undone(record)])
            refuse_overlap(self._others(), scene)
            if record is None:
                why = "no pivot was made on this host, so there is none to take back"
                return {**self._begun(None, scene, NEVER, "", False, why), "start": []}
            if unfinished(record) and _undone(record) and record["phase"] in FORWARD:
                start = tuple(sorted(name for name, unit in _undone(record).items() if unit.active))
                why = f"an earlier rollback to {record['target']} was left in phase {record['phase']}; this one goes on"
                record = {**record, "run": uuid.uuid4().hex[:8], "by": whoami("rollback")}
            else:
                way = find_return(record, scene)
                if way.done:
                    return {**self._begun(record, scene, SETTLED, "", False, way.why), "start": list(way.start)}
                start, why = way.start, way.why
                faults = [*copies_lost(way), *self._ways(way, scene)]
                changed = [] if discard_changes else changed_since(way.source, scene)
                if changed:
                    faults.append(
                        f"{'; '.join(changed)} since that pivot: gpuops_discard_changes=true puts the old files back "
                        "all the same, and keeps a copy of these"
                    )
                if scene.servers and not allow_no_rollback:
                    faults.append(_no_way_back(scene))
                if faults:
                    raise TransactionError(f"cannot go back to {', '.join(start)}: {'; '.join(faults)}")
                undoes = {key: way.source[key] for key in ("id", "target", "backups", "observed", "arrived")}
                record = {**self._new_record(record, uuid.uuid4().hex[:8], start[0], scene), "undoes": undoes}
            drain = scene.active != {*start} or bool(scene.servers)
            if not self._check:
                self._write(_in_phase(record, "begun") if drain else record)
            return {**self._begun(record, scene, RETURN, record["run"], drain, why), "start": list(start)}

    def _ways(self, way: Return, scene: Scene) -> list[str]:
        return [fault for name in way.start for fault in start_faults(way.before[name], scene)]

    def put_back(self, run: str) -> Result:
        """Put the files back that the pivot replaced. What it added goes when the engine answers, with enablement."""
        record = self._read() if self._check else self._own(run)
        source = (record or {}).get("undoes") or record or {}
        before = observed(source) if source else {}
        files = {path: state for unit in before.values() for path, state in unit.files.items() if state is not None}
        directory = Path(source.get("backups", ""))
        changed = [path for path, state in files.items() if differs(path, state)]
        result: Result = {"diff": [_file_diff(path, files[path], directory) for path in changed]}
        if self._check:
            return {**result, "changed": bool(changed), "files": changed, "msg": f"would put back: {_listed(changed)}"}
        put_back(files, directory)
        if changed:
            self._units.daemon_reload()
        if record is not None:
            self._write(_in_phase(record, "started"))
        return {**result, "changed": bool(changed), "files": changed, "msg": f"put back: {_listed(changed)}"}

    def _begun(
        self, record: Optional[Mapping[str, Any]], scene: Scene, mode: str, run: str, drain: bool, why: str
    ) -> Result:
        return {
            "changed": False,
            "run": run,
            "mode": mode,
            "drain": drain,
            "outgoing": record["outgoing"] if record is not None else [],
            "existing_units": _existing(scene),
            "record": self._summary(record),
            **_public(scene),
            "msg": why,
        }

    def phase(self, run: str, name: str, cause: str) -> Result:
        """Write down that a step is complete, or that the pivot turns back, and why."""
        if self._check:
            # Nothing was, if it fails in check mode: there is nothing to come back from.
            return {"changed": False, "touched": False, "msg": f"would go to phase {name}"}
        record = self._own(run)
        result: Result = {"changed": False, "touched": True, "msg": f"phase {name}"}
        if name == "rolling_back":
            scene = self._observe(list(record["observed"]))
            if untouched(observed(record), scene):
                self._put_holds_back(record, scene)
                self._forget(record)
                return {**result, "touched": False, "msg": "nothing was touched"}
            result["existing_units"] = _existing(scene)
        record = _in_phase(record, name)
        if cause:
            record["causes"] = [*record["causes"], {"phase": name, "cause": cause}]
        self._write(record)
        return {**result, "record": self._summary(record)}

    def restore(self, run: str) -> Result:
        """Put files and enablement back as they were observed. Nothing is started: the caller does, and watches it.

        Without `run`, the unfinished pivot is taken over from whoever left it.
        """
        with self._lock():
            record = self._own(run) if run else self._take_over()
            before = observed(record)
            start = sorted(name for name, unit in before.items() if unit.active)
            result = {"start": start, "run": record["run"], "record": self._summary(record)}
            if self._check:
                return {**result, "changed": True, "files": [], "msg": f"would restore {', '.join(before)}"}
            self._write(_in_phase(record, "rolling_back"))
            now_units = self._units.show(list(before))
            changed = []
            for name, unit in before.items():
                if not unit.enabled and now_units[name].unit_file_state == "enabled":
                    self._units.disable(name)
                    changed.append(f"disabled {name}")
            for unit in before.values():
                changed += put_back(unit.files, Path(record["backups"]))
            if changed:
                self._units.daemon_reload()
            now_units = self._units.show(list(before))
            for name, unit in before.items():
                if unit.enabled and now_units[name].unit_file_state != "enabled":
                    self._units.enable(name)
                    changed.append(f"enabled {name}")
                if now_units[name].active_state == "failed":
                    self._units.reset_failed(name)
            return {**result, "changed": bool(changed), "files": changed, "msg": _restored(changed)}

    def finish(self, run: str, target: str, stages: Sequence[Mapping[str, Any]], told: Sequence[str]) -> Result:
        """Close the pivot: enablement moves to the target, or what stopped with the outgoing unit starts again."""
        with self._lock():
            record = self._own(run) if run and not self._check else self._read()
            if record is not None and (self._check or not unfinished(record)):
                record = None
            backward = record is not None and record["phase"] in BACKWARD
            scene = self._observe([*self._with_recorded(record), *([target] if target else [])])
            undone = _undone(record) if not backward else {}
            moves = _moves_back(scene, undone) if undone else _moves(scene, target) if target else []
            result: Result = {"diff": _enablement_diff(scene, moves), "moves": [" ".join(move) for move in moves]}
            if self._check:
                return {**result, "changed": bool(moves), "story": [], "msg": f"would: {_moved(moves)}"}
            if scene.active:
                # Whatever ran before a drain, this serves now.
                self._holds.forget_owed(None if scene.gpus is None else scene.units)
            if record is not None and not backward:
                if not moves and untouched(observed(record), scene):
                    self._forget(record)
                    line = f"{target} already runs and is the enabled engine unit: nothing to do"
                    return {**result, "changed": False, "story": [line, *told], "msg": line}
                record = _in_phase({**record, "target": target}, "ready")
                self._write(record)
            for verb, unit in moves:
                (self._units.enable if verb == "enable" else self._units.disable)(unit)
            if record is not None and undone:
                files = {path: state for each in undone.values() for path, state in each.files.items()}
                if put_back(files, Path(record["undoes"]["backups"])):
                    self._units.daemon_reload()
            if record is None:
                return {**result, "changed": bool(moves), "story": list(told), "msg": _moved(moves)}
            if backward:
                self._put_holds_back(record, scene)
            dependents = self._start_dependents(record["undoes"] if undone else record) if backward or undone else []
            record = {
                **record,
                "arrived": {unit: state.as_dict()["files"] for unit, state in scene.units.items()},
                "stages": [{"name": stage["name"], "seconds": round(float(stage["seconds"]), 1)} for stage in stages],
            }
            for name in ("rolled_back",) if backward else ("enabled", "done"):
                record = _in_phase(record, name)
                self._write(record)
            story = _back_story(record, told, dependents) if backward else _forth_story(record, told, moves)
            return {
                **result,
                "changed": bool(moves or dependents),
                "story": story,
                "record": self._summary(record),
                "msg": story[0],
            }

    # --- parts ---

    def _observe(self, names: Sequence[str]) -> Scene:
        return self._observer(self._units, list(dict.fromkeys(names)), self._gpus)

    def _others(self) -> Iterator[dict[str, Any]]:
        for path in sorted(PIVOT.parent.glob(f"{PIVOT.stem}*{PIVOT.suffix}")):
            record = read_json(path) if path != self._path else None
            if record is not None:
                yield record

    def _read(self) -> Optional[dict[str, Any]]:
        record = read_json(self._path)
        # We write it whole. One of another version is told as that.
        lost = [key for key in _KEYS if key not in record] if record and record.get("version") == VERSION else []
        if lost:
            raise TransactionError(f"{self._path} lacks {', '.join(lost)}; look at it, then move it away")
        return record

    def _lock(self) -> AbstractContextManager[object]:
        return nullcontext() if self._check else Lock(LOCK, self._lock_timeout, who="pivot")

    def _with_recorded(self, record: Optional[Mapping[str, Any]]) -> list[str]:
        recorded = list(record["observed"]) if record is not None and unfinished(record) else []
        return list(dict.fromkeys([*self._named, *recorded]))

    def _summary(self, record: Optional[Mapping[str, Any]]) -> Optional[Result]:
        if record is None:
            return None
        kept = ("id", "target", "outgoing", "phase", "phases", "causes", "stages", "backups")
        return {"path": str(self._path), **{key: record[key] for key in kept}}

    def _write(self, record: Mapping[str, Any]) -> None:
        write_json(self._path, record)
        if self._journal is not None:
            self._journal.send(
                f"pivot to {record['target']}: {record['phase']}",
                action="phase",
                phase=record["phase"],
                pivot=record["id"],
                controller=record["by"]["controller"],
            )

    def _own(self, run: str) -> dict[str, Any]:
        record = self._read()
        if not unfinished(record) or record is None:
            raise TransactionError("this pivot's record is gone: somebody finished or removed it; run again")
        if record["run"] != run:
            by = record["by"]
            raise TransactionError(
                f"another pivot (to {record['target']}, from {by['controller']}, since {by['since']}) took over on "
                "this host; this one does no more"
            )
        return record

    def _take_over(self) -> dict[str, Any]:
        record = self._read()
        if not unfinished(record) or record is None:
            raise TransactionError("no pivot was left unfinished on this host: there is nothing to put back")
        record = {**record, "run": uuid.uuid4().hex[:8], "by": whoami("restore")}
        if not self._check:
            self._write(record)
        return record

    def _new_record(self, last: Optional[Mapping[str, Any]], run: str, target: str, scene: Scene) -> dict[str, Any]:
        began = now()
        name = f"{began.replace(':', '').replace('-', '')[:15]}-{run}"
        backups = BACKUPS / name
        if not self._check:
            for unit in scene.units.values():
                keep(unit.files, backups)
            if last is not None:
                _archive(last)
        return {
            "version": VERSION,
            "id": name,
            "run": run,
            "by": whoami("pivot"),
            "target": target,
            "gpus": None if scene.gpus is None else sorted(scene.gpus),
            "outgoing": sorted(scene.active),
            "holds": [
                hold.as_dict()
                for hold in self._holds.all()
                if hold.unit in scene.units and hold.purpose == DRAIN and not hold.pid
            ],
            "observed": {unit: state.as_dict() for unit, state in scene.units.items()},
            "backups": str(backups),
            "previous": last["id"] if last is not None else "",
            "phase": "begun",
            "phases": [{"name": "begun", "at": began}],
            "causes": [],
            "stages": [],
        }

    def _forget(self, record: Mapping[str, Any]) -> None:
        """As if this pivot had never begun: it changed nothing, and the last one's record is worth more."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        if record["previous"]:
            with suppress(FileNotFoundError):
                os.replace(_archived(record["previous"]), self._path)
        forget(Path(record["backups"]))

    def _put_holds_back(self, record: Mapping[str, Any], scene: Scene) -> None:
        """The drains' holds that this pivot took over. Where nothing runs, as before, it holds nothing itself."""
        ours = {hold.unit for hold in self._holds.all() if hold.purpose != DRAIN and hold.unit in scene.units}
        before = [
            hold_of(data, data["unit"]) for data in record.get("holds", ()) if data["unit"] in ours - scene.active
        ]
        self._holds.put_back(before, self._units)
        if not scene.active:
            self._holds.lift(sorted(ours - {hold.unit for hold in before}), self._units)

    def _start_dependents(self, record: Mapping[str, Any]) -> list[str]:
        wanted = sorted({name for unit in observed(record).values() for name in unit.dependents})
        stopped = [name for name, unit in self._units.show(wanted).items() if not _active(unit)]
        for name in stopped:
            self._units.start(name)
        return stopped


_KEYS = ("id", "run", "by", "target", "outgoing", "observed", "backups", "previous", "phases", "causes", "stages")


def _in_phase(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {**record, "phase": name, "phases": [*record["phases"], {"name": name, "at": now()}]}


def _archived(name: str) -> Path:
    return RECORDS / f"pivot-{name}.json"


def _archive(record: Mapping[str, Any]) -> None:
    write_json(_archived(record["id"]), record)
    kept = {path: read_json(path) for path in RECORDS.glob("pivot-*.json")}
    # Each set of GPUs has its own: a busy half does not push out what the other may go back to.
    same = {path: old for path, old in kept.items() if old is not None and old.get("gpus") == record.get("gpus")}
    # The names begin with the time, so that they sort by age.
    for path in sorted(same)[:-KEPT]:
        forget(Path(same[path]["backups"]))
        path.unlink()


def _undone(record: Optional[Mapping[str, Any]]) -> dict[str, UnitState]:
    """The units as they were before the pivot that a record takes back; none for other records."""
    return observed(record["undoes"]) if record is not None and record.get("undoes") else {}


def _moves_back(scene: Scene, before: Mapping[str, UnitState]) -> list[tuple[str, str]]:
    """What makes enablement what it was, in the same order."""
    enable = [("enable", name) for name, unit in sorted(before.items()) if unit.enabled and name not in scene.enabled]
    return enable + [("disable", name) for name in sorted(scene.enabled) if name in before and not before[name].enabled]


def copies_lost(way: Return) -> list[str]:
    """Kept copies without which the files could not be made what they were."""
    lost = [
        path
        for unit in way.before.values()
        for path, state in unit.files.items()
        if state is not None and state.sha256 and not kept(state, Path(way.source["backups"]))
    ]
    return [f"the copies of {', '.join(lost)} in {way.source['backups']} are gone or damaged"] if lost else []


def start_faults(unit: UnitState, scene: Scene) -> Iterator[str]:
    """Why an engine unit as it was could not serve again."""
    program = unit.command[0] if unit.command else ""
    if program.startswith("/"):
        interpreter = _interpreter(Path(program))
        if not os.path.exists(program):
            yield f"its program {program} is gone"
        elif interpreter and not os.path.exists(interpreter):
            yield f"{interpreter}, which runs {program}, is gone"
    if not unit.engine or not unit.command:
        return
    where = serving(unit.engine, unit.command)
    if where.model and where.model.startswith("/") and not os.path.isdir(where.model):
        yield f"its model {where.model} is gone"
    engines = {loose.pid for loose in scene.loose}
    for listener in listeners(where.port, argument(unit.command, "--host") or where.host):
        if listener.cgroup.rstrip("/").rpartition("/")[2] not in scene.units and listener.pid not in engines:
            yield f"its port {where.port} is taken by {listener}"


def _interpreter(program: Path) -> str:
    try:
        with open(program, "rb") as stream:
            first = stream.readline(256)
    except OSError:
        return ""
    words = first[2:].split() if first.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else ""


def _file_diff(path: str, state: FileState, directory: Path) -> dict[str, str]:
    """What going back changes in a file. Who may not read it may not read it here either."""
    if not state.sha256 or not state.mode & 0o004:
        return {"before_header": path, "after_header": path, "before": "(not shown)\n", "after": "(as it was)\n"}
    current = Path(path).read_text("utf-8", "replace") if os.path.isfile(path) else ""
    wanted = (directory / state.sha256).read_text("utf-8", "replace")
    return {
        "before_header": path,
        "after_header": path,
        "before": mask_text(current),
        "after": mask_text(wanted),
    }


def _moves(scene: Scene, target: str) -> list[tuple[str, str]]:
    """What makes `target` the one enabled engine unit; it is enabled first, so that a reboot always finds one."""
    enable = [] if target in scene.enabled else [("enable", target)]
    return enable + [("disable", name) for name in sorted(scene.enabled - {target})]


# --- words ---------------------------------------------------------------------------------------------------------


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing, the files are as they were"


def _existing(scene: Scene) -> list[str]:
    return sorted(name for name, unit in scene.units.items() if unit.exists)


def _public(scene: Scene) -> Result:
    return {
        "engines": [
            {
                "unit": unit.unit,
                "engine": unit.engine,
                "exists": unit.exists,
                "enabled": unit.enabled,
                "active": unit.active,
                "command": mask_command(unit.argv),
                "profiling": list(unit.profiling),
                "runs_its_own_command": unit.runs_its_own_command,
            }
            for unit in scene.units.values()
        ],
        "loose": [str(loose) for loose in scene.loose],
    }


def _condition(unit: UnitState) -> str:
    if not unit.active:
        return "it does not run"
    if unit.profiling:
        return f"it runs with profiler options ({', '.join(unit.profiling)})"
    return "it runs" if unit.runs_its_own_command else "it runs with arguments that are not its unit's"


def _no_way_back(scene: Scene) -> str:
    return (
        f"{'; '.join(map(str, scene.servers))}: no unit starts it, so a failed pivot could not bring it back. "
        "End it yourself, run restore_production.yml, or pass gpuops_allow_no_rollback=true"
    )


def _restored(changed: Iterable[str]) -> str:
    done = list(changed)
    return f"restored: {', '.join(done)}" if done else "files and enablement are as they were"


def _enablement_diff(scene: Scene, moves: Sequence[tuple[str, str]]) -> dict[str, str]:
    before = {name: unit.unit_file_state or "absent" for name, unit in scene.units.items()}
    after = {**before, **{unit: f"{verb}d" for verb, unit in moves}}
    return {
        "before_header": "enablement",
        "after_header": "enablement",
        "before": "".join(f"{name}: {before.get(name, 'absent')}\n" for name in sorted(after)),
        "after": "".join(f"{name}: {after[name]}\n" for name in sorted(after)),
    }


def _moved(moves: Iterable[tuple[str, str]]) -> str:
    return ", ".join(" ".join(move) for move in moves) or "enablement is as it should be"


def _forth_story(record: Mapping[str, Any], told: Sequence[str], moves: Sequence[tuple[str, str]]) -> list[str]:
    target = record["target"]
    came_from = ", ".join(name for name in record["outgoing"] if name != target)
    stopped = sorted({name for unit in observed(record).values() for name in unit.dependents})
    back = "" if came_from or target not in record["outgoing"] else ", as before"
    head = f"{came_from} -> {target}" if came_from else f"{target} is in service{back}"
    undoes = record.get("undoes")
    return [
        f"{head}, as before the pivot to {undoes['target']}" if undoes else head,
        *([f"took {seconds_text(record['stages'])}"] if record["stages"] else []),
        *told,
        *([f"enablement: {_moved(moves)}"] if moves else []),
        *([f"stopped with {came_from}: {', '.join(stopped)}"] if stopped and came_from else []),
    ]


def _back_story(record: Mapping[str, Any], told: Sequence[str], started: Sequence[str]) -> list[str]:
    again = ", ".join(record["outgoing"])
    return [
        f"the pivot to {record['target']} failed and was undone: "
        + (f"{again} runs again, as before" if again else "no engine runs, as before"),
        *[f"{_WHY[cause['phase']]}: {cause['cause']}" for cause in record["causes"]],
        *told,
        *([f"asked to start again: {', '.join(started)}"] if started else []),
        f"what was put back and what was replaced is in {record['backups']}",
    ]


_WHY = {"rolling_back": "why it failed", "rollback_failed": "why an earlier way back failed"}

STATES = ("show", "begin", "begin_back", "phase", "put_back", "restore", "finish")
PHASES = BACKWARD
