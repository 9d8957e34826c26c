# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._gpus import GpuReading, GpuSelectionError
from ansible_collections.gpuops.inference.plugins.module_utils._plan import (
    FOREIGN,
    OBSERVER,
    ORPHAN,
    PROTECTED,
    TARGET,
    UNKNOWN,
    Plan,
    Policy,
    ghost_faults,
    make_plan,
)

sys.path.insert(0, str(Path(__file__).parent))
from hosts import ALL, SGLANG, VLLM, Host, unit

DEFAULT = Policy()


def plan_of(host: Host, policy: Policy = DEFAULT) -> Plan:
    return make_plan(host.snapshot(), policy)


def classes(plan: Plan) -> dict[int, str]:
    return {item.seen.process.pid: item.cls for item in plan.judged}


def touched(plan: Plan) -> set[int]:
    """Every pid the plan signals or stops through its unit."""
    return {item.seen.process.pid for item in plan.judged if item.action in ("end", "stop with its unit")}


def test_a_serving_unit_is_stopped_as_a_whole_and_nobody_is_signalled() -> None:
    plan = plan_of(Host().vllm())
    assert (plan.stop, plan.hold, plan.end, plan.refusals) == (("vllm.service",), ("vllm.service",), (), ())
    assert set(classes(plan).values()) == {TARGET}
    assert plan.steps() == ["hold vllm.service", "stop vllm.service"]


def test_an_idle_host_needs_nothing() -> None:
    plan = plan_of(Host())
    assert not plan.acts
    assert plan.steps() == []
    assert plan.refusals == ()


def test_workers_that_outlived_their_server_are_orphans_and_all_are_told() -> None:
    host = Host().vllm(name="").without(100)
    plan = plan_of(host)
    assert set(classes(plan).values()) == {ORPHAN}
    (ending,) = plan.end
    assert set(ending.term) == set(ending.members) == set(range(101, 110))


def test_what_is_left_in_the_cgroup_of_a_failed_unit_is_ended_though_the_unit_is_gone() -> None:
    host = Host().vllm().without(100)
    left = host.units["vllm.service"].pids
    host.unit(unit("vllm.service", active="failed", sub="failed"), list(left))
    plan = plan_of(host)
    assert plan.stop == ()
    assert {pid for ending in plan.end for pid in ending.members} == set(left)
    assert set(classes(plan).values()) == {ORPHAN}


def test_a_unit_that_waits_to_be_started_again_is_stopped() -> None:
    host = Host().unit(unit("vllm.service", active="activating", sub="auto-restart"), [])
    assert plan_of(host).stop == ("vllm.service",)


def test_an_engine_started_by_hand_gets_its_sigterm_at_the_server_alone() -> None:
    host = Host().process(50, comm="bash", executable="/usr/bin/bash", argv=("-bash",), session=50)
    host.vllm(name="", ppid=50)
    plan = plan_of(host)
    (ending,) = plan.end
    assert ending.term == (100,)
    assert set(ending.members) == set(range(100, 110))
    assert 50 not in classes(plan)


def test_helpers_that_cpython_left_behind_go_with_their_engine_and_only_with_it() -> None:
    tracker = ("/opt/vllm/bin/python", "-c", "from multiprocessing.resource_tracker import main;main(9)")
    host = Host().vllm(name="", session=100).without(100)
    host.process(300, tracker, session=100).process(301, tracker, session=999)
    assert 300 in touched(plan_of(host))
    assert 301 not in touched(plan_of(host))


@pytest.mark.parametrize(
    "argv, executable",
    [
        (("tail", "-f", "/var/log/vllm serve.log"), "/usr/bin/tail"),
        (("vim", "vllm", "serve"), "/usr/bin/vim.basic"),
        (("python3", "/usr/bin/ansible-test", "vllm", "serve"), "/usr/bin/python3.13"),
        (("python3", "-c", "print('vllm serve')"), "/usr/bin/python3.13"),
        (("python3", "-m", "http.server"), "/usr/bin/python3.13"),
        (("VLLM::Worker_TP0",), "/usr/bin/bash"),
    ],
)
def test_a_name_alone_is_no_engine(argv: tuple[str, ...], executable: str) -> None:
    assert plan_of(Host().process(500, argv, executable=executable)).judged == ()


