# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.gpuops.inference.plugins.module_utils._starting import Start
from ansible_collections.gpuops.inference.plugins.plugin_utils._fleet_screen import Fleet, cut, pad, rows, text_width
from ansible_collections.gpuops.inference.plugins.plugin_utils._report import Doing

CHECK = Doing("Check everything", "inference_preflight", "preflight")
DRAIN = Doing("Drain the GPUs", "gpu_drain", "drain")
VERIFY = Doing("See that the hardware is well", "gpu_verify_free", "preflight")
DEPLOY = Doing("Write the unit", "ansible.builtin.copy", "engine")
START = Doing("Start", "inference_service", "pivot")
RECORD = Doing("Record", "pivot_record", "pivot", {"phase": "drained"})
TURN = Doing("Turn back", "pivot_record", "pivot", {"phase": "rolling_back"})


def fleet(size: int, at_work: int) -> Fleet:
    found = Fleet("pivot to sglang", 0.0)
    found.expect(f"gpu-{number:03d}.rack7.example.com" for number in range(size))
    for name in list(found.hosts)[:at_work]:
        found.see_start(name, DRAIN, 1.0)
    return found


def verdicts(free: int, total: int) -> dict[str, object]:
    return {"verdicts": {str(index): {"verdict": "free" if index < free else "leaked"} for index in range(total)}}


def loading(shard: int) -> str:
    """What an engine's start tells of itself."""
    start = Start(ENGINES["vllm"], 0.0, 3600, 600)
    start.see_line(0.0, "INFO Starting to load model /models/Kimi-K2.5...")
    start.see_line(0.0, f"\rLoading safetensors checkpoint shards:  25% Completed | {shard}/64 [08:12<24:10, 30.2s/it]")
    return start.status


def test_a_host_at_work_tells_phase_seconds_gpus_and_weights() -> None:
    found = fleet(1, 1)
    name = "gpu-000.rack7.example.com"
    found.see_result(name, DRAIN, verdicts(8, 8), 9.0)
    found.see_start(name, START, 10.0)
    found.see_status(name, loading(35))
    assert found.frame(100, 24, 62.0)[1].split() == [
        name, "start", "61", "s", "GPUs", "8/8", "weights", "35/64", "loading", "weights",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [20, 80, 160])
@pytest.mark.parametrize("height", [2, 3, 24, 50])
@pytest.mark.parametrize("size, at_work", [(1, 1), (200, 3), (200, 200)])
def test_the_picture_never_outgrows_the_terminal(width: int, height: int, size: int, at_work: int) -> None:
    frame = fleet(size, at_work).frame(width, height, 10.0)
    assert len(frame) < height
    assert max(map(text_width, frame)) < width


def test_who_does_not_fit_is_counted() -> None:
    frame = fleet(200, 200).frame(80, 24, 10.0)
    shown = [line for line in frame if line.startswith("gpu-")]
    assert frame[-1] == f"... and {200 - len(shown)} more at work"
    assert "200 at work" in frame[0]


def test_who_is_over_is_folded_into_one_line_and_counted() -> None:
    found = fleet(3, 2)
    name = "gpu-000.rack7.example.com"
    found.see_result(name, DRAIN, verdicts(7, 8), 9.0)
    assert found.finish(name, "failed", 11.0) == [f"✕ {name}  failed  10 s  7/8 GPUs released"]
    assert found.finish(name, "done", 12.0) == [], "once is enough"
    assert found.frame(80, 24, 12.0)[0] == "pivot to sglang  12 s  1 failed, 1 at work, 1 waiting"


GATE = Doing("Gate", "fleet", "fleet")


def test_the_gate_begins_and_ends_a_host() -> None:
    found = fleet(1, 1)
    name = "gpu-000.rack7.example.com"
    found.see_result(name, GATE, {"go": True}, 100.0)
    assert found.hosts[name].line(104.0, 30).split()[1:] == ["-", "4", "s"]
    outcomes = {name: {"outcome": "rolled_back"}, "gpu-1": {"outcome": "not_begun"}}
    assert found.see_result(name, GATE, {"gpuops_outcomes": outcomes}, 105.0) == [
        f"↩ {name}  rolled back  5 s",
        "○ gpu-1  not begun",
    ]


