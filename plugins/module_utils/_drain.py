# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""The drain: plan, refuse or hold, stop engine units, end what is left, prove release. Plan and act are apart."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._ending import Ended, Ending, Pinned
from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES, Serving, argument, serving
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, GpuReading
from ansible_collections.gpuops.inference.plugins.module_utils._hold import (
    DRAIN,
    Hold,
    Holds,
    is_stopped_for_a_hold,
    triggers_of,
)
from ansible_collections.gpuops.inference.plugins.module_utils._holders import (
    Process,
    read_process,
    same_network,
    wait_channel,
)
from ansible_collections.gpuops.inference.plugins.module_utils._journal import NOTICE, Journal
from ansible_collections.gpuops.inference.plugins.module_utils._leftovers import (
    Segment,
    counted,
    engine_uids,
    find_leftovers,
    remove_segments,
)
from ansible_collections.gpuops.inference.plugins.module_utils._managed import Managed, Stopped, stop
from ansible_collections.gpuops.inference.plugins.module_utils._options import knob
from ansible_collections.gpuops.inference.plugins.module_utils._owners import USER_UNIT, Owner, restarts
from ansible_collections.gpuops.inference.plugins.module_utils._plan import (
    OBSERVER,
    Judged,
    Plan,
    Policy,
    command_text,
    is_up,
    judge,
    make_plan,
    protection_of,
    supervisors_of,
)
from ansible_collections.gpuops.inference.plugins.module_utils._probe import Probe
from ansible_collections.gpuops.inference.plugins.module_utils._quiesce import quiesce
from ansible_collections.gpuops.inference.plugins.module_utils._ready import asker
from ansible_collections.gpuops.inference.plugins.module_utils._record import outlive_connection
from ansible_collections.gpuops.inference.plugins.module_utils._release import (
    RESPAWNING,
    Identity,
    Verdict,
    Watch,
    verdict_of,
)
from ansible_collections.gpuops.inference.plugins.module_utils._reserves import learn_reserves
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import (
    Snapshot,
    load_units,
    take_snapshot,
)
from ansible_collections.gpuops.inference.plugins.module_utils._units import (
    Unit,
    Units,
    UnitsError,
    cgroup_kill,
    cgroup_pids,
    cgroup_populated,
)

POLL = 0.05
"""Seconds between two looks at cgroup.events: a file read, nothing more."""
STATE_POLL = 0.5
"""Seconds between two questions to systemd while a unit stops; EMPTY_POLL once its cgroup is empty."""
EMPTY_POLL = 0.1
SETTLE = 10.0
"""Seconds that memory without a holder, or a dying process, is given before it counts as leaked or unkillable."""
LOADING_GRACE = 10.0
"""Seconds for an engine that never answered: it serves nobody, and a loading vLLM loses its one SIGTERM."""
ROUNDS = 4
"""Plans in one call: the first, and three for what appears while it acts. More than that is a respawner."""
LONGEST_CURVE = 64
"""Points of the curve of memory in a result."""
CONNECT = 1.0
"""Seconds to find out on loopback whether an engine listens."""


class NotQuietError(Exception):
    """An engine still answers requests, and the caller did not allow to cut them off."""


@dataclass(frozen=True)
class Timeouts:
    """All in seconds. `stop` None takes each unit's own TimeoutStopSec, at most STOP_CAP."""

    STOP_CAP = 120.0

    stop: Optional[float] = None
    term: float = 15.0
    kill: float = 60.0
    quiesce: float = 60.0
    release: float = 120.0
    stable_for: float = 3.0

    def of(self, unit: Unit) -> float:
        return min(unit.stop_timeout, self.STOP_CAP) if self.stop is None else self.stop

    def cut(self, unit: Unit, engine: str) -> str:
        """What of a unit's own way to stop these seconds would cut off, in words; empty if nothing."""
        ours, flag = self.of(unit), ENGINES[engine].shutdown_flag if engine in ENGINES else None
        asked = argument(unit.exec_start, f"--{flag}") if flag else None
        if ours >= unit.stop_timeout and ours >= _number(asked):
            return ""
        own = f"--{flag} {asked}" if _number(asked) > ours else f"TimeoutStopSec={_spelled(unit.stop_timeout)}"
        return (
            f"{unit.name} is killed {ours:g} s after it was asked to stop, although its {own} allows more; "
            f"{knob('stop_timeout', 'SECONDS')} gives it longer"
        )


