# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This plugin util is PRIVATE to the collection; it can change in any release.
"""What a run came to, gathered from what Ansible tells a callback: plain data in, one JSON document out.

docs/report.md documents that document. Nothing here knows Ansible, a clock, or a file.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._masking import is_secret_name, mask_text, printable
from ansible_collections.gpuops.inference.plugins.plugin_utils._fleet import HOOK_FAILED, LOST, plain, resume

SCHEMA = "gpuops.inference/report"
VERSION = 1
"""Raised when a reader of the one before would be misled. A new key does not raise it."""

OUTCOMES = ("done", "skipped", "not_begun", "unfinished", "rolled_back", "unreachable", "failed")
"""In the order in which hosts are told: who needs somebody comes last, where the eye is."""
BAD = ("unfinished", "rolled_back", "unreachable", "failed")

COLLECTION = "gpuops.inference"
RUNNING, FINISHED, INTERRUPTED = "running", "finished", "interrupted"
"""Of a run. One that was killed outright still says that it is running."""
CUT_OFF = "interrupted at work, it finishes the stage that it is in: run the same command again"
CUT_OFF_AFTER = (
    "interrupted in what comes after it, a soak or hooks: the same command sees to the soak and to HAProxy, any other "
    "hook is yours to repeat"
)
STOPPED = "the run was interrupted (Ctrl-C, or an error that Ansible shows)"

_LONGEST_TEXT = 40
"""Lines of a cause or a log."""
_LONGEST_LINE = 1000
_LONGEST_LIST = 256
_DEEPEST = 8

_PHASES = {
    "gpu_drain": "drain",
    "gpu_verify_free": "verify",
    "inference_service": "start",
    "inference_preflight": "preflight",
    "layout": "preflight",
    "preflight": "preflight",
    "engine": "deploy",
    "vllm": "deploy",
    "sglang": "deploy",
}
"""What a host does, by module or role."""
_ACTING = ("drain", "pivot", "preflight", "engine", "vllm", "sglang", "fleet")
"""Roles whose tasks make a run worth a report: a look at the status is none."""

_SETTINGS = ("serial", "max_failed", "max_unavailable", "canaries", "soak", "deadline")
"""Of a fleet's plan."""

_GPU_STAGES = ("gpu_drain", "inference_service")
"""Modules that tell their own stages; others are as long as their task."""


@dataclass(frozen=True)
class Doing:
    """A task, as far as it matters here. Names of modules and roles of ours come without the collection."""

    name: str
    module: str = ""
    role: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        """What the host does meanwhile, '' for what leaves it where it was."""
        return _PHASES.get(self.module) or _PHASES.get(self.role, "")

    @property
    def acts(self) -> bool:
        return self.role in _ACTING or self.module in _GPU_STAGES

    @property
    def turns_back(self) -> bool:
        """Whether what follows is the way back to what ran before."""
        return self.module == "pivot_record" and self.arguments.get("phase") == "rolling_back"


def doing_of(task: Any) -> Doing:
    """One of Ansible's tasks."""
    role = task._role.get_name() if task._role else ""
    module = str(task.resolved_action or task.action)
    prefix = f"{COLLECTION}."
    return Doing(str(task.get_name()), module.removeprefix(prefix), role.removeprefix(prefix), dict(task.args))