def test_a_foreign_job_is_refused_by_name_before_anything_is_planned_for_it() -> None:
    host = Host().vllm(gpus=frozenset(range(7)))
    host.process(700, ("python3", "train.py"), uses=frozenset({7}), uid=1001)
    plan = plan_of(host)
    assert classes(plan)[700] == FOREIGN
    (refusal,) = plan.refusals
    assert "GPU 7 is held by pid 700 (python3 train.py, uid 1001)" in refusal
    assert "ask its owner to end it, or pass `foreign: end`" in refusal
    (refusal,) = plan_of(Host().process(700, ("python3", "train.py"), uses=frozenset({7}), cgroup="/")).refusals
    assert "owner: nobody: ask its user to end it" in refusal
    told = plan_of(host, replace(DEFAULT, end_foreign=True))
    assert told.refusals == ()
    assert 700 in touched(told)


BOX = "/system.slice/docker-" + "a" * 64 + ".scope"
ALICE = "/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service"
EVERYTHING = replace(DEFAULT, end_foreign=True, stop_containers=True, stop_user_units=True, end_supervisors=True)


@pytest.mark.parametrize(
    "cgroup, says, others_too",
    [
        (BOX, "`docker stop aaaaaaaaaaaa`, or pass `containers: stop`", False),
        ("/lxc.payload.web/x", "lxc-stop --name web", True),
        (
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + "a" * 64 + ".scope",
            "sudo -u '#1000'",
            True,
        ),
        (
            "/kubepods.slice/kubepods-pod" + "b" * 32 + ".slice/cri-containerd-" + "c" * 64 + ".scope",
            "kubectl drain",
            True,
        ),
        ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", "scancel 42", True),
        (ALICE, "`systemctl --user -M 1000@ stop llm.service`, or pass `user_units: stop`", False),
    ],
)
@pytest.mark.parametrize("engine", [True, False])
def test_what_others_answer_for_is_refused_in_one_line_with_what_to_run_instead(
    cgroup: str, says: str, others_too: bool, engine: bool
) -> None:
    host = Host()
    if engine:
        host.vllm(name="", cgroup=cgroup)
    else:
        host.process(700, ("python3", "train.py"), uses=frozenset({7}), cgroup=cgroup)
    (refusal,) = plan_of(host).refusals
    if engine or cgroup != ALICE:
        assert says in refusal
    assert bool(plan_of(host, EVERYTHING).refusals) == (others_too or (cgroup == ALICE and not engine))


@pytest.mark.parametrize("cgroup, policy", [(BOX, "stop_containers"), (ALICE, "stop_user_units")])
def test_told_to_its_own_manager_stops_it_as_a_whole_and_nobody_is_signalled(cgroup: str, policy: str) -> None:
    host = Host().vllm(name="", cgroup=cgroup)
    plan = plan_of(host, replace(DEFAULT, **{policy: True}))
    assert plan.acts
    assert plan.end == plan.refusals == ()
    (managed,) = plan.managed
    assert managed.owner.cgroup == cgroup
    assert plan.steps() == [f"stop {managed.owner}: {managed.owner.instead}"]
    assert {item.action for item in plan.judged} == {f"stop with its {managed.owner.kind}"}


def test_a_container_whose_monitor_is_gone_is_ended_as_processes_where_that_is_allowed() -> None:
    host = Host().vllm(name="", cgroup=BOX)
    host.managed = {"alive": False}
    assert "its monitor is gone" in plan_of(host).refusals[0]
    plan = plan_of(host, replace(DEFAULT, stop_containers=True))
    assert set(classes(plan).values()) == {ORPHAN}
    assert plan.managed == plan.refusals == ()
    assert touched(plan) == set(range(100, 110))


