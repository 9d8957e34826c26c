# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""From a snapshot and a policy to what would be done, with the reason for each step. Pure: touches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._engines import is_multiprocessing_child, is_python
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, select_gpus, spans
from ansible_collections.gpuops.inference.plugins.module_utils._managed import Managed
from ansible_collections.gpuops.inference.plugins.module_utils._masking import mask_command, printable
from ansible_collections.gpuops.inference.plugins.module_utils._options import knob
from ansible_collections.gpuops.inference.plugins.module_utils._owners import (
    CONTAINER,
    DOCKER,
    JOB,
    NERDCTL,
    NOBODY,
    POD,
    PODMAN,
    SESSION,
    USER_UNIT,
    Owner,
    restarts,
)
from ansible_collections.gpuops.inference.plugins.module_utils._reserves import MOST_RESERVED_MIB
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import SHELLS, WRAPPERS, Seen, Snapshot
from ansible_collections.gpuops.inference.plugins.module_utils._units import Unit

TARGET = "target"
ORPHAN = "orphan"
OBSERVER = "observer"
FOREIGN = "foreign"
UNKNOWN = "unknown"
PROTECTED = "protected"

MANAGED = (CONTAINER, USER_UNIT)
"""Kinds of owner that are stopped as a whole by their own manager, where the caller says so."""
NEVER = (POD, JOB)
"""Kinds of owner whose manager is not on this host."""
RUNTIMES = (DOCKER, PODMAN, NERDCTL)
"""What runs containers and can be told to stop one, so that it stays stopped."""

LOADING = 600.0
"""Seconds after its start in which an engine's worker may still make its context: they come one after the other, some
minutes apart where Python's imports come from a slow disk."""

SSHD = ("sshd", "sshd-session", "sshd-auth")

INTERACTIVE = ("ipykernel", "ipython", "jupyter")
"""What people work in, by the words of its command line: it starts an engine once, when it is told."""
SUPERVISORS = ("supervisord", "circusd", "runsv", "s6-supervise", "supervise", "pm2", "watch", "forever", "nodemon")
"""Programs beside shells and Python whose only job is to start something again."""


@dataclass(frozen=True)
class Policy:
    """What the caller allows."""

    gpus: tuple[str, ...] = ("all",)
    gpu_count: int = 0
    """How many GPUs the host must have; 0 counts the nodes in /dev."""
    units: tuple[str, ...] = ()
    engines: tuple[str, ...] = ("vllm", "sglang")
    end_foreign: bool = False
    stop_containers: bool = False
    stop_user_units: bool = False
    end_supervisors: bool = False
    leftovers: frozenset[str] = frozenset()
    """Containers of engine units that were stopped: they go as what is left of the unit."""
    protect: tuple[str, ...] = ()
    force: bool = False
    threshold_mib: int = 512


@dataclass(frozen=True)
class Judged:
    """A process, what it is to this drain, and what is done with it."""

    seen: Seen
    cls: str
    why: str
    group: str = ""
    """The engine instance it belongs to: its unit, or `pid N` of the topmost process."""
    unit: str = ""
    held: frozenset[int] = frozenset()
    """Indexes of the GPUs it is a holder of."""
    action: str = "leave"

    def as_dict(self) -> dict[str, Any]:
        process = self.seen.process
        return {
            "pid": process.pid,
            "start": process.start,
            "age": round(self.seen.age, 1),
            "uid": process.uid,
            "comm": process.comm,
            "command": command_text(self.seen),
            "state": process.state,
            "gpus_used": sorted(self.seen.used),
            "gpus_attached": sorted(self.seen.attached),
            "memory_mib": {str(index): mib for index, mib in sorted(self.seen.used.items())},
            "owner": self.seen.owner.as_dict(),
            "unit": self.unit,
            "engine": self.seen.recognition.engine if self.seen.recognition else "",
            "class": self.cls,
            "action": self.action,
            "why": self.why,
        }


