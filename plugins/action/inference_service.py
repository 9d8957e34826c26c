# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module and, where it takes its time, prints a line for every change that it tells of."""

from __future__ import annotations

import json
import shlex
import time
import uuid
from typing import Any, Optional

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.gpuops.inference.plugins.module_utils._background import has_result, result_of

# The host answers at the next change, or after this long: no connection is silent longer.
_SILENCE = 30

# How often a result is looked for once the process has ended.
_LAST_READS = 3

_ALIVE = "gpuops: alive"
_ENDED = "gpuops: ended"

display = Display()


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.async_val or self._task.check_mode:
            result.update(self._execute_module(task_vars=task_vars, wrap_async=bool(self._task.async_val)))
            return result
        self._task.environment.append({"GPUOPS_PROGRESS": uuid.uuid4().hex})
        try:
            told = self._execute_module(task_vars=task_vars)
        finally:
            self._task.environment.pop()
        work = told.pop("goes_on", None)
        result.update(told)
        if work:
            result.update(self._watch(work["pid"], work["path"], task_vars or {}))
        return result

    def _watch(self, pid: int, path: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Print what the process tells until it ends, and return its result."""
        host = task_vars.get("inventory_hostname", "")
        lines: list[str] = []
        while True:
            alive, new = self._read(pid, path, len(lines) + 1)
            lines += new
            for line in new:
                told = json.loads(line) if line.startswith('{"unit"') else {}
                if told:
                    display.display(f"{host}: {told['unit']}: {told['status']} ({told['seconds']:.0f} s)")
            if not alive:
                for dummy in range(_LAST_READS):
                    if has_result(lines):
                        break
                    # Told to have ended, and no result: one look may have come between its end and its last line.
                    time.sleep(1)
                    lines += self._read(pid, path, len(lines) + 1)[1]
                self._low_level_execute_command(f"rm -f {shlex.quote(path)}")
                return dict(result_of(lines))

    def _read(self, pid: int, path: str, line: int) -> tuple[bool, list[str]]:
        """Whether the process lives, and the lines from this one on; waits for one, or the end, or a long silence."""
        began = time.monotonic()
        tail = f"tail -n +{line}"
        file = shlex.quote(path)
        done = self._low_level_execute_command(
            f"timeout {_SILENCE} {tail} -f --pid={pid} {file} 2>/dev/null | head -n 1 >/dev/null; "
            f"if kill -0 {pid} 2>/dev/null; then echo '{_ALIVE}'; else echo '{_ENDED}'; fi; {tail} {file}"
        )
        alive, new = parse_read(done["stdout"])
        if alive and not new and time.monotonic() - began < 1:
            # A host without these tools: ask, but not all the time.
            time.sleep(_SILENCE / 10)
        return alive, new


def parse_read(text: str) -> tuple[bool, list[str]]:
    """Whether the process lives, and its lines. What a shell says before the answer counts for nothing."""
    lines = text.splitlines()
    for position, line in enumerate(lines):
        if line in (_ALIVE, _ENDED):
            return line == _ALIVE, lines[position + 1 :]
    # No answer is no end: the next read tells.
    return True, []
