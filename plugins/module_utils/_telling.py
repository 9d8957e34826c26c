# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""A drain's result: the same data whether it went well or not, and a message that tells the story by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ansible_collections.gpuops.inference.plugins.module_utils._arguments import (
    capped,
    gpu_rows,
    gpu_table,
    host_facts,
    process_rows,
)
from ansible_collections.gpuops.inference.plugins.module_utils._drain import Drain, NotQuietError
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, spans
from ansible_collections.gpuops.inference.plugins.module_utils._hold import Hold, HoldError
from ansible_collections.gpuops.inference.plugins.module_utils._options import knob
from ansible_collections.gpuops.inference.plugins.module_utils._plan import Judged, Plan, ghost_faults
from ansible_collections.gpuops.inference.plugins.module_utils._record import RecordError
from ansible_collections.gpuops.inference.plugins.module_utils._release import FREE, Verdict
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import Snapshot
from ansible_collections.gpuops.inference.plugins.module_utils._units import UnitsError

LONGEST_STORY = 12
"""Lines: what fits a terminal beside the rest of a play's output."""


def drain_result(
    drain: Drain,
    plan: Plan,
    before: Snapshot,
    refused: Sequence[str],
    error: str,
    keep_hold: bool,
    check_mode: bool,
) -> dict[str, Any]:
    """Everything a drain returns, but the seconds and the record."""
    story = drain.story
    chosen = {gpu.index for gpu in plan.gpus}
    after = [gpu for gpu in drain.snapshot.reading.gpus if gpu.index in chosen]
    would_change = not refused and bool(
        plan.acts or drain.left_over or drain.holds.left_over(plan.hold) or drain.wanted_holds(plan, keep_hold)
    )
    ghosts = list(ghost_faults(before, plan.gpus)) if check_mode else []
    result = story.as_dict()
    result.update(
        changed=would_change if check_mode else story.changed,
        plan=drain.steps(plan),
        refusals=list(refused),
        processes=process_rows(plan.judged),
        left_alone=capped([item.as_dict() for item in plan.judged if item.action == "leave"]),
        ended=capped(result["ended"]),
        removed=capped(result["removed"]),
        gpus_before=gpu_rows(plan.gpus),
        gpus_after=gpu_rows(after),
        diff={
            "before": gpu_table(plan.gpus, plan.judged),
            "after": _expected_table(plan) if check_mode and not refused else gpu_table(after, drain.last_judged),
        },
        **host_facts(before),
    )
    standing = [hold for unit in plan.hold if (hold := drain.holds.read(unit)) is not None]
    result["holds"] = [asdict(hold) for hold in standing]
    if check_mode:
        result["would_release"] = not refused and not ghosts
        result["would_change"] = would_change
    lines = _lines(result, story.verdicts, error, check_mode)
    if not check_mode:
        # Said whatever else had to be left out.
        last = _held_lines(standing)
        lines = [*lines[: LONGEST_STORY - len(last)], *last]
    if ghosts:
        lines = [*lines[: LONGEST_STORY - 1], "not free after that: " + "; ".join(ghosts)]
    result["msg"] = "\n".join(lines[:LONGEST_STORY])
    return result


def causes(error: Exception) -> list[str]:
    """What ended a drain half-way, first things first: lifting the holds behind a failure may fail as well."""
    told = [str(error)]
    earlier = error.__context__
    while isinstance(earlier, (NotQuietError, UnitsError, RecordError, HoldError)) and not error.__suppress_context__:
        told.insert(0, str(earlier))
        error, earlier = earlier, earlier.__context__
    return told


def _expected_table(plan: Plan) -> str:
    """The table as it would be: those who are ended are gone, their memory too."""
    staying = [item for item in plan.judged if item.action == "leave"]
    return "".join(
        f"GPU {gpu.index}  {'free':>6}\n" if not _used_by(gpu, staying) else gpu_table([gpu], staying)
        for gpu in plan.gpus
    )


def _used_by(gpu: Gpu, judged: Sequence[Judged]) -> bool:
    return any(gpu.index in item.seen.used for item in judged)


