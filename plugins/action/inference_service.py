# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module and, where it takes its time, prints a line for every change that it tells of."""

from __future__ import annotations

import json
import shlex
import sys
import time
import uuid
from typing import Any

from ansible.utils.display import Display

from ansible_collections.gpuops.inference.plugins.module_utils._background import has_result, result_of
from ansible_collections.gpuops.inference.plugins.plugin_utils._reach import ReachAction
from ansible_collections.gpuops.inference.plugins.plugin_utils._told import told

# The host answers at the next change, or after this long: no connection is silent longer.
_SILENCE = 30

# A counter that moves is printed this often, in seconds.
_PACE = 5.0

# How often a result is looked for once the process has ended.
_LAST_READS = 3

_ALIVE = "gpuops: alive"
_ENDED = "gpuops: ended"

display = Display()

# Read where ansible-playbook has loaded us, before a worker of it closes everything: there it is never a terminal.
_TERMINAL = sys.stdout.isatty()


class Lines:
    """What is printed of a host's progress: a line for each phase and, where somebody watches, for its counter too."""

    def __init__(self, host: str, hosts: int, terminal: bool) -> None:
        self._host = host
        self._terminal = terminal
        # Fifty hosts that count must not scroll away what one of them says.
        self._pace = max(_PACE, float(hosts))
        self._phase = ""
        self._at = 0.0

    def line(self, text: str, moment: float) -> str:
        """The line to print for what a host told, '' for none. moment is in seconds on any clock."""
        news = json.loads(text) if text.startswith('{"unit"') else {}
        if not news or (news["phase"] == self._phase and not (self._terminal and moment - self._at >= self._pace)):
            return ""
        self._phase, self._at = news["phase"], moment
        rest = f", {news['rest']}" if news["rest"] else ""
        line = f"{self._host}: {news['unit']}: {news['status']} ({news['seconds']:.0f} s{rest})"
        return told(line, self._host, news["status"])


class ActionModule(ReachAction):
    def act(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        if self._task.async_val or self._task.check_mode:
            return super().act(task_vars)
        self._task.environment.append({"GPUOPS_PROGRESS": uuid.uuid4().hex})
        try:
            result = super().act(task_vars)
        finally:
            self._task.environment.pop()
        work = result.pop("goes_on", None)
        return {**result, **self._watch(work["pid"], work["path"], task_vars)} if work else result

    def _watch(self, pid: int, path: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Print what the process tells until it ends, and return its result."""
        shown = Lines(task_vars.get("inventory_hostname", ""), len(task_vars.get("ansible_play_batch", ())), _TERMINAL)
        lines: list[str] = []
        while True:
            alive, new = self._read(pid, path, len(lines) + 1)
            lines += new
            for line in filter(None, (shown.line(text, time.monotonic()) for text in new)):
                display.display(line)
            if not alive or has_result(lines):
                for dummy in range(_LAST_READS):
                    if has_result(lines):
                        break
                    # Told to have ended, and no result: one look may have come between its end and its last line.
                    time.sleep(1)
                    lines += self._read(pid, path, len(lines) + 1)[1]
                if not has_result(lines):
                    self._low_level_execute_command(f"rm -f {shlex.quote(path)}")
                return dict(result_of(lines))

    def _read(self, pid: int, path: str, line: int) -> tuple[bool, list[str]]:
        """Whether the process lives, and the lines from this one on; waits for one, or the end, or a long silence.

        With the result, the file has told all that it ever will, and goes.
        """
        began = time.monotonic()
        done = self._low_level_execute_command(read_command(pid, shlex.quote(path), line))
        alive, new = parse_read(done["stdout"])
        if alive and not new and time.monotonic() - began < 1:
            # A host without these tools: ask, but not all the time.
            time.sleep(_SILENCE / 10)
        return alive, new


def read_command(pid: int, file: str, line: int) -> str:
    """What a host's shell runs for one read of a file that is quoted for it."""
    tail = f"tail -n +{line}"
    # The process is looked at before the file is read: what an ended one has told is all in what is read then. A long
    # line gets there bit by bit, so what ends without a newline, which `$(` would hide, is no line yet.
    return (
        f"timeout {_SILENCE} {tail} -f --pid={pid} {file} 2>/dev/null | head -n 1 >/dev/null; "
        f"if kill -0 {pid} 2>/dev/null; then echo '{_ALIVE}'; else echo '{_ENDED}'; fi; "
        f"told=$({tail} {file}; echo .); "
        """printf %s "${told%.}"; """
        f"""case $told in *'{{"result"'*[[:cntrl:]].) rm -f {file};; esac"""
    )


def parse_read(text: str) -> tuple[bool, list[str]]:
    """Whether the process lives, and its whole lines. What a shell says before the answer counts for nothing."""
    lines = text.splitlines()[: None if text.endswith("\n") else -1]
    for position, line in enumerate(lines):
        if line in (_ALIVE, _ENDED):
            return line == _ALIVE, lines[position + 1 :]
    # No answer is no end: the next read tells.
    return True, []
