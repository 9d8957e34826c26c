# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module of the same name and shows its story, which the default output would keep to itself."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = True
    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        result.update(self._execute_module(task_vars=task_vars, wrap_async=bool(self._task.async_val)))
        # A failure's message is printed by every callback; a success's by none.
        if not result.get("failed"):
            host = (task_vars or {}).get("inventory_hostname", "")
            for line in str(result.get("msg", "")).splitlines():
                display.display(f"{host}: {line}")
        return result