@dataclass
class Story:
    """What is known of one host. Times are in seconds since the epoch."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    began: Optional[float] = None
    ended: float = 0.0
    at_work: Optional[tuple[Doing, float]] = None
    phase: str = ""
    back: bool = False
    changed: bool = False
    let_through: bool = False
    unreachable: bool = False
    failure: str = ""
    failed_task: str = ""
    dropped: str = ""
    """What could not be reached in a task of a hook, after the outcome was known."""
    calls: dict[str, Any] = field(default_factory=dict)
    stages: list[dict[str, Any]] = field(default_factory=list)
    drains: list[dict[str, Any]] = field(default_factory=list)
    drain_times: list[float] = field(default_factory=list)
    holds: list[dict[str, Any]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    record: Mapping[str, Any] = field(default_factory=dict)
    outcome: Mapping[str, Any] = field(default_factory=dict)

    def see_start(self, doing: Doing, now: float) -> bool:
        self.at_work = (doing, now)
        before, self.phase = self.phase, doing.phase or self.phase
        self.back = self.back or doing.turns_back
        if self.began is None and doing.acts:
            self.began = now
            return True
        return self.phase != before

    def see_result(self, doing: Doing, kind: str, result: Mapping[str, Any], now: float) -> None:
        """kind is ok, failed, unreachable or skipped."""
        began = self.at_work[1] if self.at_work and self.at_work[0].name == doing.name else now
        self.at_work = None
        if kind == "skipped":
            return
        # What the gate does for this host once it is over takes the run's time, not the host's.
        if self.began is not None and not (self.outcome and doing.role == "fleet"):
            self.ended = now
        # Once the gate has its word, the play fails by it, which is no news.
        if kind in ("failed", "unreachable") and not self.outcome:
            self.unreachable = kind == "unreachable"
            self.failed_task, self.failure = doing.name, _message(result)
        elif kind == "unreachable" and doing.role == "fleet":
            self.dropped = f"{doing.name}: {plain(result)}"
        self.changed = self.changed or (doing.acts and bool(result.get("changed")))
        if doing.module == "fleet":
            self._see_gate(result, now)
        self._keep(doing, result, began, now)

    def _see_gate(self, result: Mapping[str, Any], now: float) -> None:
        """What the gate of a fleet says of this host."""
        self.outcome = _mapping(result.get("gpuops_outcome")) or self.outcome
        if result.get("go") is True:
            # What was seen when all hosts were looked at is long ago, and is looked at again. An outcome is
            # that of another playbook in the same run of Ansible.
            self.let_through, self.began, self.phase, self.outcome = True, now, "", {}
            self.stages, self.drains, self.drain_times = [], [], []

    def _keep(self, doing: Doing, result: Mapping[str, Any], began: float, now: float) -> None:
        if doing.phase:
            self._keep_stages(doing, result, began, now)
        if doing.module == "gpu_drain" and "gpus_before" in result:
            self.drains.append(dict(result))
            self.drain_times.append(began)
            # A pivot ends its own.
            kept = _mapping(_mapping(result.get("invocation")).get("module_args")).get("hold_for") != "pivot"
            self.holds = [hold for hold in _mappings(result.get("holds")) if kept and hold.get("purpose") == "drain"]
        if doing.module == "inference_service" and result.get("failed"):
            self.log = _list(result.get("log")) or self.log
        called = _mapping(_mapping(result.get("invocation")).get("module_args"))
        if doing.module in _GPU_STAGES and called:
            self.calls[doing.module] = {name: value for name, value in called.items() if value is not None}
        if doing.module == "pivot_record":
            self.record = _mapping(result.get("record")) or self.record
            self.lines = _list(result.get("story")) or self.lines
        if doing.module.startswith(("gpu_", "inference_", "pivot_")):
            for name in ("driver_version", "nvml_version", "engine_version"):
                if isinstance(result.get(name), str) and result[name]:
                    self.versions[name.replace("_version", "")] = result[name]
            self.problems += [item for item in _list(result.get("problems")) if item not in self.problems]

    def _keep_stages(self, doing: Doing, result: Mapping[str, Any], began: float, now: float) -> None:
        told = _mappings(result.get("stages")) if doing.module in _GPU_STAGES else []
        if told:
            at = began
            for stage in told:
                seconds = _number(stage.get("seconds"))
                self._add_stage(str(stage.get("name", "")), at, seconds, _list(stage.get("actions")))
                at += seconds
        elif self.stages and self.stages[-1]["name"] == doing.phase:
            self.stages[-1]["seconds"] = now - self.stages[-1]["began"]
        else:
            self._add_stage(doing.phase, began, now - began, [])

    def _add_stage(self, name: str, began: float, seconds: float, actions: Iterable[Any]) -> None:
        self.stages.append(_stage(name, began, seconds, actions, self.back))

    # --- what it came to

    def came_to(self, state: str, gated: bool) -> tuple[str, str]:
        """The outcome and its cause. gated: in this run, a host is begun when the gate lets it through."""
        waits = STOPPED if state == INTERRUPTED else ""
        if self.outcome.get("outcome") == "done" and self.unreachable and self.dropped:
            # Ansible gave it up, and runs no task in which the fleet could hear of that.
            return "unreachable", f"{self.dropped}{HOOK_FAILED}"
        if self.outcome.get("outcome") == "done" and state != FINISHED and self._sees_to_afterwards():
            return "unfinished", CUT_OFF_AFTER if state == INTERRUPTED else ""
        if self.outcome:
            cause = str(self.outcome.get("cause") or "")
            # The fleet knows that it was given up, and not why.
            return str(
                self.outcome.get("outcome")
            ), f"{cause}: {self.failure}" if cause == LOST and self.failure else cause
        if gated and not self.let_through:
            return ("unreachable" if self.unreachable else "not_begun"), self.failure or waits
        if self.unreachable:
            return "unreachable", self.failure
        if state != FINISHED and self.began is not None:
            return "unfinished", self.failure or (CUT_OFF if state == INTERRUPTED else "")
        if self.failure:
            return ("rolled_back" if self.record.get("phase") == "rolled_back" else "failed"), self.failure
        return ("done", "") if self.began is not None else ("not_begun", waits)

    def _sees_to_afterwards(self) -> bool:
        """Whether a task of this host is under way; the one that tells how the run ended is everybody's."""
        return self.at_work is not None and self.at_work[0].arguments.get("state") != "tell"

    def as_dict(self, state: str, now: float, gated: bool = False) -> dict[str, Any]:
        outcome, cause = self.came_to(state, gated)
        stages = list(self.stages)
        if outcome == "unfinished":
            self.ended = now
            if self.at_work and self.at_work[0].phase:
                doing, since = self.at_work
                stages.append(_stage(doing.phase, since, now - since, ["not finished"], self.back))
        # Who was only looked at has not begun.
        began, drains = (self.began or 0.0) if outcome != "not_begun" else 0.0, self.drains
        return {
            "host": self.name,
            "outcome": outcome if outcome in OUTCOMES else "failed",
            "cause": cause,
            "task": self.failed_task if outcome in BAD else "",
            "changed": self.changed,
            "began": _iso(began),
            "seconds": max(round(self.ended - began, 1), 0.0) if began else 0.0,
            "stages": [
                {**stage, "began": round(max(stage["began"] - began, 0.0), 3), "seconds": round(stage["seconds"], 3)}
                for stage in stages
            ]
            if began
            else [],
            "gpus": _gpus(drains),
            "released": bool(drains[-1].get("released")) if drains else None,
            "memory_samples": self._memory(began),
            "stopped_units": _mappings(_joined(drains, "stopped_units")),
            "stopped_owners": _mappings(_joined(drains, "stopped_owners")),
            "ended": [_with_reason(item, drains) for item in _mappings(_joined(drains, "ended"))],
            "left_alone": _mappings(_joined(drains[-1:], "left_alone")),
            "refusals": _joined(drains, "refusals"),
            "survivors": _mappings(_joined(drains[-1:], "survivors")),
            "held_units": _joined(drains[-1:], "held_units"),
            "holds": self.holds,
            "problems": self.problems,
            "log": self.log[-_LONGEST_TEXT:],
            "story": self.lines,
            "records": [str(item["record"]) for item in drains if item.get("record")],
            "versions": self.versions,
            "values": {**self.values, **self.calls},
        }

    def _memory(self, began: float) -> list[dict[str, Any]]:
        """The curve of all drains on the host's own clock."""
        return [
            {
                "seconds": round(max(at - began + _number(sample.get("seconds")), 0.0), 3),
                "used_mib": {str(gpu): _mib(used) or 0 for gpu, used in _mapping(sample.get("used_mib")).items()},
            }
            for at, drain in zip(self.drain_times, self.drains)
            for sample in _mappings(drain.get("memory_samples"))
            if began
        ]