@pytest.mark.parametrize("sure", ["unit", "doubtful_unit"])
def test_a_container_that_another_unit_runs_is_refused_with_that_unit(sure: str) -> None:
    host = Host().vllm(name="", cgroup=BOX)
    host.managed = {sure: "gateway.service"}
    (refusal,) = plan_of(host, EVERYTHING).refusals
    assert "run by gateway.service" in refusal
    assert "name gateway.service in `units`" in refusal


def test_a_container_that_an_engine_unit_runs_goes_with_it() -> None:
    host = Host().vllm(name="", cgroup=BOX)
    host.managed = {"unit": "llm.service"}
    host.unit(unit("llm.service", ("/usr/bin/docker", "run", "image")), list(range(100, 110)))
    plan = plan_of(host)
    assert plan.stop == ("llm.service",)
    assert plan.managed == plan.end == plan.refusals == ()
    left = Host().vllm(name="", cgroup=BOX)
    (managed,) = plan_of(left, replace(DEFAULT, leftovers=frozenset({"a" * 64}))).managed
    assert managed.pids == frozenset(range(100, 110))


def test_a_container_with_somebody_protected_in_it_is_not_stopped() -> None:
    host = Host().vllm(name="", cgroup=BOX).process(50, ("sleep",), executable="/usr/bin/sleep", cgroup=BOX)
    policy = replace(DEFAULT, stop_containers=True)
    for word in ("50", "container:aaaaaaaaaaaa"):
        assert plan_of(host, replace(policy, protect=(word,))).refusals, word
    assert plan_of(host, policy).refusals == ()


def test_a_users_unit_that_runs_more_than_an_engine_is_refused() -> None:
    host = Host().vllm(name="", cgroup=ALICE)
    host.managed = {"alone": False}
    assert "no engine's alone" in plan_of(host, EVERYTHING).refusals[0]


LOOP = ("/bin/bash", "-c", "while true; do vllm serve; done")


@pytest.mark.parametrize(
    "chain, ended",
    [
        ([("bash", LOOP)], 1),
        ([("bash", ("bash", "/srv/run.sh", "-i")), ("python3", ("python3", "/srv/keep.py"))], 2),
        ([("supervisord", ("/usr/bin/supervisord",))], 1),
        ([("env", ("env", "A=1", "vllm")), ("bash", LOOP)], 2),
        ([("bash", ("-bash",))], 0),
        ([("bash", ("bash",))], 0),
        ([("bash", ("bash", "--rcfile", "/x/shellIntegration-bash.sh"))], 0),
        ([("bash", ("bash", "-il"))], 0),
        ([("bash", LOOP), ("bash", ("-bash",)), ("bash", LOOP)], 1),
        ([("tmux", ("tmux", "new", "-d"))], 0),
        ([("bash", LOOP), ("tmux", ("tmux", "new", "-d"))], 1),
        ([("python3", ("python3", "-m", "ipykernel_launcher", "-f", "x"))], 0),
        ([("python3", ("python3",))], 0),
        ([("bash", LOOP), ("sshd", ("sshd: alice",))], 0),
        ([("code", ("code",)), ("bash", LOOP)], 0),
    ],
)
def test_who_would_start_an_engine_again_is_ended_first_and_nobody_above(
    chain: list[tuple[str, tuple[str, ...]]], ended: int
) -> None:
    host = Host()
    for place, (comm, argv) in enumerate(chain):
        place = 90 - place
        host.process(place, argv, comm=comm, executable=f"/usr/bin/{comm}", ppid=place - 1)
    host.vllm(name="", ppid=90)
    told = plan_of(host, replace(DEFAULT, end_supervisors=True))
    assert {seen.process.pid for seen in told.supervisors} == {90 - place for place in range(ended)}
    assert told.refusals == ()
    assert plan_of(host).supervisors == ()


