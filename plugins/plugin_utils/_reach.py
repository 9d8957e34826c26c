# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This plugin util is PRIVATE to the collection; it can change in any release.
"""What our action plugins have in common: how a module runs, and what becomes of a host that gets lost meanwhile."""

from __future__ import annotations

from typing import Any, Optional

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase


class ReachAction(ActionBase):
    """Runs the module of the task's name.

    Ansible drops an unreachable host, and ends the run if that was all of a batch. The playbooks, which act on one
    batch after the other, therefore set `fleet_acts`: a lost host is then a failure that a rescue tells by its `lost`.
    """

    _supports_check_mode = True
    _supports_async = True
    _supports_diff = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            result.update(self.act(task_vars or {}))
        except AnsibleConnectionFailure as failure:
            if not (task_vars or {}).get("fleet_acts"):
                raise
            text = f"the host cannot be reached any more: {failure}; it finishes by itself the stage that it is in"
            result.update({"failed": True, "lost": True, "msg": text})
        return result

    def act(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Do what the task is for, and return its result."""
        done: dict[str, Any] = self._execute_module(task_vars=task_vars, wrap_async=bool(self._task.async_val))
        return done
