# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts as plain data, for tests of what is decided about them."""

from __future__ import annotations

from dataclasses import replace

from ansible_collections.gpuops.inference.plugins.module_utils._engines import recognise
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, GpuReading, Memory
from ansible_collections.gpuops.inference.plugins.module_utils._holders import Process
from ansible_collections.gpuops.inference.plugins.module_utils._managed import Managed
from ansible_collections.gpuops.inference.plugins.module_utils._owners import (
    CONTAINER,
    USER_UNIT,
    Owner,
    owner_of,
)
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import EngineUnit, Seen, Snapshot
from ansible_collections.gpuops.inference.plugins.module_utils._units import Unit, parse_show

ALL = frozenset(range(8))
WEIGHTS_MIB = 90_000
PYTHON = "/usr/bin/python3.13"
VLLM = ("/opt/vllm/bin/python", "/opt/vllm/bin/vllm", "serve", "/models/Kimi-K2.5", "--tensor-parallel-size", "8")
SGLANG = ("/opt/sglang/bin/python", "-m", "sglang.launch_server", "--model-path", "/models/Kimi-K2.5")


def unit(name: str, argv: tuple[str, ...] = VLLM[1:], active: str = "active", sub: str = "running") -> Unit:
    """A unit as `systemctl show` would print it."""
    text = f"""Id={name}
LoadState=loaded
ActiveState={active}
SubState={sub}
UnitFileState=enabled
FragmentPath=/etc/systemd/system/{name}
ControlGroup=/system.slice/{name}
ExecStart={{ path={argv[0]} ; argv[]={" ".join(argv)} ; ignore_errors=no ; pid=0 ; code=(null) ; status=0/0 }}
TimeoutStopUSec=infinity
Restart=always
"""
    (parsed,) = parse_show(text)
    return parsed


class Host:
    """A host built up process by process; `snapshot()` is what would be seen of it."""

    def __init__(self, gpus: int = 8) -> None:
        self.gpu_count = gpus
        self.seen: dict[int, Seen] = {}
        self.processes: dict[int, Process] = {}
        self.units: dict[str, EngineUnit] = {}
        self.leaks: dict[int, int] = {}
        self.errors: dict[int, str] = {}
        self.extra: dict[str, object] = {}
        self.managed: dict[str, object] = {}
        """What is to be said of every container and user's unit."""
        self.process(1, comm="systemd", ppid=0)

    def process(
        self,
        pid: int,
        argv: tuple[str, ...] = (),
        *,
        comm: str = "python3",
        ppid: int = 1,
        session: int = 1,
        uid: int = 1000,
        state: str = "S",
        executable: str = PYTHON,
        cgroup: str = "/system.slice/ssh.service",
        uses: frozenset[int] = frozenset(),
        attached: frozenset[int] = frozenset(),
        uvm: bool | None = None,
        observer: str = "",
        sigkill_pending: bool = False,
        claims: frozenset[int] | None = None,
    ) -> Host:
        process = Process(pid, pid * 10, ppid, session, session, state, 1, uid, comm)
        self.processes[pid] = process
        self.seen[pid] = Seen(
            process=process,
            argv=argv,
            executable=executable,
            cgroup=cgroup,
            owner=owner_of(cgroup),
            used=dict.fromkeys(uses, WEIGHTS_MIB),
            attached=attached or uses,
            uvm=bool(uses) if uvm is None else uvm,
            recognition=recognise(argv, executable),
            observer=observer,
            sigkill_pending=sigkill_pending,
            claims=claims,
        )
        return self

    def vllm(self, first: int = 100, gpus: frozenset[int] = ALL, name: str = "vllm.service", **common) -> Host:
        """A server, its core and one worker a GPU; in a unit's cgroup unless name is empty."""
        cgroup = f"/system.slice/{name}" if name else common.pop("cgroup", "/system.slice/ssh.service")
        common = {"session": first, "cgroup": cgroup, **common}
        self.process(first, VLLM, comm="vllm", ppid=common.pop("ppid", 1), **common)
        self.process(first + 1, ("VLLM::EngineCore",), ppid=first, comm="VLLM::EngineCor", **common)
        for gpu in sorted(gpus):
            self.process(
                first + 2 + gpu,
                (f"VLLM::Worker_TP{gpu}",),
                ppid=first + 1,
                comm="VLLM::Worker_TP",
                uses=frozenset({gpu}),
                attached=frozenset(range(self.gpu_count)),
                **common,
            )
        if name:
            self.unit(unit(name), [pid for pid in self.processes if first <= pid < first + 50])
        return self

    def unit(self, described: Unit, pids: list[int], engine: str = "vllm") -> Host:
        self.units[described.name] = EngineUnit(described, engine, frozenset(pids))
        return self

    def without(self, pid: int) -> Host:
        """The process is gone; its children are pid 1's now."""
        del self.processes[pid], self.seen[pid]
        for child, process in list(self.processes.items()):
            if process.ppid == pid:
                self.processes[child] = replace(process, ppid=1)
                self.seen[child] = replace(self.seen[child], process=self.processes[child])
        for name, engine_unit in self.units.items():
            self.units[name] = replace(engine_unit, pids=engine_unit.pids - {pid})
        return self

    def snapshot(self) -> Snapshot:
        used = {index: self.leaks.get(index, 4) for index in range(self.gpu_count)}
        for seen in self.seen.values():
            for index, mib in seen.used.items():
                used[index] += mib or 0
        gpus = tuple(
            Gpu(
                index=index,
                uuid=f"GPU-{index:04}",
                minor=self.gpu_count - 1 - index,
                memory=Memory(97887, 600, used[index], 97287 - used[index], 2),
                error=self.errors.get(index),
            )
            for index in range(self.gpu_count)
        )
        reading = GpuReading(gpus, "580.95", "13.580.95", "nvml", (), True)
        owned: dict[Owner, list[Seen]] = {}
        for seen in self.seen.values():
            if seen.owner.kind in (CONTAINER, USER_UNIT):
                owned.setdefault(seen.owner, []).append(seen)
        managed = {
            str(owner): Managed(
                owner,
                frozenset(seen.process.pid for seen in members),
                next((seen.recognition.engine for seen in members if seen.recognition), ""),
                # A user's unit has no monitor that could be gone.
                **({**self.managed, "alive": True} if owner.kind == USER_UNIT else self.managed),
            )
            for owner, members in owned.items()
        }
        fields = {
            "reading": reading,
            "processes": self.processes,
            "seen": {
                pid: seen
                for pid, seen in self.seen.items()
                if seen.argv or seen.used or seen.attached or seen.uvm or seen.recognition
            },
            "units": self.units,
            "managed": managed,
            "node_count": self.gpu_count,
        }
        return Snapshot(**{**fields, **self.extra})
