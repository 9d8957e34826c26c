# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two callbacks in a real ansible-playbook. Its tasks run in the controller: what they do there is told alike."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).parents[4]
LIMIT = 120.0
# Starts no process on a host.
WAIT = """
import os, time
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        deadline = time.monotonic() + 100
        while not os.path.exists(self._task.args["path"]):
            if time.monotonic() > deadline:
                return {"failed": True, "msg": "nobody gave the word"}
            time.sleep(0.05)
        return {}
"""
# Tasks whose role makes them count, and that need no GPU: the role's own tasks are not what is tested here.
TASKS = """
- name: Say what will happen
  ansible.builtin.debug:
    msg: begun
- name: Wait for the word
  wait:
    path: "{{ go }}"
- name: Break
  ansible.builtin.fail:
    msg: |-
      it broke:
      for no good \\x1b[31mreason
  when: inventory_hostname in broken
"""
PLAY = """
- hosts: all
  gather_facts: false
  connection: local
  strategy: host_pinned
  tasks:
    - ansible.builtin.include_role:
        name: engine
"""


@pytest.fixture
def playbook(tmp_path: Path) -> Path:
    """A playbook with the report beside it, as the collection's own have it."""
    (tmp_path / "callback_plugins").mkdir()
    (tmp_path / "callback_plugins/gpuops_report.py").symlink_to(ROOT / "playbooks/callback_plugins/gpuops_report.py")
    (tmp_path / "action_plugins").mkdir()
    (tmp_path / "action_plugins/wait.py").write_text(WAIT)
    (tmp_path / "roles/engine/tasks").mkdir(parents=True)
    (tmp_path / "roles/engine/tasks/main.yml").write_text(TASKS.replace("\\\\x1b", "\\x1b"))
    (tmp_path / "ansible.cfg").touch()
    path = tmp_path / "drain.yml"
    path.write_text(PLAY)
    return path


def start(
    playbook: Path,
    terminal: int,
    hosts: str,
    broken: tuple[str, ...] = (),
    reports: str = "reports",
    **environment: str,
) -> subprocess.Popen[bytes]:
    values = {
        "go": str(playbook.parent / "go"),
        "broken": broken,
        "gpuops_report_dir": reports,
    }
    return subprocess.Popen(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", hosts, playbook, "-e", json.dumps(values)],
        env={
            # The checks themselves run without colours.
            **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
            "ANSIBLE_STDOUT_CALLBACK": "gpuops.inference.fleet",
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm",
            **environment,
        },
        cwd=playbook.parent,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )


class Screen:
    """A terminal of the size given: what is written to it, and how it looks. Knows what the callback uses, no more."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.master, self.slave = pty.openpty()
        self.resize(width, height)
        self.modes = termios.tcgetattr(self.slave)
        self.raw = ""

    def resize(self, width: int, height: int) -> None:
        self.width = width
        ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def read_until(self, child: subprocess.Popen[bytes], text: str = "") -> None:
        """Until this was written, or without it until the program has ended and all was read."""
        deadline = time.monotonic() + LIMIT
        while not text or text not in self.raw:
            over = child.poll() is not None
            if select.select([self.master], [], [], 0.2)[0]:
                self.raw += os.read(self.master, 1 << 16).decode("utf-8", "replace")
            elif over:
                assert not text, self.raw[-3000:]
                return
            assert time.monotonic() < deadline, self.raw[-3000:]

    def lines(self) -> list[str]:
        """The lines as they stand, scrolled-out ones included."""
        lines = [""]
        row = 0
        for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", self.raw):
            if piece == "\n":
                row += 1
                if row == len(lines):
                    lines.append("")
            elif piece.endswith("A") and piece.startswith("\x1b"):
                row -= int(piece[2:-1])
                assert row >= 0, "went above what was printed"
            elif piece == "\x1b[J":
                del lines[row + 1 :]
                lines[row] = ""
            elif piece not in ("\r", "\x1b[K") and not piece.endswith("m"):
                assert not piece.startswith("\x1b"), repr(piece)
                # A line is always written from its beginning.
                lines[row] = piece
        return lines


def report(playbook: Path) -> dict[str, object]:
    (directory,) = (playbook.parent / "reports").iterdir()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert {path.name for path in directory.iterdir()} == {"index.html", "report.json"}
    return dict(json.loads((directory / "report.json").read_text()))


def test_on_a_terminal_the_picture_follows_and_what_is_over_stays(playbook: Path) -> None:
    screen = Screen(160, 50)
    child = start(playbook, screen.slave, "gpu-1,gpu-2,gpu-3,", ("gpu-2",))
    screen.read_until(child, "3 at work")
    screen.resize(60, 20)
    (playbook.parent / "go").touch()
    screen.read_until(child)
    assert child.wait(LIMIT) == 2
    shown = "\n".join(screen.lines())
    assert re.search(r"✓ gpu-1  done", shown) and re.search(r"✕ gpu-2  failed", shown)
    assert "it broke:\n    for no good \\x1b[31mreason" in shown
    assert "at work" not in shown
    assert {host["host"]: host["outcome"] for host in report(playbook)["hosts"]} == {
        "gpu-1": "done", "gpu-2": "failed", "gpu-3": "done",
    }  # fmt: skip


def test_ctrl_c_leaves_the_terminal_as_it_was_and_a_report(playbook: Path) -> None:
    screen = Screen(80, 24)
    child = start(playbook, screen.slave, "gpu-1,gpu-2,")
    screen.read_until(child, "2 at work")
    os.killpg(child.pid, signal.SIGINT)
    screen.read_until(child)
    assert child.wait(LIMIT) not in (0, 2)
    assert termios.tcgetattr(screen.slave) == screen.modes
    assert not re.search(r"\x1b\[\?", screen.raw), "no mode was switched, so none has to be switched back"
    *lines, last = screen.lines()
    assert last == "", "the next prompt begins a line"
    assert "! gpu-1  unfinished" in "\n".join(lines)
    assert lines[-1].startswith("Report: ")
    told = report(playbook)
    assert told["run"]["state"] == "interrupted"
    assert {host["outcome"] for host in told["hosts"]} == {"unfinished"}
    assert "Ctrl-C" in told["run"]["stopped"] and "the same command again" in told["run"]["resume"]


def test_a_controller_that_is_killed_leaves_a_report_that_says_running(playbook: Path) -> None:
    screen = Screen(80, 24)
    # The first task is the long one, as a drain's is: no result comes before it.
    tasks = playbook.parent / "roles/engine/tasks/main.yml"
    tasks.write_text(tasks.read_text()[TASKS.index("- name: Wait") :])
    # One after the other: the second never gets its turn.
    child = start(playbook, screen.slave, "gpu-1,gpu-2,", ANSIBLE_FORKS="1")
    try:
        screen.read_until(child, "at work")
        deadline = time.monotonic() + LIMIT
        # The first host's word is in it before its first task runs. The next may be half written when the kill comes.
        while not (found := list((playbook.parent / "reports").glob("*/index.html"))):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        child.kill()
        ended = child.wait(LIMIT)
        # Its worker outlives it, waiting.
        (playbook.parent / "go").touch()
    assert ended == -signal.SIGKILL
    told = json.loads(found[0].with_name("report.json").read_text())
    jsonschema.validate(told, json.loads((ROOT / "docs/report.schema.json").read_text()))
    assert told["run"]["state"] == "running"
    assert {host["host"]: host["outcome"] for host in told["hosts"]} == {"gpu-1": "unfinished", "gpu-2": "not_begun"}


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_plain_lines_where_nothing_can_be_drawn(playbook: Path, environment: dict[str, str]) -> None:
    (playbook.parent / "go").touch()
    screen = Screen(80, 24)
    child = start(playbook, screen.slave, "gpu-1,", **environment)
    screen.read_until(child)
    assert not re.search(r"\x1b\[[0-9]*[AJK]", screen.raw)
    assert re.search(r"^\d\d:\d\d:\d\d gpu-1: deploy\r?$", screen.raw, re.MULTILINE)


def test_many_hosts_and_no_terminal(playbook: Path, tmp_path: Path) -> None:
    (playbook.parent / "go").touch()
    log = tmp_path / "log"
    with log.open("wb") as sink:
        child = start(playbook, sink.fileno(), ",".join(f"gpu-{number}" for number in range(12)) + ",")
        assert child.wait(LIMIT) == 0
    assert len(re.findall(r"✓ gpu-\d+  done", log.read_text())) == 12


def test_a_report_is_written_without_the_other_callback_and_when_every_host_fails(playbook: Path) -> None:
    (playbook.parent / "go").touch()
    log = playbook.parent / "log"
    with log.open("wb") as sink:
        both = ("gpu-1", "gpu-2")
        child = start(playbook, sink.fileno(), "gpu-1,gpu-2,", both, ANSIBLE_STDOUT_CALLBACK="default")
        assert child.wait(LIMIT) == 2
    assert [host["cause"].splitlines()[0] for host in report(playbook)["hosts"]] == ["it broke:"] * 2
    last = log.read_text().rstrip().splitlines()
    assert last[-1].startswith("Report: ")
    assert last[-3].startswith("gpu-2  failed"), "the summary ends with who failed"


def test_an_empty_directory_name_writes_none(playbook: Path) -> None:
    (playbook.parent / "go").touch()
    before = set(playbook.parent.iterdir())
    screen = Screen(80, 24)
    child = start(playbook, screen.slave, "gpu-1,", reports="")
    screen.read_until(child)
    assert child.returncode == 0
    assert set(playbook.parent.iterdir()) == before
