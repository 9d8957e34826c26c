# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""One look at the host: GPUs, processes, descriptors and engine units, put together for the planner."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Optional

from ansible_collections.gpuops.inference.plugins.module_utils._engines import (
    Recognition,
    is_python,
    recognise,
    recognise_comm,
    recognise_command,
)
from ansible_collections.gpuops.inference.plugins.module_utils._environment import parse_assignments, read_environment
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import GpuReading, classify_nvml_pids
from ansible_collections.gpuops.inference.plugins.module_utils._holders import (
    Descriptors,
    Process,
    cgroup,
    executable,
    find_nodes,
    process_table,
    scan_descriptors,
    sigkill_pending,
)
from ansible_collections.gpuops.inference.plugins.module_utils._managed import (
    CLIENTS,
    MONITORS,
    Managed,
    find_monitors,
    identified,
    runs,
)
from ansible_collections.gpuops.inference.plugins.module_utils._masking import mask_command
from ansible_collections.gpuops.inference.plugins.module_utils._observers import observer_name
from ansible_collections.gpuops.inference.plugins.module_utils._owners import (
    CONTAINER,
    OWNED_BY_NOBODY,
    POD,
    USER_UNIT,
    Owner,
    owner_of,
    restarts,
)
from ansible_collections.gpuops.inference.plugins.module_utils._probe import Probe
from ansible_collections.gpuops.inference.plugins.module_utils._reserves import without_reserves
from ansible_collections.gpuops.inference.plugins.module_utils._units import (
    Unit,
    Units,
    UnitsError,
    cgroup_pids,
    systemd_runs,
)

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PROBE_TIMEOUT = 30.0
"""Seconds for one request to the worker: a driver without persistence takes 1 to 3 s per GPU to wake (NVIDIA's
driver-persistence manual), and eight of them are asked."""
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
MPS_SERVERS = ("nvidia-cuda-mps", "nvidia-cuda-mps-server", "nvidia-cuda-mps-control")

SHELLS = ("sh", "bash", "dash", "ash", "zsh")
WRAPPERS = (
    *SHELLS, "sudo", "su", "runuser", "setpriv", "env", "timeout", "uv",
    "tini", "dumb-init", "docker-init", "catatonit", "conmon", *CLIENTS,
)  # fmt: skip
"""Programs that start an engine and wait for it, as the main process of a unit or before it in its container."""


@dataclass(frozen=True)
class Seen:
    """What is known of a process that touches a GPU or may be an engine's."""

    process: Process
    argv: tuple[str, ...] = ()
    executable: str = ""
    cgroup: str = ""
    owner: Owner = OWNED_BY_NOBODY
    used: Mapping[int, Optional[int]] = field(default_factory=dict)
    """Memory in MiB by index of each GPU on which NVML reports a context; None where it cannot tell."""
    attached: frozenset[int] = frozenset()
    """Indexes of the GPUs whose node is open."""
    uvm: bool = False
    claims: Optional[frozenset[int]] = None
    """Indexes of the GPUs that CUDA_VISIBLE_DEVICES leaves to an engine's server; None where it leaves all."""
    recognition: Optional[Recognition] = None
    observer: str = ""
    """What the observer table calls it; '' unless its file is root's alone to change."""
    sigkill_pending: bool = False
    age: float = 0.0

    def uses(self, gpus: Collection[int]) -> bool:
        """Whether it has a context on one of these GPUs, or was given one."""
        return not {*self.used, *(self.claims or ())}.isdisjoint(gpus)


