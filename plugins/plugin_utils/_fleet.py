# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This plugin util is PRIVATE to the collection; it can change in any release.
"""Which hosts of a fleet are begun, in which order, and when no further one is. Nothing here asks a host."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.filter.did_you_mean import did_you_mean

FAILED = ("failed", "rolled_back", "unreachable")
"""Outcomes that count for max_failed. The others are skipped, done and not_begun."""


class FleetError(Exception):
    """A setting that cannot be meant; the message names the user's variable."""


# One letter of `gpuops` missing, doubled, swapped or put in; `gpu_` alone is anybody's.
_MISSPELLED = re.compile(
    "(puops|guops|gpops|gpups|gpuos|gpuop|g+p+u+o+p+s+|pguops|gupops|gpoups|gpupos|gpuosp|gpu_ops|gpusops|gpuopts)_(.+)"
)

# An option in argument_specs.yml stands alone in its line. To parse YAML would cost ten times as much, on every host.
_OPTION = re.compile(r"^ +([a-z0-9_]+):$", re.MULTILINE)


def unread(variables: Iterable[str], mapping: str) -> list[str]:
    """The user's variables that nothing reads, with what was meant, most likely; `mapping` names all that are read."""
    names = sorted(variables)
    ours = [name for name in names if name.startswith("gpuops_")]
    near = [match for match in map(_MISSPELLED.fullmatch, names) if match and not match[0].startswith("gpuops_")]
    return did_you_mean(ours, set(re.findall(r"\bgpuops_[a-z0-9_]+\b", mapping))) + [
        f"{match[0]} (did you mean gpuops_{match[2]}?)" for match in near
    ]


def unread_by_roles(variables: Iterable[str], specs: Mapping[str, str]) -> list[str]:
    """The same for what begins with the name of a role; each role's argument_specs say what it reads."""
    known = {name for text in specs.values() for name in _OPTION.findall(text)}
    # What the roles leave for those who follow.
    known |= {"preflight_result", "engine_changed"}
    return did_you_mean([name for name in variables if name.startswith(tuple(f"{role}_" for role in specs))], known)


@dataclass(frozen=True)
class Plan:
    """What a run is about: all its hosts in the order in which they are begun, and what bounds it."""

    hosts: tuple[str, ...]
    pending: tuple[str, ...]
    """Those that have something to do, canaries first."""
    canaries: tuple[str, ...]
    serial: tuple[int, ...]
    """How many are begun together, batch by batch; the last number holds for the rest."""
    max_failed: int
    max_unavailable: Optional[int]
    began: float
    soak: float
    deadline: Optional[float]

    def as_dict(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})


@dataclass(frozen=True)
class Host:
    """How far one host is: looked at, begun, over."""

    name: str
    outcome: str = ""
    """'' while it is not over."""
    serving: bool = False
    """Whether an engine serves there, as far as is known."""
    begun: bool = False
    """It was let through the gate."""
    cause: str = ""
    """Why it ended as it did, or why the gate did not let it through."""
    up: Optional[float] = None
    """Of one that serves as asked: seconds for which it has."""


HOOK_FAILED = " (the rest is done: the next run looks after HAProxy, any other hook is yours to repeat)"
LOST = "Ansible gave this host up in the middle; it finishes by itself the stage that it is in"
REFUSED = "it was refused before it was looked at: see above"


def hosts_of(names: Sequence[str], entries: Iterable[Mapping[str, Any]], alive: Collection[str]) -> list[Host]:
    """What the entries of a run's ledger come to. Whom Ansible dropped (not `alive`) on the way is lost."""
    found: dict[str, Host] = {}
    for entry in entries:
        name = entry["host"]
        if entry["state"] == "gate":
            found[name] = replace(found[name], begun=entry["go"], cause=entry["cause"])
        else:
            found[name] = Host(
                name, entry["outcome"], entry["serving"], entry["state"] == "end", entry["cause"], entry.get("up")
            )
    hosts = []
    for name in names:
        host = found.get(name, Host(name, "failed", cause=REFUSED))
        if host.begun and not host.outcome and name not in alive:
            host = replace(host, outcome="unreachable", serving=False, cause=LOST)
        hosts.append(host)
    return hosts