@dataclass
class Run:
    """One playbook's run."""

    playbook: str
    began: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Who ran it, with which versions, and how."""
    hosts: dict[str, Story] = field(default_factory=dict)
    acted: bool = False
    gated: bool = False
    plan: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)
    """Values that are never shown."""

    def host(self, name: str) -> Story:
        return self.hosts.setdefault(name, Story(name))

    def see_start(self, host: str, doing: Doing, now: float) -> bool:
        """Whether the host begins something else than it did before."""
        self.acted = self.acted or doing.acts
        return self.host(host).see_start(doing, now)

    def see_result(self, host: str, doing: Doing, kind: str, result: Mapping[str, Any], now: float) -> None:
        if doing.module == "fleet":
            self.gated = True
            if doing.arguments.get("state") == "plan":
                self.plan, self.told = result, {}
            if doing.arguments.get("state") == "tell":
                # It knows of hosts that no task ever ran on.
                self.told = result
                for name, outcome in _mapping(result.get("gpuops_outcomes")).items():
                    self.host(str(name)).outcome = _mapping(outcome)
        self.acted = self.acted or doing.acts
        self.host(host).see_result(doing, kind, result, now)

    def see_end(self, failed: Container[str], lost: Container[str]) -> None:
        """What Ansible counts at the end: a failure that was rescued or ignored is none."""
        for story in self.hosts.values():
            story.unreachable = story.name in lost
            if story.name not in failed and not story.unreachable:
                story.failure = story.failed_task = ""

    def as_dict(self, now: float, state: str) -> dict[str, Any]:
        """The document."""
        hosts = [story.as_dict(state, now, self.gated) for story in self.hosts.values()]
        outcomes = [host["outcome"] for host in hosts]
        told = self.told
        if state == INTERRUPTED and not told:
            told = {"stopped": STOPPED, "resume": resume(outcomes)}
        counts = {name: outcomes.count(name) for name in OUTCOMES}
        document = {
            "schema": SCHEMA,
            "version": VERSION,
            "run": {
                "playbook": self.playbook,
                "what": self.playbook.replace("_", " "),
                "began": _iso(self.began),
                "ended": _iso(now),
                "seconds": round(now - self.began, 1),
                "state": state,
                "stopped": str(told.get("stopped") or ""),
                "resume": str(told.get("resume") or ""),
                "settings": {name: self.plan[name] for name in _SETTINGS if self.plan.get(name) not in (None, [], 0)},
                **self.facts,
            },
            "counts": {name: count for name, count in counts.items() if count},
            "hosts": hosts,
        }
        return dict(clean(document, tuple(sorted(self.secrets))))


def summary_lines(document: Mapping[str, Any]) -> list[str]:
    """One line for each host, who needs somebody last, with the first line of the cause."""
    hosts = sorted(document["hosts"], key=lambda host: OUTCOMES.index(host["outcome"]))
    width = max((len(host["host"]) for host in hosts), default=0)
    checked = ["", "check mode: nothing was changed"] if document["run"].get("check") else []
    held = ["", "what is held cannot be started until then: gpuops.inference.undrain, for the same hosts, ends that"]
    return [
        f"{host['host']:<{width}}  {host['outcome'].replace('_', ' '):<11}  "
        f"{format(host['seconds'], '.1f') + ' s' if host['began'] else '':>9}  "
        f"{free_text(host)}  {first_line(host['cause']) or held_text(host)}".rstrip()
        for host in hosts
    ] + (checked or held * any(host["holds"] for host in hosts))


def free_text(host: Mapping[str, Any]) -> str:
    """How many of its GPUs were proven free, '' where it did not come to that."""
    gpus = [gpu for gpu in host["gpus"] if gpu["verdict"] != "not judged"]
    return f"{sum(gpu['verdict'] == 'free' for gpu in gpus)}/{len(gpus)} GPUs released" if gpus else ""


def held_text(host: Mapping[str, Any]) -> str:
    """Which units a drain left held and when that ends by itself, '' for none."""
    texts = []
    for hold in host["holds"]:
        until = _number(hold.get("until"))
        end = time.strftime("%F %R", time.localtime(until)) if 0 < until < 1e11 else "it is lifted"
        end += ", over reboots" if hold.get("over_reboot") else "" if until else " or the host reboots"
        texts.append(f"{hold.get('unit')} held until {end}")
    return ", ".join(texts)


def first_line(text: str) -> str:
    """The first line, or what it only announces: the problem that follows, the GPU that is not free."""
    lines = [line.strip() for line in text.strip().splitlines()] or [""]
    counted = re.match(r"\d+ of \d+ GPUs are free", lines[0])
    if counted:
        return next((f"{counted.group()}: {line}" for line in lines if line.startswith("GPU")), lines[0])
    if lines[0].endswith(":"):
        return " ".join([lines[0], *(line.lstrip("- ") for line in lines[1:2])])
    return "; ".join([lines[0], *[line for line in lines[1:] if line.startswith("why it failed: ")][:1]])


def clean(value: Any, secrets: Collection[str] = (), depth: int = 0) -> Any:
    """The value as JSON can hold it: masked, printable, not too long. What is no plain data becomes text."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        # JSON has no word for what is no number.
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping) and depth < _DEEPEST:
        items = list(value.items())[:_LONGEST_LIST]
        return {
            printable(str(key)): "********" if is_secret_name(str(key)) else clean(item, secrets, depth + 1)
            for key, item in items
        }
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)) and depth < _DEEPEST:
        items = list(value)
        # All hosts are told, however many; what a host tells of itself has an end.
        return [clean(item, secrets, depth + 1) for item in (items if depth < 2 else items[:_LONGEST_LIST])]
    return _clean_text(str(value)[: _LONGEST_LINE * _LONGEST_TEXT], tuple(secrets))


