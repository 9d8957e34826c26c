# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.inference.plugins.filter.status_table import FilterModule

status_table = FilterModule().filters()["status_table"]


def looked(**changed: Any) -> dict[str, Any]:
    """A host whose vLLM serves on all GPUs."""
    unit = {"name": "vllm.service", "active_state": "active", "answers": True, "drift": []}
    workers = [
        {"pid": 100 + index, "class": "target", "unit": "vllm.service", "gpus_used": [index]} for index in range(8)
    ]
    gpus = {
        "gpus": [{"index": index, "error": None} for index in range(8)],
        "processes": workers,
        "units": [unit],
        "holds": [],
        "owed": [],
        "problems": [],
        "last_drain": None,
    }
    return {"status_gpus": {**gpus, **changed}, "status_pivot": {"engines": [], "record": None, "unfinished": False}}


def hold(unit: str, **changed: Any) -> dict[str, Any]:
    return {"unit": unit, "who": "ops", "reason": "driver update", "until": 0, "over": "", **changed}


def test_a_host_that_serves_needs_nothing() -> None:
    head, row, last = status_table(["gpu-01"], {"gpu-01": looked()})
    assert head.split() == ["HOST", "ENGINE", "GPUS", "USED", "HELD", "LAST", "TO", "DO"]
    assert row.split() == ["gpu-01", "vllm", "answers", "8/8", "-", "-"]
    assert last == "nothing to do"


def test_hosts_that_need_somebody_are_marked_and_come_last() -> None:
    seen = {
        "lost": {"status_gpus": {"unreachable": True, "msg": "ssh: no route\nto host"}},
        "well": looked(),
        "broken": {"status_gpus": {"msg": "only root sees that"}},
    }
    lines = status_table(list(seen), seen)
    assert [line.split()[0] for line in lines[1:4]] == ["well", "!", "!"]
    assert lines[2].split(maxsplit=6)[2:] == ["unreachable", "?", "?", "?", "ssh: no route to host"]
    assert "cannot be looked at" in lines[3]
    assert lines[-1] == "2 of 3 hosts need you"


def test_a_drained_host_says_who_holds_what_and_until_when() -> None:
    drained = looked(
        processes=[],
        units=[{"name": "vllm.service", "active_state": "inactive", "answers": False, "drift": []}],
        holds=[hold("vllm.service"), hold("sglang.service"), hold("old.service", over="its time was up")],
        problems=["old.service cannot be started: its hold is over (its time was up) and was not lifted"],
        last_drain={"at": "2026-11-30T12:00:00+00:00", "reason": "driver update", "released": True},
    )
    row = status_table(["a"], {"a": drained})[1]
    assert "vllm, sglang by ops: driver update" in row
    assert "drain (driver update): free" in row
    assert "0/8" in row
    assert "old.service cannot be started" in row


def test_a_drain_that_left_a_gpu_not_free_is_not_done() -> None:
    drain = {"at": "2026-11-30T12:00:00+00:00", "reason": "driver update", "released": False}
    row = status_table(["a"], {"a": looked(processes=[], units=[], last_drain=drain)})[1]
    assert "all GPUs free: drain again" in row
    assert status_table(["a"], {"a": looked(last_drain=drain)})[-1] == "nothing to do", "an engine answers since"


def test_what_ran_before_a_drain_is_to_be_started_where_nothing_else_serves() -> None:
    row = status_table(["a"], {"a": looked(processes=[], units=[], owed=["vllm.service"])})[1]
    assert "vllm ran before the drain: undrain.yml with gpuops_undrain_start starts it" in row
    assert status_table(["a"], {"a": looked(owed=["sglang.service"])})[-1] == "nothing to do"


def test_an_unfinished_pivot_says_what_to_run() -> None:
    host = looked(last_drain={"at": "2026-11-30T12:00:00+00:00", "reason": "pivot", "released": False})
    host["status_pivot"] = {
        "engines": [],
        "unfinished": True,
        "record": {
            "target": "sglang.service",
            "phase": "rollback_failed",
            "phases": [{"name": "rollback_failed", "at": "2026-11-30T12:01:00+00:00"}],
        },
    }
    row = status_table(["a"], {"a": host})[1]
    assert "pivot to sglang: rollback failed" in row, "it is newer than the drain"
    assert row.endswith("run the pivot to sglang again, or restore_production.yml")


def test_what_is_wrong_with_units_gpus_and_processes_is_to_be_done() -> None:
    host = looked(
        units=[
            {
                "name": "vllm.service",
                "active_state": "failed",
                "answers": False,
                "drift": ["a file has changed", "more"],
            },
            {"name": "sglang.service", "active_state": "active", "answers": False, "drift": []},
        ],
        gpus=[{"index": 3, "error": "GPU_IS_LOST"}],
        processes=[{"pid": 1, "class": "orphan", "unit": "", "gpus_used": [3]}, {"left_out": 9}],
    )
    row = status_table(["a"], {"a": host})[1]
    other = looked(units=[], processes=[{"pid": 9, "class": "foreign", "unit": "", "gpus_used": [1, 2]}])
    assert status_table(["a"], {"a": other})[1].split()[1:] == ["1", "of", "somebody", "else", "2/8", "-", "-"]
    assert "vllm failed, sglang does not answer yet, 1 en..." in row
    assert "GPU 3: GPU_IS_LOST; vllm has failed; vllm: a file has changed" in row
    assert "more" not in row


def test_fifty_hosts_are_fifty_lines_of_one_shape_and_hostile_text_stays_text() -> None:
    seen = {f"gpu-{number:02}": looked() for number in range(49)}
    seen["evil"] = looked(holds=[hold("vllm.service", reason="\x1b[31mred\n" * 40)])
    lines = status_table(list(seen), seen)
    assert len(lines) == 52
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 160
