# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This plugin util is PRIVATE to the collection; it can change in any release.
"""What a fleet looks like on a terminal: who is at work, and lines for what changed. No terminal is touched here."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._masking import printable
from ansible_collections.gpuops.inference.plugins.plugin_utils._report import Doing

SIGNS = {
    "done": "✓", "skipped": "–", "not_begun": "○", "unfinished": "!", "rolled_back": "↩", "unreachable": "✕",
    "failed": "✕",
}  # fmt: skip
LOOKING = ("", "look", "preflight")
"""Phases after which a host has not yet done what the run is about."""

SOAK = "soak"
"""Phase of a canary that is done and has to stay so."""

_COUNTED = re.compile(r"^(?P<what>.*\S), shard (?P<done>\d+) of (?P<total>\d+)$")


@dataclass
class Host:
    """One host as the screen knows it. Times in seconds on the caller's clock."""

    name: str
    phase: str = ""
    status: str = ""
    began: Optional[float] = None
    ended: float = 0.0
    gpus: str = ""
    weights: str = ""
    outcome: str = ""
    """'' while it is not over."""
    failure: str = ""
    soaks: bool = False
    """Whether it is not over yet when it is done."""

    @property
    def label(self) -> str:
        return printable(self.name)

    @property
    def at_work(self) -> bool:
        return self.began is not None and not self.outcome

    def line(self, now: float, name_width: int) -> str:
        cells = (
            pad(cut(self.label, name_width), name_width),
            pad(self.phase or "-", 9),
            f"{now - (self.began or now):>6.0f} s",
            pad(f"GPUs {self.gpus}" if self.gpus else "", 9),
            # No column of its own: on a narrow terminal its room is worth more.
            *([f"weights {self.weights}"] if self.weights else []),
            printable(self.status),
        )
        return "  ".join(cells).rstrip()

    def folded(self) -> str:
        """Its line for good, once it is over."""
        begun = self.began is not None and self.outcome != "not_begun"
        seconds = f"{self.ended - (self.began or 0):.0f} s" if begun else ""
        gpus = f"{self.gpus} GPUs released" if self.gpus else ""
        told = (f"{SIGNS[self.outcome]} {self.label}", self.outcome.replace("_", " "), seconds, gpus)
        return "  ".join(part for part in told if part)


@dataclass
class Fleet:
    """All hosts of a run. What returns lines returns what is new, for who cannot see the screen change."""

    title: str = ""
    began: float = 0.0
    hosts: dict[str, Host] = field(default_factory=dict)

    def expect(self, names: Iterable[str]) -> None:
        for name in names:
            self.hosts.setdefault(name, Host(name))

    def see_start(self, name: str, doing: Doing, now: float, looks: bool = False) -> list[str]:
        """A task begins; looks: one that changes nothing."""
        host = self.hosts.setdefault(name, Host(name))
        if host.outcome or not doing.acts:
            return []
        if host.began is None:
            host.began = now
        phase = "look" if looks else ("way back" if doing.turns_back else doing.phase)
        if host.phase == SOAK or (host.phase == "way back" and phase in ("drain", "verify", "preflight")):
            return []
        if not phase or phase == host.phase or (looks and host.phase == "preflight"):
            return []
        host.phase, host.status, host.weights = phase, "", ""
        return [f"{host.label}: {phase}"]

    def see_status(self, name: str, status: str) -> list[str]:
        """What an engine does while it starts."""
        host = self.hosts.setdefault(name, Host(name))
        counted = _COUNTED.match(status)
        what = counted.group("what") if counted else status
        host.weights = f"{counted.group('done')}/{counted.group('total')}" if counted else host.weights
        if what == host.status:
            return []
        host.status = what
        return [f"{host.label}: {printable(what)}"]

    def see_result(self, name: str, doing: Doing, result: Mapping[str, Any], now: float) -> list[str]:
        host = self.hosts.setdefault(name, Host(name))
        host.ended = now
        lines: list[str] = []
        verdicts = result.get("verdicts")
        if doing.module == "gpu_drain" and isinstance(verdicts, Mapping) and verdicts:
            free = sum(isinstance(told, Mapping) and told.get("verdict") == "free" for told in verdicts.values())
            host.gpus = f"{free}/{len(verdicts)}"
            lines.append(f"{host.label}: {host.gpus} GPUs released")
        if result.get("go") is True and doing.module == "fleet":
            # Also one that its look found as asked: a canary, or who is still out of its balancer.
            host.began, host.phase, host.gpus, host.outcome = now, "", "", ""
            host.soaks = bool(result.get("soak"))
        given = {name: result.get("gpuops_outcome"), **_mapping(result.get("gpuops_outcomes"))}
        for about, outcome in given.items():
            if about == name and host.soaks and _mapping(outcome).get("outcome") == "done":
                host.soaks, host.phase, host.status, host.weights = False, SOAK, "", ""
                lines.append(f"{host.label}: {SOAK}")
            elif _mapping(outcome).get("outcome"):
                lines += self.finish(str(about), str(outcome["outcome"]), now)
        return lines

    def finish(self, name: str, outcome: str, now: float) -> list[str]:
        """The host is over; its line for good, once."""
        host = self.hosts.setdefault(name, Host(name))
        if host.outcome:
            return []
        host.outcome = outcome if outcome in SIGNS else "failed"
        host.ended = now
        return [host.folded()]

    def finish_batch(self, now: float, last: bool = False) -> list[str]:
        """A play or a batch of it is over, and with it whoever did more than look. last: so is the run."""
        lines = []
        for host in [host for host in self.hosts.values() if host.at_work]:
            if last or host.failure or host.phase not in LOOKING:
                lines += self.finish(host.name, "failed" if host.failure else "done", now)
            else:
                host.began = None
        return lines

    # --- the screen

    def frame(self, width: int, height: int, now: float) -> list[str]:
        """The lines that are drawn over and over: never more than fit, none as wide as the terminal."""
        room = max(height - 2, 1)
        working = [host for host in self.hosts.values() if host.at_work]
        name_width = min(max((text_width(host.label) for host in working), default=0), max(width // 3, 8))
        lines = [self._head(len(working), now)]
        shown = working if len(working) < room else working[: max(room - 2, 0)]
        lines += [host.line(now, name_width) for host in shown]
        if len(shown) < len(working):
            lines.append(f"... and {len(working) - len(shown)} more at work")
        return [cut(line, width - 1) for line in lines[:room]]

    def _head(self, working: int, now: float) -> str:
        counts = {name: sum(host.outcome == name for host in self.hosts.values()) for name in SIGNS}
        waiting = sum(host.began is None and not host.outcome for host in self.hosts.values())
        parts = [f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count]
        parts += [f"{working} at work"] * bool(working) + [f"{waiting} waiting"] * bool(waiting)
        return f"{printable(self.title)}  {now - self.began:.0f} s  " + ", ".join(parts)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def text_width(text: str) -> int:
    """Columns that a terminal gives a printable text."""
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def cut(text: str, width: int) -> str:
    """The text in at most so many columns, with its cut shown."""
    if text_width(text) <= width:
        return text
    kept, used = "", 0
    for character in text:
        used += _columns(character)
        if used > width - 1:
            break
        kept += character
    return kept + "…" if width > 0 else ""


def pad(text: str, width: int) -> str:
    return text + " " * (width - text_width(text))


def rows(lines: Iterable[str], width: int) -> int:
    """Rows that lines take on a terminal that has become so narrow since they were drawn."""
    return sum(max(-(-text_width(line) // max(width, 1)), 1) for line in lines)