# The same verdict, name or reason stands there for each GPU of each host.
@lru_cache(maxsize=4096)
def _clean_text(text: str, secrets: tuple[str, ...]) -> str:
    lines = mask_text(text, secrets).split("\n")
    if len(lines) > _LONGEST_TEXT:
        lines = [*lines[:_LONGEST_TEXT], f"... and {len(lines) - _LONGEST_TEXT} lines more"]
    return "\n".join(printable(line, _LONGEST_LINE) for line in lines)


def secret_values(variables: Mapping[str, Any]) -> set[str]:
    """The values that the user keeps secret, as far as they are written out."""
    return {
        str(value)
        for name, secrets in variables.items()
        if re.fullmatch(r"gpuops_[a-z]+_secrets", name) and isinstance(secrets, Mapping)
        for value in secrets.values()
    }


def shown_values(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The gpuops_* variables, of secrets only the names."""
    return {
        name: sorted(map(str, value)) if name.endswith("_secrets") and isinstance(value, Mapping) else value
        for name, value in sorted(variables.items())
        if name.startswith("gpuops_")
    }


def _stage(name: str, began: float, seconds: float, actions: Iterable[Any], back: bool) -> dict[str, Any]:
    return {"name": name, "began": began, "seconds": seconds, "actions": list(actions), "back": back}


def _gpus(drains: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each GPU before the first drain and after the last, with its verdict."""
    if not drains:
        return []
    after = {str(gpu.get("index")): _mapping(gpu.get("memory")) for gpu in _mappings(drains[-1].get("gpus_after"))}
    verdicts = {str(index): _mapping(told) for index, told in _mapping(drains[-1].get("verdicts")).items()}
    rows = []
    for gpu in _mappings(drains[0].get("gpus_before")):
        index = str(gpu.get("index"))
        memory, verdict = _mapping(gpu.get("memory")), verdicts.get(index, {})
        rows.append(
            {
                "index": index,
                "name": str(gpu.get("name") or ""),
                "uuid": str(gpu.get("uuid") or ""),
                "total_mib": _mib(memory.get("total")),
                "before_mib": _mib(memory.get("used")),
                "after_mib": _mib(after.get(index, {}).get("used")),
                "verdict": str(verdict.get("verdict") or "not judged"),
                "why": str(verdict.get("why") or gpu.get("error") or ""),
            }
        )
    return rows


def _with_reason(item: Mapping[str, Any], drains: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Who was ended, with what the plan knew of it: whose it was, and why it had to go."""
    for process in (process for drain in drains for process in _mappings(drain.get("processes"))):
        if "pid" in item and (process.get("pid"), process.get("start")) == (item.get("pid"), item.get("start")):
            return {**item, **{key: process.get(key) for key in ("command", "owner", "why", "class", "gpus_used")}}
    return dict(item)


def _joined(results: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    return [item for result in results for item in _list(result.get(key))]


def _message(result: Mapping[str, Any]) -> str:
    told = [str(item.get("msg")) for item in _mappings(result.get("results")) if item.get("failed")]
    return "\n".join(told) or str(result.get("msg") or result.get("censored") or "no reason given")


# What comes from a host may be anything.


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else []


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [dict(item) for item in _list(value) if isinstance(item, Mapping)]


def _mib(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else None


def _number(value: Any) -> float:
    """A time, of which none lies further away than anybody waits."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 40
    return float(value) if known else 0.0


def _iso(seconds: float) -> Optional[str]:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds") if seconds else None
