# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This plugin util is PRIVATE to the collection; it can change in any release.
"""What a run knows of its hosts, as lines in one file on the controller that lives as long as the run.

Each task of Ansible is a process of its own, and reading other hosts' variables costs the more the larger the fleet is.
Nothing outlives the run: what a host has to remember is on the host.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Ledger:
    """Entries in the order in which they were made. Several processes may write at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self) -> None:
        self.path.write_text("", encoding="utf-8")

    def add(self, entry: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(entry) + "\n")

    def entries(self) -> list[dict[str, Any]]:
        with self.path.open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return [json.loads(line) for line in file]
