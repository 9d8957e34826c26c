# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Asks what may never answer (NVML; cmdline, environ and maps in /proc) without ever waiting for it.

The questions go to `_worker`, a program in a process of its own, which is exec'd, has a deadline for each question, is
killed when it misses one, and is never waited for: a process that is stuck in the driver does not even die.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils import _worker
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import (
    NO_ANSWER,
    NVML_SYSTEM,
    SMI_APP_FIELDS,
    SMI_EXIT_CODES,
    GpuReading,
    bus_place,
    excerpt,
    explain,
    reading_from_nvml,
    reading_from_smi,
    smi_gpu_fields,
)
from ansible_collections.gpuops.inference.plugins.module_utils._holders import read_process, wait_channel
from ansible_collections.gpuops.inference.plugins.module_utils._paths import VENV_PYTHON, WORKERS

HELLO = 10.0
"""Seconds that an interpreter may take to start and to import pynvml, on a host that is busy loading a model."""

ENDING = 1.0
"""Seconds that a process may take to end once it was killed, or its stdin was closed, before it counts as stuck."""

MAX_RESTARTS = 3
"""Workers started anew after one blocked on a process: each costs a part of the caller's time."""

_TARGETS = {"cmdlines": "command line", "environs": "environment", "maps": "memory map", "shared": "memory map"}


class _UnansweredError(Exception):
    """The child did not answer in time, or ended; the text says which."""


