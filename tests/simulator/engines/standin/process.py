# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes as an engine has them: titles, signals, a common clock, ties between parent and child, and log lines."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional, Union

from . import recorded

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


class Gone(Exception):
    """Whoever this process is tied to is gone."""


class Clock:
    """The load as all processes of one engine see it: phases are parts of its seconds."""

    def __init__(self, seconds: float, phases: dict[str, float]) -> None:
        self.start = time.monotonic()
        self.seconds = seconds
        self.phases = phases

    def at(self, phase: Union[str, float]) -> float:
        return self.start + self.seconds * (self.phases[phase] if isinstance(phase, str) else phase)

    def until(self, phase: Union[str, float], tie: Optional[int] = None) -> None:
        """Sleep until a phase begins. Raises Gone as soon as the other end of the tie is closed."""
        while (left := self.at(phase) - time.monotonic()) > 0:
            if tie is None:
                time.sleep(left)
            elif wait([tie], left):
                raise Gone

    def elapsed(self) -> float:
        return time.monotonic() - self.start


def wait(descriptors: Iterable[int], seconds: Optional[float]) -> list[int]:
    """The descriptors that can be read or are closed at the other end, within seconds (None: for ever)."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, dummy in poll.poll(None if seconds is None else max(0, seconds) * 1000)]


class Signals:
    """These signals become events to wait for, together with descriptors."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self.read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.catch(*numbers)

    def catch(self, *numbers: signal.Signals) -> None:
        for number in numbers:
            signal.signal(number, lambda *_: None)

    def wait(self, descriptors: Sequence[int] = (), seconds: Optional[float] = None) -> tuple[list[int], list[int]]:
        """(signals that came, descriptors that can be read)."""
        ready = wait([self.read, *descriptors], seconds)
        came = list(os.read(self.read, 4096)) if self.read in ready else []
        return came, [descriptor for descriptor in ready if descriptor != self.read]


def fork(run: Callable[[], int]) -> int:
    """A child that runs this and ends with its status. It starts with no handlers and the parent's descriptors."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        status = run()
    except Gone:
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def look_spawned() -> None:
    """Show the command line of a process started by multiprocessing's spawn, as the engines' children do at first.

    Forking is what makes eight workers cheap; only what can be seen from outside must be right.
    """
    argv = [sys.executable, "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5,"
            " pipe_handle=7)", "--multiprocessing-fork"]  # fmt: skip
    arguments, environment, dummy = _command_line_memory()
    _overwrite(arguments, environment, b"".join(word.encode() + b"\0" for word in argv))
    LIBC.prctl(PR_SET_NAME, os.path.basename(sys.executable).encode())


def title(text: str) -> None:
    """What the setproctitle package does: one word where the arguments and the environment were, padded with NULs."""
    arguments, dummy, end = _command_line_memory()
    _overwrite(arguments, end, text.encode())
    LIBC.prctl(PR_SET_NAME, text.encode())


def _command_line_memory() -> tuple[int, int, int]:
    """Where the kernel reads this process's arguments and environment: start of both, and the end."""
    with open("/proc/self/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[45]), int(fields[47]), int(fields[48])


def _overwrite(start: int, end: int, text: bytes) -> None:
    size = end - start
    ctypes.memmove(start, text[: size - 1].ljust(size, b"\0"), size)


def die_with_parent() -> None:
    """Ask for SIGKILL when the parent ends. Too late where it has already ended, as in the real engine."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as listed:
            return [int(child) for child in listed.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def kill(pids: Iterable[int], number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def reap(pids: set[int], seconds: float) -> dict[int, int]:
    """Wait until these children have ended, at most seconds. Returns {pid: exit code, negative for a signal}."""
    ended: dict[int, int] = {}
    deadline = time.monotonic() + seconds
    while True:
        for pid in pids - set(ended):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                ended[pid] = os.waitstatus_to_exitcode(status)
        if len(ended) == len(pids) or time.monotonic() >= deadline:
            return ended
        time.sleep(0.01)


def recorded_seconds(recording: dict[str, Any], name: str) -> float:
    return float(recording["seconds"][name]) / recorded.PACE


class Log:
    """An engine's log lines, to where it writes them."""

    def __init__(self, recording: dict[str, Any], style: Callable[[str, str, str, str], str], **values: Any) -> None:
        self.recording = recording
        self.style = style
        self.values = values

    def say(self, key: str, **values: Any) -> None:
        """Write the lines recorded under this key."""
        values = {**self.values, **values, "pid": os.getpid()}
        for who, level, where, text in self.recording["log"][key]:
            for line in text.format(**values).splitlines() or [""]:
                self.line(who.format(**values), level, where, line)

    def line(self, who: str, level: str, where: str, text: str) -> None:
        write(1, self.style(who, level, where, text) + "\n")

    def traceback(self, text: str) -> None:
        """How Python ends a program with an exception nobody caught."""
        write(
            2,
            f'Traceback (most recent call last):\n  File "<frozen runpy>", line 198, in _run_module_as_main\n{text}\n',
        )

    def progress(self, n: int, total: int, elapsed: float) -> None:
        """The progress bar (tqdm's) of the weights."""
        shape = self.recording["bar"]
        rate = elapsed / n if n else 0
        text = recorded.BAR.format(
            desc=shape["desc"], percent=100 * n / total, n=n, total=total, elapsed=_clock(elapsed),
            remaining=_clock(rate * (total - n)) if n else "?", rate=rate, unit=shape["unit"])  # fmt: skip
        write(2, "\r" + text + shape["end"])


def write(descriptor: int, text: str) -> None:
    try:
        os.write(descriptor, text.encode())
    except OSError:  # nobody reads any more: an engine goes on serving when its terminal is gone
        pass


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not listening yet. Raises OSError where it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    return sock