def make_plan(
    hosts: Sequence[Host],
    serial: Any,
    max_failed: Any,
    max_unavailable: Any,
    canary: Any,
    canary_hosts: Collection[str],
    soak: Any,
    deadline: Any,
    began: float,
) -> Plan:
    """Check the settings and settle the order. Raises FleetError."""
    names = [host.name for host in hosts]
    total = len(names)
    enough = amount("gpuops_max_failed", max_failed, total)
    soaks = _seconds("gpuops_soak", soak)
    if re.fullmatch(r"\d+", str(canary)):
        first = names[: int(canary)]
    else:
        first = [name for name in names if name in canary_hosts]
        if canary and not first:
            raise FleetError(f"gpuops_canary is {canary!r}, and none of the {total} hosts of this run is among them")
    # An earlier run may have been interrupted in the soak, and its engine may have crashed and come back since.
    pending = [host.name for host in hosts if not host.outcome or (host.name in first and _is_new(host, soaks))]
    if sum(host.outcome in FAILED for host in hosts) >= enough:
        pending = []
    canaries = [name for name in pending if name in first]
    # One that failed in the look proves nothing to the others either.
    sick = [host.name for host in hosts if host.name in first and host.outcome in FAILED]
    most = None if max_unavailable is None else amount("gpuops_max_unavailable", max_unavailable, total, least=0)
    steps = [amount("gpuops_serial", step, total, more=", or a list of them like 1,5,20%") for step in _listed(serial)]
    if not steps:
        raise FleetError("gpuops_serial is an empty list; give numbers or percentages")
    if canaries:
        steps = [len(canaries), *steps]
    if most is not None:
        # The gate counts again when a batch begins; this keeps a batch from being cut in two by it.
        room = max(most - sum(not host.serving for host in hosts), 1)
        steps = [min(step, room) for step in steps]
    return Plan(
        hosts=tuple(canaries + [name for name in names if name not in canaries]),
        pending=tuple(canaries + [name for name in pending if name not in canaries]),
        canaries=(*canaries, *sick),
        serial=tuple(_in_batches(steps, len(canaries))),
        max_failed=enough,
        max_unavailable=most,
        began=began,
        soak=soaks,
        deadline=None if deadline is None else _seconds("gpuops_deadline", deadline),
    )


def _is_new(host: Host, soak: float) -> bool:
    """Whether it is as asked, and not yet for as long as a canary has to be."""
    return host.outcome == "skipped" and host.up is not None and host.up < soak


