# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""What outlives a module call: files that are whole or absent, and the lock that lets one call act at a time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._holders import read_process

_POLL = 0.1
"""Seconds between two tries for a lock: flock(2) has no timeout of its own."""


class RecordError(Exception):
    """A record or its directory cannot be used; the message names the path and says what to do."""


class LockedError(RecordError):
    """Another call acts on this host; the message names it, `holder` holds what it wrote about itself."""

    def __init__(self, message: str, holder: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.holder = dict(holder)


def now() -> str:
    """The time as written into records: UTC, ISO 8601, whole seconds."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def whoami(what: str) -> dict[str, Any]:
    """Who is asking, for locks, holds and records: {pid, start, command, user, controller, since}.

    `start` is in clock ticks since boot and makes the pid unambiguous. `user` is who logged in. `controller` is the
    address that the SSH session came from, else the user behind sudo, else "local".
    """
    ourselves = read_process(os.getpid())
    ssh = os.environ.get("SSH_CONNECTION", "").split()
    sudo_user = os.environ.get("SUDO_USER")
    return {
        "pid": os.getpid(),
        "start": ourselves.start if ourselves is not None else None,
        "command": what,
        "user": sudo_user or _user_name(os.getuid()),
        "controller": ssh[0] if ssh else f"sudo by {sudo_user}" if sudo_user else "local",
        "since": now(),
    }


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def outlive_connection() -> None:
    """From here on a connection that is cut does not end this call: what it began has deadlines of its own."""
    for number in (signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _private_dir(path: Path) -> Iterator[int]:
    """Open a directory (made, parents too, if missing) that only we can write to; yields its descriptor.

    Whoever can write to the directory can redirect what root writes there, so a link or a stranger's directory is
    refused.
    """
    try:
        with suppress(FileExistsError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise RecordError(f"{path} cannot be used as our own directory: {error.strerror}") from error
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            raise RecordError(f"{path} belongs to uid {found.st_uid}, not to {os.geteuid()}; move it away")
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(fd, 0o700)
        yield fd
    finally:
        os.close(fd)


def write_bytes(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put `data` at `path` in a private directory, whole or not at all, also across a power cut.

    Raises RecordError, which names the path, when it cannot (disk full, read-only, a stranger's directory).
    """
    try:
        with _private_dir(path.parent) as directory:
            scratch = f".{path.name}.{os.getpid()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with suppress(FileNotFoundError):
                os.unlink(scratch, dir_fd=directory)
            try:
                with os.fdopen(os.open(scratch, flags, 0o600, dir_fd=directory), "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fchmod(stream.fileno(), mode)
                    os.fsync(stream.fileno())
                os.replace(scratch, path.name, src_dir_fd=directory, dst_dir_fd=directory)
            except OSError:
                with suppress(FileNotFoundError):
                    os.unlink(scratch, dir_fd=directory)
                raise
            os.fsync(directory)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}") from error


def read_start(directory: Path, unit: str) -> Optional[dict[str, Any]]:
    """What inference_service wrote at the last start of the unit. A broken record is as good as none."""
    with suppress(RecordError):
        return read_json(directory / f"{unit}.json")
    return None


def write_json(path: Path, data: Mapping[str, Any], mode: int = 0o600) -> None:
    """`write_bytes` for a JSON object, written for people too: indented, one newline at the end."""
    write_bytes(path, (json.dumps(data, indent=2, ensure_ascii=True) + "\n").encode("ascii"), mode)


def read_json(path: Path) -> Optional[dict[str, Any]]:
    """The JSON object at `path`; None when there is no such file.

    Raises RecordError, which names the file, when it is there and cannot be understood.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
            found = json.loads(stream.read().decode("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is damaged ({error}); look at it, then move it away") from error
    if not isinstance(found, dict):
        raise RecordError(f"{path} is damaged (no JSON object); look at it, then move it away")
    return found


class Lock:
    """An exclusive flock(2) on `path`: one call at a time acts on the host, and a crash leaves no lock behind.

    `timeout` is in seconds; 0 asks once. `who` names the call for whoever finds the lock taken. The descriptor
    is close-on-exec; a plain fork would keep the lock. Raises LockedError, naming the holder, when the time is up.
    """

    def __init__(self, path: Path, timeout: float = 0.0, who: str = "") -> None:
        self._path = path
        self._timeout = timeout
        self._who = who
        self._fd = -1

    def __enter__(self) -> Lock:
        with _private_dir(self._path.parent) as directory:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                fd = os.open(self._path.name, flags, 0o600, dir_fd=directory)
            except OSError as error:
                raise RecordError(f"cannot open the lock {self._path}: {error.strerror}") from error
        try:
            self._acquire(fd)
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(whoami(self._who)).encode("ascii"), 0)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return self

    def __exit__(self, *_exc: object) -> None:
        fd, self._fd = self._fd, -1
        try:
            # Emptied, never unlinked: a waiter may have the file open, and would then lock what nobody else can see.
            os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def _acquire(self, fd: int) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise RecordError(f"cannot lock {self._path}: {error.strerror}") from error
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._locked(fd)
            time.sleep(min(_POLL, left))

    def _locked(self, fd: int) -> LockedError:
        try:
            holder = json.loads(os.pread(fd, 4096, 0).decode("utf-8"))
        except ValueError:
            holder = None
        if not isinstance(holder, dict):
            return LockedError(f"another call just took {self._path} and has not written its name yet", {})
        return LockedError(
            "{command} (pid {pid}, from {controller}, since {since}) is at work on this host; "
            "wait for it, or raise lock_timeout (gpuops_lock_timeout)".format_map(_Known(holder)),
            holder,
        )


class _Known(dict):  # type: ignore[type-arg]
    """Fields of a holder that wrote less than we expect (another release) read as a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"
