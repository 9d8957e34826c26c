# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole service against a scripted host: one unit, one clock that moves only when somebody waits."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._hold import Hold, Holds
from ansible_collections.gpuops.inference.plugins.module_utils._ports import Listener
from ansible_collections.gpuops.inference.plugins.module_utils._ready import Answer, Ask, Look, NoAnswer, Question
from ansible_collections.gpuops.inference.plugins.module_utils._record import read_json, write_json
from ansible_collections.gpuops.inference.plugins.module_utils._serving import Host, Order, Service
from ansible_collections.gpuops.inference.plugins.module_utils._units import Completed, Units, UnitsError

NAME = "vllm.service"
ARGV = "/opt/vllm/bin/vllm serve /models/K --host 0.0.0.0 --port 8000 --served-model-name kimi"
CURE = ": a pivot to it, or restart_on_drift, applies what the files say"
LOADS = 20.0
"""Seconds from the start of the engine to ready."""


class Sources:
    """What the service waits for, in the background of the scripted host: finished as soon as it is begun."""

    ended = False

    def __init__(self, give: Callable[[], Any]) -> None:
        self.give = give
        self.asked = False

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *unused: object) -> None:
        pass

    def fileno(self) -> int:
        raise AssertionError("the scripted host waits for no descriptor")

    def ask(self) -> None:
        self.asked = True

    def take(self) -> Optional[Look]:
        if not self.asked:
            return None
        self.asked = False
        look = self.give()
        assert isinstance(look, Look)
        return look

    def lines(self) -> list[str]:
        return list(self.give())


class World:
    """A host with one engine unit."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 1000.0
        self.active = "inactive"
        self.sub = "dead"
        self.load = "loaded"
        self.enabled = "disabled"
        self.began = 0.0
        self.invocation = 0
        self.main_pid = 0
        self.exec_start = ARGV
        self.running = ""
        self.environ = ""
        self.stale = False
        self.drop_ins = ""
        self.stuck = False
        self.restarts = 0
        self.crash_after: Optional[float] = None
        self.result, self.code, self.status = "success", 0, 0
        self.said: list[tuple[float, str]] = []
        self.read = 0
        self.keys: list[Optional[str]] = []
        self.serves = "kimi"
        self.strangers: list[Listener] = []
        self.users: list[Listener] = []
        self.pace = 50.0
        self.completed: list[Any] = []
        self.did: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.fragment = directory / NAME
        self.fragment.write_text("[Service]")
        os.utime(self.fragment, (0, 0))
        self.environment = directory / "vllm.env"
        self.environment.write_text("VLLM_API_KEY=swordfish\n")
        os.utime(self.environment, (0, 0))
        self.holds = Holds(*(directory / name for name in ("hold", "units", "kept", "etc", "owed", "kept-owed")))

    def host(self) -> Host:
        return Host(
            units=Units(self.systemctl),
            holds=self.holds,
            clock=lambda: self.now,
            wall=lambda: self.now + 1e9,
            wait=self.wait,
            follow=lambda invocation: Sources(self.lines),
            asker=self.asker,
            asking=Sources,
            runner=self.cat,
            listeners=lambda port, address: self.strangers,
            gpu_users=lambda: self.users,
            pids=lambda cgroup: {self.main_pid} if self.main_pid else set(),
            io_bytes=lambda cgroup: 0,
            require_cgroups=lambda: None,
            starts=self.directory / "starts",
            tell=lambda progress: self.told.append((progress["status"], progress["rest"])),
        )

    def run(self, state: str = "started", **options: Any) -> dict[str, Any]:
        return Service(self.host(), Order("vllm", state, **options)).run()

    # --- the manager

    def start(self) -> World:
        self.active, self.sub, self.began, self.main_pid = "active", "running", self.now, 412
        self.invocation += 1
        self.running = self.exec_start
        self.read = 0
        self.result, self.code, self.status = "success", 0, 0
        return self

    def end(self, active: str) -> None:
        self.active, self.sub, self.main_pid = active, "dead", 0

    def wait(self, sources: Sequence[Any], seconds: float) -> None:
        self.now += seconds
        if self.main_pid and self.crash_after is not None and self.now >= self.began + self.crash_after:
            self.end("failed")
            self.result, self.code, self.status = "exit-code", 1, 1

    def systemctl(self, argv: Sequence[str], timeout: float) -> Completed:
        verb = argv[3]
        if verb == "show":
            return Completed(0, self.show(), "")
        self.did.append(verb)
        if verb == "start":
            self.start()
        elif verb == "stop" and not self.stuck or verb == "reset-failed":
            self.end("inactive")
            self.restarts = 0 if verb == "reset-failed" else self.restarts
        elif verb == "daemon-reload":
            self.stale = False
        elif verb in ("enable", "disable"):
            self.enabled = f"{verb}d" if self.enabled != "static" else "static"
        return Completed(0, "", "")

    def show(self) -> str:
        return f"""MainPID={self.main_pid}
