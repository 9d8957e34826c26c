# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""The files that make an engine's unit, what they should hold, and how a difference is shown without a secret in it."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._backup import differs
from ansible_collections.gpuops.inference.plugins.module_utils._masking import mask_text
from ansible_collections.gpuops.inference.plugins.module_utils._paths import GUARD
from ansible_collections.gpuops.inference.plugins.module_utils._transaction import FileState

EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class File:
    """A file of root's; text None where there should be none."""

    path: str
    text: Optional[str]
    mode: int = 0o644


def files_of(engine: Mapping[str, Any], guard: str, secrets: Mapping[str, str]) -> list[File]:
    """The files of one engine of a resolved layout, the unit last. secrets are digests by path: no text of them."""
    return [
        File(str(GUARD), guard, 0o755),
        File(engine["environment_path"], engine["environment_text"]),
        *(File(path, "", 0o600) for path, digest in secrets.items() if digest == EMPTY),
        *([] if engine["configuration"] else [File(engine["configuration_path"], None)]),
        File(engine["unit_path"], engine["unit_text"]),
    ]


def read(path: str) -> Optional[str]:
    """What the file holds, None where there is none. A link is none: it is replaced, and what it points to stays."""
    try:
        return None if os.path.islink(path) else Path(path).read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None


def differing_secrets(engine: Mapping[str, Any], secrets: Mapping[str, str]) -> list[str]:
    """The files with secrets in them that do not hold what they should, or that others could read or write."""
    return [
        path
        for path, digest in secrets.items()
        if digest != EMPTY and not _is_so(path, digest, *_belongs(engine, path))
    ]


def _belongs(engine: Mapping[str, Any], path: str) -> tuple[str, int]:
    return (engine["user"], 0o400) if path == engine["configuration_path"] else ("root", 0o600)


def _is_so(path: str, digest: str, owner: str, mode: int) -> bool:
    try:
        return not differs(path, FileState(digest, mode, pwd.getpwnam(owner).pw_uid, 0))
    except KeyError:
        return False


def useradd_arguments(name: str) -> list[str]:
    """The group may be there without the user, for a model's files; useradd refuses to make both then."""
    try:
        group = ["--gid", grp.getgrnam(name).gr_name]
    except KeyError:
        group = []
    return ["--system", "--no-create-home", *group, name]


def shown_difference(file: File, before: Optional[str]) -> dict[str, str]:
    """For --diff, which shows what goes. What somebody wrote by hand may hold a key in Environment= or ExecStart=, and
    of what not everybody may read nothing is shown."""
    headers = {"before_header": file.path, "after_header": file.path}
    closed = file.text is None or not file.mode & stat.S_IROTH
    if before and (closed or mask_text(before) != before):
        return {**headers, "before": "(holds a secret: not shown)\n", "after": "(another text)\n" if file.text else ""}
    return {**headers, "before": before or "", "after": file.text or ""}