@dataclass(frozen=True)
class Ending:
    """Processes of one engine instance (or one foreign holder): who gets SIGTERM, and all that must be gone after."""

    name: str
    term: tuple[int, ...]
    members: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """What a drain would do, in order: hold, stop units, end processes. Refusals mean that nothing is done."""

    gpus: tuple[Gpu, ...]
    judged: tuple[Judged, ...]
    hold: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    managed: tuple[Managed, ...] = ()
    """Containers and users' units that their own manager is to stop."""
    supervisors: tuple[Seen, ...] = ()
    """Who would start an ended engine again: ended before anybody else."""
    end: tuple[Ending, ...] = ()
    refusals: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()
    """Refusals that may pass by themselves in a moment: memory on its way back, a process that is dying."""
    missing: tuple[str, ...] = ()
    """Said where the host shows another number of GPUs than it should have."""

    @property
    def acts(self) -> bool:
        return bool(self.stop or self.managed or self.end)

    def steps(self) -> list[str]:
        """The plan in words, one line a step."""
        by_pid = {judged.seen.process.pid: judged for judged in self.judged}
        ends = [
            f"end {ending.name} ({len(ending.members)} process{'es' * (len(ending.members) > 1)}): "
            + by_pid[ending.members[0]].why
            for ending in self.end
        ]
        return [
            *(f"hold {unit}" for unit in self.hold),
            *(f"stop {unit}" for unit in self.stop),
            *(f"stop {managed.owner}: {managed.owner.instead}" for managed in self.managed),
            *(f"end {_named(seen)}, which would start an engine again" for seen in self.supervisors),
            *ends,
        ]


def command_text(seen: Seen) -> str:
    """A command line fit for a result; the kernel's name in brackets where it could not be read."""
    return mask_command(seen.argv) if seen.argv else f"[{printable(seen.process.comm)}]"


def make_plan(snapshot: Snapshot, policy: Policy) -> Plan:
    """Judge every process and say what is to be done. Raises GpuSelectionError for a GPU that does not exist."""
    gpus = select_gpus(snapshot.reading, policy.gpus)
    selected = frozenset(gpu.index for gpu in gpus)
    whole_host = selected == {gpu.index for gpu in snapshot.reading.gpus}
    judged = judge(snapshot, policy)
    scope = _groups_in_scope(judged, snapshot, policy, selected, whole_host)
    units = [name for name in sorted(scope) if name in snapshot.units]
    stop = tuple(name for name in units if is_up(snapshot.units[name].unit))
    judged = tuple(_with_action(item, scope, stop, policy, selected, snapshot) for item in judged)
    missing = tuple(_missing(snapshot, policy))
    return Plan(
        gpus=gpus,
        judged=judged,
        hold=tuple(units),
        stop=stop,
        managed=_to_be_stopped(judged, snapshot),
        supervisors=_supervisors(judged, snapshot, policy) if policy.end_supervisors else (),
        end=tuple(_endings(judged)),
        refusals=(*_refusals(snapshot, policy, gpus, judged, stop), *(missing if not policy.force else ())),
        unsettled=() if policy.force else tuple(_unsettled(snapshot, policy, gpus, judged)),
        missing=missing,
    )


def judge(snapshot: Snapshot, policy: Policy) -> tuple[Judged, ...]:
    """Class every process that touches a GPU or belongs to an engine; what is neither is left out."""
    groups = _engine_groups(snapshot)
    held = _held_gpus(snapshot, groups)
    result = []
    for pid, seen in sorted(snapshot.seen.items()):
        protection = protection_of(seen, snapshot, policy)
        group, unit, orphan = groups.get(pid, (f"pid {pid}", "", False))
        if protection:
            cls, why = PROTECTED, protection
        elif orphan:
            cls, why = ORPHAN, _orphan_reason(seen, unit, group if group in snapshot.managed else "")
        elif pid in groups:
            cls, why = (
                TARGET,
                f"belongs to {unit or (group if group in snapshot.managed else 'an engine started by hand')}",
            )
        elif seen.observer and not seen.uvm and not seen.used:
            cls, why = OBSERVER, f"{seen.observer}: watches, computes nothing"
        elif seen.used or seen.uvm:
            cls, why = FOREIGN, f"{_launched_by(seen, snapshot)}; owner: {seen.owner}"
        else:
            cls, why = UNKNOWN, "has GPU nodes open, no context, is in no table of observers"
        if pid in groups or seen.used or seen.attached or seen.uvm:
            result.append(Judged(seen, cls, why, group, unit, held[pid]))
    return tuple(result)


