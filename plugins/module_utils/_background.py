# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Long work in a process that outlives the connection which began it, and the file in which it tells how it goes.

Ansible's own asynchronous jobs tell nothing until they end, and cost several round trips even where the work is done at
once. Here one call does short work as if nothing were between, and long work leaves a file of JSON lines behind: its
progress and, as the last line, `{"result": ...}`.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Optional

_KEPT = 86400
"""Seconds after which nobody reads on."""

Tell = Callable[[Mapping[str, Any]], None]


def in_background(work: Callable[[Tell], Mapping[str, Any]], path: Path, patience: float) -> tuple[int, Optional[Any]]:
    """Do the work in a detached process and wait for it no longer than patience seconds.

    Returns its pid and its result, None while it goes on: then path is where it tells. A process that ends without a
    result leaves its traceback there.
    """
    for directory in (path.parent.parent, path.parent):
        directory.mkdir(mode=0o700, exist_ok=True)
    _sweep(path.parent)
    ended, mine = os.pipe()
    pid = os.fork()
    if not pid:
        _detached(work, path)
    os.close(mine)
    # Readable when the other end is closed, which the kernel does for a process however it ends.
    over = bool(select.select([ended], [], [], patience)[0])
    os.close(ended)
    if not over:
        return pid, None
    os.waitpid(pid, 0)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return pid, result_of(lines)


def has_result(lines: list[str]) -> bool:
    """Whether the last of the lines is the result."""
    return bool(lines) and lines[-1].startswith('{"result"')


def result_of(lines: list[str]) -> Any:
    """The result among the lines that such a process left; a failure with its last words if it left none."""
    if has_result(lines):
        return json.loads(lines[-1])["result"]
    words = "\n".join(line for line in lines if not line.startswith("{"))
    return {"failed": True, "msg": "the process that watches the unit was ended from outside", "exception": words}


def _sweep(directory: Path) -> None:
    """Remove what was told to a controller that never came back for it."""
    for path in directory.iterdir():
        # Somebody else may sweep as well.
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _KEPT:
                path.unlink()


def _detached(work: Callable[[Tell], Mapping[str, Any]], path: Path) -> NoReturn:
    try:
        os.setsid()
        out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDWR)
        for theirs, ours in ((null, 0), (null, 1), (out, 2)):
            os.dup2(theirs, ours)

        def tell(what: Mapping[str, Any]) -> None:
            # One write: no other line comes between. Who reads meanwhile may see a part of it.
            os.write(out, (json.dumps(what) + "\n").encode())

        tell({"result": work(tell)})
    finally:
        if sys.exc_info()[0] is not None:
            os.write(2, traceback.format_exc().encode())
        # Not the way out of the process that we are a copy of.
        os._exit(0)