@dataclass(frozen=True)
class EngineUnit:
    """A systemd unit that runs an engine, and the processes in its cgroup."""

    unit: Unit
    engine: str
    pids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Snapshot:
    """Everything the planner needs, as plain data."""

    reading: GpuReading
    processes: Mapping[int, Process]
    seen: Mapping[int, Seen]
    units: Mapping[str, EngineUnit]
    managed: Mapping[str, Managed] = field(default_factory=dict)
    """By its owner in words: each container and user's unit that runs an engine or touches a GPU."""
    rejected_units: Mapping[str, str] = field(default_factory=dict)
    """Named units that cannot be drained, and why."""
    ours: frozenset[int] = frozenset()
    """This process, its ancestors, and the probe worker."""
    ghosts: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """By GPU: pids NVML lists that do not exist, or that are a stranger's with no GPU node open."""
    unreadable: frozenset[int] = frozenset()
    """Pids whose descriptors could not be read."""
    node_count: int = 0
    mps: bool = False

    @property
    def blind(self) -> str:
        """What could not be seen of processes, and what to do; '' if everything was."""
        if not self.unreadable:
            return ""
        pids = ", ".join(str(pid) for pid in sorted(self.unreadable)[:5])
        return f"descriptors of {len(self.unreadable)} processes cannot be read (pid {pids}): run with `become: true`"


def take_snapshot(
    probe: Probe, loaded: Mapping[str, Unit], named_units: Collection[str] = (), timeout: float = PROBE_TIMEOUT
) -> Snapshot:
    """Look at the host once, given what systemd has loaded. Sources that fail are told in the reading."""
    reading = without_reserves(probe.gpus(timeout))
    nodes = find_nodes()
    processes = process_table()
    ours = ourselves(processes, probe.workers)
    others = [process for process in processes.values() if process.pid not in ours and not process.kernel_thread]
    scan = scan_descriptors(others, nodes)
    used, ghosts = _nvml_users(reading, processes, scan.by_pid)
    started_engines = {
        name: recognition.engine
        for name, unit in loaded.items()
        if (recognition := recognise_command(unit.exec_start)) is not None
    }
    members = {pid for name in started_engines for pid in cgroup_pids(loaded[name].control_group)}
    programs = {process.pid: executable(process.pid) for process in others}
    touching = set(scan.by_pid) | set(used) | members
    candidates = touching | {
        process.pid
        for process in others
        if is_python(programs[process.pid]) or recognise_comm(process.comm) is not None
    }
    uptime = _uptime()

    def see(pids: set[int]) -> dict[int, Seen]:
        argvs = probe.cmdlines(pids, timeout)
        return {
            pid: _see(
                processes[pid],
                argvs.get(pid, ()),
                programs.get(pid, ""),
                scan.by_pid.get(pid, Descriptors()),
                used.get(pid, {}),
                reading,
                uptime,
            )
            for pid in pids & set(processes)
        }

    seen = see(candidates)
    seen.update(see(_ancestors(seen, processes) - set(seen) - ours))
    managed = _managed(seen, others, processes, programs, see, lambda pids: probe.cmdlines(pids, timeout), named_units)
    run_by = {item.unit: item for item in managed.values() if item.unit and item.engine}
    mains = [pid for pid, item in seen.items() if item.recognition is not None and item.recognition.role == "main"]
    for pid, environ in probe.environs(mains, [VISIBLE_DEVICES], timeout).items():
        seen[pid] = replace(seen[pid], claims=claimed_gpus(environ.get(VISIBLE_DEVICES), reading))
    engine_units = {
        name: EngineUnit(
            unit, engine, frozenset(cgroup_pids(unit.control_group) | (run_by[name].pids if name in run_by else set()))
        )
        for name, unit in loaded.items()
        # Under another name it would be held twice, and set free once.
        if unit.exists
        and unit.name == name
        and (
            engine := started_engines.get(name)
            or _engine_inside(unit, name in named_units, seen)
            or _engine_behind_wrapper(unit, mains, seen, processes, programs)
            or _engine_of_container(unit, name in named_units, run_by.get(name), programs)
        )
    }
    # A unit is stopped as a whole, so all who would go with it must be seen, whatever they are.
    unseen = {pid for engine_unit in engine_units.values() for pid in engine_unit.pids} - set(seen)
    if unseen:
        seen.update(see(unseen))
    return Snapshot(
        reading=reading,
        processes=processes,
        seen=seen,
        units=engine_units,
        managed=managed,
        rejected_units={name: _rejection(name, loaded[name]) for name in named_units if name not in engine_units},
        ours=ours,
        ghosts=ghosts,
        # Where /proc shows only one's own processes (hidepid), not even pid 1 is there.
        unreadable=scan.unreadable | ({1} - set(processes)),
        node_count=nodes.count,
        mps=any(process.comm in MPS_SERVERS for process in others),
    )


