# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gathers what a run tells and writes the report. See _report for what it means and _report_page for how it looks."""

from __future__ import annotations

DOCUMENTATION = r"""
name: report
type: aggregate
short_description: Writes a report of a drain or a pivot, as JSON and as one HTML page
version_added: 0.1.0
description:
  - The playbooks of this collection load this callback by themselves. A playbook of your own that uses the collection's
    roles or modules gets a report with this name in C(callbacks_enabled).
  - The report goes to a new directory below the one that the variable C(gpuops_report_dir) names, by default
    C(gpuops-reports) where the command is run. Only its owner can read it. An empty value writes none.
  - It is written when the playbook is over, also if every host failed or the run was interrupted, and before that
    when the hosts are known, when one of them begins something else, and now and then.
author:
  - gpuops.inference contributors (@gpuops)
requirements:
  - enabling in the configuration, outside the collection's own playbooks
"""

import atexit
import getpass
import json
import os
import platform
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from ansible import context
from ansible.parsing.vault import VaultHelper
from ansible.plugins.callback import CallbackBase
from ansible.release import __version__ as core_version
from ansible.template import Templar

from ansible_collections.gpuops.inference.plugins.plugin_utils._report import (
    FINISHED,
    INTERRUPTED,
    RUNNING,
    Run,
    doing_of,
    secret_values,
    shown_values,
    summary_lines,
)
from ansible_collections.gpuops.inference.plugins.plugin_utils._report_page import page

DEFAULT_DIRECTORY = "gpuops-reports"
# Seconds between two reports of a run that goes on, for the case that nobody gets to write the last one.
_NOW_AND_THEN = 30.0


