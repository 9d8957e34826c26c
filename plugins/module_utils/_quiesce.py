# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Waiting until an engine has nothing to do: no request runs or waits, and none was answered meanwhile."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES, Engine
from ansible_collections.gpuops.inference.plugins.module_utils._ready import Ask, NoAnswer, Question

QUIET = 2.0
"""Seconds without a request that count as quiet: longer than a client takes to send the next turn of a dialogue."""
POLL = 0.25
METRICS_TIMEOUT = 5.0
TIMED_OUT = "timed out"
"""What a NoAnswer says of a server that accepts and does not answer in time."""
SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{.*\})?\s+(?P<value>\S+)(?:\s+\d+)?$")
"""A line of the Prometheus text format."""


@dataclass(frozen=True)
class Load:
    """Requests running and waiting now, and answered since the start; None where the engine does not count them."""

    running: float
    waiting: float
    served: Optional[float]

    @property
    def idle(self) -> bool:
        return self.running == 0 and self.waiting == 0


@dataclass(frozen=True)
class Outcome:
    """Whether an engine came to rest, and in words what was seen."""

    quiet: bool
    why: str


def read_load(engine: Engine, text: str) -> Optional[Load]:
    """Sum the engine's gauges over their labels; None where the text has them not."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match:
            try:
                value = float(match.group("value"))
            except ValueError:
                continue
            sums[match.group("name")] = sums.get(match.group("name"), 0.0) + value
    if engine.running_metric not in sums or engine.waiting_metric not in sums:
        return None
    return Load(sums[engine.running_metric], sums[engine.waiting_metric], sums.get(engine.served_metric))


def quiesce(
    asks: Mapping[str, tuple[str, Ask]],
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Outcome]:
    """Wait at most timeout seconds for engines to come to rest, all at once.

    asks holds, by the name an operator knows it by, each engine's kind and a way to ask it. An engine whose load
    cannot be observed is not waited for: its outcome says so.
    """
    deadline = clock() + timeout
    outcomes: dict[str, Outcome] = {}
    first: dict[str, Load] = {}
    last: dict[str, Load] = {}
    quiet_since = dict.fromkeys(asks, math.inf)
    while True:
        for name, (kind, ask) in asks.items():
            if name in outcomes:
                continue
            # A server that accepts and never answers must not cost more than the caller gives, and has its first look.
            load = _observe(ENGINES[kind], ask, min(METRICS_TIMEOUT, max(POLL, deadline - clock())))
            if load == TIMED_OUT and name in last:
                # Seen at work before, and slow to tell now: that is no reason to cut its requests off.
                quiet_since[name] = math.inf
                continue
            if isinstance(load, str):
                outcomes[name] = Outcome(True, f"its load cannot be observed ({load}); not waited for")
                continue
            first.setdefault(name, load)
            before, last[name] = last.get(name, load), load
            if not load.idle or load.served != before.served:
                # A request can come and go between two looks: the counter tells.
                quiet_since[name] = math.inf
            if load.idle:
                quiet_since[name] = min(quiet_since[name], clock())
            if clock() - quiet_since[name] >= QUIET:
                outcomes[name] = Outcome(True, f"no request for {QUIET:g} s")
        if len(outcomes) == len(asks):
            return outcomes
        if clock() >= deadline:
            break
        sleep(POLL)
    for name, load in last.items():
        still = f"{load.running:g} requests run, {load.waiting:g} wait after {timeout:g} s"
        sends = (
            "; new ones keep coming: take the host out of its load balancer first" if _newer(first[name], load) else ""
        )
        outcomes.setdefault(name, Outcome(False, still + sends))
    return outcomes


def _newer(first: Load, last: Load) -> bool:
    """Whether more was answered than was there at first: somebody still sends."""
    if first.served is None or last.served is None:
        return False
    return last.served - first.served > first.running + first.waiting


def _observe(engine: Engine, ask: Ask, timeout: float) -> Load | str:
    try:
        answer = ask(Question(engine.metrics_path, timeout))
    except NoAnswer as error:
        return str(error)
    if answer.status != 200:
        return f"{engine.metrics_path} says {answer.status}"
    return read_load(engine, answer.text) or f"{engine.metrics_path} has no {engine.running_metric}"