class _Child:
    """A process that may never come back: everything said to it, heard from it and done to it is bounded."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Raises OSError if the program cannot be started."""
        # Not the module's run_command, which waits for whatever it started.
        self._popen = subprocess.Popen(  # pylint: disable=ansible-bad-function
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            close_fds=True,
            start_new_session=True,
            cwd="/",
            env=_environment(),
        )
        self.pid = self._popen.pid
        self._pidfd = os.pidfd_open(self.pid)
        self.start = _start_time(self.pid) or 0
        pipes = [pipe.fileno() for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr) if pipe]
        for descriptor in pipes:
            os.set_blocking(descriptor, False)
        self._stdin: Optional[int] = pipes[0]
        self._stdout, self._stderr = pipes[1:]
        self._outputs = {self._stdout: bytearray(), self._stderr: bytearray()}
        self._open = set(self._outputs)
        self._unsent = b""

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.start

    @property
    def complaint(self) -> str:
        """The last line of its stderr."""
        return excerpt(self._outputs[self._stderr].decode("utf-8", "replace").strip().rpartition("\n")[2])

    def send(self, data: bytes) -> None:
        self._unsent += data

    def lines(self, deadline: float, silence: float = float("inf")) -> Iterator[bytes]:
        """Lines of its stdout. Raises _UnansweredError at the deadline, after `silence` seconds, and at its end."""
        buffer = self._outputs[self._stdout]
        heard = time.monotonic()
        while True:
            line, newline, rest = buffer.partition(b"\n")
            if newline:
                buffer[:] = rest
                yield bytes(line)
                heard = time.monotonic()
            elif self._stdout not in self._open:
                raise _UnansweredError(self._ended())
            elif not self._exchange(min(deadline, heard + silence)):
                waited = time.monotonic() - heard
                raise _UnansweredError(f"pid {self.pid}{_whereabouts(self.pid)} has not answered for {waited:.1f} s")

    def output(self, deadline: float) -> str:
        """All of its stdout, once it has closed it. Raises _UnansweredError at the deadline."""
        self._close_stdin()
        while self._open:
            if not self._exchange(deadline):
                raise _UnansweredError(f"pid {self.pid}{_whereabouts(self.pid)} has not answered in time")
        return self._outputs[self._stdout].decode("utf-8", "replace")

    def _exchange(self, deadline: float) -> bool:
        """Wait until something was sent or heard; False if nothing was by the deadline."""
        poll = select.poll()
        for descriptor in self._open:
            poll.register(descriptor, select.POLLIN)
        if self._unsent and self._stdin is not None:
            poll.register(self._stdin, select.POLLOUT)
        events = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        for descriptor, _event in events:
            if descriptor == self._stdin:
                self._write()
            else:
                self._read(descriptor)
        return bool(events)

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._stdin, self._unsent) :] if self._stdin is not None else b""
        except BrokenPipeError:
            # It has ended; the end of its stdout says so next.
            self._close_stdin()

    def _read(self, descriptor: int) -> None:
        data = os.read(descriptor, 1 << 16)
        self._outputs[descriptor] += data
        if not data:
            self._open.discard(descriptor)

    def _close_stdin(self) -> None:
        if self._stdin is not None and self._popen.stdin:
            self._popen.stdin.close()
        self._stdin = None
        self._unsent = b""

    def _ended(self) -> str:
        code = self._popen.poll() if self.gone(ENDING) else None
        return f"pid {self.pid} ended ({_outcome(code)}){': ' if self.complaint else ''}{self.complaint}"

    def returncode(self) -> Optional[int]:
        return self._popen.poll() if self.gone(ENDING) else None

    def gone(self, patience: float) -> bool:
        return _exited(self._pidfd, patience)

    def kill(self) -> bool:
        """SIGKILL, and whether it is gone within ENDING seconds."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        return self.gone(ENDING)

    def close(self, ended: bool) -> None:
        """Let go of it. What has `ended` is reaped; a stuck one is left to pid 1, which inherits it."""
        if ended:
            self._popen.poll()
        self._close_stdin()
        for stream in (self._popen.stdout, self._popen.stderr):
            if stream:
                stream.close()
        os.close(self._pidfd)


class _Notes:
    """A file per running child in /run, so that what gets stuck is known to the next module call as well."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, child: _Child, overdue: bool = False) -> None:
        """The note is a help for later calls; where it cannot be written (not root), this call goes on without."""
        note = {"client": [os.getpid(), _start_time(os.getpid())], "overdue": overdue}
        try:
            self._directory.parent.mkdir(mode=0o700, exist_ok=True)
            self._directory.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path(child.identity), flags, 0o600)
        except OSError:
            return
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            json.dump(note, file)

    def remove(self, identity: tuple[int, int]) -> None:
        # Not there, or not ours to remove: then the process it names is what counts, and that one has ended.
        with contextlib.suppress(OSError):
            os.unlink(self._path(identity))

    def stuck(self) -> list[tuple[int, int]]:
        """Earlier children that missed a deadline, or whose module is gone, and that have not ended all the same."""
        found = []
        deadline = time.monotonic() + ENDING
        for identity, note in self._read():
            overdue = note.get("overdue") is True
            try:
                pidfd = os.pidfd_open(identity[0])
            except OSError:
                self.remove(identity)
                continue
            try:
                # A worker whose module was killed ends by itself, at the end of its stdin: give it the moment.
                patience = 0.0 if overdue else deadline - time.monotonic()
                if _start_time(identity[0]) != identity[1]:
                    self.remove(identity)
                elif overdue or not _runs(note.get("client")):
                    if _exited(pidfd, patience):
                        self.remove(identity)
                    else:
                        found.append(identity)
            finally:
                os.close(pidfd)
        return found

    def _read(self) -> Iterator[tuple[tuple[int, int], Mapping[str, object]]]:
        try:
            names = os.listdir(self._directory)
        except OSError:
            return
        for name in sorted(names):
            pid, _separator, start = name.partition("-")
            if not (pid.isdigit() and start.isdigit()):
                continue
            try:
                note = json.loads((self._directory / name).read_text(encoding="ascii"))
            except (OSError, ValueError):
                note = None
            yield (int(pid), int(start)), note if isinstance(note, dict) else {}

    def _path(self, identity: tuple[int, int]) -> Path:
        return self._directory / f"{identity[0]}-{identity[1]}"


