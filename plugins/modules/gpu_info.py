#!/usr/bin/python
# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Show the GPUs of a host, who holds them, and what a drain would take each process for
version_added: 0.1.0
description:
  - Reads GPUs through NVML, and finds every process that has a context on a GPU or one of its device nodes open.
  - Each process is classed as M(gpuops.inference.gpu_drain) would class it, with the reason.
  - Changes nothing. The driver is asked in a process of its own with a deadline, so a driver that hangs does not hang
    the task.
author:
  - gpuops.inference contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.inference.attributes
  - gpuops.inference.attributes.read_only
  - gpuops.inference.gpus
"""

EXAMPLES = r"""
- name: Look at all GPUs
  gpuops.inference.gpu_info:
  register: looked
  become: true

- name: Show who holds GPU 3
  ansible.builtin.debug:
    msg: "{{ looked.processes | selectattr('gpus_used', 'contains', 3) }}"
"""

RETURN = r"""
gpus:
  description: The GPUs in NVML's order.
  returned: always
  type: list
  elements: dict
  contains:
    index:
      description: NVML index, which can differ from the N of C(/dev/nvidiaN).
      type: int
    uuid:
      description: Identifies the card for good.
      type: str
    pci_bus_id:
      description: Where the card sits.
      type: str
    minor:
      description: The N of C(/dev/nvidiaN); null where it cannot be told.
      type: int
    name:
      description: Product name.
      type: str
    memory:
      description: Total, reserved, used and free in MiB, and the NVML version of the figures; null where not reported.
      type: dict
    mig:
      description: Whether MIG mode is on; null where it cannot be told.
      type: bool
    mps:
      description: Whether NVML lists MPS clients.
      type: bool
    persistence:
      description: Whether persistence mode is on; null where it cannot be told.
      type: bool
    error:
      description: NVML's error name for this GPU, null if it answers.
      type: str
processes:
  description: Every process with a context on a GPU, a GPU node open, or an engine's title. At most 64.
  returned: always
  type: list
  elements: dict
  contains:
    pid:
      description: Process id.
      type: int
    start:
      description: Start time in clock ticks since boot; with the pid it identifies the process.
      type: int
    age:
      description: Seconds since it was started.
      type: float
    uid:
      description: Effective user id.
      type: int
    comm:
      description: The kernel's short name.
      type: str
    command:
      description: Command line with secrets masked, at most 256 characters.
      type: str
    state:
      description: State letter as in C(ps).
      type: str
    gpus_used:
      description: Indexes of the GPUs on which NVML reports a context of it.
      type: list
      elements: int
    gpus_attached:
      description: Indexes of the GPUs whose node it has open.
      type: list
      elements: int
    memory_mib:
      description: Memory by GPU index in MiB, null where the driver does not tell.
      type: dict
    owner:
      description:
        - What answers for it, its C(kind) (unit, user unit, container, pod, batch job, login session or nobody) and
          C(name), the C(label) that people know a container or pod by, and the command to run C(instead) of ending it.
      type: dict
    unit:
      description: The engine unit it belongs to, or empty.
      type: str
    engine:
      description: The engine it was recognised as, or empty.
      type: str
    class:
      description: One of target, orphan, observer, foreign, unknown, protected.
      type: str
    action:
      description: What a drain with default options would do.
      type: str
    why:
      description: The reason for the class.
      type: str
units:
  description: The engine units of this host and their state.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The unit's name.
      type: str
    engine:
      description: The engine that it runs.
      type: str
    active_state:
      description: As systemd calls it.
      type: str
    sub_state:
      description: As systemd calls it.
      type: str
    enabled:
      description: Whether it starts at boot, as systemd calls it.
      type: str
    answers:
      description: Whether its engine says that it is well. That it serves, only a completion shows.
      type: bool
    drift:
      description:
        - Where it is not what its files say, each with what to do about it. Files that changed and were not applied,
          other arguments or another environment than the unit's, a drop-in on a unit that the collection wrote, a
          mask, somebody else on its port. Nothing of this is acted on.
      type: list
      elements: str
