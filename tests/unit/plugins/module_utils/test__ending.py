# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._ending import Ending, pin
from ansible_collections.gpuops.inference.plugins.module_utils._holders import Process, read_process

IGNORES_TERM = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); sys.stdin.read()"
)
OBEYS = "import sys; print('up', flush=True); sys.stdin.read()"
DEAD_LEADER = """
import ctypes, threading, sys
def stay():
    sys.stdin.read()
threading.Thread(target=stay).start()
print('up', flush=True)
ctypes.CDLL(None).syscall(60, 0)
"""
"""The leader's thread alone leaves (exit(2) is number 60 on x86-64): a zombie in the process table that lives on."""


class Children:
    def __init__(self) -> None:
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, program: str) -> Process:
        child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        self.running.append(child)
        process = read_process(child.pid)
        assert process is not None
        return process


@pytest.fixture
def children() -> Iterator[Children]:
    started = Children()
    yield started
    for child in started.running:
        child.kill()
        child.communicate()


def test_whoever_obeys_gets_sigterm_and_whoever_does_not_gets_sigkill(children: Children) -> None:
    obeys, ignores = children.start(OBEYS), children.start(IGNORES_TERM)
    sent = []
    with Ending([obeys, ignores]) as ending:
        ending.end({obeys.pid, ignores.pid}, 0.5, 10, lambda name, pinned: sent.append((pinned.process.pid, name)))
        assert ending.survivors == []
    assert {ended.pid: ended.signal for ended in ending.ended} == {obeys.pid: "SIGTERM", ignores.pid: "SIGKILL"}
    assert sent == [(obeys.pid, "SIGTERM"), (ignores.pid, "SIGTERM"), (ignores.pid, "SIGKILL")]


def test_members_that_are_not_to_be_told_are_only_waited_for(children: Children) -> None:
    told, waited_for = children.start(OBEYS), children.start(OBEYS)
    sent = []
    with Ending([told, waited_for]) as ending:
        ending.end({told.pid}, 0.3, 10, lambda name, pinned: sent.append((pinned.process.pid, name)))
    assert sent == [(told.pid, "SIGTERM"), (waited_for.pid, "SIGKILL")]


def test_a_stranger_with_the_same_pid_lives(children: Children) -> None:
    stranger = children.start(OBEYS)
    planned = replace(stranger, start=stranger.start - 1)
    assert pin(planned) is None
    with Ending([planned]) as ending:
        ending.end({planned.pid}, 0.1, 0.1, lambda name, pinned: pytest.fail(f"{name} was sent"))
    assert children.running[0].poll() is None


def test_who_is_gone_already_is_no_survivor(children: Children) -> None:
    process = children.start(OBEYS)
    children.running[0].kill()
    children.running[0].wait()
    with Ending([process]) as ending:
        ending.end({process.pid}, 0.1, 0.1, lambda name, pinned: None)
        assert ending.survivors == []
    assert ending.ended == []


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program calls exit(2) by its x86-64 number")
def test_a_zombie_leader_whose_thread_lives_is_alive_and_dies_of_sigkill(children: Children) -> None:
    pid = children.start(DEAD_LEADER).pid
    while (process := read_process(pid)) is not None and process.state != "Z":
        pass
    assert process is not None
    assert not process.dead
    with Ending([process]) as ending:
        ending.end(set(), 0, 10, lambda name, pinned: None)
    assert [ended.pid for ended in ending.ended] == [pid]


def test_no_descriptor_is_left_open(children: Children) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    process = children.start(OBEYS)
    during = len(list(Path("/proc/self/fd").iterdir()))
    with Ending([process]) as ending:
        assert len(list(Path("/proc/self/fd").iterdir())) == during + 1
        del ending
    assert len(list(Path("/proc/self/fd").iterdir())) == during
    assert during > before


@pytest.mark.parametrize("number", [errno.ESRCH, errno.EINVAL, errno.ENOENT])
def test_a_number_that_is_only_a_sessions_or_a_threads_is_nobody(
    children: Children, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Linux up to 6.8 says EINVAL for them, later ones other errors; the running kernel has but one answer."""

    def refuse(_pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert pin(children.start(OBEYS)) is None
