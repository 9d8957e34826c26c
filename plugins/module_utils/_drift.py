# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Whether what runs is what the unit's files say now."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ansible_collections.gpuops.inference.plugins.module_utils._engines import is_python
from ansible_collections.gpuops.inference.plugins.module_utils._hold import DROP_IN_NAME
from ansible_collections.gpuops.inference.plugins.module_utils._masking import mask_argv, printable
from ansible_collections.gpuops.inference.plugins.module_utils._units import Unit

# systemd tells the start in microseconds of one clock and files carry another: closer than this is no order.
_CLOCKS_AGREE = 1.0


def fingerprint(unit: Unit) -> dict[str, str]:
    """SHA-256 by path of all that a start of the unit reads, '' for a file that is not there. Holds are left out."""
    return {path: _digest(Path(path)) for path in _files(unit)}


def changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What a start would read that this start did not."""
    return [
        f"{path} {'is new' if not before.get(path) else 'is gone' if not after.get(path) else 'has changed'}"
        for path in sorted({*before, *after})
        if before.get(path, "") != after.get(path, "")
    ]


def newer_files(unit: Unit, started_at: float) -> list[str]:
    """The same for a start that left no fingerprint: files written after started_at (seconds since the epoch)."""
    return [
        f"{path} was written after the start"
        for path in _files(unit)
        if _mtime(Path(path)) > started_at + _CLOCKS_AGREE
    ]


def changed_arguments(unit: Unit, argv: Sequence[str], secrets: Collection[str] = ()) -> list[str]:
    """Where the arguments of the running main process are not the unit's. Unknown arguments (empty) tell nothing."""
    # systemd prints a command line without its quotes, so both are compared word by word.
    running = " ".join(argv).split()
    configured = list(unit.exec_start)
    if running[:1] != configured[:1] and running and is_python(running[0]):
        # A script shows its interpreter first.
        running = running[1:]
    if not running or not configured or _match(running, configured):
        return []
    here, there = _options(running, secrets), _options(configured, secrets)
    only_here, only_there = (
        printable(" ".join(shown for words, shown in one if words not in [words for words, _shown in other]))
        for one, other in ((here, there), (there, here))
    )
    if only_here and only_there:
        return [f"it runs with `{only_here}` where its unit says `{only_there}`"]
    if only_here:
        return [f"it runs with `{only_here}`, which its unit does not say"]
    if only_there:
        return [f"it runs without `{only_there}`, which its unit says"]
    return ["it runs with its unit's arguments in another order or number"]


def _options(words: Sequence[str], secrets: Collection[str]) -> list[tuple[tuple[str, ...], str]]:
    """Each option with its values, and the same to be shown: masked while the flag still stands before its value."""
    groups: list[list[tuple[str, str]]] = [[]]
    for word, shown in zip(words, mask_argv(words, secrets)):
        if word.startswith("-"):
            groups.append([])
        groups[-1].append((word, shown))
    return [(tuple(word for word, _shown in group), " ".join(shown for _word, shown in group)) for group in groups]


def _match(running: Sequence[str], configured: Sequence[str]) -> bool:
    # systemd fills in variables when it starts the program and never shows what it filled in.
    if any("$" in word for word in configured):
        return all(word in running for word in configured if "$" not in word)
    return list(running) == list(configured)


def _files(unit: Unit) -> list[str]:
    drop_ins = [path for path in unit.drop_in_paths if Path(path).name != DROP_IN_NAME]
    return [path for path in (unit.fragment_path, *drop_ins, *unit.environment_files) if path]


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