def _held_gpus(snapshot: Snapshot, groups: Mapping[int, tuple[str, str, bool]]) -> dict[int, frozenset[int]]:
    """By pid, the GPUs a process is a holder of: those it uses, or those it is attached to if it uses none.

    NCCL opens every node in every worker, so being attached counts for nothing once anybody of the same engine uses
    a GPU, and only for the GPUs the engine was given. A young worker that has started CUDA and has no context yet is
    about to make one: while its engine loads, its sister's context says nothing about it.
    """
    members: dict[str, list[Seen]] = {}
    for pid, seen in snapshot.seen.items():
        members.setdefault(groups.get(pid, (f"pid {pid}", "", False))[0], []).append(seen)
    held = {}
    for group in members.values():
        in_use = any(seen.used for seen in group)
        claims = [seen.claims for seen in group if seen.claims is not None]
        for seen in group:
            attached = seen.attached.intersection(*claims)
            held[seen.process.pid] = frozenset(seen.used) if in_use and not _about_to_compute(seen) else attached
    return held


def _about_to_compute(seen: Seen) -> bool:
    worker = seen.recognition is not None and seen.recognition.role != "main"
    return worker and seen.uvm and not seen.used and seen.age < LOADING


def protection_of(seen: Seen, snapshot: Snapshot, policy: Policy) -> str:
    """Why a process must never be signalled; '' if it may be."""
    process = seen.process
    if process.pid == 1 or process.kernel_thread:
        return "the system itself"
    if process.pid in snapshot.ours:
        return "this run of Ansible"
    if process.comm in SSHD and seen.executable.startswith("/usr/"):
        return "the SSH server"
    owner = seen.owner
    names = {str(process.pid), seen.executable, owner.name}
    if owner.kind == CONTAINER:
        names |= {f"container:{name}" for name in (owner.label, owner.identifier, owner.identifier[:12])}
    named = names & set(policy.protect)
    return f"named in protect: {min(named)}" if named else ""


def _engine_groups(snapshot: Snapshot) -> dict[int, tuple[str, str, bool]]:
    """By pid of each engine process: its instance, its engine unit, and whether it is an orphan."""
    groups: dict[int, tuple[str, str, bool]] = {}
    for name, engine_unit in snapshot.units.items():
        alive = engine_unit.unit.running
        groups.update(dict.fromkeys(engine_unit.pids, (name, name, not alive)))
    for name, managed in snapshot.managed.items():
        if managed.engine and (managed.owner.kind == CONTAINER or managed.alone):
            for pid in managed.pids:
                groups.setdefault(pid, (name, "", not managed.alive))
    recognised = {pid for pid, seen in snapshot.seen.items() if seen.recognition is not None}
    children: dict[int, list[int]] = {}
    for process in snapshot.processes.values():
        children.setdefault(process.ppid, []).append(process.pid)
    for root in sorted(recognised - set(groups), key=lambda pid: _depth(pid, snapshot)):
        if root in groups or root in snapshot.ours:
            continue
        recognition = snapshot.seen[root].recognition
        orphan = recognition is not None and recognition.role != "main"
        if orphan and _launcher(root, snapshot) is not None:
            # Somebody's own program that computes with an engine's library: no server of ours, and no orphan.
            continue
        for pid in _descendants(root, children):
            if pid in snapshot.seen and pid not in snapshot.ours:
                groups.setdefault(pid, (f"pid {root}", "", orphan))
    groups.update(_left_helpers(snapshot, groups))
    return groups


def _left_helpers(snapshot: Snapshot, groups: Mapping[int, tuple[str, str, bool]]) -> dict[int, tuple[str, str, bool]]:
    """CPython's helper processes of an engine whose parent died: same session, same interpreter, no live parent."""
    homes = {
        (snapshot.seen[pid].process.session, snapshot.seen[pid].executable): group
        for pid, (group, unit, orphan) in groups.items()
        if pid in snapshot.seen and orphan and not unit
    }
    return {
        pid: (homes[key], "", True)
        for pid, seen in snapshot.seen.items()
        if pid not in groups
        and pid not in snapshot.ours
        and is_multiprocessing_child(seen.argv)
        and (key := (seen.process.session, seen.executable)) in homes
        and not _has_live_python_parent(seen, snapshot)
    }


