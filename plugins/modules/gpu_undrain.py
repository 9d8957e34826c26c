#!/usr/bin/python
# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_undrain
short_description: Let the engine units of a drained host start again
version_added: 0.1.0
description:
  - Lifts the holds that M(gpuops.inference.gpu_drain) left, and gives back what it changed of the units and of the
    sockets, timers and paths that start them. Each trigger that was active before the drain is active again.
  - Starts no engine. A trigger may, as it would have without the drain.
  - What ran before the drain is remembered on the host and returned as RV(ran) by each call, until
    M(gpuops.inference.inference_service) saw it answer, a pivot or C(restore_production.yml) put another engine into
    service, or another one runs when the next drain comes. That outlives a reboot if the hold did.
  - Holds that a pivot placed stay, unless their units are named.
author:
  - gpuops.inference contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Shows the holds and their triggers before and after.
  idempotent:
    support: full
options:
  units:
    description:
      - Lift the holds of these units, whoever placed them, and no others. By default all holds of a drain.
    type: list
    elements: str
    default: []
  lock_timeout:
    description: How long to wait for another call that acts on this host, in seconds. V(0) fails at once and names it.
    type: float
    default: 0
seealso:
  - module: gpuops.inference.gpu_drain
  - module: gpuops.inference.inference_service
"""

EXAMPLES = r"""
- name: Take the host back into service after driver work
  gpuops.inference.gpu_undrain:
  register: undrained
  become: true

- name: Start what ran before
  gpuops.inference.inference_service:
    name: "{{ item }}"
  loop: "{{ undrained.ran }}"
  become: true
"""

RETURN = r"""
msg:
  description: What was lifted, what was given back, and what still is held.
  returned: always
  type: str
lifted:
  description: The holds that were lifted, as M(gpuops.inference.gpu_info) returns them.
  returned: always
  type: list
  elements: dict
triggers:
  description: Sockets, timers and paths that are active again.
  returned: always
  type: list
  elements: str
ran:
  description:
    - Units that ran before the drain and have not answered since, those of an earlier call too. Only of named units
      where O(units) names some. What a pivot stopped is none of them.
  returned: always
  type: list
  elements: str
left:
  description: The holds that stay.
  returned: always
  type: list
  elements: dict
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._hold import DRAIN, Hold, HoldError, Holds
from ansible_collections.gpuops.inference.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.inference.plugins.module_utils._options import (
    option_faults,
    rights_faults,
    service_name,
)
from ansible_collections.gpuops.inference.plugins.module_utils._paths import LOCK
from ansible_collections.gpuops.inference.plugins.module_utils._record import (
    Lock,
    RecordError,
    outlive_connection,
    whoami,
)
from ansible_collections.gpuops.inference.plugins.module_utils._units import Unit, Units, UnitsError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "units": {"type": "list", "elements": "str", "default": []},
            "lock_timeout": {"type": "float", "default": 0.0},
        },
        supports_check_mode=True,
    )
    if faults := [*option_faults(module.params), *rights_faults()]:
        module.fail_json(msg="; ".join(faults))
    who = whoami("gpu_undrain")
    systemd, holds = Units(), Holds()
    try:
        with Lock(LOCK, module.params["lock_timeout"], who["command"]):
            if not module.check_mode:
                outlive_connection()
            result = undrain(holds, systemd, set(map(service_name, module.params["units"])), module.check_mode)
            if result["changed"] and not module.check_mode:
                for hold in result["lifted"]:
                    about = {"unit": hold["unit"], "user": who["user"], "controller": who["controller"]}
                    Journal().send(f"lift the hold of {hold['unit']}", action="lift", **about)
    except (UnitsError, RecordError, HoldError) as failure:
        module.fail_json(msg=str(failure))
    module.exit_json(**result)


def undrain(holds: Holds, systemd: Units, named: set[str], check_mode: bool) -> dict[str, Any]:
    """Lift the holds of a drain, or those of the named units."""
    found = holds.all()
    lifted = [hold for hold in found if (hold.unit in named if named else hold.purpose == DRAIN)]
    left = [hold for hold in found if hold not in lifted]
    owed = {hold.unit for hold in holds.owed()} | {hold.unit for hold in lifted if hold.ran}
    if not check_mode:
        holds.lift([hold.unit for hold in lifted], systemd)
    triggers = sorted({name for hold in lifted for name, state in hold.triggers.items() if state == "active"})
    units = systemd.show(sorted(name for name in owed if name in named or not named))
    if not check_mode:
        # Nobody can start what was removed meanwhile.
        holds.forget_owed([name for name, unit in units.items() if not unit.exists])
    units = {name: unit for name, unit in units.items() if unit.exists}
    return {
        "changed": bool(lifted),
        "msg": "\n".join(_lines(lifted, triggers, units, left, check_mode)),
        "lifted": [asdict(hold) for hold in lifted],
        "triggers": triggers,
        "ran": list(units),
        "left": [asdict(hold) for hold in left],
        "diff": {
            "before": "".join(f"{hold}\n" for hold in found) + "".join(f"{name} is stopped\n" for name in triggers),
            "after": "".join(f"{hold}\n" for hold in left) + "".join(f"{name} is active\n" for name in triggers),
        },
    }


def _lines(
    lifted: list[Hold], triggers: list[str], ran: Mapping[str, Unit], left: list[Hold], check_mode: bool
) -> list[str]:
    again = "could be started again" if check_mode else "can be started again"
    lines = [f"{hold.unit} {again}: {hold.words}" for hold in lifted] or ["no drain holds a unit here"]
    if triggers:
        lines.append(f"active again: {', '.join(triggers)}")
    lines += [
        f"{name} ran before the drain and {'was not seen to answer since' if unit.running else 'does not run now'}; "
        "gpuops_undrain_start (or restore_production.yml) starts it and waits until it answers"
        for name, unit in ran.items()
    ]
    return [*lines, *(f"stays: {hold}" for hold in left)]


if __name__ == "__main__":
    main()
