# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._gpus import GpuReading
from ansible_collections.gpuops.inference.plugins.module_utils._plan import Policy, judge
from ansible_collections.gpuops.inference.plugins.module_utils._release import Identity, Verdict, Watch, verdict_of

sys.path.insert(0, str(Path(__file__).parent))
from hosts import ALL, Host

EVERYBODY = {(pid, pid * 10) for pid in range(1000)}


def verdict(
    host: Host, index: int = 0, known: Collection[Identity] = EVERYBODY, stuck: Collection[Identity] = ()
) -> Verdict:
    snapshot = host.snapshot()
    return verdict_of(snapshot.reading.gpus[index], snapshot, judge(snapshot, Policy()), 512, known, stuck)


def test_every_verdict_has_its_reason() -> None:
    assert verdict(Host()).verdict == "free"
    assert verdict(Host().vllm()).verdict == "held"
    assert "VLLM::Worker_TP0" in verdict(Host().vllm()).why
    leaked = Host()
    leaked.leaks[0] = 2000
    assert verdict(leaked).verdict == "leaked"
    lost = Host()
    lost.errors[0] = "GPU_IS_LOST"
    assert verdict(lost).verdict == "gpu_lost"
    odd = Host()
    odd.errors[0] = "UNKNOWN"
    assert verdict(odd).verdict == "unknown"
    ghost = Host()
    ghost.extra["ghosts"] = {0: frozenset({4242})}
    assert verdict(ghost).verdict == "ghost"
    assert "4242" in verdict(ghost).why


def test_observers_and_unlisted_monitors_keep_no_gpu_from_being_free() -> None:
    host = Host().process(20, ("dcgm",), observer="DCGM", attached=ALL).process(21, ("monitor",), attached=ALL)
    assert verdict(host).verdict == "free"


def test_an_unlisted_monitor_counts_where_nvml_does_not_vouch() -> None:
    host = Host().process(21, ("monitor",), attached=ALL)
    host.extra["reading"] = replace(host.snapshot().reading, source="nvidia-smi")
    assert verdict(host).verdict == "unknown"


def test_a_newcomer_is_named_with_its_owner() -> None:
    host = Host().process(800, comm="keep-alive", executable="/usr/bin/bash")
    host.process(900, ("python3", "new.py"), uses=frozenset({0}), cgroup="/system.slice/batch.service", ppid=800)
    seen = verdict(host, known={(1, 10)})
    assert seen.verdict == "respawning"
    assert "pid 900 (python3 new.py)" in seen.why
    assert "owner: unit batch.service, started by pid 800 (keep-alive)" in seen.why


def test_who_is_dying_is_exiting_and_after_a_while_unkillable() -> None:
    host = Host().process(30, ("VLLM::Worker_TP0",), uses=frozenset({0}), sigkill_pending=True, state="D")
    assert verdict(host).verdict == "exiting"
    stuck = verdict(host, stuck={(30, 300)})
    assert stuck.verdict == "unkillable"
    assert "state D" in stuck.why


@pytest.mark.parametrize(
    "extra",
    [
        {"reading": GpuReading(Host().snapshot().reading.gpus, problems=("NVML hangs",))},
        {"unreadable": frozenset({9})},
    ],
)
def test_a_source_that_cannot_be_read_is_never_free(extra: dict[str, object]) -> None:
    host = Host()
    host.extra.update(extra)
    assert verdict(host).verdict == "unknown"


def test_memory_that_is_not_reported_or_may_be_the_drivers_own_is_inconclusive() -> None:
    host = Host()
    reading = host.snapshot().reading
    gpu = reading.gpus[0]
    assert gpu.memory is not None
    for memory in (None, replace(gpu.memory, version=1, reserved=0, used=600)):
        host.extra["reading"] = replace(reading, gpus=(replace(gpu, memory=memory), *reading.gpus[1:]))
        assert verdict(host).verdict == "inconclusive"


def test_an_old_driver_whose_reserve_is_known_is_judged_like_a_new_one() -> None:
    host = Host()
    reading = host.snapshot().reading
    gpu = reading.gpus[0]
    assert gpu.memory is not None
    for used, expected in ((0, "free"), (600, "leaked")):
        memory = replace(gpu.memory, version=1, reserved=637, used=used)
        host.extra["reading"] = replace(reading, gpus=(replace(gpu, memory=memory), *reading.gpus[1:]))
        assert verdict(host).verdict == expected


@pytest.mark.parametrize("used, final", [(600, True), (40000, False)])
def test_in_the_old_view_of_memory_more_than_a_driver_keeps_is_waited_for(used: int, final: bool) -> None:
    host = Host()
    reading = host.snapshot().reading
    gpu = reading.gpus[0]
    assert gpu.memory is not None
    gpu = replace(gpu, memory=replace(gpu.memory, version=1, reserved=0, used=used))
    host.extra["reading"] = replace(reading, gpus=(gpu, *reading.gpus[1:]))
    assert verdict(host).final is final


class Clock:
    """Time that passes only while somebody sleeps, and a script of what is seen when."""

    def __init__(self, seen: Callable[[float], dict[int, str]], dying: Collection[Identity] = ()) -> None:
        self.now = 0.0
        self.seen = seen
        self.dying = dying
        self.stuck: list[Collection[Identity]] = []

    def look(self, stuck: Collection[Identity]) -> tuple[dict[int, Verdict], Collection[Identity]]:
        self.stuck.append(set(stuck))
        return {index: Verdict(name, "") for index, name in self.seen(self.now).items()}, self.dying

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def watch(self, **times: float) -> Watch:
        defaults = {"stable_for": 3.0, "timeout": 20.0, "kill_timeout": 5.0}
        return Watch(self.look, **{**defaults, **times}, clock=lambda: self.now, sleep=self.sleep)


def test_free_counts_only_when_it_lasts() -> None:
    clock = Clock(lambda now: {0: "free", 1: "free" if now >= 2 else "leaked"})
    assert clock.watch().wait()
    assert 5 <= clock.now < 6


def test_one_bad_look_starts_the_window_again() -> None:
    clock = Clock(lambda now: {0: "held" if 1.9 < now < 2.1 else "free"})
    assert clock.watch().wait()
    assert clock.now >= 5


def test_waiting_ends_at_the_deadline_with_the_last_verdicts() -> None:
    clock = Clock(lambda now: {0: "free", 1: "held"})
    watch = clock.watch(timeout=4)
    assert not watch.wait()
    assert watch.verdicts[1].verdict == "held"
    assert 4 <= clock.now < 5


def test_a_stable_window_that_began_in_time_may_end_after_the_deadline() -> None:
    clock = Clock(lambda now: {0: "free" if now >= 3.9 else "leaked"})
    assert clock.watch(timeout=4).wait()


@pytest.mark.parametrize("final", ["unkillable", "respawning", "gpu_lost", "unknown", "inconclusive"])
def test_what_waiting_cannot_change_ends_the_wait_once_the_others_are_settled(final: str) -> None:
    clock = Clock(lambda now: {0: final, 1: "free"})
    assert not clock.watch(timeout=1000).wait()
    assert clock.now < 5


def test_who_is_dying_for_longer_than_the_kill_timeout_is_stuck() -> None:
    clock = Clock(lambda now: {0: "exiting"}, dying={(30, 300)})
    clock.watch(timeout=6).wait()
    assert clock.stuck[0] == set()
    assert clock.stuck[-1] == {(30, 300)}


def test_a_clean_first_look_is_enough_where_nothing_was_ended() -> None:
    clock = Clock(lambda now: {0: "free"})
    assert clock.watch(stable_for=0).wait()
    assert clock.now == 0