def _lines(result: Mapping[str, Any], verdicts: Mapping[int, Verdict], error: str, check_mode: bool) -> list[str]:
    refusals = result["refusals"]
    if refusals:
        return ["refused, nothing was touched:", *(f"- {text}" for text in refusals)]
    if check_mode:
        return ["would drain:", *(f"- {step}" for step in result["plan"])] if result["plan"] else ["nothing to do"]
    free = sum(verdict.verdict == FREE for verdict in verdicts.values())
    are = "were" if result["respawned"] and free == len(verdicts) else "are"
    head = f"{free} of {len(verdicts)} GPUs {are} free" if verdicts else "the GPUs were not looked at again"
    if result["stopped_units"] or result["stopped_owners"] or result["ended"] or result["survivors"] or error:
        spent: dict[str, float] = {}
        for stage in result["stages"]:
            spent[stage["name"]] = spent.get(stage["name"], 0.0) + stage["seconds"]
        lines = [f"{head}: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent.items())]
    else:
        lines = [f"{head}, nothing had to be ended"]
    if error:
        lines.append(f"stopped half-way: {error}")
    for unit in result["stopped_units"]:
        killed = ", its cgroup was killed" if unit["killed"] else ""
        lines.append(f"stopped {unit['unit']} in {unit['seconds']:.1f} s{killed}")
    lines += [_stopped_line(stopped) for stopped in result["stopped_owners"]]
    lines += _ended_lines(result["ended"])
    for survivor in result["survivors"]:
        where = f", waits in {survivor['waits_in']}" if survivor["waits_in"] else ""
        lines.append(f"pid {survivor['pid']} ({survivor['name']}, state {survivor['state']}{where}) {survivor['why']}")
    lines += not_free_lines(verdicts)
    if result["removed"]:
        size = sum(item.get("mib", 0) for item in result["removed"])
        lines.append(f"removed from /dev/shm what dead engines left: {len(result['removed'])} segments, {size:.0f} MiB")
    lines += result["respawned"]
    if result["starters"] and not result["respawned"]:
        lines.append(f"not held any more: {'; '.join(result['starters'])}; {knob('keep_hold', 'true')} would hold it")
    return lines


def _held_lines(holds: Sequence[Hold]) -> list[str]:
    """One line for all holds that end alike."""
    ends: dict[str, list[str]] = {}
    for hold in holds:
        ends.setdefault(f"{hold.who}: {hold.reason} ({hold.end})", []).append(hold.unit)
    return [f"{', '.join(units)} held by {end}" for end, units in ends.items()][:3]


def _stopped_line(stopped: Mapping[str, Any]) -> str:
    if stopped["error"]:
        return f"{stopped['owner']} was not stopped: {stopped['error']}"
    after = {
        "always": "; it stays so until its runtime or the host starts anew, for its restart policy is always",
        "": "",
    }.get(stopped["restart"], f"; it stays so, its restart policy is {stopped['restart']}")
    return f"stopped {stopped['owner']} in {stopped['seconds']:.1f} s{after}"


def not_free_lines(verdicts: Mapping[int, Verdict]) -> list[str]:
    """One line per verdict: with the GPUs it is about, and the reason that the first of them gives."""
    groups: dict[str, list[int]] = {}
    for index, verdict in sorted(verdicts.items()):
        if verdict.verdict != FREE:
            groups.setdefault(verdict.verdict, []).append(index)
    return [
        f"GPU{'s' * (len(indexes) > 1)} {spans(indexes)} {'are' if len(indexes) > 1 else 'is'} {name}: "
        + verdicts[indexes[0]].why
        for name, indexes in groups.items()
    ]


def _ended_lines(ended: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per signal: nine workers are one fact, not nine."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for item in ended:
        if "pid" in item:
            groups.setdefault(item["signal"], []).append(item)
    return [
        f"ended {len(items)} process{'es' * (len(items) > 1)}"
        + (f" with {signal}" if signal else " with the others")
        + f" in {max(item['seconds'] for item in items):.1f} s: "
        + ", ".join(sorted({item["name"] for item in items}))
        for signal, items in groups.items()
    ]