def test_a_supervisor_that_is_protected_or_a_units_is_left() -> None:
    policy = replace(DEFAULT, end_supervisors=True)
    host = Host().process(90, LOOP, comm="bash", executable="/usr/bin/bash").vllm(name="", ppid=90)
    assert plan_of(host, policy).supervisors
    assert plan_of(host, replace(policy, protect=("90",))).supervisors == ()
    computes = Host().process(90, ("python3", "/srv/keep.py"), uses=frozenset({0}))
    assert plan_of(computes.vllm(name="", ppid=90), policy).supervisors == ()
    inside = Host().process(90, LOOP, executable="/usr/bin/bash", cgroup="/system.slice/keep.service")
    assert plan_of(inside.vllm(name="", ppid=90), policy).supervisors == ()


def test_a_supervisor_of_a_neighbour_too_is_left() -> None:
    policy = replace(DEFAULT, gpus=("0", "1"), end_supervisors=True)
    host = Host().process(90, ("python3", "/srv/keep_both.py"))
    host.process(91, LOOP, comm="bash", executable="/usr/bin/bash", ppid=90)
    host.vllm(gpus=frozenset({0, 1}), name="", ppid=91).vllm(first=200, gpus=frozenset({2, 3}), name="", ppid=90)
    assert {seen.process.pid for seen in plan_of(host, policy).supervisors} == {91}
    assert {seen.process.pid for seen in plan_of(host, replace(policy, gpus=("all",))).supervisors} == {90, 91}


def test_observers_are_left_and_an_unlisted_monitor_is_unknown_and_left() -> None:
    host = Host().process(20, ("nv-hostengine",), observer="DCGM host engine", attached=ALL)
    host.process(21, ("my-monitor",), executable="/usr/local/bin/my-monitor", attached=ALL)
    plan = plan_of(host)
    assert classes(plan) == {20: OBSERVER, 21: UNKNOWN}
    assert not touched(plan)
    assert plan.refusals == ()


def test_a_program_in_the_table_that_computes_is_no_observer() -> None:
    host = Host().process(20, ("nvtop",), observer="nvtop", attached=ALL, uvm=True)
    assert classes(plan_of(host)) == {20: FOREIGN}


def test_the_neighbour_of_a_subset_drain_serves_on() -> None:
    host = Host().vllm(100, frozenset(range(4)), "vllm-a.service").vllm(200, frozenset(range(4, 8)), "vllm-b.service")
    plan = plan_of(host, replace(DEFAULT, gpus=("0", "1", "2", "3")))
    assert plan.stop == plan.hold == ("vllm-a.service",)
    assert all(pid < 200 for pid in touched(plan))


def test_a_neighbour_that_still_loads_is_told_by_the_gpus_it_was_given() -> None:
    host = Host().vllm(100, frozenset(range(4)), "vllm-a.service")
    for pid, visible in ((200, frozenset({4, 5, 6, 7})), (300, None)):
        host.process(pid, VLLM, attached=ALL, uvm=True, session=pid, claims=visible)
        host.process(pid + 1, ("VLLM::Worker",), attached=ALL, uvm=True, ppid=pid, session=pid)
    plan = plan_of(host, replace(DEFAULT, gpus=("0", "1", "2", "3")))
    assert {pid for pid in touched(plan) if pid >= 200} == {300, 301}


def test_workers_without_a_context_may_still_take_any_gpu_while_they_are_young() -> None:
    host = Host().vllm(100, frozenset({0}))
    host.process(110, ("VLLM::Worker_TP1",), ppid=101, session=100, attached=ALL, uvm=True)
    host.unit(unit("vllm.service"), [100, 101, 102, 110])
    policy = replace(DEFAULT, gpus=("1",))
    assert plan_of(host, policy).stop == ("vllm.service",)
    # One that has had none for that long makes none: it is the neighbour that serves on GPU 0.
    host.seen[110] = replace(host.seen[110], age=3600.0)
    assert plan_of(host, policy).stop == ()


def test_the_server_of_a_neighbour_does_not_hold_what_its_workers_do_not_use() -> None:
    host = Host().vllm(200, frozenset(range(4, 8)), "vllm-b.service")
    host.seen[200] = replace(host.seen[200], attached=ALL)
    assert all(not item.held & {0, 1, 2, 3} for item in plan_of(host).judged)