def _launcher(pid: int, snapshot: Snapshot) -> Optional[Seen]:
    """The live Python program, itself no engine, that an engine's process belongs to; None if that is gone.

    It may have gone by way of a shell, as with `subprocess.run(..., shell=True)`.
    """
    passed = {pid}
    parent = snapshot.seen.get(snapshot.seen[pid].process.ppid)
    while parent is not None and (
        parent.recognition is not None
        or is_multiprocessing_child(parent.argv)
        or (_program(parent) in SHELLS and runs_a_script(parent.argv))
    ):
        if parent.process.pid in passed:
            return None
        passed.add(parent.process.pid)
        parent = snapshot.seen.get(parent.process.ppid)
    return parent if parent is not None and is_python(parent.executable) else None


def _launched_by(seen: Seen, snapshot: Snapshot) -> str:
    launcher = _launcher(seen.process.pid, snapshot) if seen.recognition else None
    if launcher is None:
        return "no engine's process"
    return f"a worker of pid {launcher.process.pid} ({command_text(launcher)[:60]}), which is no engine's server"


def _has_live_python_parent(seen: Seen, snapshot: Snapshot) -> bool:
    parent = snapshot.seen.get(seen.process.ppid)
    return parent is not None and parent.executable == seen.executable


def _depth(pid: int, snapshot: Snapshot) -> int:
    return len(_above(pid, snapshot))


def _descendants(root: int, children: Mapping[int, Iterable[int]]) -> list[int]:
    found = [root]
    for pid in found:
        found.extend(child for child in children.get(pid, ()) if child not in found)
    return found


def _orphan_reason(seen: Seen, unit: str, container: str) -> str:
    if unit:
        return f"left in the cgroup of {unit}, which is not running"
    if container:
        return f"left in {container}, whose monitor is gone"
    return f"{seen.process.comm} outlived its launcher; owner now: {seen.owner}"


def is_up(unit: Unit) -> bool:
    """Running, or waiting to be started again: a unit in auto-restart comes back unless it is stopped."""
    return unit.running or unit.sub_state.startswith("auto-restart")


def _groups_in_scope(
    judged: Iterable[Judged],
    snapshot: Snapshot,
    policy: Policy,
    selected: frozenset[int],
    whole_host: bool,
) -> frozenset[str]:
    """Engine instances this drain is about: those that hold a selected GPU, and the units that were named."""
    held: dict[str, set[int]] = {name: set() for name in snapshot.units}
    engines = {name: engine_unit.engine for name, engine_unit in snapshot.units.items()}
    for item in judged:
        if item.cls in (TARGET, ORPHAN):
            held.setdefault(item.group, set()).update(item.held)
            if item.seen.recognition is not None:
                engines.setdefault(item.group, item.seen.recognition.engine)
    return frozenset(
        group
        for group in held
        if group in policy.units
        or (engines.get(group, "") in policy.engines and (whole_host or bool(selected & held[group])))
    )


def _with_action(
    item: Judged,
    scope: frozenset[str],
    stop: tuple[str, ...],
    policy: Policy,
    selected: frozenset[int],
    snapshot: Snapshot,
) -> Judged:
    action = "leave"
    if item.cls in (TARGET, ORPHAN) and item.group in scope:
        action = "stop with its unit" if item.unit in stop else "end"
    elif item.cls == FOREIGN and item.held & selected:
        action = "end" if policy.end_foreign else "refuse"
    owner = item.seen.owner
    if action in ("end", "refuse") and not item.unit and owner.kind in (*MANAGED, *NEVER):
        action = _through_its_manager(snapshot.managed.get(str(owner)), owner, policy)
    return replace(item, action=action)


def _through_its_manager(managed: Optional[Managed], owner: Owner, policy: Policy) -> str:
    """What becomes of a process that a container or a user's unit answers for."""
    if managed is None or not _told(managed, policy) or _unstoppable(managed):
        return "refuse"
    return f"stop with its {owner.kind}" if managed.alive else "end"


def _told(managed: Managed, policy: Policy) -> bool:
    if managed.owner.kind == USER_UNIT:
        return policy.stop_user_units
    return policy.stop_containers or managed.owner.identifier in policy.leftovers


