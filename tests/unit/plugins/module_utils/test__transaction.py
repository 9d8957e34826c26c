# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._transaction import (
    BACKWARD,
    FINISHED,
    FORWARD,
    GO_BACK,
    NEW,
    OVER,
    RESUME,
    SETTLED,
    VERSION,
    FileState,
    Loose,
    Scene,
    TransactionError,
    UnitState,
    at_rest,
    decide,
    find_production,
    observed,
    seconds_text,
    unfinished,
    untouched,
)

COMMAND = ("/opt/vllm/bin/vllm", "serve", "/models/m", "--port", "8000")
ARGV = ("/opt/vllm/bin/python3", *COMMAND)
FILES = {
    "/etc/systemd/system/vllm.service": FileState("aa", 0o644, 0, 0),
    "/etc/gpuops/vllm.service.secrets": None,
}

VLLM = UnitState("vllm.service", "vllm", True, "enabled", True, "i1", ARGV, COMMAND, (), FILES, ("gw.service",))
VLLM_STOPPED = replace(VLLM, active=False, invocation_id="", argv=())
SGLANG_ABSENT = UnitState("sglang.service", exists=False, files={"/etc/systemd/system/sglang.service": None})
SGLANG = UnitState(
    "sglang.service", "sglang", True, "disabled", True, "i9", ("python", "-m", "x"), ("python", "-m", "x")
)
HAND_STARTED = Loose(77, "sglang", True, "login session 3 of uid 1000", "python -m sglang.launch_server")
LEFT_WORKER = Loose(78, "vllm", False, "nobody", "VLLM::Worker_TP0")


def scene(*units: UnitState, loose: tuple[Loose, ...] = ()) -> Scene:
    return Scene({unit.unit: unit for unit in units}, loose)


PRODUCTION = scene(VLLM, SGLANG_ABSENT)


def record(phase: str, target: str = "sglang.service", before: Scene = PRODUCTION) -> dict[str, Any]:
    """As it comes back from the disk."""
    made = {
        "version": VERSION,
        "target": target,
        "phase": phase,
        "observed": {name: unit.as_dict() for name, unit in before.units.items()},
    }
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


def test_an_observation_survives_the_disk() -> None:
    assert observed(record("begun")) == dict(PRODUCTION.units)


@pytest.mark.parametrize("left", [None, record("done"), record("rolled_back")])
def test_without_an_unfinished_pivot_it_starts_anew(left: Optional[dict[str, Any]]) -> None:
    decision = decide(left, "sglang.service", PRODUCTION)
    assert (decision.mode, decision.drain, decision.keep) == (NEW, True, False)
    assert decision.why == "vllm.service runs now"


def test_a_target_that_runs_alone_is_settled() -> None:
    assert decide(None, "vllm.service", PRODUCTION).mode == SETTLED
    assert not decide(None, "vllm.service", PRODUCTION).drain


def test_a_target_that_runs_beside_another_engine_is_not() -> None:
    assert decide(None, "sglang.service", scene(VLLM, SGLANG)).drain
    assert decide(None, "vllm.service", scene(VLLM, loose=(HAND_STARTED,))).drain


@pytest.mark.parametrize("phase", FORWARD)
def test_the_same_target_finishes_and_keeps_the_first_observation(phase: str) -> None:
    drained = decide(record(phase), "sglang.service", scene(VLLM_STOPPED, SGLANG_ABSENT))
    assert (drained.mode, drained.drain, drained.keep) == (RESUME, True, True)
    loading = decide(record(phase), "sglang.service", scene(VLLM_STOPPED, SGLANG))
    assert (loading.mode, loading.drain, loading.keep) == (RESUME, False, True), "a loading target is not ended"
    assert phase in loading.why


@pytest.mark.parametrize("phase", FORWARD + BACKWARD)
def test_the_outgoing_engine_as_target_goes_back(phase: str) -> None:
    half = decide(record(phase), "vllm.service", scene(VLLM_STOPPED, SGLANG))
    assert (half.mode, half.drain, half.keep) == (GO_BACK, True, True)
    back_again = decide(record(phase), "vllm.service", scene(VLLM, SGLANG_ABSENT))
    assert (back_again.mode, back_again.drain, back_again.keep) == (GO_BACK, False, True)


@pytest.mark.parametrize("phase", BACKWARD)
def test_a_pivot_that_could_not_go_back_may_be_tried_again(phase: str) -> None:
    decision = decide(record(phase), "sglang.service", scene(VLLM_STOPPED, SGLANG_ABSENT))
    assert (decision.mode, decision.drain, decision.keep) == (OVER, True, True)


@pytest.mark.parametrize("phase", FORWARD + BACKWARD)
def test_production_that_somebody_brought_back_is_observed_anew(phase: str) -> None:
    changed = replace(VLLM, invocation_id="i2", files={})
    decision = decide(record(phase), "sglang.service", scene(changed, SGLANG_ABSENT))
    assert (decision.mode, decision.drain, decision.keep) == (NEW, True, False)


def test_where_nothing_ran_the_observation_is_kept_too() -> None:
    decision = decide(
        record("drained", before=scene(VLLM_STOPPED, SGLANG_ABSENT)), "sglang.service", scene(VLLM_STOPPED)
    )
    assert (decision.mode, decision.keep) == (RESUME, True)


