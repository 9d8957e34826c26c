# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""A unit's files, kept byte for byte and put back byte for byte."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Optional

from ansible_collections.gpuops.inference.plugins.module_utils._record import RecordError, write_bytes
from ansible_collections.gpuops.inference.plugins.module_utils._transaction import FileState

Files = Mapping[str, Optional[FileState]]


def look(paths: Iterable[str]) -> dict[str, Optional[FileState]]:
    """The state of each path; None where there is nothing. RecordError names a file that cannot be read."""
    return {path: _state(Path(path)) for path in paths}


def _state(path: Path) -> Optional[FileState]:
    try:
        link = os.readlink(path) if path.is_symlink() else None
        content = _content(path)
        found = path.stat() if content is not None else path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"cannot read {path}, so it could not be brought back: {error.strerror}") from error
    digest = hashlib.sha256(content).hexdigest() if content is not None else ""
    return FileState(digest, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, link)


def _content(path: Path) -> Optional[bytes]:
    """What a regular file holds; None for what has no content of its own: a mask (a link to /dev/null), a lost link."""
    if not path.is_file():
        path.lstat()
        return None
    return path.read_bytes()


def keep(files: Files, directory: Path) -> None:
    """Copy the content of each file into `directory`, under its digest, so that equal files are kept once."""
    for path, state in files.items():
        if state is not None and state.sha256 and not (directory / state.sha256).exists():
            content = _content(Path(path))
            if content is None or hashlib.sha256(content).hexdigest() != state.sha256:
                raise RecordError(f"{path} changed while it was being kept; run again")
            write_bytes(directory / state.sha256, content)


def kept(state: FileState, directory: Path) -> bool:
    """Whether the copy of a file's content is in `directory`, whole."""
    try:
        return hashlib.sha256((directory / state.sha256).read_bytes()).hexdigest() == state.sha256
    except OSError:
        return False


def differs(path: str, wanted: Optional[FileState]) -> bool:
    """Whether something else is there."""
    return _state(Path(path)) != wanted


def put_back(files: Files, directory: Path) -> list[str]:
    """Make each path what it was, from the copies in `directory`. Returns the paths that had to be changed.

    What stands there now is kept in `directory` as well: it is what somebody will want to read after a rollback.
    """
    changed = []
    for name, wanted in files.items():
        now = _state(Path(name))
        if now == wanted:
            continue
        keep({name: now}, directory)
        try:
            _make(Path(name), wanted, directory)
        except OSError as error:
            raise RecordError(f"cannot put {name} back from {directory}: {error.strerror}") from error
        changed.append(name)
    return changed


def _make(path: Path, wanted: Optional[FileState], directory: Path) -> None:
    if wanted is None:
        path.unlink()
        return
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        scratch.unlink()
    if wanted.link is not None:
        scratch.symlink_to(wanted.link)
        os.replace(scratch, path)
        path = path.resolve()
    if not wanted.sha256:
        return
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    # Closed to everybody until it has its owner: it may hold a secret.
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
        stream.write((directory / wanted.sha256).read_bytes())
        stream.flush()
        os.fchown(stream.fileno(), wanted.uid, wanted.gid)
        os.fchmod(stream.fileno(), wanted.mode)
        os.fsync(stream.fileno())
    os.replace(scratch, path)


def forget(directory: Path) -> None:
    """Remove kept copies that nobody can need any more."""
    with suppress(FileNotFoundError):
        shutil.rmtree(directory)