def _unstoppable(managed: Managed) -> str:
    """Why this one is not stopped even where the caller says so, and what to do; '' where it can be."""
    owner = managed.owner
    if owner.kind == USER_UNIT:
        if managed.engine and managed.alone:
            return ""
        return f"it is no engine's alone: `{owner.instead}`"
    if unit := managed.unit or managed.doubtful_unit:
        may = "is" if managed.unit else "may be"
        named = f", or name {unit} in `units`" if managed.engine else ""
        return f"it {may} run by {unit}, which would run it again: `systemctl stop {unit}`{named}"
    if owner.runtime not in RUNTIMES or (owner.uid is not None and managed.alive):
        return f"it is not ours to stop: `{owner.instead}`"
    return ""


def _to_be_stopped(judged: Iterable[Judged], snapshot: Snapshot) -> tuple[Managed, ...]:
    names = {str(item.seen.owner) for item in judged if item.action in (f"stop with its {kind}" for kind in MANAGED)}
    return tuple(snapshot.managed[name] for name in sorted(names))


def _supervisors(judged: Iterable[Judged], snapshot: Snapshot, policy: Policy) -> tuple[Seen, ...]:
    judged = list(judged)
    # One that also runs an engine on other GPUs may take that along when it ends.
    needed = {
        pid for item in judged if item.cls in (TARGET, ORPHAN) and item.action == "leave"
        for pid in _above(item.seen.process.pid, snapshot)
    }  # fmt: skip
    ending = [item for item in judged if item.action == "end" and item.cls != FOREIGN]
    return tuple(seen for seen in supervisors_of(ending, snapshot, policy) if seen.process.pid not in needed)


def _above(pid: int, snapshot: Snapshot) -> set[int]:
    """A process and its ancestors."""
    passed: set[int] = set()
    while pid in snapshot.processes and pid not in passed:
        passed.add(pid)
        pid = snapshot.processes[pid].ppid
    return passed


def supervisors_of(judged: Iterable[Judged], snapshot: Snapshot, policy: Policy) -> tuple[Seen, ...]:
    """The ancestors of engines started by hand which may start them again: scripts, and programs made for it.

    The walk ends at the first that is anything else: pid 1, the SSH server, a terminal, a shell somebody types into.
    """
    found: dict[int, Seen] = {}
    for item in judged:
        root = item.seen
        if item.group != f"pid {root.process.pid}":
            continue
        chain = [root]
        while (parent := snapshot.seen.get(chain[-1].process.ppid)) and parent not in chain:
            if not _may_start_again(parent, snapshot, policy):
                break
            chain.append(parent)
        found.update((seen.process.pid, seen) for seen in reversed(chain[1:]))
    return tuple(found.values())


def _may_start_again(seen: Seen, snapshot: Snapshot, policy: Policy) -> bool:
    program = _program(seen)
    if protection_of(seen, snapshot, policy) or seen.recognition or seen.used or seen.uvm:
        return False
    if restarts(seen.owner) or seen.owner.kind in (*MANAGED, *NEVER):
        return False
    if program in SHELLS:
        parent = snapshot.processes.get(seen.process.ppid)
        return runs_a_script(seen.argv) and not (parent and parent.comm in (*SSHD, "login"))
    if is_python(seen.executable):
        return len(seen.argv) > 1 and not any(word in argument for word in INTERACTIVE for argument in seen.argv[:4])
    return program in (*WRAPPERS, *SUPERVISORS) or seen.process.comm in SUPERVISORS


def runs_a_script(argv: Sequence[str]) -> bool:
    """Whether a shell was given a script or a command, and is none that somebody types into."""
    words = iter(argv[1:] if argv and not argv[0].startswith("-") else ())
    for word in words:
        if word in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file"):
            next(words, "")
        elif not word.startswith(("-", "+")):
            return True
        elif not word.startswith("--"):
            if set("is") & set(word):
                return False
            if "c" in word:
                return True
    return False


def _program(seen: Seen) -> str:
    return seen.executable.rsplit("/", 1)[-1]


