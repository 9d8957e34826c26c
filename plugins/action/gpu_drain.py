# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module of the same name and shows its story, which the default output would keep to itself."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from ansible.utils.display import Display

from ansible_collections.gpuops.inference.plugins.plugin_utils._reach import ReachAction
from ansible_collections.gpuops.inference.plugins.plugin_utils._told import told

display = Display()


class ActionModule(ReachAction):
    def act(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        result = super().act(task_vars)
        # A look at a fleet only wants to know.
        if task_vars.get("_drain_plans"):
            return result
        host = task_vars.get("inventory_hostname", "")
        # A failure's message is printed by every callback; a success's by none.
        for line in [] if result.get("failed") else str(result.get("msg", "")).splitlines():
            display.display(told(f"{host}: {line}", host))
        way_back = how_to_undrain(result, self._task.args, self._task.delegate_to or host, task_vars)
        if way_back and not self._task.check_mode:
            display.display(f"{host}: {way_back}")
        return result


def how_to_undrain(
    result: Mapping[str, Any], arguments: Mapping[str, Any], host: str, variables: Mapping[str, Any]
) -> str:
    """What stays held on a host after a drain, and the command that ends it, '' for nothing; a pivot ends its own."""
    units = [hold["unit"] for hold in result.get("holds") or () if hold["purpose"] == "drain"]
    if not units or arguments.get("hold_for") == "pivot":
        return ""
    sources = variables.get("ansible_inventory_sources") or ()
    inventories = "".join(f" -i {shlex.quote(str(source))}" for source in sources)
    # The playbooks ask for this group by themselves.
    named = host in (variables.get("groups") or {}).get("gpu_hosts", ())
    where = f"{'--limit ' if named else '-e gpuops_hosts='}{shlex.quote(host)}"
    command = f"ansible-playbook{inventories} gpuops.inference.undrain {where}"
    if arguments.get("gpus", "all") not in ("all", ["all"]):
        # Holds are kept by unit and not by GPU.
        command += " -e " + shlex.quote(json.dumps({"gpuops_undrain_units": units}))
    return f"{', '.join(units)} cannot be started until the hold ends. This ends it: {command}"
