#!/usr/bin/python
# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet
short_description: Plan a run over many hosts, let hosts through, and tell how each ended
version_added: 0.1.0
description:
  - This module belongs to the role P(gpuops.inference.fleet#role), which calls it in a fixed order.
  - Runs on the controller alone; no host is asked. What it knows is in a file there that lives as long as the run.
author:
  - gpuops.inference contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
    details:
      - It counts what would be begun, and does not wait.
  diff_mode:
    support: none
  idempotent:
    support: N/A
    details:
      - It keeps the books of one run.
  action_group:
    support: none
  platform:
    support: N/A
options:
  state:
    description:
      - V(guard) refuses variables C(gpuops_...) that no playbook reads, and more than one host unless it is meant.
      - V(begin) opens the books. V(look) notes what was seen of a host before anything was touched.
      - V(plan) checks the settings and settles the order.
      - V(gate) says whether this host may be begun now, counted over all hosts of the run.
      - V(end) notes how a host ended, V(afterwards) what failed after that. V(tell) says how to go on.
      - V(wait) waits on the controller.
    type: str
    choices: [guard, begin, look, plan, gate, end, afterwards, tell, wait]
    required: true
  acts:
    description: With O(state=guard), whether something is done to the hosts.
    type: bool
    default: true
  fleet:
    description: With O(state=guard), whether more than one host is meant even without C(--limit).
    type: bool
    default: false
  roles:
    description: With O(state=guard), roles whose variables must be spelled right, too.
    type: list
    elements: str
    default: []
  outcome:
    description: With O(state=look), V(skipped), V(failed) or V(unreachable), empty if the host has something to do.
    type: str
    default: ""
  cause:
    description: With O(state=look), why the host is not to be begun. By default what the look itself says.
    type: str
    default: ""
  look:
    description: With O(state=look), what was seen of the host, also where the look failed.
    type: dict
  hooks:
    description:
      - With O(state=look), what comes before and after the host, as files of tasks and lists of kinds. What cannot be
        read, or is of no kind, is refused.
    type: list
    elements: raw
    default: []
  failure:
    description: The C(task) that failed and its C(result).
    type: dict
  lost:
    description: With O(state=end), whether the host could not be reached any more.
    type: bool
    default: false
  soaked:
    description:
      - With O(state=afterwards), false where that failed in the soak of a canary. Nobody relies on its engine then.
    type: bool
    default: true
  frees:
    description: With O(state=end), whether no engine is to serve on the host afterwards.
    type: bool
  results:
    description: With O(state=end), what the steps returned, by name.
    type: dict
  serial:
    description: With O(state=plan), how many hosts at a time, as a number, a percentage, or a list that ramps up.
    type: raw
  max_failed:
    description: With O(state=plan), so many failed hosts end the run.
    type: raw
  max_unavailable:
    description: With O(state=plan), so many hosts may be out of service at once.
    type: raw
  canary:
    description: With O(state=plan), the hosts that go first, as a number or as they were named.
    type: raw
  canary_hosts:
    description: With O(state=plan), the names that O(canary) stands for, if it is no number.
    type: list
    elements: str
  soak:
    description: With O(state=plan), seconds in which a canary must stay as it is.
    type: float
  deadline:
    description: With O(state=plan), seconds after which no further host is begun.
    type: float
  seconds:
    description: With O(state=wait), how long.
    type: float
"""

EXAMPLES = r"""
- name: Drain within a fleet's budget
  ansible.builtin.import_playbook: gpuops.inference.drain
"""

RETURN = r"""
pending:
  description: The hosts that have something to do, in the order in which they are begun.
  returned: with O(state=plan)
  type: list
  elements: str
serial:
  description: How many of them together, batch by batch.
  returned: with O(state=plan)
  type: list
  elements: int
go:
  description: Whether this host may be begun now.
  returned: with O(state=gate)
  type: bool
soak:
  description: Seconds in which this host, a canary, must stay as it is.
  returned: with O(state=gate)
  type: float
gpuops_outcome:
  description:
    - The C(outcome) of this host so far and its C(cause). One of done, skipped, not_begun, failed, rolled_back and
      unreachable.
  returned: with O(state=look), O(state=gate), O(state=end) and O(state=afterwards), where there is one
  type: dict
serving:
  description: Whether an engine serves on the host.
  returned: with O(state=end) and O(state=afterwards)
  type: bool
gpuops_outcomes:
  description: The same for all hosts of the run, by name.
  returned: with O(state=tell)
  type: dict
stopped:
  description: Why no further host was begun; empty if all were.
  returned: with O(state=tell)
  type: str
resume:
  description: How to go on; empty if all is done.
  returned: with O(state=tell)
  type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

# The action plugin of this name does it all; this is what it takes.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "state": {
        "type": "str", "required": True,
        "choices": ["guard", "begin", "look", "plan", "gate", "end", "afterwards", "tell", "wait"],
    },
    "acts": {"type": "bool", "default": True},
    "fleet": {"type": "bool", "default": False},
    "roles": {"type": "list", "elements": "str", "default": []},
    "outcome": {"type": "str", "default": ""},
    "cause": {"type": "str", "default": ""},
    "look": {"type": "dict"},
    "hooks": {"type": "list", "elements": "raw", "default": []},
    "failure": {"type": "dict"},
    "lost": {"type": "bool", "default": False},
    "soaked": {"type": "bool", "default": True},
    "frees": {"type": "bool"},
    "results": {"type": "dict"},
    "serial": {"type": "raw"},
    "max_failed": {"type": "raw"},
    "max_unavailable": {"type": "raw"},
    "canary": {"type": "raw"},
    "canary_hosts": {"type": "list", "elements": "str"},
    "soak": {"type": "float"},
    "deadline": {"type": "float"},
    "seconds": {"type": "float"},
}  # fmt: skip


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.fail_json(msg="this runs on the controller, as an action plugin")


if __name__ == "__main__":
    main()
