# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a drain does about holds, against a service manager that is text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._drain import Drain, Timeouts
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, GpuReading
from ansible_collections.gpuops.inference.plugins.module_utils._hold import Hold, Holds, triggers_of
from ansible_collections.gpuops.inference.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.inference.plugins.module_utils._plan import Plan, Policy
from ansible_collections.gpuops.inference.plugins.module_utils._probe import Probe
from ansible_collections.gpuops.inference.plugins.module_utils._record import RecordError
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import Snapshot
from ansible_collections.gpuops.inference.plugins.module_utils._units import Completed, Units

PLAN = Plan(gpus=(), judged=(), hold=("vllm.service",), stop=("vllm.service",))


class World:
    """One engine unit, and one path that starts it again as soon as nothing refuses to."""

    def __init__(self, directory: Path) -> None:
        self.holds = Holds(*(directory / name for name in ("hold", "run", "kept", "etc", "owed", "kept-owed")))
        self.units = {"vllm.service": "active", "go.path": "active"}
        self.said: list[str] = []
        self.drain = Drain(
            Policy(),
            Timeouts(stable_for=0),
            Probe(),
            Units(self),
            self.holds,
            Journal(),
            Hold("", "driver update", "ops"),
        )
        self.drain.planned = Units(self).show(["vllm.service"])
        self.drain.triggers = triggers_of(PLAN.hold, self.drain.planned, self.drain.units)

    def __call__(self, argv: Sequence[str], timeout: float) -> Completed:
        words = [word for word in argv[1:] if not word.startswith("--")]
        if words[0] == "show":
            return Completed(0, "\n".join(self.shown(name) for name in words[1:]), "")
        self.said.append(" ".join(words))
        for name in words[1:]:
            self.units[name] = "active" if words[0] == "start" else "inactive"
        if self.units["go.path"] == "active" and not (self.holds.directory / "vllm.service").exists():
            self.units["vllm.service"] = "active"
        return Completed(0, "", "")

    def shown(self, name: str) -> str:
        relation = "TriggeredBy=go.path" if name == "vllm.service" else "Triggers=vllm.service"
        loaded = "loaded" if name in self.units else "not-found"
        return f"Id={name}\nLoadState={loaded}\nActiveState={self.units.get(name, 'inactive')}\n{relation}\n"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_plan_says_what_is_stopped_with_the_unit(world: World) -> None:
    assert world.drain.steps(PLAN) == ["hold vllm.service", "stop go.path until the hold ends", "stop vllm.service"]
    assert world.said == []


def test_a_hold_tells_whether_the_unit_ran_and_in_what_state_its_triggers_were(world: World) -> None:
    (hold,) = world.drain.wanted_holds(PLAN, keep_hold=True)
    assert (hold.unit, hold.reason, hold.ran, hold.pid) == ("vllm.service", "driver update", True, 0)
    assert hold.triggers == {"go.path": "active"}


def test_a_hold_for_the_length_of_the_drain_is_no_stronger_than_that(world: World) -> None:
    world.drain.hold = Hold("", "x", "ops", until=9e9, over_reboot=True)
    (hold,) = world.drain.wanted_holds(PLAN, keep_hold=False)
    assert hold.pid
    assert (hold.until, hold.over_reboot) == (0.0, False)


def test_what_a_pivot_stops_is_not_told_as_run_before_a_drain(world: World) -> None:
    world.drain.hold = Hold("", "pivot", "ops", purpose="pivot")
    (hold,) = world.drain.wanted_holds(PLAN, keep_hold=True)
    assert not hold.ran


def owe(world: World, *names: str) -> None:
    world.holds.place([Hold(name, "an earlier drain", "ops", ran=True) for name in names], Units(world))
    world.holds.lift(names, Units(world))


def test_a_start_that_is_still_owed_is_taken_over_by_the_next_drain(world: World) -> None:
    owe(world, "vllm.service")
    world.units["vllm.service"] = "failed"
    world.drain.planned = Units(world).show(["vllm.service"])
    failed = Plan(gpus=(), judged=(), hold=("vllm.service",))
    world.drain._hold(failed, keep_hold=True)
    assert [(hold.reason, hold.ran) for hold in world.holds.all()] == [("driver update", True)]


@pytest.mark.parametrize("index, left", [(0, []), (1, ["other.service"])])
def test_a_drain_that_finds_an_engine_running_forgets_what_ran_before_on_its_gpus(
    world: World, index: int, left: list[str]
) -> None:
    owe(world, "sglang.service", "other.service")
    gpus = (Gpu(0), Gpu(1))
    world.drain.snapshot = Snapshot(GpuReading(gpus), {}, {}, {})
    world.drain.planned = Units(world).show(["vllm.service", "sglang.service"])
    plan = Plan(gpus=gpus[index:], judged=(), hold=("sglang.service", "vllm.service"), stop=("vllm.service",))
    world.drain._hold(plan, keep_hold=True)
    assert [hold.unit for hold in world.holds.owed()] == left
    assert {hold.unit: hold.ran for hold in world.holds.all()} == {"sglang.service": False, "vllm.service": True}


def test_what_ran_is_not_owed_after_a_drain_that_kept_no_hold(world: World) -> None:
    world.drain._hold(PLAN, keep_hold=False)
    world.drain._lift(PLAN)
    assert world.holds.owed() == []


def test_a_hold_that_cannot_be_read_ends_a_drain_before_anything_is_done(world: World) -> None:
    owe(world, "vllm.service")
    world.said.clear()
    (world.holds.directory / "vllm.service").write_text("{broken")
    with pytest.raises(RecordError, match=r"hold/vllm\.service is damaged .*; look at it, then move it away"):
        world.drain._hold(PLAN, keep_hold=True)
    assert world.said == []
    assert len(world.holds.owed()) == 1


def test_nothing_is_held_for_a_drain_that_has_nothing_to_do(world: World) -> None:
    idle = Plan(gpus=(), judged=(), hold=("vllm.service",))
    assert world.drain.wanted_holds(idle, keep_hold=False) == []
    world.drain._hold(idle, keep_hold=False)
    assert world.drain.story.stages == []
    assert not world.drain.story.changed


def test_what_comes_back_when_the_hold_ends_is_named_and_is_no_success(world: World) -> None:
    drain = world.drain
    drain._hold(PLAN, keep_hold=False)
    drain.units.stop(["go.path"])
    drain.units.stop(["vllm.service"])
    drain.story.stopped_units = [{"unit": "vllm.service", "seconds": 1.0, "killed": False}]
    drain.story.released = True
    world.units["go.path"] = "inactive"
    drain._lift(PLAN)
    assert world.units["go.path"] == "active", "it is given back"
    drain.units.daemon_reload()
    drain._watch_units(["vllm.service"])
    assert drain.story.respawned == ["vllm.service came back when its hold ended, started by go.path"]
    assert not drain.story.released
    assert world.holds.all() == []


def test_a_hold_of_somebody_else_is_not_lifted(world: World) -> None:
    world.holds.place([Hold("vllm.service", "theirs", "them")], Units(world))
    world.drain._hold(PLAN, keep_hold=False)
    world.drain._lift(PLAN)
    assert [(hold.reason, hold.triggers) for hold in world.holds.all()] == [("theirs", {"go.path": "active"})], (
        "it covers what was not seen then, too"
    )