# A callback, and not tasks at the playbook's end: Ansible runs none of those for hosts that failed or cannot be
# reached, none at all when all of them did, and none after Ctrl-C. A callback is told of every result in the
# controller's own process, and costs no host a round trip.
class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpuops.inference.report"
    CALLBACK_NEEDS_ENABLED = True

    # Loaded by the playbooks and enabled as well: one is enough.
    _taken = False

    def __init__(self) -> None:
        super().__init__()
        self.disabled = CallbackModule._taken
        CallbackModule._taken = True
        self._run: Optional[Run] = None
        self._play: Any = None
        self._play_hosts: list[str] = []
        self._known: set[str] = set()
        self._base: Optional[Path] = None
        self._directory: Optional[Path] = None
        self._written = self._took = 0.0
        self._news = False
        self._process = os.getpid()
        if not self.disabled:
            # Ansible says nothing to callbacks when it is interrupted, or stops at an error of its own.
            atexit.register(self._at_exit)

    # --- what Ansible tells

    def v2_playbook_on_start(self, playbook: Any) -> None:
        name = Path(str(playbook._file_name)).stem
        arguments = context.CLIARGS
        facts = {
            "check": bool(arguments.get("check")),
            "limit": str(arguments.get("subset") or ""),
            "by": f"{os.environ.get('SUDO_USER') or getpass.getuser()}@{platform.node()}",
            "ansible_core": core_version,
            "python": platform.python_version(),
            "collection": collection_version(),
        }
        self._run = Run(name, time.time(), facts)
        self._base = self._directory = None
        self._written = self._took = 0.0
        self._news = False
        self._known.clear()

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._play = play
        variables = play.get_variable_manager().get_vars(play=play)
        self._play_hosts = [str(name) for name in variables.get("ansible_play_hosts_all", [])]

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        if not self._run:
            return
        doing = doing_of(task)
        if doing.acts and host.name not in self._known:
            self._known.add(host.name)
            # Those whose turn never comes belong to the story too.
            for name in self._play_hosts:
                self._run.host(name)
            self._learn_values(host)
        now = time.time()
        # A task may take an hour, in which Ansible tells nothing: what is known is written before it begins.
        self._news = self._run.see_start(host.name, doing, now) or self._news
        self._write_if_due(now)

    def v2_runner_on_ok(self, result: Any) -> None:
        self._see(result, "ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._see(result, "ok" if ignore_errors else "failed")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._see(result, "unreachable")

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._see(result, "skipped")

    def v2_playbook_on_stats(self, stats: Any) -> None:
        if self._run:
            self._run.see_end(stats.failures, stats.dark)
            self._finish(FINISHED)

    # --- what is made of it

    def _see(self, result: Any, kind: str) -> None:
        if self._run:
            now = time.time()
            self._run.see_result(result.host.name, doing_of(result.task), kind, result.result, now)
            self._write_if_due(now)

    def _write_if_due(self, now: float) -> None:
        # Of two hundred hosts it takes a second: a small part of the time, however many there are.
        if now - self._written > max(0.0 if self._news else _NOW_AND_THEN, 50 * self._took):
            self._write(RUNNING)

    def _learn_values(self, host: Any) -> None:
        """What the user set for this host. Asked once for each: it costs as much as the start of a task."""
        variables = self._play.get_variable_manager().get_vars(play=self._play, host=host)
        ours = {name: value for name, value in variables.items() if name.startswith("gpuops_")}
        self._run.secrets |= secret_values(ours)
        self._run.host(host.name).values = shown_values(without_vault(ours))
        if self._base is None:
            wanted = ours.get("gpuops_report_dir", DEFAULT_DIRECTORY)
            wanted = Templar(self._play.get_loader(), variables).template(wanted)
            self._base = Path(str(wanted)).expanduser().absolute() if wanted else Path(os.devnull)

    def _write(self, state: str) -> Optional[dict[str, Any]]:
        """Write both files; returns the document if there is anything to tell."""
        if not self._run or not self._run.acted or self._base == Path(os.devnull):
            return None
        began, self._news = time.time(), False
        document = self._run.as_dict(began, state)
        try:
            if self._directory is None:
                self._directory = new_directory(self._base or Path(DEFAULT_DIRECTORY).absolute(), self._run)
            write_private(self._directory / "report.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n")
            write_private(self._directory / "index.html", page(document))
        except OSError as error:
            self._display.warning(f"The report could not be written: {error}. gpuops_report_dir names its directory.")
        self._written = time.time()
        self._took = self._written - began
        return document

    def _finish(self, state: str) -> None:
        document = self._write(state)
        self._run = None
        if document:
            self._display.display("\n".join(["", *summary_lines(document)]))
        if document and self._directory:
            self._display.display(f"\nReport: {self._directory / 'index.html'}")

    def _at_exit(self) -> None:
        if self._run and os.getpid() == self._process:
            self._finish(INTERRUPTED)


def without_vault(value: Any) -> Any:
    """The value without what is kept in a vault: that stays there, whatever its name is and wherever it stands."""
    if VaultHelper.get_ciphertext(value, with_tags=False):
        return "(vault)"
    if isinstance(value, Mapping):
        return {name: without_vault(item) for name, item in value.items()}
    return [without_vault(item) for item in value] if isinstance(value, (list, tuple)) else value


def collection_version() -> str:
    """As the installed collection, or the checkout, says."""
    root = Path(__file__).parents[2]
    for name in ("MANIFEST.json", "galaxy.yml"):
        try:
            found = re.search(r"""^\s*"?version"?:\s*"?([^\s",]+)""", (root / name).read_text("utf-8"), re.MULTILINE)
        except OSError:
            continue
        return found.group(1) if found else ""
    return ""


def new_directory(base: Path, run: Run) -> Path:
    """A directory of this run's own. Raises OSError."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(run.began))
    name = f"{stamp}-{re.sub('[^A-Za-z0-9_.-]', '_', run.playbook)}"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(100):
        path = base / (f"{name}-{number}" if number else name)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{base / name} is there a hundred times")


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner reads, all of it or nothing. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        # Half a character is text to Python and nothing to a file.
        file.write(text.encode("utf-8", "replace").decode("utf-8"))
    draft.replace(path)