Result={self.result}
NRestarts={self.restarts}
ExecMainCode={self.code}
ExecMainStatus={self.status}
ExecStart={{ path=/opt/vllm/bin/vllm ; argv[]={self.exec_start} ; ignore_errors=no ; pid=0 }}
ControlGroup=/system.slice/{NAME}
EnvironmentFiles={self.environment} (ignore_errors=no)
TimeoutStopUSec=30s
Id={NAME}
LoadState={self.load}
ActiveState={self.active}
SubState={self.sub}
FragmentPath={self.fragment}
DropInPaths={self.drop_ins}
UnitFileState={self.enabled}
InactiveExitTimestampMonotonic={int(self.began * 1e6)}
ActiveEnterTimestampMonotonic={int(self.began * 1e6)}
NeedDaemonReload={"yes" if self.stale else "no"}
ConditionResult=yes
AssertResult=yes
InvocationID={self.invocation or ""}
"""

    def cat(self, argv: Sequence[str], timeout: float) -> Completed:
        if argv[-1].endswith("/environ"):
            return Completed(0, self.environ, "")
        interpreter = [] if self.running.startswith("(") else ["/usr/bin/python3"]
        return Completed(0, "\0".join([*interpreter, *self.running.split(), ""]), "")

    # --- the engine

    def lines(self) -> list[str]:
        due = [line for after, line in self.said if self.began + after <= self.now]
        new, self.read = due[self.read :], len(due)
        return new

    def asker(self, host: str, port: int, key: Optional[str]) -> Ask:
        self.keys.append(key)

        def ask(question: Question) -> Answer:
            if not self.main_pid or self.now < self.began + LOADS:
                raise NoAnswer("nobody listens on its port yet")
            if question.path == "/v1/models":
                return Answer(200, f'{{"data": [{{"id": "{self.serves}"}}]}}')
            tokens = int(str((question.body or {"max_tokens": 1})["max_tokens"]))
            if tokens > 1:
                self.completed.append(question.body)
                self.now += tokens / self.pace
            return Answer(200, f'{{"choices": [{{"text": "x"}}], "usage": {{"completion_tokens": {tokens}}}}}')

        return ask


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_start_ends_when_the_engine_answers(world: World) -> None:
    world.said = [
        (1, "INFO Starting to load model /models/K..."),
        (15, "INFO Loading weights took 14 s"),
        (20, "swordfish is the key"),
    ]
    result = world.run()
    assert not result["failed"] and result["changed"]
    assert result["state"] == {"before": "stopped", "after": "ready"}
    assert LOADS <= result["ready"]["completion"] <= result["ready"]["seconds"] <= LOADS + 0.5
    assert [stage["name"] for stage in result["stages"]] == ["starting", "loading weights", "preparing the model"]
    assert result["stages"][0]["actions"] == ["start vllm.service"]
    assert result["process"] == {"pid": 412, "argv": ["/usr/bin/python3", *ARGV.split()], "profiling": []}
    assert result["msg"].startswith("vllm.service answers for kimi on 127.0.0.1 port 8000, ready 20.")
    assert world.did == ["reset-failed", "start"]
    assert [status for status, rest in world.told] == ["starting", "loading weights", "preparing the model"]


def test_the_key_is_used_and_never_shown(world: World) -> None:
    world.said = [(1, "swordfish is the key")]
    result = world.run()
    assert set(world.keys) == {"swordfish"}
    assert result["log"] == ["******** is the key"]
    assert "swordfish" not in repr(result)


def test_a_floor_is_measured_when_all_is_warm_and_only_after_a_start(world: World) -> None:
    result = world.run(warmup_prompts=["a", "b"], warmup_tokens=100, min_tokens_per_second=40.0, enabled=True)
    assert not result["failed"] and world.enabled == "enabled"
    assert result["warmup"] == {
        "prompts": 2,
        "concurrency": 1,
        "tokens": 200,
        "seconds": 4.0,
        "tokens_per_second": 50.0,
    }
    assert [body["prompt"] for body in world.completed] == ["a", "b", "a", "b"]
    assert result["msg"].endswith(", generates 50.0 tokens per second (200 tokens for 2 prompts, 1 at a time)")
    assert result["stages"][-1] == {"name": "warm-up", "seconds": 8.0, "actions": []}
    assert set(world.keys) == {"swordfish"}
    assert world.run(min_tokens_per_second=4000.0)["warmup"] is None


def test_below_the_floor_is_a_failure_with_its_numbers(world: World) -> None:
    result = world.run(min_tokens_per_second=60.0, warmup_concurrency=2, enabled=True)
    assert result["failed"] and world.enabled == "disabled"
    assert (
        "(256 tokens for 2 prompts, 2 at a time), at least 60 are asked for (gpuops_min_tokens_per_second)"
        in result["msg"]
    )
    assert world.did == ["reset-failed", "start"]


def test_prompts_that_are_not_completed_are_a_failure_too(world: World) -> None:
    world.run("started", warmup_prompts=["a"])
    assert len(world.completed) == 1, "without a floor once is enough"

    def fails(question: Question) -> Answer:
        if question.body is not None and question.body["max_tokens"] != 1:
            return Answer(500, "boom")
        return answers(question)

    answers = world.asker("", 0, None)
    world.asker = lambda host, port, key: fails  # type: ignore[method-assign]
    assert (
        "does not get through the warm-up: /v1/completions says 500 boom"
        in world.run("restarted", warmup_prompts=["a"])["msg"]
    )


def test_a_second_run_changes_nothing_and_reads_no_log(world: World) -> None:
    world.run()
    result = world.run()
    assert not result["failed"] and not result["changed"]
    assert result["state"] == {"before": "ready", "after": "ready"}
    assert (result["drift"], result["stages"], result["log"]) == ([], [], [])
    assert world.did == ["reset-failed", "start"]


def test_a_start_that_is_on_its_way_is_joined(world: World) -> None:
    world.start().now += 5
    result = world.run()
    assert not result["failed"] and not result["changed"]
    assert result["state"] == {"before": "running", "after": "ready"}
    assert "after this task joined its start" in result["msg"]


def test_a_crash_is_known_within_seconds_and_told_with_the_same_data(world: World) -> None:
    world.crash_after = 7
    world.said = [(7, "ValueError: the cause; swordfish")]
    result = world.run()
    assert result["failed"] and result["changed"]
    assert result["reason"].startswith("not ready, failed 7.")
    assert "ValueError: the cause; ******** (it ended with exit status 1)" in result["msg"]
    assert result["ready"] == {"seconds": None, "health": None, "models": None, "completion": None}
    assert result["state"]["after"] == "failed"
    assert world.now - world.began < 7 + 3


def test_who_has_what_it_could_not_get_is_named(world: World) -> None:
    world.crash_after = 7
    world.said = [(7, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has")]
    assert "; nobody else has a GPU open now" in world.run()["reason"]
    world.users = [Listener(7, "python3", "/user.slice/session-3.scope")]
    assert world.run()["reason"].endswith("; GPUs are open in python3 (pid 7, session-3.scope)")
    world.said = [(6, "OSError: [Errno 98] Address already in use"), (6, "x")]

    def wait(sources: Sequence[Any], seconds: float) -> None:
        World.wait(world, sources, seconds)
        world.strangers = [Listener(9, "nginx", "/system.slice/nginx.service")]

    world.wait = wait  # type: ignore[method-assign]
    assert world.run()["reason"].endswith("; port 8000 is open in nginx (pid 9, nginx.service)")


def test_how_long_it_takes_is_told_from_the_last_good_start_with_this_command_line(world: World) -> None:
    world.said = [(15, "INFO Starting to load model /models/K...")]
    world.run()
    assert {rest for status, rest in world.told} == {""}
    world.told.clear()
    world.crash_after = 1
    world.run("restarted")
    world.crash_after = None
    world.told.clear()
    world.run("restarted")
    assert world.told == [("starting", "about 20 s to go"), ("loading weights", "about 5 s to go")]
    world.told.clear()
    world.exec_start = f"{ARGV} --max-model-len 9"
    world.run("restarted")
    assert {rest for status, rest in world.told} == {""}


def test_a_crash_loop_is_stopped(world: World) -> None:
    def loops(sources: Sequence[Any], seconds: float) -> None:
        world.now += seconds
        world.restarts = 1

    world.wait = loops  # type: ignore[method-assign]
    result = world.run()
    assert "again and again" in result["msg"] and result["msg"].endswith("; it was stopped")
    assert world.did == ["reset-failed", "start", "stop"]


def test_a_failed_unit_is_forgiven_before_it_is_started(world: World) -> None:
    world.end("failed")
    assert not world.run()["failed"]
    assert world.did == ["reset-failed", "start"]


def test_another_model_is_a_failure_and_is_left_to_look_at(world: World) -> None:
    world.serves = "other"
    result = world.run()
    assert "it serves other, not kimi" in result["reason"]
    assert world.did == ["reset-failed", "start"]


def test_a_taken_port_is_found_before_anything_is_started(world: World) -> None:
    world.strangers = [Listener(7, "nginx", "/system.slice/nginx.service")]
    result = world.run()
    assert result["failed"] and not result["changed"]
    assert result["reason"] == "port 8000 is taken by nginx (pid 7, nginx.service); nothing was started"
    assert world.did == []


def test_somebody_else_who_answers_is_not_ready(world: World) -> None:
    world.start().now += LOADS
    world.strangers = [Listener(7, "nginx", "/system.slice/nginx.service")]
    assert "its port is answered by nginx" in world.run()["reason"]
    assert world.did == ["stop"]


def test_restarts_of_an_earlier_life_are_no_crash_loop(world: World) -> None:
    world.restarts = 1
    assert not world.run()["failed"]
    assert world.did == ["reset-failed", "start"]


def test_a_held_unit_is_not_started_unless_told_so(world: World) -> None:
    world.holds.place([Hold(NAME, "profiling", "10.0.0.1")], world.host().units)
    world.did.clear()
    result = world.run()
    assert result["failed"] and not result["changed"]
    assert "by 10.0.0.1: profiling" in result["reason"]
    assert result["held"]["who"] == "10.0.0.1"
    assert world.did == []
    assert not world.run(lift_hold=True)["failed"]
    assert world.holds.read(NAME) is None
    assert world.did == ["daemon-reload", "reset-failed", "start"]


def test_what_is_owed_is_paid_by_an_engine_that_answers_and_by_nothing_less(world: World) -> None:
    world.holds.place([Hold(NAME, "driver update", "10.0.0.1", ran=True)], world.host().units)
    world.crash_after = 5.0
    assert world.run(lift_hold=True)["failed"]
    assert [owed.unit for owed in world.holds.owed()] == [NAME]
    world.crash_after = None
    assert not world.run(check_mode=True)["failed"]
    assert len(world.holds.owed()) == 1
    assert not world.run()["failed"]
    assert world.holds.owed() == []


def test_a_held_engine_is_not_stopped_to_be_restarted(world: World) -> None:
    world.start()
    world.holds.place([Hold(NAME, "profiling", "10.0.0.1")], world.host().units)
    world.did.clear()
    assert world.run("restarted")["failed"]
    assert world.did == []


def test_drift_is_told_and_restarts_only_when_told_so_and_once(world: World) -> None:
    world.run()
    world.environment.write_text("VLLM_API_KEY=swordfish\nA=1\n")
    told = world.run()
    assert told["drift"] == [f"{world.environment} has changed{CURE}"]
    assert not told["changed"] and told["msg"].endswith(f", but {world.environment} has changed")
    assert world.run(restart_on_drift=True)["changed"]
    assert not world.run(restart_on_drift=True)["changed"]
    assert world.did == ["reset-failed", "start", "stop", "reset-failed", "start"]


def test_a_start_of_somebody_else_drifts_by_the_times_of_its_files(world: World) -> None:
    world.start().now += LOADS
    assert world.run()["drift"] == []
    os.utime(world.fragment, (2e9, 2e9))
    assert world.run()["drift"] == [f"{world.fragment} was written after the start{CURE}"]


def test_a_broken_record_is_as_good_as_none(world: World) -> None:
    world.run()
    (world.directory / "starts" / f"{NAME}.json").write_text("{")
    assert world.run()["drift"] == []


def test_the_running_arguments_count(world: World) -> None:
    world.run()
    world.running = f"{ARGV} --profiler-config torch"
    result = world.run()
    assert result["drift"] == [f"it runs with `--profiler-config torch`, which its unit does not say{CURE}"]
    assert result["process"]["profiling"] == ["--profiler-config"]


def test_the_running_environment_counts_and_is_not_shown(world: World) -> None:
    world.run()
    world.environ = "PATH=/bin\0VLLM_API_KEY=tunafish\0"
    result = world.run()
    assert result["drift"] == [f"its environment has other values than its files for VLLM_API_KEY{CURE}"]
    assert "tunafish" not in repr(result) and "swordfish" not in repr(result)


def test_what_a_restart_does_not_cure_is_told_and_restarts_nothing(world: World) -> None:
    world.run()
    world.fragment.write_text("# Written by gpuops.inference, role engine\n")
    world.drop_ins = "/etc/systemd/system/vllm.service.d/mine.conf"
    world.run(restart_on_drift=True)
    world.did.clear()
    result = world.run(restart_on_drift=True)
    assert not result["changed"] and world.did == []
    assert result["drift"] == [
        "/etc/systemd/system/vllm.service.d/mine.conf overrides it: "
        "put what it says into gpuops_layout_overrides, and remove it"
    ]


def test_files_that_systemd_has_not_read_are_read_first(world: World) -> None:
    world.stale = True
    world.run()
    assert world.did == ["daemon-reload", "reset-failed", "start"]


def test_the_start_is_recorded_with_what_it_read(world: World) -> None:
    world.run()
    record = read_json(world.directory / "starts" / f"{NAME}.json")
    assert record is not None
    assert record["invocation_id"] == "1"
    assert set(record["files"]) == {str(world.fragment), str(world.environment)}


def test_enablement_moves_after_ready_and_not_after_a_failure(world: World) -> None:
    world.crash_after = 1
    world.run(enabled=True)
    assert world.enabled == "disabled"
    world.crash_after = None
    result = world.run(enabled=True)
    assert world.enabled == "enabled"
    assert (result["diff"]["before"]["enabled"], result["diff"]["after"]["enabled"]) == ("disabled", "enabled")
    assert not world.run(enabled=True)["changed"]
    assert world.run("stopped", enabled=False)["changed"]
    assert world.enabled == "disabled"


def test_a_unit_that_cannot_be_enabled_says_so(world: World) -> None:
    world.enabled = "static"
    assert world.run(enabled=True)["reason"] == "cannot be enabled: its unit file is static"


def test_a_stop_waits_for_the_end(world: World) -> None:
    world.start()
    result = world.run("stopped")
    assert result["changed"] and result["state"] == {"before": "running", "after": "stopped"}
    assert not world.run("stopped")["changed"]
    assert world.did == ["stop"]


def test_a_stop_that_does_not_end_is_a_failure_at_its_deadline(world: World) -> None:
    world.start()
    world.stuck = True
    result = world.run("stopped")
    assert result["reason"] == "did not stop within 45 s: pid 412; gpu_drain ends what does not stop by itself"
    assert world.now - world.began <= 46
    assert "within 5 s" in world.run("stopped", stop_timeout=5.0)["reason"]


def test_processes_that_outlive_their_unit_are_told(world: World) -> None:
    world.main_pid = 413
    assert world.run("stopped")["reason"] == "it is stopped and processes of it live on: pid 413; gpu_drain ends them"


def test_a_restart_is_a_stop_and_a_start(world: World) -> None:
    world.start().now += LOADS
    result = world.run("restarted")
    assert result["changed"] and [stage["name"] for stage in result["stages"]] == ["stop", "starting"]
    assert world.did == ["stop", "reset-failed", "start"]


def test_a_process_that_has_not_become_its_program_yet_is_no_drift(world: World) -> None:
    world.start().running = "(vllm)"
    result = world.run(restart_on_drift=True)
    assert not result["failed"] and result["drift"] == []
    assert world.did == []


def test_ready_is_a_look_that_changes_nothing(world: World) -> None:
    world.start().now += LOADS
    world.enabled = "enabled"
    result = world.run("ready", enabled=True)
    assert not result["failed"] and not result["changed"]
    assert result["state"] == {"before": "ready", "after": "ready"} and result["process"]["pid"] == 412
    assert result["up"] == pytest.approx(LOADS, abs=0.1)
    world.stale = True
    assert "is not what its files say" in world.run("ready")["reason"] and world.run("ready")["up"] is None
    assert world.did == []


def test_what_an_engine_loaded_it_has_not_served(world: World) -> None:
    assert not world.run()["failed"]
    assert world.run("ready")["up"] < 1
    world.now += 100
    assert world.run("ready")["up"] == pytest.approx(100, abs=1)


@pytest.mark.parametrize(
    "prepare, reason",
    [
        (lambda world: None, "it does not serve, it is stopped"),
        (lambda world: world.start(), "it is not ready: "),
        (lambda world: vars(world.start()).update(now=world.now + LOADS), "its unit file is disabled"),
        (lambda world: vars(world.start()).update(now=world.now + LOADS, serves="other"), "it is not ready"),
    ],
)
@pytest.mark.parametrize("check_mode", [False, True])
def test_what_is_not_ready_says_why(
    world: World, prepare: Callable[[World], object], reason: str, check_mode: bool
) -> None:
    prepare(world)
    world.enabled = "enabled" if reason.startswith("it is not ready") else "disabled"
    result = world.run("ready", check_mode=check_mode, **({} if reason.startswith("it does") else {"enabled": True}))
    assert result["failed"] and result["reason"].startswith(reason)
    assert world.did == []


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"load": "not-found"}, "there is no such unit on this host"),
        ({"load": "masked"}, "systemd cannot use the unit: it is masked"),
        ({"exec_start": "/usr/sbin/sshd -D"}, "this is no engine's unit, it runs `/usr/sbin/sshd -D`"),
    ],
)
@pytest.mark.parametrize("state", ["started", "stopped", "restarted", "ready"])
def test_units_that_are_none_of_ours_are_not_touched(
    world: World, change: dict[str, str], reason: str, state: str
) -> None:
    vars(world).update(change)
    result = world.run(state)
    assert result["failed"] and result["reason"].startswith(reason)
    assert world.did == []


def test_a_wrapper_runs_an_engine_if_the_caller_says_so(world: World) -> None:
    world.exec_start = "/usr/local/bin/start-it --port 9000"
    result = world.run(engine="vllm", served_model="kimi")
    assert not result["failed"]
    assert "on 127.0.0.1 port 9000" in result["msg"]


def test_a_name_that_is_no_units_is_refused(world: World) -> None:
    result = Service(world.host(), Order("../x", "started")).run()
    assert result["reason"] == "'../x.service' is no name of a service unit"


def test_a_manager_that_hangs_is_a_failure_with_the_same_data(world: World) -> None:
    def hangs(argv: Sequence[str], timeout: float) -> Completed:
        raise UnitsError("`systemctl show` did not answer within 20 s")

    world.systemctl = hangs  # type: ignore[method-assign]
    result = world.run()
    assert result["failed"] and "did not answer" in result["msg"]


@pytest.mark.parametrize(
    "state, running, after, changed",
    [
        ("started", False, "ready", True),
        ("started", True, "running", False),
        ("stopped", True, "stopped", True),
        ("stopped", False, "stopped", False),
        ("restarted", True, "ready", True),
        ("restarted", False, "ready", True),
    ],
)
def test_check_mode_tells_the_transition_and_does_nothing(
    world: World, state: str, running: bool, after: str, changed: bool
) -> None:
    if running:
        world.start().now += LOADS
    result = world.run(state, check_mode=True)
    assert not result["failed"]
    assert (result["changed"], result["state"]["after"]) == (changed, after)
    assert world.did == []


def test_check_mode_foresees_enablement_and_a_unit_that_is_not_there_yet(world: World) -> None:
    result = world.run(enabled=True, check_mode=True)
    assert result["diff"]["after"] == {"state": "ready", "enabled": "enabled"}
    world.load = "not-found"
    result = world.run(check_mode=True)
    assert not result["failed"] and result["msg"] == "would start vllm.service once its unit is there"


def test_check_mode_is_refused_what_the_real_run_would_be(world: World) -> None:
    write_json(world.directory / "hold" / NAME, vars(Hold(NAME, "profiling", "10.0.0.1", 0.0)))
    assert world.run(check_mode=True)["failed"]
    assert not world.run(check_mode=True, lift_hold=True)["failed"]