def test_an_engine_that_is_not_named_is_left_alone_when_only_the_other_is() -> None:
    plan = plan_of(Host().vllm(), replace(DEFAULT, engines=("sglang",)))
    assert plan.stop == ()


def test_who_is_protected_blocks_with_its_name() -> None:
    host = Host().vllm()
    plan = plan_of(host, replace(DEFAULT, protect=("103",)))
    assert classes(plan)[103] == PROTECTED
    assert "vllm.service cannot be stopped: pid 103" in plan.refusals[0]


def test_a_process_that_was_sent_sigkill_and_lives_is_told_before_anything_is_done() -> None:
    host = Host().vllm()
    host.process(103, ("VLLM::Worker_TP1",), uses=frozenset({1}), sigkill_pending=True, state="D", ppid=101)
    (text,) = plan_of(host).unsettled
    assert "pid 103" in text
    assert "reboot" in text
    assert plan_of(host, replace(DEFAULT, force=True)).unsettled == ()


def test_memory_that_nobody_holds_is_told_though_an_observer_looks() -> None:
    host = Host().process(20, ("nv-hostengine",), observer="DCGM host engine", attached=ALL)
    host.leaks[3] = 5000
    (text,) = plan_of(host).unsettled
    assert "GPU 3 (GPU-0003) has 5000 MiB in use" in text


def test_what_an_old_driver_may_keep_to_itself_refuses_no_drain() -> None:
    host = Host()
    reading = host.snapshot().reading
    memory = reading.gpus[0].memory
    assert memory is not None
    for used, told in ((637, 0), (40_000, 1)):
        gpu = replace(reading.gpus[0], memory=replace(memory, version=1, reserved=0, used=used))
        host.extra["reading"] = replace(reading, gpus=(gpu, *reading.gpus[1:]))
        assert len(plan_of(host).unsettled) == told


def test_a_lost_gpu_and_a_missing_one_are_refused() -> None:
    host = Host()
    host.errors[2] = "GPU_IS_LOST"
    assert "GPU_IS_LOST" in plan_of(host).refusals[0]
    assert "shows 8 GPUs where 9 are expected" in plan_of(Host(), replace(DEFAULT, gpu_count=9)).refusals[0]


def test_a_driver_that_cannot_be_asked_is_refused_unless_forced() -> None:
    host = Host()
    host.extra["reading"] = GpuReading(host.snapshot().reading.gpus, problems=("NVML hangs",), source="none")
    assert plan_of(host).refusals == ("release could never be proven: NVML hangs",)
    assert plan_of(host, replace(DEFAULT, force=True)).refusals == ()


def test_a_gpu_that_does_not_exist_is_an_error_that_lists_what_does() -> None:
    with pytest.raises(GpuSelectionError, match="GPU-0007"):
        plan_of(Host(), replace(DEFAULT, gpus=("8",)))


def test_too_few_rights_are_refused() -> None:
    host = Host()
    host.extra["unreadable"] = frozenset({77})
    assert "become: true" in plan_of(host).refusals[0]


def test_sglang_is_recognised_in_all_its_forms() -> None:
    host = Host().process(400, SGLANG, comm="python", session=400)
    for rank in range(8):
        host.process(
            401 + rank, (f"sglang::scheduler_TP{rank}",), ppid=400, uses=frozenset({rank}), attached=ALL, session=400
        )
    host.process(410, ("sglang::detokenizer",), ppid=400, session=400)
    (ending,) = plan_of(host).end
    assert ending.term == (400,)
    assert len(ending.members) == 10