def _in_batches(steps: Sequence[int], canaries: int) -> list[int]:
    """The canaries are over before another host is begun, however many batches they need."""
    if not canaries:
        return list(steps)
    size = steps[0]
    batches = [size] * (canaries // size) + ([canaries % size] if canaries % size else [])
    return [*batches, *steps[1:]]


def _listed(value: Any) -> list[Any]:
    # On the command line a list is written 1,5,20%.
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else _as_list(value)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def amount(name: str, value: Any, total: int, least: int = 1, more: str = "") -> int:
    """A number of hosts, from a number or a percentage of them; a percentage is rounded down, never below one."""
    match = re.fullmatch(r"(\d+)(%?)", str(value).strip())
    if not match or isinstance(value, bool):
        raise FleetError(f"{name} is {value!r}; give a number of hosts, or a percentage like 25%{more}")
    number = int(match[1])
    if number < least:
        raise FleetError(f"{name} is {value!r}; it must be {least} or more")
    return max(number * total // 100, 1) if match[2] and number else number


def _seconds(name: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise FleetError(f"{name} is {value!r}; it must be a number of seconds that is not negative")
    return seconds


def serves(seen: Mapping[str, Any]) -> bool:
    """Whether an engine serves on a host, by what a look returned: a preflight, a record, a drain's plan."""
    return bool(
        seen.get("serving")
        or any(engine.get("active") for engine in seen.get("engines") or [])
        or any(each.get("class") == "target" and each["action"] != "leave" for each in seen.get("processes") or [])
    )


def refusal(plan: Plan, hosts: Sequence[Host], name: str, mates: Sequence[str], now: float) -> str:
    """Why this host must not be begun now, '' if it may be. `mates` are the hosts of its batch, in order."""
    stopped = stop(plan, hosts, name, now)
    me = next(host for host in hosts if host.name == name)
    if stopped or plan.max_unavailable is None or not me.serving:
        # Who does not serve anyway takes nobody out.
        return stopped
    ahead = list(mates[: mates.index(name)]) if name in mates else []
    out = [host.name for host in hosts if not host.serving or ((host.begun or host.name in ahead) and not host.outcome)]
    if len(out) + 1 > plan.max_unavailable:
        return (
            f"when its turn came, {_named(out)} did not serve or {'was' if len(out) == 1 else 'were'} about to stop: "
            f"gpuops_max_unavailable lets {plan.max_unavailable} of {len(plan.hosts)} be out"
        )
    return ""


def stop(plan: Plan, hosts: Sequence[Host], name: str, now: float) -> str:
    """Why the run begins no further host, '' while it goes on."""
    failed = [host.name for host in hosts if host.outcome in FAILED]
    if len(failed) >= plan.max_failed:
        more = " (raise it to go on with the others)" if len(failed) < len(plan.hosts) else ""
        count = f"{len(failed)} of {len(plan.hosts)} hosts failed ({_named(failed)})"
        return f"{count}, and gpuops_max_failed={plan.max_failed} begins no further one{more}"
    sick = [host for host in failed if host in plan.canaries]
    if sick and name not in plan.canaries:
        return f"the canary {_named(sick)} failed"
    if plan.deadline is not None and now - plan.began >= plan.deadline:
        return f"the run began {now - plan.began:.0f} s ago: gpuops_deadline is {plan.deadline:g} s"
    return ""


def _named(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "no host"


def ended(before: bool, frees: bool, failure: Mapping[str, Any], results: Mapping[str, Any]) -> Host:
    """How a host ended that was begun, from what its tasks returned.

    `before` says whether an engine served there, `frees` that none is to serve afterwards. A failure has the name of
    the task and its result. The results are those of the drain and of the steps of a pivot, by name.
    """
    if not failure:
        return Host("", "done", not frees, True)
    drain, turned, restored, finished = (
        results.get(name) or {} for name in ("drain", "turned", "restored", "finished")
    )
    result = failure.get("result") or {}
    if _is_lost(result):
        outcome, serving = "unreachable", False
    elif (finished.get("record") or {}).get("phase") == "rolled_back":
        outcome, serving = "rolled_back", bool(restored.get("start"))
    else:
        ended_here = any(drain.get(name) for name in ("stopped_units", "stopped_owners", "ended"))
        touched = ended_here or turned.get("touched") or _is_no_engine(result)
        outcome, serving = "failed", before and not touched
    return Host("", outcome, serving, True, plain(result))


def failed_afterwards(end: Host, failure: Mapping[str, Any], soaked: bool) -> Host:
    """How a host that had ended so ends in truth, because something failed in its soak (not `soaked`) or in a hook."""
    result = failure.get("result") or {}
    done = end.outcome == "done"
    outcome = "unreachable" if _is_lost(result) else "failed" if done else end.outcome
    # The next run finds nothing to do there.
    rest = HOOK_FAILED if soaked and done else ""
    cause = f"{'' if done else 'afterwards, '}{failure['task']}: {plain(result)}{rest}"
    return replace(
        end, outcome=outcome, serving=end.serving and soaked, cause="\n".join(filter(None, [end.cause, cause]))
    )


def _is_no_engine(result: Mapping[str, Any]) -> bool:
    """Whether a result is that of inference_service about an engine that did not become ready, alone or in a loop."""
    looks = [result, *(result.get("results") or [])]
    return any(isinstance(each.get("state"), Mapping) and each.get("failed", True) for each in looks)


def hook_problem(hook: Any, read: Callable[[str], Any]) -> str:
    """What is wrong with a hook, known before any host is touched; '' for nothing.

    A hook is a file of tasks, which read gives, or its kinds: settings may want what only a later task knows.
    """
    if not isinstance(hook, str):
        known = list(hook) in (["haproxy"], ["http"])
        return (
            "" if known else f"a hook is a file of tasks, or haproxy or http with settings, and not {', '.join(hook)}"
        )
    try:
        tasks = read(hook)
    except Exception as error:  # whatever a loader of YAML and vaults has to say
        return f"the hook {hook} cannot be read: {str(error).splitlines()[0]}"
    return "" if isinstance(tasks, list) else f"the hook {hook} is no list of tasks"


def plain(result: Mapping[str, Any]) -> str:
    """Why a task failed, without what Ansible says of every failure."""
    said = dict.fromkeys(str(part.get("msg") or result.get("msg") or "no reason given") for part in _failed(result))
    # What ssh says ends its lines as a terminal wants it.
    return "; ".join(re.sub("^(Task failed: |Action failed: |Module failed: )+|\r", "", text) for text in said)


def _is_lost(result: Mapping[str, Any]) -> bool:
    return any(part.get("lost") for part in _failed(result))


def _failed(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What failed of a task; a loop itself only counts."""
    parts = result.get("results") or ()
    return [part for part in parts if isinstance(part, Mapping) and part.get("failed")] or [result]


def tell(plan: Plan, hosts: Sequence[Host], now: float) -> dict[str, Any]:
    """The outcome of every host of the run, why no further one was begun, and how to go on ('' where all is done)."""
    outcomes = {}
    for host in hosts:
        cause = host.cause or ("" if host.outcome else stop(plan, hosts, host.name, now) or "the run ended before")
        outcomes[host.name] = {"outcome": host.outcome or "not_begun", "cause": cause}
    waiting = next((host.name for host in hosts if not host.outcome), "")
    return {
        "gpuops_outcomes": outcomes,
        "stopped": outcomes[waiting]["cause"] if waiting else "",
        "resume": resume(outcome["outcome"] for outcome in outcomes.values()),
    }


def resume(outcomes: Iterable[str]) -> str:
    """How to go on, '' where all is done."""
    kinds = set(outcomes)
    first = "remove the cause, then run" if kinds & set(FAILED) else "run"
    if not kinds - {"done", "skipped"}:
        return ""
    return f"to go on, {first} the same command again: what is done is skipped, what was interrupted is finished"