@pytest.mark.parametrize("damage", [{"version": 2}, {"phase": "elsewhere"}, {"version": None}])
def test_a_record_of_another_release_is_not_guessed_at(damage: dict[str, Any]) -> None:
    with pytest.raises(TransactionError, match="move the record away"):
        decide({**record("begun"), **damage}, "sglang.service", PRODUCTION)


def test_unfinished() -> None:
    assert not unfinished(None)
    assert [unfinished(record(phase)) for phase in FORWARD + BACKWARD] == [True] * 7
    assert [unfinished(record(phase)) for phase in FINISHED] == [False] * 2


@pytest.mark.parametrize(
    "change",
    [
        {"invocation_id": "i2"},
        {"active": False},
        {"unit_file_state": "disabled"},
        {"files": {**FILES, "/etc/gpuops/vllm.service.secrets": FileState("bb", 0o600, 0, 0)}},
        {"files": {**FILES, "/etc/systemd/system/vllm.service": FileState("aa", 0o640, 0, 0)}},
    ],
)
def test_any_change_counts_as_touched(change: dict[str, Any]) -> None:
    before = observed(record("begun"))
    assert untouched(before, PRODUCTION)
    assert not untouched(before, scene(replace(VLLM, **change), SGLANG_ABSENT))
    assert not untouched(before, scene(VLLM))


# --- production ---


def test_production_is_the_one_enabled_unit() -> None:
    found = find_production(None, "", PRODUCTION)
    assert (found.unit, found.undo) == ("vllm.service", False)
    assert at_rest(found, PRODUCTION)


@pytest.mark.parametrize(
    ("units", "said"),
    [((SGLANG_ABSENT,), "0 are enabled .none."), ((VLLM, replace(SGLANG, unit_file_state="enabled")), "2 are enabled")],
)
def test_none_or_two_enabled_units_need_a_word(units: tuple[UnitState, ...], said: str) -> None:
    with pytest.raises(TransactionError, match=said + ".*pass gpuops_production_unit, one of .*sglang.service"):
        find_production(None, "", scene(*units))
    assert find_production(None, "sglang.service", scene(VLLM, SGLANG)).unit == "sglang.service"


def test_a_named_unit_must_be_an_engines() -> None:
    for name in ("nginx.service", "sglang.service"):
        with pytest.raises(TransactionError, match=f"{name} is no engine unit"):
            find_production(None, name, PRODUCTION)


@pytest.mark.parametrize("phase", ["begun", "drained", "started", "ready", *BACKWARD])
def test_an_unfinished_pivot_tells_what_production_was(phase: str) -> None:
    half = scene(replace(VLLM_STOPPED, unit_file_state="disabled"), replace(SGLANG, unit_file_state="enabled"))
    found = find_production(record(phase), "", half)
    assert (found.unit, found.undo) == ("vllm.service", True)
    assert not at_rest(found, half)
    chosen = find_production(record(phase), "sglang.service", half)
    assert (chosen.unit, chosen.undo) == ("sglang.service", False)


def test_a_pivot_whose_enablement_moved_has_arrived() -> None:
    moved = scene(replace(VLLM_STOPPED, unit_file_state="disabled"), replace(SGLANG, unit_file_state="enabled"))
    assert find_production(record("enabled"), "", moved).unit == "sglang.service"


def test_where_nothing_ran_the_enabled_unit_was_production() -> None:
    left = record("started", before=scene(VLLM_STOPPED, SGLANG_ABSENT))
    assert find_production(left, "", scene(VLLM_STOPPED, SGLANG)).unit == "vllm.service"


def test_a_unit_deleted_by_hand_can_still_be_brought_back() -> None:
    gone = scene(replace(VLLM_STOPPED, exists=False, unit_file_state=""), SGLANG)
    assert find_production(record("drained"), "vllm.service", gone).undo


@pytest.mark.parametrize(
    "now",
    [
        scene(VLLM_STOPPED),
        scene(VLLM, SGLANG),
        scene(VLLM, loose=(HAND_STARTED,)),
        scene(VLLM, loose=(LEFT_WORKER,)),
        scene(replace(VLLM, profiling=("--profiler-config",))),
        scene(replace(VLLM, argv=(*ARGV, "--enforce-eager"))),
    ],
)
def test_production_is_not_at_rest_beside_or_as_anything_else(now: Scene) -> None:
    assert not at_rest(find_production(None, "vllm.service", now), now)


@pytest.mark.parametrize(
    ("argv", "own"),
    [
        (COMMAND, True),
        (ARGV, True),
        (("/opt/vllm/bin/python3", "-I", *COMMAND), True),
        (("strace", "-f", "-o", "x", *COMMAND), False),
        (COMMAND[:-1], False),
        ((*COMMAND, "--x"), False),
        (("/opt/vllm/bin/vllm", "serve", "/models/m --port 8000"), True),
        ((), False),
    ],
)
def test_running_arguments_against_the_units(argv: tuple[str, ...], own: bool) -> None:
    assert replace(VLLM, argv=argv).runs_its_own_command is own
    assert not replace(VLLM, argv=argv, command=()).runs_its_own_command


def test_seconds_text() -> None:
    assert seconds_text([{"name": "drain", "seconds": 12.34}, {"name": "load", "seconds": "5"}]) == (
        "drain 12.3 s, load 5.0 s"
    )
