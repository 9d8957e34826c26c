#!/usr/bin/python
# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pivot_record
short_description: Keep the record that a pivot between inference engines goes forth and back by
version_added: 0.1.0
description:
  - This module belongs to the role P(gpuops.inference.pivot#role), which calls it in a fixed order. Read what an
    earlier pivot left with O(state=show); leave the other states to the role.
  - The record C(/var/lib/gpuops/pivot.json) tells what was observed before anything was touched, and how far the pivot
    came. It is on the managed host, so that it survives the controller. A pivot of some GPUs has a record of its own
    beside it.
  - A record is bookkeeping. RV(ignore:changed) speaks of files, enablement and units alone.
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: partial
    details:
      - Shows how enablement changes with O(state=finish), and how files change with O(state=put_back).
      - What only its owner may read is not shown.
  idempotent:
    support: full
  action_group:
    support: none
options:
  state:
    description:
      - V(show) reads the record and looks at the engine units. It changes nothing.
      - V(begin) decides how a pivot to O(target) goes on, observes the engine units, keeps their files, and begins
        the record.
      - V(begin_back) does the same for going back to what ran before the last finished pivot.
      - V(phase) records O(phase).
      - V(put_back) puts the files back that the pivot to be taken back had replaced.
      - V(restore) puts the files and the enablement of the observed units back. It starts nothing. Without O(run)
        it takes over what another pivot left.
      - V(finish) makes O(target) the one enabled engine unit, or starts what stopped along with the unit that a
        rollback brought back, and closes the record.
    type: str
    choices: [show, begin, begin_back, phase, put_back, restore, finish]
    default: show
  units:
    description:
      - Engine units that belong to the deployment, whether they exist yet or not.
      - Other engine units are looked at when they run or are enabled.
    type: list
    elements: str
    default: []
  gpus:
    description:
      - The GPUs this is about, by NVML index or UUID. Unless these are V(all), other engines matter only if they use
        one of them, or would if they ran, and a neighbour on other GPUs keeps its unit and its enablement. Each set of
        GPUs has its own record; one that shares a GPU with an unfinished other is refused.
    type: list
    elements: str
    default: [all]
  target:
    description:
      - The unit to pivot to.
      - Required with O(state=begin).
    type: str
  production_unit:
    description:
      - The unit that is to be taken for production with O(state=show), where what is enabled does not say it.
    type: str
    default: ""
  allow_no_rollback:
    description:
      - Go on though an engine runs that no unit starts and that could therefore not be brought back.
    type: bool
    default: false
  discard_changes:
    description:
      - Go back with O(state=begin_back) though files of the engine units were changed since the pivot. What they hold
        now is kept.
    type: bool
    default: false
  run:
    description:
      - What O(state=begin) returned as RV(run). A pivot that another one took over from is refused.
    type: str
    default: ""
  phase:
    description:
      - The phase to record with O(state=phase).
    type: str
    choices: [rolling_back, rollback_failed]
  cause:
    description:
      - Why the pivot turns back, or why that failed.
    type: str
    default: ""
  stages:
    description:
      - What took how long, for the record. Each has a C(name) and C(seconds). What else they hold is not kept.
    type: list
    elements: dict
    default: []
  told:
    description:
      - What the modules of the other steps said, for RV(story).
    type: list
    elements: str
    default: []
  lock_timeout:
    description:
      - Seconds to wait while another call acts on the host.
    type: float
    default: 0
seealso:
  - module: gpuops.inference.gpu_drain
  - module: gpuops.inference.inference_service
author:
  - gpuops.inference contributors (@gpuops)
"""

EXAMPLES = r"""
- name: Look at what runs, and at what an earlier pivot left
  gpuops.inference.pivot_record:
  register: left

- name: Say what is production
  ansible.builtin.debug:
    msg: "{{ left.msg }}"
"""

RETURN = r"""
msg:
  description: The result in one sentence.
  returned: always
  type: str
engines:
  description: The engine units, and what they run.
  returned: with O(state=show) and O(state=begin), with O(state=begin_back) also where that is refused
  type: list
  elements: dict
  contains:
    unit:
      description: The unit's name.
      type: str
      returned: always
    engine:
      description: The engine that it runs. Empty for a unit that does not exist yet.
      type: str
      returned: always
    exists:
      description: Whether systemd knows the unit.
      type: bool
      returned: always
    enabled:
      description: Whether it starts at boot.
      type: bool
      returned: always
    active:
      description: Whether it runs, or is on its way to.
      type: bool
      returned: always
    command:
      description: The running command line, secrets masked.
      type: str
      returned: always
    profiling:
      description: Profiler options on the running command line.
      type: list
      elements: str
      returned: always
    runs_its_own_command:
      description: Whether the running arguments are the unit's.
      type: bool
      returned: always
loose:
  description: Engine processes that no engine unit answers for.
  returned: with O(state=show) and O(state=begin)
  type: list
  elements: str
production:
  description: What is to serve on this host. V(none) where that cannot be told; RV(msg) then says what to pass.
  returned: with O(state=show)
  type: dict
  sample:
    unit: vllm.service
    why: the enabled engine unit
    undo: false
    at_rest: true
    others: []
    settled: true
up:
  description:
    - Seconds for which production, or what ran before, has served, as M(gpuops.inference.inference_service) tells them.
      Null where that is still to be brought back.
  returned: with O(state=show) and O(state=begin_back)
  type: float
unfinished:
  description: Whether an earlier pivot neither arrived nor came back.
  returned: with O(state=show)
  type: bool
record:
  description: The last pivot, without the digests of its files.
  returned: when there is one
  type: dict
  sample:
    id: 20261130T083415-1a2b3c4d
    path: /var/lib/gpuops/pivot.json
    target: sglang.service
    outgoing: [vllm.service]
    phase: done
    phases: [{"name": "begun", "at": "2026-11-30T08:34:15+00:00"}]
    causes: []
    stages: [{"name": "drain", "seconds": 12.3}]
    backups: /var/lib/gpuops/backups/20261130T083415-1a2b3c4d
run:
  description: What the other states want to be given.
  returned: with O(state=begin) and O(state=restore)
  type: str
mode:
  description:
    - How the pivot goes on. One of V(new), V(resume), V(go back), V(over) and V(settled).
    - V(return), V(settled) or V(never) with O(state=begin_back), the last where no pivot was made on the host.
  returned: with O(state=begin) and O(state=begin_back)
  type: str
drain:
  description: Whether the GPUs must be drained first.
  returned: with O(state=begin)
  type: bool
serves:
  description: Whether there is nothing to go back from, and what ran before answers.
  returned: with O(state=begin_back)
  type: bool
outgoing:
  description: The units that ran when the pivot began.
  returned: with O(state=begin)
  type: list
  elements: str
existing_units:
  description: The engine units that exist now.
  returned: with O(state=begin), and with O(phase=rolling_back) where something was touched
  type: list
  elements: str
touched:
  description: Whether anything differs from what was observed. If not, the record is dropped.
  returned: with O(state=phase)
  type: bool
start:
  description: The units that ran when the pivot began, and must run again.
  returned: with O(state=restore) and O(state=begin_back)
  type: list
  elements: str
files:
  description: What was put back.
  returned: with O(state=restore) and O(state=put_back)
  type: list
  elements: str
moves:
  description: How enablement changed.
  returned: with O(state=finish)
  type: list
  elements: str
story:
  description: The pivot as lines for people.
  returned: with O(state=finish)
  type: list
  elements: str
"""

from typing import Any, Optional

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._gpus import GpuSelectionError
from ansible_collections.gpuops.inference.plugins.module_utils._hold import HoldError
from ansible_collections.gpuops.inference.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.inference.plugins.module_utils._options import option_faults, rights_faults
from ansible_collections.gpuops.inference.plugins.module_utils._pivot import PHASES, STATES, PivotRecord
from ansible_collections.gpuops.inference.plugins.module_utils._record import RecordError, outlive_connection
from ansible_collections.gpuops.inference.plugins.module_utils._serving import Host, Order, Service
from ansible_collections.gpuops.inference.plugins.module_utils._transaction import TransactionError
from ansible_collections.gpuops.inference.plugins.module_utils._units import Units, UnitsError


def run_module(module: AnsibleModule) -> dict[str, Any]:
    params = module.params
    pivot = PivotRecord(
        Units(), params["units"], params["lock_timeout"], module.check_mode, params["gpus"], journal=Journal()
    )
    if params["state"] != "show":
        outlive_connection()
    if params["state"] == "begin":
        return pivot.begin(params["target"], params["allow_no_rollback"])
    if params["state"] == "begin_back":
        try:
            begun = pivot.begin_back(params["allow_no_rollback"], params["discard_changes"])
        except TransactionError as error:
            # Whoever counts which hosts of a fleet serve has to know it also where there is no way back.
            module.fail_json(msg=str(error), engines=pivot.show("")["engines"])
        ups = [_up(unit) for unit in begun["start"]] if begun["mode"] == "settled" else [None]
        known = [up for up in ups if up is not None]
        serves = len(known) == len(ups)
        return {**begun, "serves": serves, "up": min(known, default=None) if serves else None}
    if params["state"] == "put_back":
        return pivot.put_back(params["run"])
    if params["state"] == "phase":
        return pivot.phase(params["run"], params["phase"], params["cause"])
    if params["state"] == "restore":
        return pivot.restore(params["run"])
    if params["state"] == "finish":
        return pivot.finish(params["run"], params["target"] or "", params["stages"], params["told"])
    result = pivot.show(params["production_unit"])
    result["up"] = None
    if result["production"] is not None:
        result["up"] = _settled(result)
        result["production"]["settled"] = result["up"] is not None
    return result


def _settled(shown: dict[str, Any]) -> Optional[float]:
    """For how long production has served, None where bringing it back would do anything."""
    unit = shown["production"]["unit"]
    alone = (
        shown["production"]["at_rest"]
        and not shown["unfinished"]
        and [each["unit"] for each in shown["engines"] if each["enabled"]] == [unit]
    )
    return _up(unit) if alone else None


def _up(unit: str) -> Optional[float]:
    up: Optional[float] = Service(Host(), Order(unit, "ready")).run()["up"]
    return up


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": list(STATES), "default": "show"},
            "units": {"type": "list", "elements": "str", "default": []},
            "gpus": {"type": "list", "elements": "str", "default": ["all"]},
            "target": {"type": "str"},
            "production_unit": {"type": "str", "default": ""},
            "allow_no_rollback": {"type": "bool", "default": False},
            "discard_changes": {"type": "bool", "default": False},
            "run": {"type": "str", "default": ""},
            "phase": {"type": "str", "choices": list(PHASES)},
            "cause": {"type": "str", "default": ""},
            "stages": {"type": "list", "elements": "dict", "default": []},
            "told": {"type": "list", "elements": "str", "default": []},
            "lock_timeout": {"type": "float", "default": 0},
        },
        required_if=[("state", "begin", ["target"]), ("state", "phase", ["phase"])],
        supports_check_mode=True,
    )
    if faults := [*option_faults(module.params), *rights_faults()]:
        module.fail_json(msg="; ".join(faults))
    try:
        result = run_module(module)
    except (TransactionError, GpuSelectionError, RecordError, UnitsError, HoldError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