class Probe:
    """Answers about GPUs and processes, each within the time given, whatever state the driver is in.

    A context manager, one per module call. No method raises for what a host may do to it: a reading is then not
    `usable`, a process is missing from a mapping, and `problems` says why in words.
    """

    def __init__(
        self,
        interpreters: Sequence[str] = (str(VENV_PYTHON), sys.executable),
        nvidia_smi: str = "nvidia-smi",
        notes: Path = WORKERS,
        driver: str = "/proc/driver/nvidia/gpus",
    ) -> None:
        """`interpreters` are tried in this order until one can import pynvml; after them comes `nvidia_smi`."""
        self._interpreters = [path for path in interpreters if path]
        self._nvidia_smi = nvidia_smi
        self._notes = _Notes(notes)
        self._driver = driver
        self._child: Optional[_Child] = None
        self._speaks_nvml = False
        self._own: set[tuple[int, int]] = set()
        self._refusal = ""
        self._nvml_refusal = ""
        self._restarts = 0
        self._steps: list[str] = []
        self._blocked: dict[int, str] = {}

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    @property
    def workers(self) -> frozenset[tuple[int, int]]:
        """(pid, start time in clock ticks) of all our query processes, stuck earlier ones included: no holders."""
        return frozenset(self._own)

    @property
    def worker(self) -> Optional[tuple[int, int]]:
        """(pid, start time in clock ticks) of the worker that runs now."""
        return self._child.identity if self._child else None

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be seen so far, and why."""
        told = (self._refusal, self._nvml_refusal, *self._steps, *self._blocked.values())
        return tuple(dict.fromkeys(text for text in told if text))

    def start(self, timeout: float = HELLO) -> None:
        """Start the worker now, so that the first question finds it ready."""
        self._start(time.monotonic() + timeout)

    def gpus(self, timeout: float) -> GpuReading:
        """One look at all GPUs, within `timeout` seconds (and ENDING more if a process has to be killed)."""
        deadline = time.monotonic() + timeout
        child = self._start(deadline)
        if self._refusal or self._nvml_refusal:
            return GpuReading(problems=self.problems)
        reading = self._gpus_from_nvml(child, deadline) if child and self._speaks_nvml else None
        if reading is None:
            reading = self._gpus_from_smi(deadline)
        return replace(reading, problems=tuple(dict.fromkeys((*self.problems, *reading.problems))))

    def health(self, timeout: float) -> dict[int, Mapping[str, Any]]:
        """What NVML says of each GPU's health, raw, by index; {} where NVML cannot be asked. Ask for `gpus` first."""
        if not (self._child and self._speaks_nvml) or self._refusal or self._nvml_refusal:
            return {}
        child = self._child
        answers, failure = self._ask(child, {"op": "health"}, time.monotonic() + timeout)
        if failure:
            self._nvml_refusal = f"{explain(NO_ANSWER)} ({failure})"
            self._discard(child)
        return answers

    def cmdlines(self, pids: Iterable[int], timeout: float) -> dict[int, tuple[str, ...]]:
        """Arguments of each process, without the padding of setproctitle. () for zombies and kernel threads."""
        return {pid: tuple(value) for pid, value in self._processes({"op": "cmdlines"}, pids, timeout).items()}

    def environs(self, pids: Iterable[int], names: Iterable[str], timeout: float) -> dict[int, dict[str, str]]:
        """Of each process, those of the named variables that it has (as at its exec); no others leave the worker."""
        return self._processes({"op": "environs", "names": list(names)}, pids, timeout)

    def maps(self, pids: Iterable[int], prefixes: Iterable[str], timeout: float) -> dict[int, tuple[str, ...]]:
        """Mapped paths of each process that begin with one of the prefixes, sorted."""
        request = {"op": "maps", "prefixes": list(prefixes)}
        return {pid: tuple(value) for pid, value in self._processes(request, pids, timeout).items()}

    def shared(
        self, pids: Iterable[int], device: tuple[int, int], names: Iterable[str], timeout: float
    ) -> dict[int, frozenset[int]]:
        """Inodes on a file system (its device number) that each process has mapped, or open under one of the names."""
        request = {"op": "shared", "device": f"{device[0]}:{device[1]}", "names": list(names)}
        return {pid: frozenset(value) for pid, value in self._processes(request, pids, timeout).items()}

    def close(self) -> None:
        """End the worker. It is given a moment, then killed; it is never waited for."""
        child, self._child = self._child, None
        if child:
            self._dismiss(child)

    # --- the worker ---------------------------------------------------------------------------------------------------

    def _start(self, deadline: float) -> Optional[_Child]:
        """The running worker, or a new one under the first interpreter that can speak to NVML, else under any."""
        if self._child or self._refusal:
            return self._child
        stuck = self._notes.stuck()
        if stuck:
            self._own |= set(stuck)
            self._refuse(", ".join(f"pid {pid}{_whereabouts(pid)}" for pid, _start in stuck))
            return None
        for interpreter in self._interpreters:
            child, speaks_nvml = self._try(interpreter, deadline)
            if child and (speaks_nvml or not self._child):
                if self._child:
                    self._dismiss(self._child)
                self._child, self._speaks_nvml = child, speaks_nvml
            elif child:
                self._dismiss(child)
            if self._speaks_nvml or self._refusal:
                return self._child
        self._step(
            "no Python here can speak to NVML: apply the role gpuops.inference.gpu_host, which installs nvidia-ml-py"
        )
        return self._child

    def _try(self, interpreter: str, deadline: float) -> tuple[Optional[_Child], bool]:
        try:
            child = self._spawn([interpreter, "-I", "-c", _source()])
        except OSError as error:
            self._step(f"{interpreter} cannot be started ({error.strerror})")
            return None, False
        answers, failure = self._ask(child, {"op": "hello"}, min(deadline, time.monotonic() + HELLO))
        if failure:
            self._step(f"{interpreter} does not work ({failure})")
            self._discard(child)
            return None, False
        if "nvml" not in answers:
            self._step(f"{interpreter} cannot speak to NVML ({excerpt(str(answers.get('no-nvml')))})")
        return child, "nvml" in answers

    def _spawn(self, argv: Sequence[str]) -> _Child:
        child = _Child(argv)
        self._own.add(child.identity)
        self._notes.write(child)
        return child

    def _ask(
        self, child: _Child, request: Mapping[str, object], deadline: float, silence: float = float("inf")
    ) -> tuple[dict[Any, Any], str]:
        """Answers by item, and why there are no more of them ('' if they are complete)."""
        answers: dict[Any, Any] = {}
        failure = ""
        child.send(json.dumps(request).encode("ascii") + b"\n")
        try:
            for line in child.lines(deadline, silence):
                answer = json.loads(line)
                if "end" in answer:
                    break
                answers[answer["item"]] = answer["value"]
        except _UnansweredError as error:
            failure = str(error)
        except (ValueError, LookupError, TypeError, RecursionError):
            failure = f"pid {child.pid} answers nonsense: {excerpt(repr(line))}"
        return answers, failure

    def _dismiss(self, child: _Child) -> None:
        """End a child that answers: at the end of its stdin it ends by itself."""
        child._close_stdin()
        if child.gone(ENDING):
            self._notes.remove(child.identity)
            child.close(ended=True)
        else:
            self._discard(child)

    def _discard(self, child: _Child) -> None:
        """Get rid of a child that does not answer. If it does not even die, nothing more is started."""
        if self._child is child:
            self._child = None
        self._notes.write(child, overdue=True)
        ended = child.kill()
        if ended:
            self._notes.remove(child.identity)
        else:
            self._refuse(f"pid {child.pid}{_whereabouts(child.pid)}")
        child.close(ended)

    def _refuse(self, who: str) -> None:
        self._refusal = (
            f"a query process is stuck in the kernel and cannot be killed ({who}), so nothing more is asked: look for "
            "Xid lines in dmesg; a GPU reset or a reboot is likely needed"
        )

    def _step(self, problem: str) -> None:
        if problem not in self._steps:
            self._steps.append(problem)

    # --- GPUs ---------------------------------------------------------------------------------------------------------

    def _gpus_from_nvml(self, child: _Child, deadline: float) -> Optional[GpuReading]:
        """None if NVML cannot be reached this way, but nvidia-smi may know better."""
        answers, failure = self._ask(child, {"op": "gpus"}, deadline)
        if failure:
            # Not asked again: the next worker would get no further, and each costs the whole time.
            what = "the query of the driver broke off" if child.gone(0) else explain(NO_ANSWER)
            self._nvml_refusal = f"{what} ({failure})"
            self._discard(child)
            if NVML_SYSTEM not in answers:
                return GpuReading()
        system = answers.get(NVML_SYSTEM)
        if not failure and isinstance(system, dict) and system.get("error") == "LIBRARY_NOT_FOUND":
            self._step(explain("LIBRARY_NOT_FOUND"))
            return None
        return reading_from_nvml(answers)

    def _gpus_from_smi(self, deadline: float) -> GpuReading:
        fields = smi_gpu_fields()
        code, text, why = self._run_smi("gpu", fields, deadline)
        if code == 2 and "memory.reserved" in text + why:
            fields = smi_gpu_fields(reserved=False)
            code, text, why = self._run_smi("gpu", fields, deadline)
        problems = [why] if why else []
        if code is None or (code and "," not in text):
            return GpuReading(problems=tuple(problems))
        app_code, apps, why = self._run_smi("compute-apps", SMI_APP_FIELDS, deadline)
        problems += [why] if why else []
        reading = reading_from_smi(fields, text, apps if app_code == 0 else None)
        minors = self._minors(deadline)
        gpus = tuple(replace(gpu, minor=minors.get(bus_place(gpu.pci_bus_id))) for gpu in reading.gpus)
        lacks = "no graphics contexts" if minors else "no device numbers and no graphics contexts"
        problems.append(f"the GPUs were read with nvidia-smi, which knows {lacks}")
        return replace(reading, gpus=gpus, problems=(*problems, *reading.problems))

    def _minors(self, deadline: float) -> dict[str, int]:
        """The N of /dev/nvidiaN by place on the bus, as the driver tells it in /proc: nvidia-smi does not."""
        child = self._child
        if child is None or self._refusal or self._nvml_refusal:
            return {}
        answers, failure = self._ask(child, {"op": "minors", "directory": self._driver}, deadline)
        if failure:
            self._discard(child)
        return {bus_place(place): minor for place, minor in answers.items()}

    def _run_smi(self, what: str, fields: Sequence[str], deadline: float) -> tuple[Optional[int], str, str]:
        """Exit code (None if it never ended), stdout, and what went wrong in words ('' if nothing did)."""
        if self._refusal:
            return None, "", self._refusal
        argv = [self._nvidia_smi, f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
        try:
            child = self._spawn(argv)
        except OSError as error:
            return None, "", f"{self._nvidia_smi} cannot be started ({error.strerror}): is the NVIDIA driver installed?"
        try:
            text = child.output(deadline)
        except _UnansweredError as error:
            self._nvml_refusal = f"{explain(NO_ANSWER)} ({self._nvidia_smi}: {error})"
            self._discard(child)
            return None, "", self._nvml_refusal
        code = child.returncode()
        told = child.complaint or excerpt(text.partition("\n")[0])
        self._dismiss(child)
        if code == 0:
            return code, text, ""
        meaning = explain(SMI_EXIT_CODES[code]) if code in SMI_EXIT_CODES else _outcome(code)
        return code, text, f"{self._nvidia_smi}: {meaning}; it says: {told}"

    # --- processes ----------------------------------------------------------------------------------------------------

    def _processes(self, request: Mapping[str, Any], pids: Iterable[int], timeout: float) -> dict[int, Any]:
        """Answers by pid. A process that blocks costs its own answer and a quarter of the time, not the others'."""
        deadline = time.monotonic() + timeout
        silence = max(1.0, timeout / 4)
        waiting = [pid for pid in dict.fromkeys(pids) if pid not in self._blocked]
        found: dict[int, Any] = {}
        while waiting and self._restarts <= MAX_RESTARTS:
            child = self._start(deadline)
            if child is None:
                break
            answers, failure = self._ask(child, {**request, "pids": waiting}, deadline, silence)
            found.update((pid, value) for pid, value in answers.items() if value is not None)
            waiting = [pid for pid in waiting if pid not in answers]
            if not failure:
                break
            for pid in waiting[:1]:
                self._blocked[pid] = (
                    f"pid {pid}{_whereabouts(pid)} blocks whoever reads its {_TARGETS[request['op']]} ({failure}): "
                    "its memory lock is held, most likely by a thread that is stuck in the driver"
                )
            waiting = waiting[1:]
            self._restarts += 1
            self._discard(child)
        return found


def _source() -> str:
    """The worker's program text, from wherever this code was loaded: a checkout, or the archive Ansible sends."""
    loader = _worker.__spec__.loader if _worker.__spec__ else None
    source = loader.get_source(_worker.__name__) if loader and hasattr(loader, "get_source") else None
    if not source:
        raise RuntimeError("the source of the worker was not shipped with the module")
    return str(source)


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {"PATH": os.defpath, **kept, "LC_ALL": "C"}


def _outcome(code: Optional[int]) -> str:
    if code is None:
        return "not known how"
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _exited(pidfd: int, patience: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0.0, patience) * 1000))


def _start_time(pid: int) -> Optional[int]:
    process = read_process(pid)
    return process.start if process is not None else None


def _whereabouts(pid: int) -> str:
    """State and wait channel, for messages about a process that does not come back."""
    process = read_process(pid)
    channel = wait_channel(pid)
    return f", state {process.state}{f' in {excerpt(channel, 40)}' if channel else ''}" if process is not None else ""


def _runs(client: object) -> bool:
    """Whether the module that a note speaks of, [pid, start time], is still at work."""
    if not (isinstance(client, list) and len(client) == 2 and isinstance(client[0], int)):
        return False
    return client[1] is not None and _start_time(client[0]) == client[1]