def _ancestors(seen: Mapping[int, Seen], processes: Mapping[int, Process]) -> set[int]:
    """Who started the engines, and who started those: one of them may start an engine again."""
    found: set[int] = set()
    for item in seen.values():
        parent = item.process.ppid if item.recognition is not None else 0
        while parent > 1 and parent in processes and parent not in found:
            found.add(parent)
            parent = processes[parent].ppid
    return found


def _managed(
    seen: dict[int, Seen],
    others: Collection[Process],
    processes: Mapping[int, Process],
    programs: Mapping[int, str],
    see: Callable[[set[int]], dict[int, Seen]],
    cmdlines: Callable[[set[int]], Mapping[int, tuple[str, ...]]],
    named_units: Collection[str],
    members: Callable[[str], Collection[int]] = cgroup_pids,
    group_of: Callable[[int], str] = cgroup,
) -> dict[str, Managed]:
    """The containers and users' units of those who are seen. Names their owners in `seen`, and adds who else is in."""
    owners = {
        item.owner
        for item in seen.values()
        if item.owner.kind in (CONTAINER, POD, USER_UNIT)
        and (item.recognition is not None or item.used or item.attached or item.uvm)
    }
    argvs: Mapping[int, tuple[str, ...]] = {}
    if any(owner.kind == CONTAINER for owner in owners):
        argvs = cmdlines({item.pid for item in others if item.comm in CLIENTS or item.comm.startswith(MONITORS)})
    monitors = find_monitors(argvs)
    services = {pid: service.name for pid in argvs if restarts(service := owner_of(group_of(pid)))}
    named = {owner: identified(owner, monitors) for owner in owners}
    managed = {}
    for owner, known in named.items():
        if owner.kind == POD:
            continue
        pids = set(members(owner.cgroup))
        seen.update(see(pids - set(seen)))
        engines = [recognition.engine for pid in pids & set(seen) if (recognition := seen[pid].recognition)]
        monitor = monitors.get(owner.identifier)
        # A unit may run a container in the foreground: its main process is the monitor, or waits for the container.
        verdicts = [
            (service, True if monitor is not None and pid == monitor.pid else _is_client(argvs[pid], known))
            for pid, service in services.items()
        ]
        units = {service for service, verdict in verdicts if verdict}
        doubtful = {service for service, verdict in verdicts if verdict is None}
        units = units or doubtful & set(named_units)
        managed[str(known)] = Managed(
            owner=known,
            pids=frozenset(pids),
            engine=engines[0] if engines else "",
            alive=owner.kind == USER_UNIT or monitor is not None,
            alone=all(_belongs(pid, seen, processes, programs) for pid in pids),
            unit=min(units, default=""),
            doubtful_unit="" if units else min(doubtful, default=""),
        )
    for pid, item in seen.items():
        if item.owner in named:
            seen[pid] = replace(item, owner=named[item.owner])
    return managed


def _is_client(argv: Sequence[str], owner: Owner) -> Optional[bool]:
    return runs(argv, owner) if argv and argv[0].rpartition("/")[2] == owner.runtime else False