def _number(text: Optional[str]) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _spelled(seconds: float) -> str:
    return "infinity" if math.isinf(seconds) else f"{seconds:g}"


@dataclass
class Story:
    """What happened, filled in as it happens, so that a failure half-way tells all of it."""

    stages: list[dict[str, Any]] = field(default_factory=list)
    stopped_units: list[dict[str, Any]] = field(default_factory=list)
    stopped_owners: list[Stopped] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    held_units: list[str] = field(default_factory=list)
    lifted_units: list[str] = field(default_factory=list)
    reread_units: list[str] = field(default_factory=list)
    respawned: list[str] = field(default_factory=list)
    """What came back though everything was ended, with what started it."""
    starters: list[str] = field(default_factory=list)
    """What may start a unit again that is not held any more."""
    survivors: list[dict[str, Any]] = field(default_factory=list)
    removed: list[dict[str, Any]] = field(default_factory=list)
    """Segments of dead engines that were in /dev/shm."""
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)
    released: bool = False
    memory_samples: list[dict[str, Any]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def see_memory(self, gpus: Iterable[Gpu]) -> None:
        """A point of the curve, where it moved. Of too many every second one goes: it may take minutes."""
        used = {str(gpu.index): gpu.memory.used for gpu in gpus if gpu.memory}
        if not used or (self.memory_samples and self.memory_samples[-1]["used_mib"] == used):
            return
        if len(self.memory_samples) >= LONGEST_CURVE:
            del self.memory_samples[1::2]
        self.memory_samples.append({"seconds": round(time.monotonic() - self.began, 3), "used_mib": used})

    @property
    def changed(self) -> bool:
        return bool(
            self.stopped_units
            or self.stopped_owners
            or self.ended
            or self.removed
            or self.reread_units
            or set(self.held_units) ^ set(self.lifted_units)
        )

    @contextmanager
    def stage(self, name: str) -> Iterator[list[str]]:
        """Time a stage and collect what it did, also when it fails."""
        began = time.monotonic()
        actions: list[str] = []
        try:
            yield actions
        finally:
            self.stages.append({"name": name, "seconds": round(time.monotonic() - began, 3), "actions": actions})

    def as_dict(self) -> dict[str, Any]:
        return {
            "changed": self.changed,
            "stages": self.stages,
            "stopped_units": self.stopped_units,
            "stopped_owners": [stopped.as_dict() for stopped in self.stopped_owners],
            "ended": [asdict(ended) for ended in self.ended],
            "held_units": [unit for unit in self.held_units if unit not in self.lifted_units],
            "respawned": self.respawned,
            "starters": self.starters,
            "survivors": self.survivors,
            "removed": self.removed,
            "verdicts": {str(index): verdict.as_dict() for index, verdict in sorted(self.verdicts.items())},
            "released": self.released,
            "memory_samples": self.memory_samples,
        }


class Drain:
    """One drain of one host. Look first (`plan`), then `act` on it; nothing is touched before `act`."""

    def __init__(
        self,
        policy: Policy,
        timeouts: Timeouts,
        probe: Probe,
        units: Units,
        holds: Holds,
        journal: Journal,
        hold: Hold,
        cut_requests: bool = False,
        remove_leftovers: bool = False,
    ) -> None:
        self.policy = policy
        self.timeouts = timeouts
        self.probe = probe
        self.units = units
        self.holds = holds
        self.journal = journal
        self.hold = hold
        """What every hold of this drain says beside the name of its unit."""
        self.cut_requests = cut_requests
        self.remove_leftovers = remove_leftovers
        self.left_over: tuple[Segment, ...] = ()
        """Segments in /dev/shm that this drain would remove as things are now."""
        self.triggers: dict[str, list[Unit]] = {}
        self.planned: dict[str, Unit] = {}
        """The engine units as they were before anything was done; systemd may forget a unit that has stopped."""
        self.new_holds: list[str] = []
        self.came_up: frozenset[str] = frozenset()
        self.story = Story()
        self.snapshot = Snapshot(GpuReading(), {}, {}, {})
        self.last_judged: tuple[Judged, ...] = ()
        self.known: frozenset[Identity] = frozenset()
        self.stuck_units: set[str] = set()
        self.tried: set[tuple[str, int]] = set()

    def plan(self) -> Plan:
        """Look until what may settle by itself has settled. Raises GpuSelectionError, UnitsError."""
        deadline = time.monotonic() + SETTLE
        with self.story.stage("plan") as actions:
            while True:
                plan = make_plan(self._look(), self.policy)
                self.story.see_memory(plan.gpus)
                if not plan.unsettled or plan.refusals or time.monotonic() >= deadline:
                    break
                time.sleep(STATE_POLL)
            self.planned = known_units(self.snapshot)
            self.triggers = triggers_of(plan.hold, self.planned, self.units)
            self.left_over = self._leftovers(plan)
            actions.extend(self.steps(plan))
        self.known = holders(plan)
        return plan

    def steps(self, plan: Plan) -> list[str]:
        """The plan in words, with what this drain does about the triggers of units."""
        steps = plan.steps()
        quiet = [f"stop {name} until the hold ends" for name in self._stoppable()]
        clear = [f"remove {counted(self.left_over)} of dead engines from /dev/shm"] if self.left_over else []
        return [*steps[: len(plan.hold)], *quiet, *steps[len(plan.hold) :], *clear]

    def _leftovers(self, plan: Plan) -> tuple[Segment, ...]:
        if not self.remove_leftovers:
            return ()
        uids = engine_uids(self.snapshot, plan.judged)
        found = find_leftovers(self.probe, self.snapshot, judge(self.snapshot, self.policy))
        return tuple(segment for segment in found.segments if segment.uid in uids)

    def _clear(self, plan: Plan) -> None:
        """Remove what dead engines left in /dev/shm, those included that this drain ended."""
        if found := self._leftovers(plan):
            with self.story.stage("remove leftovers") as actions:
                removed = remove_segments(found)
                self.story.removed = [segment.as_dict() for segment in removed]
                actions.extend(f"removed /dev/shm/{item['name']}, {item['mib']} MiB" for item in self.story.removed)
                self.journal.send(f"Removed from /dev/shm: {' '.join(item['name'] for item in self.story.removed)}")

    def _stoppable(self) -> list[str]:
        return sorted({unit.name for group in self.triggers.values() for unit in group if is_stopped_for_a_hold(unit)})

    def warnings(self, plan: Plan) -> list[str]:
        """Which engines' own way to stop this drain would cut off."""
        units = (self.snapshot.units[name] for name in plan.stop)
        return [text for found in units if (text := self.timeouts.cut(found.unit, found.engine))]

    def wanted_holds(self, plan: Plan, keep_hold: bool) -> list[Hold]:
        """The holds that this drain still has to write."""
        if not plan.acts and not keep_hold:
            return []
        terms = self.hold if keep_hold else replace(self.hold, until=0.0, over_reboot=False).while_we_live()
        # Of a drain before this one, where nothing took the place of what ran then.
        owed = set() if plan.stop else {hold.unit for hold in self.holds.owed()}
        return self.holds.wanting(
            replace(
                terms,
                unit=name,
                ran=terms.purpose == DRAIN and (is_up(self.planned[name]) or name in owed),
                triggers={unit.name: unit.active_state for unit in self.triggers.get(name, ())},
            )
            for name in plan.hold
        )

    def act(self, plan: Plan, keep_hold: bool) -> None:
        """Carry the plan out, and what follows from it, until all is proven free or nothing more may be done."""
        outlive_connection()
        lift = not keep_hold
        try:
            self._act(plan, keep_hold)
        except NotQuietError:
            # It serves on, and must be started again if it crashes.
            lift = True
            raise
        finally:
            if lift:
                self._lift(plan)
            # Of units all is told; what the GPUs look like now depends on processes alone.
            self.snapshot = take_snapshot(self.probe, known_units(self.snapshot))
            self.last_judged = judge(self.snapshot, self.policy)
            self._name_respawners()
        self._clear(plan)

    def _act(self, plan: Plan, keep_hold: bool) -> None:
        if not plan.acts:
            learn_reserves(self.snapshot.reading, {index for item in plan.judged for index in _touched(item)})
        self._hold(plan, keep_hold)
        self._quiesce(plan)
        if plan.acts or keep_hold:
            # Not earlier: a unit that requires its socket stops with it.
            self.units.stop(self._stoppable())
        for _round in range(ROUNDS):
            if self._more_to_do(plan):
                self._stop(plan)
                self._stop_managed(plan)
                self._end_supervisors(plan)
                self._end(plan)
                plan = self._look_again()
                if self._more_to_do(plan):
                    continue
            if self._prove(plan):
                return
            plan = make_plan(self._look(), self.policy)
            if not self._more_to_do(plan):
                return
        self._prove(plan)

    def _look(self) -> Snapshot:
        with ThreadPoolExecutor(max_workers=1) as asked:
            # The worker takes about as long to start as systemd to tell of all its services.
            loaded = asked.submit(load_units, self.units, self.policy.units)
            self.probe.start()
            self.snapshot = take_snapshot(self.probe, loaded.result(), self.policy.units)
        return self.snapshot

    def _look_again(self) -> Plan:
        """What there is to do still. Only where an engine or a user is left, all services are asked about once more."""
        loaded = self.units.show(sorted({*self.snapshot.units, *self.policy.units}))
        self.snapshot = take_snapshot(self.probe, loaded, self.policy.units)
        plan = make_plan(self.snapshot, self.policy)
        left = any(item.seen.used or item.seen.recognition is not None for item in plan.judged)
        return make_plan(self._look(), self.policy) if plan.acts or left else plan

    def _more_to_do(self, plan: Plan) -> bool:
        """Whether the plan has steps that were not tried already: nobody is sent SIGKILL twice."""
        tried = {survivor["pid"] for survivor in self.story.survivors}
        return bool(
            set(plan.stop) - self.stuck_units
            or any(_instance(managed) not in self.tried for managed in plan.managed)
            or any(set(ending.members) - tried for ending in plan.end)
        )

    @contextmanager
    def _stage(self, name: str) -> Iterator[list[str]]:
        """A stage that the journal tells when it begins: whoever is ended from outside tells nothing afterwards."""
        self._note(f"drain: {name}", "stage", stage=name)
        with self.story.stage(name) as actions:
            yield actions

    def _note(self, message: str, action: str, **fields: object) -> None:
        about = {"reason": self.hold.reason, "user": self.hold.who, "controller": self.hold.controller}
        self.journal.send(message, NOTICE, action=action, **about, **fields)

    def _hold(self, plan: Plan, keep_hold: bool) -> None:
        wanted = self.wanted_holds(plan, keep_hold)
        unread = self.holds.unread({name: self.planned[name] for name in plan.hold})
        if plan.stop:
            # Another engine serves by now: that one is what this drain finds.
            whole = {gpu.index for gpu in plan.gpus} >= {gpu.index for gpu in self.snapshot.reading.gpus}
            self.holds.forget_owed(None if whole else plan.hold)
        if not wanted and not unread:
            return
        with self._stage("hold") as actions:
            self.new_holds = [hold.unit for hold in wanted if self.holds.read(hold.unit) is None]
            self.story.held_units = self.holds.place(wanted, self.units)
            for name in self.story.held_units:
                self._note(f"hold {name}: {self.hold.reason}", "hold", unit=name)
            actions.extend(f"hold {unit}" for unit in self.story.held_units)
            if not wanted:
                self.units.daemon_reload()
                self.story.reread_units = unread
                actions.extend(f"systemd reads {unit} again, an earlier run did not come that far" for unit in unread)

    def _lift(self, plan: Plan) -> None:
        """Lift what this call placed, and what a killed drain left; a hold that stands is its owner's."""
        over = list(dict.fromkeys([*self.new_holds, *self.holds.left_over(plan.hold)]))
        if not over:
            return
        with self._stage("lift") as actions:
            self.story.lifted_units = over
            self.holds.lift(over, self.units, owe=False)
            for name in over:
                self._note(f"lift the hold of {name}", "lift", unit=name)
            actions.extend(f"lift the hold of {unit}" for unit in over)
        self._watch_units([name for name in over if name in {item["unit"] for item in self.story.stopped_units}])

    def _watch_units(self, names: Sequence[str]) -> None:
        """Nothing holds these any more: see whether what may start them does."""
        starters = {name: active for name in names if (active := self._starters(self.planned[name]))}
        if not starters:
            return
        self.story.starters = [f"{', '.join(active)} may start {name}" for name, active in starters.items()]
        with self._stage("watch") as actions:
            deadline = time.monotonic() + self.timeouts.stable_for
            while not self.story.respawned:
                self.story.respawned = [
                    f"{name} came back when its hold ended, started by {' or '.join(starters[name])}"
                    for name, unit in self.units.show(list(starters)).items()
                    if is_up(unit) or unit.job
                ]
                if time.monotonic() >= deadline:
                    break
                time.sleep(STATE_POLL)
            actions.extend(self.story.respawned or self.story.starters)
            if self.story.respawned:
                self.story.released = False

    def _starters(self, unit: Unit) -> list[str]:
        """The active units that start this one when they see fit."""
        names = sorted({*unit.triggered_by, *unit.upheld_by})
        return [name for name, other in self.units.show(names).items() if other.active_state == "active"]

    def _name_respawners(self) -> None:
        """Newcomers on the GPUs, and what started the units that they are in: a verdict knows processes alone."""
        selected = {index for index, verdict in self.story.verdicts.items() if verdict.verdict == RESPAWNING}
        newcomers: dict[Owner, list[str]] = {}
        for item in self.last_judged:
            if item.held & selected and item.seen.process.identity not in self.known:
                newcomers.setdefault(item.seen.owner, []).append(str(item.seen.process.pid))
        supervisors = supervisors_of(
            [item for item in self.last_judged if item.seen.process.identity not in self.known],
            self.snapshot,
            self.policy,
        )
        for owner, pids in newcomers.items():
            text = f"pid {', '.join(pids[:3])} came back in {owner}"
            mine = [
                f"pid {seen.process.pid} ({command_text(seen)[:60]})" for seen in supervisors if seen.owner == owner
            ]
            if mine:
                text += f", started by {mine[-1]}: `supervisors: end` ends that first"
            elif restarts(owner):
                unit = self.units.show([owner.name])[owner.name]
                starters = [
                    *self._starters(unit),
                    *(f"the failure of {name}" for name in unit.on_failure_of),
                    # systemd has forgotten a unit that stopped, and with it what was to follow.
                    *(f"the end of {name}" for name, ours in self.planned.items() if owner.name in ours.on_success),
                ]
                if unit.restart not in ("", "no"):
                    starters.append(f"its own Restart={unit.restart}")
                text += f", started by {' or '.join(starters)}" if starters else ""
            self.story.respawned.append(text)

    def _quiesce(self, plan: Plan) -> None:
        """Wait until the engines that came up have nothing to do. Raises NotQuietError, with nothing stopped yet."""
        servers: dict[str, Serving] = {}
        apart: set[str] = set()
        for item in plan.judged:
            recognition = item.seen.recognition
            if item.action != "leave" and recognition is not None and recognition.role == "main":
                # What it was really started with: a unit may run a script, or have the port in a variable.
                started = item.group if item.group in self.snapshot.managed else f"{recognition.engine} of {item.group}"
                name = item.unit if item.unit in plan.stop else started
                if not same_network(item.seen.process.pid):
                    apart.add(name)
                servers.setdefault(name, serving(recognition.engine, item.seen.argv))
        for name in plan.stop:
            engine_unit = self.snapshot.units[name]
            servers.setdefault(name, serving(engine_unit.engine, engine_unit.unit.exec_start))
        up = {name: where for name, where in servers.items() if name not in apart and _listens(where)}
        # Of one that cannot be asked nobody knows that it serves nobody.
        self.came_up = frozenset({*up, *apart})
        if not self.came_up or not self.timeouts.quiesce:
            return
        with self._stage("quiesce") as actions:
            actions.extend(f"{name}: not asked for its requests, its network is its own" for name in sorted(apart))
            asks = {name: (where.engine, asker(where.host, where.port, None)) for name, where in up.items()}
            outcomes = quiesce(asks, self.timeouts.quiesce)
            actions.extend(f"{name}: {outcome.why}" for name, outcome in outcomes.items())
            busy = [f"{name} is not idle: {outcome.why}" for name, outcome in outcomes.items() if not outcome.quiet]
            if busy and not self.cut_requests:
                raise NotQuietError(
                    f"{'; '.join(busy)}. Nothing was stopped; {knob('on_quiesce_timeout', 'proceed')} cuts them off"
                )

    # --- engine units -------------------------------------------------------------------------------------------------

    def _stop(self, plan: Plan) -> None:
        if not plan.stop:
            return
        with self._stage("stop units") as actions:
            began = time.monotonic()
            waiting = {name: self.snapshot.units[name].unit for name in plan.stop}
            deadlines = {
                name: began + min(self.timeouts.of(unit), math.inf if name in self.came_up else LOADING_GRACE)
                for name, unit in waiting.items()
            }
            for name in plan.stop:
                self._note(f"stop {name}: {self.hold.reason}", "stop", unit=name)
            self.units.stop(plan.stop)
            # What its unit does not take with it is stopped by its runtime.
            run = {managed.owner.identifier for managed in self.snapshot.managed.values() if managed.unit in plan.stop}
            self.policy = replace(self.policy, leftovers=self.policy.leftovers | run)
            killed: set[str] = set()
            asked = began
            while waiting:
                now = time.monotonic()
                emptied = [name for name, unit in waiting.items() if not cgroup_populated(unit.control_group)]
                if now - asked >= (EMPTY_POLL if emptied else STATE_POLL):
                    asked = now
                    for name, unit in self.units.show(list(waiting)).items():
                        # It may have had no cgroup yet, waiting for its automatic restart.
                        waiting[name] = unit if unit.control_group else waiting[name]
                        if not is_up(unit) and not unit.job:
                            del waiting[name]
                            self._stopped(name, now - began, name in killed, actions)
                for name in [name for name in waiting if now >= deadlines[name]]:
                    if name in killed:
                        del waiting[name]
                        self.stuck_units.add(name)
                        actions.append(f"{name} did not end within {self.timeouts.kill:g} s of SIGKILL")
                        continue
                    self._kill_cgroup(waiting[name], actions)
                    killed.add(name)
                    deadlines[name] = now + self.timeouts.kill
                time.sleep(POLL)

    def _stopped(self, name: str, seconds: float, killed: bool, actions: list[str]) -> None:
        self.story.stopped_units.append({"unit": name, "seconds": round(seconds, 3), "killed": killed})
        actions.append(f"{name} stopped after {seconds:.1f} s" + (", its cgroup killed" if killed else ""))

    def _kill_cgroup(self, unit: Unit, actions: list[str]) -> None:
        """SIGKILL the whole cgroup, after a last look that nobody in it is to be spared."""
        snapshot = self._look()
        members = cgroup_pids(unit.control_group)
        spared = members & (
            snapshot.ours | {pid for pid, seen in snapshot.seen.items() if protection_of(seen, snapshot, self.policy)}
        )
        if spared:
            actions.append(f"{unit.name} was not killed: pid {min(spared)} in its cgroup is protected")
            return
        self._note(f"kill the cgroup of {unit.name}: it did not stop in time", "kill", unit=unit.name, signal="SIGKILL")
        cgroup_kill(unit.control_group)

    # --- containers and users' units ----------------------------------------------------------------------------------

    def _stop_managed(self, plan: Plan) -> None:
        """Each by its own manager, all at once, so that one that does not answer costs its own time alone."""
        waiting = [managed for managed in plan.managed if _instance(managed) not in self.tried]
        if not waiting:
            return
        self.tried.update(map(_instance, waiting))
        with self._stage("stop containers and users' units") as actions:
            for managed in waiting:
                self._note(f"stop {managed.owner}: {self.hold.reason}", "stop", owner=str(managed.owner))
            with ThreadPoolExecutor(max_workers=len(waiting)) as pool:
                for stopped in pool.map(self._stop_one, waiting):
                    self.story.stopped_owners.append(stopped)
                    actions.append(
                        f"{stopped.owner} was not stopped: {stopped.error}"
                        if stopped.error
                        else f"{stopped.owner} stopped after {stopped.seconds:.1f} s"
                    )

    def _stop_one(self, managed: Managed) -> Stopped:
        began = time.monotonic()
        patience = self.timeouts.STOP_CAP if self.timeouts.stop is None else self.timeouts.stop
        if managed.owner.kind == USER_UNIT and str(managed.owner) not in self.came_up:
            patience = min(patience, LOADING_GRACE)
        try:
            restart = stop(managed, patience, self.timeouts.stop)
        except UnitsError as error:
            return Stopped(managed.owner, time.monotonic() - began, error=str(error))
        return Stopped(managed.owner, time.monotonic() - began, restart=restart)

    # --- single processes ---------------------------------------------------------------------------------------------

    def _end_supervisors(self, plan: Plan) -> None:
        """Before the engines that they would start again."""
        if plan.supervisors:
            processes = [seen.process for seen in plan.supervisors]
            why = dict.fromkeys([process.pid for process in processes], "it may start an ended engine again")
            self._end_all("end supervisors", processes, set(why), why)

    def _end(self, plan: Plan) -> None:
        if plan.end:
            by_pid = {item.seen.process.pid: item for item in plan.judged}
            members = [by_pid[pid].seen.process for ending in plan.end for pid in ending.members]
            term = {pid for ending in plan.end for pid in ending.term}
            self._end_all("end processes", members, term, {pid: item.why for pid, item in by_pid.items()})

    def _end_all(self, stage: str, processes: list[Process], term: set[int], why: Mapping[int, str]) -> None:
        with self._stage(stage) as actions, Ending(processes) as ending:

            def told(name: str, pinned: Pinned) -> None:
                process = pinned.process
                message = f"{name} to {process.comm} (pid {process.pid}): {why[process.pid]}"
                self._note(message, "signal", target_pid=process.pid, start=process.start, signal=name)

            ending.end(term, self.timeouts.term, self.timeouts.kill, told)
            self.story.ended.extend(ending.ended)
            tried = {process.pid for process in processes}
            others = [survivor for survivor in self.story.survivors if survivor["pid"] not in tried]
            self.story.survivors = [*others, *(_survivor(process) for process in ending.survivors)]
            actions.extend(
                f"{ended.name} (pid {ended.pid}) gone after {ended.seconds:.1f} s, {ended.signal or 'with the others'}"
                for ended in ending.ended
            )

    # --- proof --------------------------------------------------------------------------------------------------------

    def _prove(self, plan: Plan) -> bool:
        with self._stage("release") as actions:
            did_something = bool(self.story.stopped_units or self.story.stopped_owners or self.story.ended)
            watch = release_watch(
                self.probe,
                self.snapshot,
                plan,
                self.policy,
                self.timeouts,
                self.known,
                did_something,
                self.story.see_memory,
            )
            try:
                self.story.released = watch.wait() and not plan.missing
            finally:
                self.story.verdicts = watch.verdicts
                actions.extend(f"GPU {index}: {seen.verdict}" for index, seen in sorted(watch.verdicts.items()))
        return self.story.released


def _instance(managed: Managed) -> tuple[str, int]:
    """One life of a container or a user's unit: started again, it is another."""
    return str(managed.owner), min(managed.pids, default=0)


def holders(plan: Plan) -> frozenset[Identity]:
    """Who holds a GPU already: any other holder is a newcomer, however long its process has been there."""
    return frozenset(item.seen.process.identity for item in plan.judged if item.held)


def known_units(snapshot: Snapshot) -> dict[str, Unit]:
    """The engine units as they were seen then, for a look that does not ask systemd again: that takes the longest."""
    return {name: engine_unit.unit for name, engine_unit in snapshot.units.items()}


def release_watch(
    probe: Probe,
    snapshot: Snapshot,
    plan: Plan,
    policy: Policy,
    timeouts: Timeouts,
    known: Collection[Identity],
    wait_stable: bool,
    see_memory: Callable[[Iterable[Gpu]], None] = lambda gpus: None,
) -> Watch:
    """A watch over the plan's GPUs. Units are not asked again: only GPUs and processes can change the verdict.

    known holds those that held a GPU before; wait_stable False takes the first clean look as proof, which is
    right where nothing was ended.
    """
    loaded = known_units(snapshot)
    wanted = {gpu.index for gpu in plan.gpus}

    def look(stuck: Collection[Identity]) -> tuple[dict[int, Verdict], set[Identity]]:
        now = take_snapshot(probe, loaded)
        judged = judge(now, policy)
        shown = {gpu.index: gpu for gpu in now.reading.gpus}
        see_memory(gpu for gpu in now.reading.gpus if gpu.index in wanted)
        verdicts = {
            gpu.index: verdict_of(shown.get(gpu.index, gpu), now, judged, policy.threshold_mib, known, stuck)
            for gpu in plan.gpus
        }
        return verdicts, {
            item.seen.process.identity for item in judged if item.seen.sigkill_pending and wanted & item.held
        }

    return Watch(look, timeouts.stable_for if wait_stable else 0.0, timeouts.release, timeouts.kill)


def _touched(item: Judged) -> Collection[int]:
    """GPUs on which somebody is, however little; an observer's descriptors take no memory."""
    return {*item.seen.used, *(() if item.cls == OBSERVER else item.seen.attached)}


def _survivor(process: Process) -> dict[str, Any]:
    now = read_process(process.pid) or process
    return {
        "pid": process.pid,
        "start": process.start,
        "name": process.comm,
        "state": now.state,
        "waits_in": wait_channel(process.pid),
        "why": "does not die of SIGKILL: only a GPU reset or a reboot frees what it holds",
    }


def _listens(where: Serving) -> bool:
    """Whether the engine ever came up: both answer on their port only once the model is loaded."""
    try:
        with socket.create_connection((where.host, where.port), timeout=CONNECT):
            return True
    except (OSError, UnicodeError):
        # The second is Python's answer to a host that can be no name.
        return False
