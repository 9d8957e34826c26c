# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet
type: stdout
short_description: Shows a drain or a pivot as one line for each host
version_added: 0.1.0
description:
  - On a terminal, one line for each host that is at work, updated in place, with what it does, for how long, how many
    GPUs were released and how much of the weights is loaded. A host that is over becomes one line for good.
    Failures are shown in full.
  - Elsewhere, and with C(NO_COLOR) set or C(TERM=dumb), a plain line for each change.
  - It hides what the default output shows of tasks that went well. The report has all of it.
author:
  - gpuops.inference contributors (@gpuops)
requirements:
  - set as stdout in the configuration, C(ANSIBLE_STDOUT_CALLBACK=gpuops.inference.fleet)
"""

import atexit
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ansible import constants as C
from ansible.plugins.callback import CallbackBase

from ansible_collections.gpuops.inference.plugins.module_utils._masking import mask_text, printable
from ansible_collections.gpuops.inference.plugins.plugin_utils._fleet_screen import Fleet, rows
from ansible_collections.gpuops.inference.plugins.plugin_utils._report import doing_of
from ansible_collections.gpuops.inference.plugins.plugin_utils._told import Told

# Seconds between two pictures of a fleet that goes on.
_TICK = 0.5
_LONGEST_LINE = 4000


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "gpuops.inference.fleet"

    def __init__(self) -> None:
        super().__init__()
        self._fleet = Fleet()
        self._live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and "NO_COLOR" not in os.environ
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._drawn: list[str] = []
        self._over = threading.Event()
        self._said: set[tuple[str, str]] = set()
        # Whoever prints (warnings, other callbacks, action plugins) must not print into the picture.
        self._print = self._display.display
        self._ask = self._display.prompt_until
        self._display.display = self._on_display
        self._display.prompt_until = self._on_prompt

    # --- what Ansible tells

    def v2_playbook_on_start(self, playbook: Any) -> None:
        with self._lock:
            self._erase()
            self._fleet = Fleet(Path(str(playbook._file_name)).stem.replace("_", " "), time.monotonic())
            self._over.clear()
        if self._live:
            threading.Thread(target=self._tick, daemon=True).start()
        # Only now, so that it comes before what others, the report among them, have to say at the very end.
        atexit.unregister(self._end)
        atexit.register(self._end)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._tell(self._fleet.finish_batch(time.monotonic()))
        variables = play.get_variable_manager().get_vars(play=play)
        self._fleet.expect(str(name) for name in variables.get("ansible_play_hosts_all", []))
        self._draw()

    def v2_playbook_on_no_hosts_matched(self) -> None:
        # One play of several may well have nobody left to act on.
        if not self._fleet.hosts:
            self._display.display("no hosts matched", color=C.COLOR_SKIP)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        doing = doing_of(task)
        # A start is told of tasks that are skipped as well.
        looks = bool(task.check_mode) and doing.module in ("gpu_drain", "gpu_verify_free")
        self._change(self._fleet.see_start(host.name, doing, time.monotonic(), looks))

    def v2_runner_on_ok(self, result: Any) -> None:
        doing = doing_of(result.task)
        if doing.module == "ansible.builtin.debug" and doing.role in ("", "fleet"):
            text = result.result.get("msg")
            for line in text if isinstance(text, list) else [text]:
                self._display.display(f"{printable(result.host.name)}: {printable(str(line), _LONGEST_LINE)}")
        self._see(result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._see(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            self._fleet.hosts[result.host.name].failure = "failed"
            self._tell_failure(result, "failed")
        self._see(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._tell_failure(result, "unreachable")
        if not result.task.ignore_unreachable:
            self._tell(self._fleet.finish(result.host.name, "unreachable", time.monotonic()))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        now = time.monotonic()
        for name in stats.processed:
            host = self._fleet.hosts.get(name)
            if host and not stats.failures.get(name):
                host.failure = ""
        lines = self._fleet.finish_batch(now, last=True)
        with self._lock:
            self._erase()
            self._over.set()
        self._tell(lines)

    # --- what is shown of it

    def _see(self, result: Any) -> None:
        over = {name for name, host in self._fleet.hosts.items() if host.outcome}
        lines = self._fleet.see_result(result.host.name, doing_of(result.task), result.result, time.monotonic())
        folded = [host.folded() for name, host in self._fleet.hosts.items() if host.outcome and name not in over]
        self._tell([line for line in lines if line in folded])
        self._change([line for line in lines if line not in folded])

    def _tell_failure(self, result: Any, outcome: str) -> None:
        """In full, and once: the end of a fleet's run repeats it."""
        if doing_of(result.task).role == "fleet" and result.task.action.endswith("fail"):
            return
        told = result.result
        text = str(told.get("msg") or told.get("censored") or "no reason given")
        extra = [f"| {line}" for line in told.get("log") or []]
        for key in ("stderr", "module_stderr", "stdout", "module_stdout"):
            extra += str(told.get(key) or "").splitlines()
        if (result.host.name, text) in self._said:
            return
        self._said.add((result.host.name, text))
        lines = [*text.splitlines(), *extra]
        head = f"{printable(result.host.name)}: {outcome} in {printable(result.task.get_name())}"
        shown = [printable(mask_text(line[: 2 * _LONGEST_LINE]), _LONGEST_LINE) for line in lines]
        self._display.display("\n".join([head, *(f"    {line}" for line in shown)]), color=C.COLOR_ERROR)

    def _tell(self, lines: list[str]) -> None:
        """Lines that stay."""
        for line in lines:
            color = C.COLOR_OK if line.startswith(("✓", "–")) else C.COLOR_ERROR
            self._display.display(line if self._live else f"{time.strftime('%H:%M:%S')} {line}", color=color)

    def _change(self, lines: list[str]) -> None:
        """News that the picture shows anyway."""
        if self._live:
            return
        for line in lines:
            self._print(f"{time.strftime('%H:%M:%S')} {line}")
        if lines:
            sys.stdout.flush()

    def _on_display(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Stands in for Display.display, in the controller's process and in the workers that it forks."""
        if os.getpid() != self._process:
            self._print(msg, *args, **kwargs)
            return
        if isinstance(msg, Told):
            # A story is in the report, and its failure in full comes with the result.
            self._change(self._fleet.see_status(msg.host, msg.status) if msg.status else [])
            return
        with self._lock:
            self._erase()
            self._print(msg, *args, **kwargs)
            sys.stdout.flush()
            self._draw()

    def _on_prompt(self, *args: Any, **kwargs: Any) -> Any:
        if os.getpid() != self._process:
            return self._ask(*args, **kwargs)
        with self._lock:
            self._erase()
            return self._ask(*args, **kwargs)

    # --- the picture: below everything that was printed, the cursor always below it, so that whatever ends us leaves
    # the terminal as a terminal should be. Nothing is hidden, no mode is changed.

    def _tick(self) -> None:
        while not self._over.wait(_TICK):
            self._draw()

    def _draw(self) -> None:
        if not self._live or self._over.is_set():
            return
        with self._lock:
            width, height = shutil.get_terminal_size()
            lines = self._fleet.frame(width, height, time.monotonic())
            up = rows(self._drawn, width)
            self._drawn = lines
            self._write((f"\x1b[{up}A" if up else "") + "\r" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")

    def _erase(self) -> None:
        if self._drawn:
            self._write(f"\x1b[{rows(self._drawn, shutil.get_terminal_size().columns)}A\r\x1b[J")
            self._drawn = []

    @staticmethod
    def _write(text: str) -> None:
        # Not through sys.stdout: a worker may be forked while its lock is held by the thread that draws.
        data = text.encode(sys.stdout.encoding or "utf-8", "replace")
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]

    def _end(self) -> None:
        """Ctrl-C, an error of Ansible's own, or the normal end, after which there is nothing to tell."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._erase()
            self._over.set()
        for name in [host.name for host in self._fleet.hosts.values() if host.at_work]:
            self._tell(self._fleet.finish(name, "unfinished", time.monotonic()))
