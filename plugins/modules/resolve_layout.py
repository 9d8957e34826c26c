#!/usr/bin/python
# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: resolve_layout
short_description: Find, merge, check and complete a layout
version_added: 0.1.0
description:
  - This module belongs to the role P(gpuops.inference.layout#role), which describes the keys of a layout.
  - Runs on the controller alone; no host is asked. What many hosts of a run ask for alike is worked out once.
  - Everything that is wrong with a layout is told in one message. A variable C(layout_...) that nobody reads is
    refused.
author:
  - gpuops.inference contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
  action_group:
    support: none
  platform:
    support: N/A
options:
  source:
    description:
      - The name of a layout, or a whole layout as a mapping.
      - A name is looked up as C(layouts/NAME.yml) beside the inventory, then in the role.
    type: raw
    required: true
  overrides:
    description: Merged on top. V(null) removes a flag or a variable of the environment.
    type: dict
    default: {}
  eagle3:
    description: Whether to merge the layout's own section C(eagle3) before the overrides.
    type: bool
    default: false
  instance:
    description: Which section of the layout's C(instances) to merge before the overrides.
    type: str
    default: ""
  secrets:
    description: Secret variables of the environment by engine. Only their names get into the result.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Resolve the layout
  gpuops.inference.resolve_layout:
    source: kimi_k25_int4_tp8
    overrides: {model: {path: /srv/kimi}}
  register: layout_resolved
"""

RETURN = r"""
engines:
  description: All that is deployed for each engine, by its name, with the text of its unit.
  returned: success
  type: dict
gpus:
  description: How many GPUs the layout uses, which, and how large each must be.
  returned: success
  type: dict
model:
  description: The C(path) of the model and its C(served_name).
  returned: success
  type: dict
name:
  description: How messages and units call the layout.
  returned: success
  type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

# The action plugin of this name does it all; this is what it takes.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "source": {"type": "raw", "required": True},
    "overrides": {"type": "dict", "default": {}},
    "eagle3": {"type": "bool", "default": False},
    "instance": {"type": "str", "default": ""},
    "secrets": {"type": "dict", "default": {}, "no_log": True},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.fail_json(msg="this runs on the controller, as an action plugin")


if __name__ == "__main__":
    main()