holds:
  description: What keeps units from starting.
  returned: always
  type: list
  elements: dict
  contains:
    unit:
      description: The unit that is held.
      type: str
    reason:
      description: Why.
      type: str
    who:
      description: Who logged in to hold it.
      type: str
    controller:
      description: Where from.
      type: str
    since:
      description: Since when, in seconds since the epoch.
      type: float
    until:
      description: When it ends by itself, in seconds since the epoch, or 0.
      type: float
    over:
      description: Why it should be gone, for one that is over and was not lifted yet. Empty for one that stands.
      type: str
    over_reboot:
      description: Whether a reboot does not end it.
      type: bool
    purpose:
      description: What it is part of, drain or pivot.
      type: str
    ran:
      description: Whether the unit ran when a drain first held it.
      type: bool
    triggers:
      description: The sockets, timers and paths that are held with it, and the state each was first seen in.
      type: dict
owed:
  description: Units that ran before a drain whose hold is lifted, and were not started again.
  returned: always
  type: list
  elements: str
last_drain:
  description: The last drain that changed something, with when it was (C(at)), C(who), C(reason) and C(released).
  returned: always
  type: dict
driver_version:
  description: Version of the kernel driver.
  returned: always
  type: str
nvml_version:
  description: Version of the NVML library.
  returned: always
  type: str
source:
  description: Where the figures come from, nvml, nvidia-smi or none.
  returned: always
  type: str
problems:
  description: What could not be seen, and what to do about it.
  returned: always
  type: list
  elements: str
"""

import os
import time
from dataclasses import asdict
from typing import Any, Optional

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._arguments import (
    GPU_ARGUMENTS,
    gpu_rows,
    host_facts,
    process_rows,
)
from ansible_collections.gpuops.inference.plugins.module_utils._drift import Running, differences, on_its_port
from ansible_collections.gpuops.inference.plugins.module_utils._engines import argument, serving
from ansible_collections.gpuops.inference.plugins.module_utils._environment import read_environment, secrets_of
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import GpuSelectionError
from ansible_collections.gpuops.inference.plugins.module_utils._hold import Holds
from ansible_collections.gpuops.inference.plugins.module_utils._options import option_faults
from ansible_collections.gpuops.inference.plugins.module_utils._paths import RECORDS, STARTS
from ansible_collections.gpuops.inference.plugins.module_utils._plan import Policy, make_plan
from ansible_collections.gpuops.inference.plugins.module_utils._ports import strangers
from ansible_collections.gpuops.inference.plugins.module_utils._probe import Probe
from ansible_collections.gpuops.inference.plugins.module_utils._ready import NoAnswer, Question, asker
from ansible_collections.gpuops.inference.plugins.module_utils._record import RecordError, read_json, read_start
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import (
    PROBE_TIMEOUT,
    EngineUnit,
    Snapshot,
    load_units,
    take_snapshot,
)
from ansible_collections.gpuops.inference.plugins.module_utils._units import Units, UnitsError

HEALTH_TIMEOUT = 2.0
"""Seconds for an engine's health on loopback: a look must not take long, and a busy engine answers late."""


def drift(probe: Probe, snapshot: Snapshot) -> dict[str, list[str]]:
    """Of each engine unit, where it is not what its files say. Only root sees enough to tell."""
    if os.geteuid() or snapshot.blind:
        return {}
    variables = {}
    for name, engine_unit in snapshot.units.items():
        try:
            variables[name] = read_environment(engine_unit.unit.environment_files)
        except OSError:
            # A directory in its place, say. Whoever starts the unit is told.
            variables[name] = {}
    mains = {engine_unit.unit.main_pid for engine_unit in snapshot.units.values() if engine_unit.unit.main_pid}
    names = {variable for each in variables.values() for variable in each}
    environments = probe.environs(mains, names, PROBE_TIMEOUT)
    return {
        name: unit_drift(engine_unit, snapshot, variables[name], environments.get(engine_unit.unit.main_pid, {}))
        for name, engine_unit in snapshot.units.items()
    }