def _endings(judged: Iterable[Judged]) -> list[Ending]:
    groups: dict[str, list[Judged]] = {}
    for item in judged:
        if item.action == "end":
            groups.setdefault(item.group, []).append(item)
    return [
        Ending(
            name=_ending_name(group, members),
            term=tuple(item.seen.process.pid for item in _first_to_be_told(members)),
            members=tuple(item.seen.process.pid for item in members),
        )
        for group, members in groups.items()
    ]


def _first_to_be_told(members: list[Judged]) -> list[Judged]:
    """The server alone gets SIGTERM and ends its own children; one more to a worker in teardown orphans the rest."""
    root = members[0].group.removeprefix("pid ")
    mains = [
        item
        for item in members
        if str(item.seen.process.pid) == root and item.seen.recognition and item.seen.recognition.role == "main"
    ]
    return mains or members


def _ending_name(group: str, members: list[Judged]) -> str:
    return f"{members[0].cls} {group}" if group.startswith("pid ") else f"what is left of {group}"


def _refusals(
    snapshot: Snapshot, policy: Policy, gpus: tuple[Gpu, ...], judged: Iterable[Judged], stop: tuple[str, ...]
) -> list[str]:
    """Why this drain could not end well. Everything is said at once, so that one look is enough."""
    judged = list(judged)
    refusals = [*snapshot.rejected_units.values(), *_blind_spots(snapshot, policy)]
    selected = frozenset(gpu.index for gpu in gpus)
    said: set[str] = set()
    managed: dict[Owner, list[Judged]] = {}
    for item in judged:
        who, where = _who(item), _where(item)
        owner = item.seen.owner
        if item.action == "refuse":
            if owner.kind in (*MANAGED, *NEVER):
                managed.setdefault(owner, []).append(item)
                continue
            whole = f" (`{owner.instead}` ends all of the session)" if owner.kind == SESSION else ""
            whom = "user" if owner.kind == NOBODY else "owner"
            instead = f"ask its {whom} to end it{whole}, or pass {knob('foreign', 'end')}"
            if restarts(owner):
                instead += f"; if {printable(owner.name)} is there to run an engine, name it in `units`"
            refusals.append(f"{where} held by {who}, {item.why}: {instead}")
        elif item.cls == PROTECTED and item.unit in stop:
            if item.unit in said:
                continue
            said.add(item.unit)
            refusals.append(f"{item.unit} cannot be stopped: {who} in it is protected ({item.why})")
        elif item.cls == PROTECTED and item.held & selected:
            refusals.append(f"{where} held by {who}, which is protected ({item.why})")
    refusals += [_managed_refusal(owner, items, snapshot, policy) for owner, items in managed.items()]
    for planned in _to_be_stopped(judged, snapshot):
        spared = [
            seen
            for pid in sorted(planned.pids)
            if (seen := snapshot.seen.get(pid)) and protection_of(seen, snapshot, policy)
        ]
        if spared:
            why = protection_of(spared[0], snapshot, policy)
            refusals.append(f"{planned.owner} cannot be stopped: {_named(spared[0])} in it is protected ({why})")
    if not policy.force:
        refusals += _restarters(snapshot, judged)
        refusals += [text for gpu in gpus if (text := _unusable(gpu))]
    return refusals


def _managed_refusal(owner: Owner, items: list[Judged], snapshot: Snapshot, policy: Policy) -> str:
    """One line for all that a container, a pod, a job or a user's unit holds, with what to run instead."""
    held: frozenset[int] = frozenset().union(*(item.held for item in items))
    where = f"GPU{'s' * (len(held) > 1)} {spans(held)} {'are' if len(held) > 1 else 'is'} held by " if held else ""
    others = f" and {len(items) - 1} more" if len(items) > 1 else ""
    managed = snapshot.managed.get(str(owner))
    if managed is None:
        advice = f"its manager would start it again: `{owner.instead}`"
    elif why := _unstoppable(managed):
        advice = why
    elif managed.alive:
        option = knob("containers" if owner.kind == CONTAINER else "user_units", "stop")
        advice = f"stop it with `{owner.instead}`, or pass {option}"
    else:
        advice = f"its monitor is gone, so no runtime stops it: pass {knob('containers', 'stop')} to end its processes"
    return f"{where}{_who(items[0])}{others} of {owner}: {advice}"