POD = "/kubepods/pod" + "b" * 32 + "/" + "c" * 64


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    """Hosts where anything may stand beside anything."""
    host = Host()
    if draw(st.booleans()):
        host.vllm(100, frozenset(range(4)), draw(st.sampled_from(["vllm-a.service", ""])))
    if draw(st.booleans()):
        host.vllm(200, frozenset(range(4, 8)), draw(st.sampled_from(["vllm-b.service", ""])))
    for pid in draw(st.lists(st.sampled_from(sorted(host.processes)), max_size=3, unique=True)):
        if pid != 1:
            host.without(pid)
    for offset in range(draw(st.integers(0, 6))):
        pid = 600 + offset
        host.process(
            pid,
            draw(st.sampled_from([("python3", "train.py"), ("bash",), ("VLLM::Worker",), VLLM, ("dcgmi",)])),
            comm=draw(st.sampled_from(["python3", "sshd", "VLLM::Worker"])),
            ppid=draw(st.sampled_from([1, *(known for known in host.processes if known != pid)])),
            session=draw(st.sampled_from([1, 100, 200, pid])),
            executable=draw(st.sampled_from(["/usr/bin/python3.13", "/usr/bin/bash", "/usr/sbin/sshd"])),
            uses=draw(st.frozensets(st.integers(0, 7), max_size=3)),
            attached=draw(st.sampled_from([frozenset(), ALL])),
            observer=draw(st.sampled_from(["", "DCGM"])),
            cgroup=draw(st.sampled_from(["/system.slice/ssh.service", BOX, ALICE, "/", POD])),
        )
    host.managed = {
        "alive": draw(st.booleans()),
        "alone": draw(st.booleans()),
        "unit": draw(st.sampled_from(["", "", "x.service"])),
    }
    host.extra["ours"] = frozenset(draw(st.lists(st.sampled_from(sorted(host.processes)), max_size=3)))
    return host


policies = st.builds(
    Policy,
    gpus=st.sampled_from([("all",), ("0",), ("0", "1", "2", "3"), ("GPU-0007",)]),
    engines=st.sampled_from([("vllm", "sglang"), ("sglang",)]),
    end_foreign=st.booleans(),
    stop_containers=st.booleans(),
    stop_user_units=st.booleans(),
    end_supervisors=st.booleans(),
    protect=st.lists(st.sampled_from(["101", "600", "601", "/usr/bin/bash"]), max_size=2).map(tuple),
    force=st.booleans(),
)


@settings(max_examples=1000, deadline=None)
@given(hosts(), policies)
def test_no_plan_touches_what_it_must_not(host: Host, policy: Policy) -> None:
    snapshot = host.snapshot()
    plan = make_plan(snapshot, policy)
    by_pid = {item.seen.process.pid: item for item in plan.judged}
    signalled = {pid for ending in plan.end for pid in ending.members}
    stopped = {pid for name in plan.stop for pid in snapshot.units[name].pids}
    signalled |= {seen.process.pid for seen in plan.supervisors}
    stopped |= {pid for managed in plan.managed for pid in managed.pids}
    assert signalled <= set(snapshot.processes)
    assert 1 not in signalled
    assert not signalled & snapshot.ours
    assert (
        not signalled
        & {pid for pid, process in snapshot.processes.items() if process.comm == "sshd"}
        & {pid for pid, seen in snapshot.seen.items() if seen.executable.startswith("/usr/")}
    )
    for seen in plan.supervisors:
        assert policy.end_supervisors
        assert seen.process.comm != "sshd"
        assert str(seen.process.pid) not in policy.protect
    for pid in {pid for ending in plan.end for pid in ending.members}:
        assert by_pid[pid].cls in (TARGET, ORPHAN, FOREIGN)
        assert str(pid) not in policy.protect
        if by_pid[pid].cls == FOREIGN:
            assert policy.end_foreign or policy.stop_containers
        # Never a process of a container that somebody watches over, of a pod, or of a user's unit.
        assert by_pid[pid].unit or by_pid[pid].seen.owner.kind not in ("pod", "user unit") or plan.refusals
        if by_pid[pid].seen.owner.kind == "container" and not by_pid[pid].unit:
            assert policy.stop_containers
            assert not host.managed["alive"]
    if (stopped & snapshot.ours) or any(str(pid) in policy.protect for pid in stopped):
        assert plan.refusals
    selected = {gpu.index for gpu in plan.gpus}
    if len(selected) < 8:
        for name in plan.stop:
            used = {
                index for pid in snapshot.units[name].pids if pid in snapshot.seen for index in snapshot.seen[pid].used
            }
            assert not used or used & selected, f"{name} is a neighbour"
        for managed in plan.managed:
            if managed.engine:
                used = {index for pid in managed.pids for index in snapshot.seen[pid].used}
                assert not used or used & selected, f"{managed.owner} is a neighbour"
    for managed in plan.managed:
        assert {"container": policy.stop_containers, "user unit": policy.stop_user_units}[managed.owner.kind]
        assert managed.alive
        assert not managed.unit or managed.owner.kind == "user unit"