def unit_drift(
    engine_unit: EngineUnit, snapshot: Snapshot, variables: dict[str, str], environment: dict[str, str]
) -> list[str]:
    unit = engine_unit.unit
    main = snapshot.seen.get(unit.main_pid)
    argv = main.argv if main is not None else ()
    running = Running(argv, environment, time.time() - (time.monotonic() - unit.started), unit.need_daemon_reload)
    found = differences(unit, running, read_start(STARTS, unit.name), variables, secrets_of(variables))
    if unit.running or unit.unit_file_state == "enabled":
        command = argv if unit.running and argv else unit.exec_start
        where = serving(engine_unit.engine, command)
        bound = argument(command, "--host") or where.host
        found += on_its_port(where.port, strangers(where.port, bound, engine_unit.pids))
    return [str(difference) for difference in found]


def answers(engine_unit: EngineUnit, snapshot: Snapshot) -> bool:
    main = snapshot.seen.get(engine_unit.unit.main_pid)
    where = serving(engine_unit.engine, main.argv if main is not None else engine_unit.unit.exec_start)
    try:
        return asker(where.host, where.port, None)(Question("/health", HEALTH_TIMEOUT)).status == 200
    except NoAnswer:
        return False


def last_drain() -> Optional[dict[str, Any]]:
    # The names begin with the time.
    for path in sorted(RECORDS.glob("*-drain-*.json"), reverse=True)[:1]:
        try:
            record = read_json(path) or {}
        except RecordError:
            # A broken one says nothing; the GPUs are what was asked for.
            return None
        if not record.get("since"):
            return None
        return {
            "at": record.get("since", ""),
            "who": record.get("user", ""),
            "reason": record.get("reason", ""),
            "released": record.get("released", False),
            "record": str(path),
        }
    return None


def main() -> None:
    module = AnsibleModule(argument_spec=GPU_ARGUMENTS, supports_check_mode=True)
    if faults := list(option_faults(module.params)):
        module.fail_json(msg="; ".join(faults))
    policy = Policy(
        gpus=tuple(module.params["gpus"]),
        gpu_count=module.params["gpu_count"] or 0,
        protect=tuple(module.params["protect"]),
    )
    try:
        with Probe() as probe:
            snapshot = take_snapshot(probe, load_units(Units()))
            drifted = drift(probe, snapshot)
        plan = make_plan(snapshot, policy)
        holds = Holds().all()
        owed = Holds().owed()
        left_over = Holds().left_over(snapshot.units)
        unread = Holds().unread({name: engine_unit.unit for name, engine_unit in snapshot.units.items()})
    except (GpuSelectionError, UnitsError, RecordError) as error:
        module.fail_json(msg=str(error))
    units = [
        {
            "name": name,
            "engine": engine_unit.engine,
            "active_state": engine_unit.unit.active_state,
            "sub_state": engine_unit.unit.sub_state,
            "enabled": engine_unit.unit.unit_file_state,
            "answers": engine_unit.unit.active_state == "active" and answers(engine_unit, snapshot),
            "drift": drifted.get(name, []),
        }
        for name, engine_unit in sorted(snapshot.units.items())
    ]
    facts = host_facts(snapshot)
    facts["problems"] += [
        f"{name} cannot be started: its hold is over ({why}) and was not lifted; gpu_undrain or the next drain lifts it"
        for name, why in left_over.items()
    ]
    facts["problems"] += [
        f"systemd has not read what holds {name} now: the next drain, or `systemctl daemon-reload`, makes it"
        for name in unread
    ]
    module.exit_json(
        changed=False,
        gpus=gpu_rows(plan.gpus),
        processes=process_rows(plan.judged),
        units=units,
        last_drain=last_drain(),
        owed=[
            hold.unit
            for hold in owed
            if hold.unit not in {held.unit for held in holds}
            and hold.unit in snapshot.units
            and not snapshot.units[hold.unit].unit.running
        ],
        holds=[{**asdict(hold), "over": hold.over(time.time())} for hold in holds],
        **facts,
    )


if __name__ == "__main__":
    main()
