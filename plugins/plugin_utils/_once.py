# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This plugin util is PRIVATE to the collection; it can change in any release.
"""What many hosts of a run ask for alike, worked out by the first of them.

Each task of Ansible is a process of its own, so what one found out is in a file that lives as long as the run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def once(directory: Path, asked: Any, make: Callable[[], Any]) -> Any:
    """What `make` returns, as JSON carries it. It depends on `asked` alone; others wait for the first."""
    try:
        words = json.dumps(asked, default=repr)
    except TypeError:
        # A key that is no JSON, as a date in YAML. To refuse it is not our affair.
        words = repr(asked)
    name = hashlib.sha256(words.encode()).hexdigest()
    directory.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(directory / name, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read()
        if not text:
            text = json.dumps(make(), default=str)
            file.write(text)
    return json.loads(text)