def _belongs(pid: int, seen: Mapping[int, Seen], processes: Mapping[int, Process], programs: Mapping[int, str]) -> bool:
    """Whether a process is an engine's, or waits for one."""
    if programs.get(pid, "").rsplit("/", 1)[-1] in WRAPPERS:
        return True
    passed: set[int] = set()
    while pid in processes and pid not in passed:
        if pid in seen and seen[pid].recognition is not None:
            return True
        passed.add(pid)
        pid = processes[pid].ppid
    return False


def _see(
    process: Process,
    argv: tuple[str, ...],
    program: str,
    descriptors: Descriptors,
    used: Mapping[int, Optional[int]],
    reading: GpuReading,
    uptime: float,
) -> Seen:
    path = cgroup(process.pid)
    touches = bool(used or descriptors.minors or descriptors.uvm)
    return Seen(
        process=process,
        argv=argv,
        executable=program,
        cgroup=path,
        owner=owner_of(path),
        used=used,
        attached=attached_gpus(descriptors.minors, reading),
        uvm=descriptors.uvm,
        recognition=recognise(argv, program) if argv else recognise_comm(process.comm),
        observer=observer_name(process.pid, program, argv) if touches else "",
        sigkill_pending=touches and sigkill_pending(process.pid),
        age=max(0.0, uptime - process.start / CLOCK_TICKS),
    )


def attached_gpus(minors: Iterable[int], reading: GpuReading) -> frozenset[int]:
    """Indexes of the GPUs behind these minors. A node no GPU claims counts for every GPU whose minor is unknown."""
    known = {gpu.minor: gpu.index for gpu in reading.gpus if gpu.minor is not None}
    vague = {gpu.index for gpu in reading.gpus if gpu.minor is None}
    indexes: set[int] = set()
    for minor in minors:
        indexes |= {known[minor]} if minor in known else vague
    return frozenset(indexes)


def claimed_gpus(visible: Optional[str], reading: GpuReading) -> Optional[frozenset[int]]:
    """The GPUs a CUDA_VISIBLE_DEVICES names, by index or UUID (its beginning is enough); None for all of them.

    CUDA counts cards of one kind in the order of NVML. A value that is not understood counts for all.
    """
    if visible is None:
        return None
    indexes = set()
    for word in visible.split(","):
        word = word.strip()
        fits = {
            gpu.index
            for gpu in reading.gpus
            if word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word))
        }
        if not fits:
            return None
        indexes |= fits
    return frozenset(indexes)


def concerns(engine_unit: EngineUnit, gpus: Collection[int], snapshot: Snapshot) -> bool:
    """Whether a unit uses one of these GPUs; or, where it is seen on none (at rest, starting), is meant for one."""
    seen = [snapshot.seen[pid] for pid in engine_unit.pids if pid in snapshot.seen]
    if any(process.used or process.claims is not None for process in seen):
        return any(process.uses(gpus) for process in seen)
    return not declared_gpus(engine_unit.unit, snapshot.reading).isdisjoint(gpus)


def declared_gpus(unit: Unit, reading: GpuReading) -> frozenset[int]:
    """The GPUs that a unit's environment leaves to its engine. Files win over Environment=, as in systemd."""
    variables = parse_assignments(unit.environment)
    # A file that cannot be read keeps the unit from starting.
    with suppress(OSError):
        variables.update(read_environment(unit.environment_files))
    claimed = claimed_gpus(variables.get(VISIBLE_DEVICES), reading)
    return frozenset(gpu.index for gpu in reading.gpus) if claimed is None else claimed


def ourselves(processes: Mapping[int, Process], workers: Collection[tuple[int, int]]) -> frozenset[int]:
    """This process, all its ancestors, and our query processes: never holders, never touched."""
    ours = {pid for pid, process in processes.items() if process.identity in workers}
    pid = os.getpid()
    while pid in processes and pid not in ours:
        ours.add(pid)
        pid = processes[pid].ppid
    return frozenset(ours)


