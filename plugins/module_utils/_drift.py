# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Whether what runs is what the unit's files say now."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._engines import argument, is_python
from ansible_collections.gpuops.inference.plugins.module_utils._hold import DROP_IN_NAME
from ansible_collections.gpuops.inference.plugins.module_utils._masking import mask_argv, printable
from ansible_collections.gpuops.inference.plugins.module_utils._units import Unit

# systemd tells the start in microseconds of one clock and files carry another: closer than this is no order.
_CLOCKS_AGREE = 1.0

# How the template of the role engine begins.
_OURS = "# Written by gpuops.inference"
# What somebody put there, on this host; what a distribution ships in /usr/lib belongs to systemd itself.
_PUT_THERE = ("/etc/systemd/", "/run/systemd/")


@dataclass(frozen=True)
class Difference:
    """Something that is not as the unit's files say, and what to do about it."""

    text: str
    cure: str = "a pivot to it, or restart_on_drift, applies what the files say"
    restart: bool = True
    """A restart cures it."""

    def __str__(self) -> str:
        return f"{self.text}: {self.cure}"


@dataclass(frozen=True)
class Running:
    """What is known of a unit's present start."""

    argv: Sequence[str] = ()
    """Of the main process; () where nothing runs or it cannot be read."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The same."""
    started_at: float = 0.0
    """Seconds since the epoch."""
    stale: bool = False
    """systemd has not read what the files say now."""


def differences(
    unit: Unit,
    running: Running,
    record: Optional[Mapping[str, Any]],
    variables: Mapping[str, str],
    secrets: Collection[str] = (),
) -> list[Difference]:
    """Where the unit is not what its files say. record is what inference_service wrote at a start of it, if it did;
    variables are those of its environment files."""
    found: list[Difference] = []
    if unit.running:
        if record is not None and record.get("invocation_id") == unit.invocation_id:
            texts = changed_files(record["files"], fingerprint(unit))
        else:
            texts = newer_files(unit, running.started_at)
        texts += changed_arguments(unit, running.argv, secrets)
        texts += changed_environment(variables, running.environment)
        if running.stale and not texts:
            texts = ["its unit files changed and systemd had not read them"]
        found += map(Difference, texts)
    if unit.load_state == "masked":
        cure = f"`systemctl unmask {unit.name}` lets it start again"
        found.append(Difference("it is masked, so that nothing can start it", cure, restart=False))
    found += [
        Difference(
            f"{path} overrides it",
            "put what it says into gpuops_layout_overrides, and remove it",
            restart=False,
        )
        for path in foreign_drop_ins(unit)
    ]
    return found


def on_its_port(port: int, strangers: Sequence[object]) -> list[Difference]:
    """The difference that somebody else makes who listens where the unit's engine should."""
    cure = "end it (gpuops_foreign=end lets a drain do it), or give one of them another port"
    return [Difference(f"{strangers[0]} listens on its port {port}", cure, restart=False)] if strangers else []


def foreign_drop_ins(unit: Unit) -> list[str]:
    """Drop-ins that change a unit of ours. A unit that somebody wrote by hand may well have some of his own."""
    put_there = [path for path in unit.drop_in_paths if path.startswith(_PUT_THERE) and Path(path).name != DROP_IN_NAME]
    return put_there if put_there and is_ours(unit.fragment_path) else []


def is_ours(path: str) -> bool:
    """Whether a unit file was made from a layout."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").startswith(_OURS)
    except OSError:
        return False


def changed_environment(variables: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Names whose running value is not the files'. What the process does not have, systemd may have refused."""
    names = sorted(name for name, value in variables.items() if environment.get(name, value) != value)
    return [f"its environment has other values than its files for {printable(', '.join(names))}"] if names else []


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
    files = (unit.fragment_path, *drop_ins, *unit.environment_files, argument(unit.exec_start, "--config"))
    return [path for path in files if path]


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
