#!/usr/bin/python
# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: haproxy_server
short_description: Take a server out of a running HAProxy and wait for its sessions, or put it back
version_added: 0.1.0
description:
  - Talks to the runtime socket of the HAProxy on this host. Nothing is written to its configuration, and a reload of
    HAProxy forgets it.
  - The ready-made hook of the playbooks for HAProxy, delegated to the balancer.
  - It never sets C(maint), so a server in that state was put there by somebody else, or by HAProxy's configuration. It
    stays there, and a warning says so. A server in C(drain) may have been put there by an earlier run, and is put back.
author:
  - gpuops.inference contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
  action_group:
    support: none
  platform:
    details:
      - Needs HAProxy 1.8 or newer and a C(stats socket) of C(level admin).
options:
  backend:
    description: The backend's name in HAProxy's configuration.
    type: str
    required: true
  server:
    description: The server's name in that backend.
    type: str
    required: true
  state:
    description:
      - V(drain) sends no new session to the server and waits until it has none left, also where it stays in C(maint).
      - V(ready) sends sessions again, and waits until HAProxy's own checks see the server up, where it has checks.
    type: str
    choices: [drain, ready]
    required: true
  socket:
    description: Path of the runtime socket.
    type: path
    default: /run/haproxy/admin.sock
  timeout:
    description: Seconds until the sessions of a drained server must have ended, or a ready one must be up.
    type: float
    default: 300
"""

EXAMPLES = r"""
- name: Take the host out
  gpuops.inference.haproxy_server:
    backend: inference
    server: "{{ inventory_hostname }}"
    state: drain
  delegate_to: lb01.example.com
  become: true
"""

RETURN = r"""
msg:
  description: The result in a sentence.
  returned: always
  type: str
before:
  description: The state that the server had, V(ready), V(drain) or V(maint).
  returned: success
  type: str
sessions:
  description: How many sessions it has now.
  returned: success
  type: int
status:
  description: How HAProxy's own checks see it, for example C(UP) or C(DRAIN).
  returned: success
  type: str
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._haproxy import (
    MAINT,
    NAME,
    HaproxyError,
    aim_of,
    ask_socket,
    look,
    set_state,
    settle,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "backend": {"type": "str", "required": True},
            "server": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["drain", "ready"], "required": True},
            "socket": {"type": "path", "default": "/run/haproxy/admin.sock"},
            "timeout": {"type": "float", "default": 300.0},
        },
        supports_check_mode=True,
    )
    backend, name, state = (module.params[key] for key in ("backend", "server", "state"))
    for option in ("backend", "server"):
        if not NAME.match(module.params[option]):
            module.fail_json(msg=f"{option} is {module.params[option]!r}, which HAProxy cannot have as a name")
    ask = ask_socket(module.params["socket"])
    try:
        before = after = look(ask, backend, name)
        aim = aim_of(before, state)
        changed = before.state != aim
        if changed and not module.check_mode:
            set_state(ask, backend, name, aim)
            after = look(ask, backend, name)
        # Who keeps it in maintenance does not want it up.
        waits = not module.check_mode and not (aim == MAINT and state == "ready")
        if waits:
            after = settle(lambda: look(ask, backend, name), module.params["timeout"], time.monotonic, time.sleep)
    except HaproxyError as error:
        module.fail_json(msg=str(error))
    now = aim if module.check_mode else after.state
    result = {
        "changed": changed,
        "before": before.state,
        "sessions": after.sessions,
        "status": after.status,
        "diff": {"before": f"{backend}/{name}: {before.state}\n", "after": f"{backend}/{name}: {now}\n"},
    }
    if aim == MAINT:
        module.warn(f"{backend}/{name} is in state {MAINT}, which is not this playbook's doing: it stays so")
    if waits and not after.settled:
        left = f"has {after.sessions} sessions" if state == "drain" else f"is {after.status} for HAProxy's checks"
        module.fail_json(
            msg=f"{backend}/{name} still {left} after {module.params['timeout']:g} s; it stays in state {after.state}: "
            "wait and run again, or give it a longer timeout",
            **result,
        )
    would = "would be" if module.check_mode and changed else "is"
    module.exit_json(msg=f"{backend}/{name} {would} {now}, {after.sessions} sessions", **result)


if __name__ == "__main__":
    main()