def _nvml_users(
    reading: GpuReading, processes: Mapping[int, Process], descriptors: Mapping[int, Descriptors]
) -> tuple[dict[int, dict[int, Optional[int]]], dict[int, frozenset[int]]]:
    """Split what NVML lists into processes that bear it out, and pids nobody may act on."""
    alive = {process.pid for process in processes.values() if not process.dead}
    used: dict[int, dict[int, Optional[int]]] = {}
    ghosts: dict[int, frozenset[int]] = {}
    for gpu in reading.gpus:
        verdict = classify_nvml_pids(gpu.processes, alive, set(descriptors))
        memory = {listed.pid: listed.used_mib for listed in gpu.processes}
        for pid in verdict["confirmed"]:
            used.setdefault(pid, {})[gpu.index] = memory[pid]
        if verdict["ghost"] or verdict["stranger"]:
            ghosts[gpu.index] = frozenset(verdict["ghost"] | verdict["stranger"])
    return used, ghosts


def load_units(units: Units, named: Collection[str] = ()) -> dict[str, Unit]:
    """Every service in systemd's memory, and the named ones. UnitsError where systemd cannot answer.

    Where systemd does not run at all nothing is a unit, which is no obstacle to the rest.
    """
    if not systemd_runs():
        if named:
            raise UnitsError(f"systemd does not run on this host, so that {', '.join(sorted(named))} cannot be a unit")
        return {}
    loaded = units.all_services()
    missing = [name for name in named if name not in loaded]
    return {**loaded, **units.show(missing)} if missing else loaded


def _engine_inside(unit: Unit, named: bool, seen: Mapping[int, Seen]) -> str:
    """The engine a unit runs though its command line does not say so; any process of a named unit tells it."""
    pids = cgroup_pids(unit.control_group) if named else {unit.main_pid}
    for pid in pids & set(seen):
        recognition = seen[pid].recognition
        if recognition is not None:
            return recognition.engine
    return ""


def _engine_behind_wrapper(
    unit: Unit,
    mains: Iterable[int],
    seen: Mapping[int, Seen],
    processes: Mapping[int, Process],
    programs: Mapping[int, str],
    members: Callable[[str], Collection[int]] = cgroup_pids,
) -> str:
    """The engine of a unit whose main process is a script that waits for it, and that runs nothing else."""
    for main in mains:
        chain = [main]
        while chain[-1] != unit.main_pid and chain[-1] in processes:
            parent = processes[chain[-1]].ppid
            if programs.get(parent, "").rsplit("/", 1)[-1] not in WRAPPERS:
                break
            chain.append(parent)
        if chain[-1] != unit.main_pid:
            continue
        recognition = seen[main].recognition
        alone = all(pid in chain or _descends(pid, main, processes) for pid in members(unit.control_group))
        if recognition is not None and alone:
            return recognition.engine
    return ""


def _engine_of_container(unit: Unit, named: bool, run: Optional[Managed], programs: Mapping[int, str]) -> str:
    """The engine in the container that a unit runs, if it runs nothing else or was named."""
    if run is None:
        return ""
    beside = cgroup_pids(unit.control_group) - run.pids
    alone = all(programs.get(pid, "").rsplit("/", 1)[-1] in WRAPPERS for pid in beside)
    return run.engine if named or alone else ""


def _descends(pid: int, ancestor: int, processes: Mapping[int, Process]) -> bool:
    passed = set()
    while pid in processes and pid not in passed:
        passed.add(pid)
        pid = processes[pid].ppid
    return ancestor in passed


def _rejection(name: str, unit: Unit) -> str:
    if unit.exists and unit.name != name:
        return f"{name} is another name of {unit.name}: name that instead"
    if not unit.exists:
        return f"{unit.name} does not exist on this host: check the name with `systemctl list-units --all`"
    command = mask_command(unit.exec_start, limit=120) or "no command"
    return f"{unit.name} runs no engine ({command}): only engine units are stopped as a whole"


def _uptime() -> float:
    with open("/proc/uptime", encoding="ascii") as stream:
        return float(stream.read().split()[0])
