# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module of the same name and shows its story, which the default output would keep to itself."""

from __future__ import annotations

from typing import Any

from ansible.utils.display import Display

from ansible_collections.gpuops.inference.plugins.plugin_utils._reach import ReachAction
from ansible_collections.gpuops.inference.plugins.plugin_utils._told import told

display = Display()


class ActionModule(ReachAction):
    def act(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        result = super().act(task_vars)
        # A failure's message is printed by every callback; a success's by none. A look at a fleet only wants to know.
        if not result.get("failed") and not task_vars.get("_drain_plans"):
            host = task_vars.get("inventory_hostname", "")
            for line in str(result.get("msg", "")).splitlines():
                display.display(told(f"{host}: {line}", host))
        return result