def test_a_look_at_all_hosts_ends_none_of_them() -> None:
    found = Fleet("drain")
    found.see_start("a", CHECK, 1.0)
    found.see_start("b", DRAIN, 1.0, looks=True)
    assert found.finish_batch(2.0) == []
    assert "2 waiting" in found.frame(80, 24, 2.0)[0]
    found.see_start("a", DRAIN, 3.0)
    assert [line[:3] for line in found.finish_batch(4.0)] == ["✓ a"]


def test_a_check_of_the_hardware_in_a_look_ends_no_host() -> None:
    found = Fleet("pivot")
    found.see_start("a", CHECK, 1.0)
    assert found.see_start("a", VERIFY, 1.0, looks=True) == []
    found.see_start("b", DRAIN, 1.0, looks=True)
    found.see_start("b", VERIFY, 1.0, looks=True)
    assert found.finish_batch(2.0) == []


def test_a_canary_is_at_work_while_it_soaks() -> None:
    found = Fleet("pivot to vllm")
    gate, done = Doing("Gate", "fleet", "fleet"), {"gpuops_outcome": {"outcome": "done"}}
    found.see_result("a", gate, {"go": True, "soak": 600}, 1.0)
    found.see_start("a", START, 2.0)
    assert found.see_result("a", gate, done, 9.0) == ["a: soak"]
    # It looks who serves, which is no start.
    assert found.see_start("a", START, 10.0) == []
    assert found.see_status("a", "soaks until 06:00") == ["a: soaks until 06:00"]
    assert found.frame(60, 24, 11.0)[1].split() == ["a", "soak", "10", "s", "soaks", "until", "06:00"]
    assert found.finish_batch(601.0) == ["✓ a  done  600 s"]
    found.see_result("b", gate, {"go": True, "soak": 0}, 602.0)
    assert found.see_result("b", gate, done, 603.0) == ["✓ b  done  1 s"]


def test_only_changes_are_news() -> None:
    found = Fleet("pivot")
    news = [
        *found.see_start("a", CHECK, 0.0),
        *found.see_start("a", CHECK, 1.0),
        *found.see_start("a", RECORD, 2.0),
        *found.see_start("a", START, 3.0),
        *found.see_status("a", loading(1)),
        *found.see_status("a", loading(2)),
        *found.see_status("a", "answering"),
        *found.see_start("a", TURN, 4.0),
        *found.see_start("a", DRAIN, 5.0),
    ]
    assert news == ["a: preflight", "a: start", "a: loading weights", "a: answering", "a: way back"]


HOSTILE = st.text(max_size=60) | st.sampled_from(
    ["\x1b[2J\x1b[31m", "a\nb", "a\rb", "東京" * 30, "e\u0301" * 50, "\u202e"]
)


@given(HOSTILE, HOSTILE)
def test_whatever_a_host_is_called_it_takes_its_own_line(name: str, status: str) -> None:
    found = Fleet("pivot")
    found.see_start(name, START, 0.0)
    found.see_status(name, status)
    frame = found.frame(80, 24, 1.0)
    assert len(frame) == 2
    assert all(text_width(line) < 80 and line.isprintable() for line in frame)
    assert all(line.isprintable() for line in found.finish(name, "done", 2.0))


@given(st.text(st.characters(categories=["L", "M", "N", "P", "S"])), st.integers(1, 40))
def test_cut_and_pad_keep_to_the_width(text: str, width: int) -> None:
    assert text_width(cut(text, width)) <= width
    assert text_width(pad(cut(text, width), width)) == width


def test_wide_and_combining_characters_count_as_a_terminal_counts_them() -> None:
    assert text_width("東京") == 4
    assert text_width("e\u0301") == 1
    assert cut("東京都", 4) == "東…"


def test_rows_after_the_terminal_became_narrower() -> None:
    assert rows(["x" * 79, "", "x" * 40], 40) == 2 + 1 + 1