BATCH = ("python3", "/home/alice/batch.py")


@pytest.mark.parametrize("between", [(), ("python3", "-c", "from multiprocessing.forkserver import main; main(3)")])
def test_the_workers_of_somebodys_own_program_are_foreign_while_it_lives(between: tuple[str, ...]) -> None:
    host = Host().process(90, BATCH)
    if between:
        host.process(91, between, ppid=90)
    host.process(101, ("VLLM::EngineCore",), comm="VLLM::EngineCor", ppid=91 if between else 90)
    host.process(102, ("VLLM::Worker_TP0",), comm="VLLM::Worker_TP", ppid=101, uses=frozenset({0}))
    plan = plan_of(host)
    assert classes(plan)[102] == "foreign"
    assert not touched(plan)
    assert "pid 90 (python3 /home/alice/batch.py)" in plan.refusals[0]
    assert touched(plan_of(host.without(91 if between else 90))) == {101, 102}


def test_a_unit_that_may_run_an_engine_is_pointed_to() -> None:
    host = Host().process(90, BATCH, cgroup="/system.slice/serve.service", uses=ALL)
    assert "name it in `units`" in plan_of(host).refusals[0]


def test_a_unit_with_the_ssh_server_in_it_is_never_stopped() -> None:
    host = Host().vllm(name="ssh.service")
    host.process(50, ("sshd: listener",), comm="sshd", executable="/usr/sbin/sshd")
    host.unit(unit("ssh.service", ("/usr/sbin/sshd", "-D")), list(host.processes)[1:])
    plan = plan_of(host, replace(DEFAULT, units=("ssh.service",)))
    assert [text for text in plan.refusals if "ssh.service cannot be stopped" in text]


def test_a_server_that_a_units_program_would_start_again_is_refused_before_it_is_ended() -> None:
    inside = "/system.slice/llm.service"
    host = Host().process(90, ("python3", "/usr/local/bin/pyrun"), cgroup=inside)
    host.vllm(name="", cgroup=inside, ppid=90)
    plan = plan_of(host)
    assert "name llm.service in `units`" in plan.refusals[0]
    assert not plan_of(host, replace(DEFAULT, force=True)).refusals
    assert not plan_of(host.without(90)).refusals
    shell = ("/bin/sh", "-c", "vllm serve")
    for argv, refused in ((shell, True), (("sh",), False)):
        through = Host().process(90, ("python3", "/usr/local/bin/pyrun"), cgroup=inside)
        through.process(91, argv, comm="sh", executable="/usr/bin/dash", cgroup=inside, ppid=90)
        assert bool(plan_of(through.vllm(name="", cgroup=inside, ppid=91)).refusals) == refused
    by_ssh = Host().process(90, ("python3", "/home/alice/launch.py")).vllm(name="", ppid=90)
    assert not plan_of(by_ssh).refusals


def test_a_process_that_is_none_is_told_beforehand() -> None:
    host = Host()
    host.extra["ghosts"] = {5: frozenset({77777})}
    snapshot = host.snapshot()
    (fault,) = ghost_faults(snapshot, snapshot.reading.gpus)
    assert "GPU 5" in fault
    assert "77777" in fault
    assert not list(ghost_faults(snapshot, snapshot.reading.gpus[:5]))