def _restarters(snapshot: Snapshot, judged: Iterable[Judged]) -> Iterator[str]:
    """Servers that a program of a system's unit started: it would start them again, and only the caller may stop it."""
    for item in judged:
        recognition, owner = item.seen.recognition, item.seen.owner
        if item.action != "end" or item.unit or recognition is None or recognition.role != "main":
            continue
        launcher = _launcher(item.seen.process.pid, snapshot)
        if launcher is not None and restarts(owner) and launcher.owner == owner:
            name = printable(owner.name)
            starter = f"pid {launcher.process.pid} ({command_text(launcher)[:60]}) of {name}"
            yield (
                f"{_who(item)} was started by {starter}, which may start it again: name {name} in `units`, "
                f"or pass {knob('force', 'true')} to end the engine alone"
            )


def _unsettled(snapshot: Snapshot, policy: Policy, gpus: Iterable[Gpu], judged: Iterable[Judged]) -> Iterator[str]:
    judged = list(judged)
    for item in judged:
        if item.action != "leave" and item.seen.sigkill_pending:
            yield (
                f"{_who(item)} was sent SIGKILL before and has not died (state {item.seen.process.state}): only a GPU "
                f"reset or a reboot frees what it holds; pass {knob('force', 'true')} to drain the rest"
            )
    for gpu in gpus:
        used = gpu.memory.used if gpu.memory else 0
        held = any(item.cls in (TARGET, ORPHAN, FOREIGN, PROTECTED) and gpu.index in item.held for item in judged)
        if gpu.memory and gpu.memory.version == 1 and not gpu.memory.reserved and used < MOST_RESERVED_MIB:
            # An old driver counts what it keeps to itself; how much that is, nobody has seen yet.
            continue
        if used >= policy.threshold_mib and not held and not snapshot.ghosts.get(gpu.index):
            yield (
                f"{gpu.label} has {used} MiB in use and no process that holds them: leaked; "
                f"reset it (nvidia-smi --gpu-reset -i {gpu.index}) or reboot"
            )


def _who(item: Judged) -> str:
    process = item.seen.process
    return f"pid {process.pid} ({command_text(item.seen)[:80]}, uid {process.uid})"


def _named(seen: Seen) -> str:
    return f"pid {seen.process.pid} ({command_text(seen)[:80]})"


def _where(item: Judged) -> str:
    return f"GPU {spans(item.held)} is" if len(item.held) == 1 else f"GPUs {spans(item.held)} are"


def _blind_spots(snapshot: Snapshot, policy: Policy) -> list[str]:
    reading = snapshot.reading
    refusals = []
    if snapshot.blind:
        refusals.append(snapshot.blind)
    if not reading.usable and not policy.force:
        refusals.append("release could never be proven: " + "; ".join(reading.problems))
    if snapshot.mps:
        refusals.append("an MPS daemon runs here: quit it first (echo quit | nvidia-cuda-mps-control)")
    return refusals


def ghost_faults(snapshot: Snapshot, gpus: Iterable[Gpu]) -> Iterator[str]:
    """GPUs that no drain frees: NVML lists a process that is none, and there is nobody to end."""
    for gpu in gpus:
        if pids := snapshot.ghosts.get(gpu.index):
            named = ", ".join(str(pid) for pid in sorted(pids))
            yield f"{gpu.label}: NVML lists pid {named}, which holds no GPU node; reset the GPU or reboot"


def _missing(snapshot: Snapshot, policy: Policy) -> list[str]:
    seen, expected = len(snapshot.reading.gpus), policy.gpu_count or snapshot.node_count
    if not snapshot.reading.usable or seen == expected:
        return []
    return [f"the driver shows {seen} GPUs where {expected} are expected: see `nvidia-smi -L` and `dmesg | grep Xid`"]


def _unusable(gpu: Gpu) -> str:
    """Why this GPU could not be proven free whatever is ended; '' if it can."""
    if gpu.error:
        return f"{gpu.label}: {gpu.error}; reset it (nvidia-smi --gpu-reset -i {gpu.index}) or reboot"
    if gpu.mig:
        return f"{gpu.label} is in MIG mode: disable it first (nvidia-smi -i {gpu.index} -mig 0)"
    return ""
