# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, GpuReading
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import (
    _engine_behind_wrapper,
    _managed,
    _rejection,
    attached_gpus,
    claimed_gpus,
)

sys.path.insert(0, str(Path(__file__).parent))
from hosts import Host, unit

GPUS = tuple(Gpu(index, uuid=f"GPU-{index}abc-0000", minor=3 - index) for index in range(4))
READING = GpuReading(GPUS, usable=True, source="nvml")


@pytest.mark.parametrize(
    "visible, claims",
    [
        (None, None),
        ("0,1", {0, 1}),
        (" 3 , 2 ", {2, 3}),
        ("GPU-1abc-0000", {1}),
        ("GPU-2abc,0", {0, 2}),
        ("7", None),
        ("MIG-GPU-1", None),
        ("", None),
        ("all", None),
    ],
)
def test_what_an_engine_was_given_is_read_or_counts_for_all(visible: str | None, claims: set[int] | None) -> None:
    assert claimed_gpus(visible, READING) == claims


def test_the_node_number_is_the_minor_and_not_the_index() -> None:
    assert attached_gpus([0, 1], READING) == {3, 2}


def test_a_node_that_no_gpu_claims_counts_for_those_whose_minor_is_unknown() -> None:
    vague = replace(READING, gpus=(*GPUS[:2], *(replace(gpu, minor=None) for gpu in GPUS[2:])))
    assert attached_gpus([3], vague) == {0}
    assert attached_gpus([0], vague) == {2, 3}


@pytest.mark.parametrize(
    "wrapper, extra, engine",
    [
        ("/usr/bin/bash", None, "vllm"),
        ("/usr/bin/sudo", None, "vllm"),
        ("/usr/sbin/cron", None, ""),
        ("/usr/sbin/sshd", None, ""),
        ("/usr/bin/bash", 90, ""),
        ("/usr/bin/bash", 101, "vllm"),
    ],
)
def test_a_unit_whose_script_waits_for_an_engine_is_its_unit_if_it_runs_nothing_else(
    wrapper: str, extra: int | None, engine: str
) -> None:
    host = Host().process(90, executable=wrapper).vllm(name="", ppid=90)
    if extra:
        host.process(500, ("database",), comm="database", ppid=extra)
    script = replace(unit("llm.service", ("/usr/local/bin/run-llm.sh",)), main_pid=90)
    programs = {pid: seen.executable for pid, seen in host.seen.items()}
    members = set(host.processes) - {1}
    assert _engine_behind_wrapper(script, [100], host.seen, host.processes, programs, lambda _path: members) == engine


def test_another_name_of_a_unit_is_told() -> None:
    assert "another name of vllm.service" in _rejection("inference.service", unit("vllm.service"))


def test_the_command_line_of_a_unit_that_is_none_shows_no_secret() -> None:
    assert "s3cret" not in _rejection("x.service", unit("x.service", ("/usr/bin/x", "--api-key", "s3cret")))


BOX = "/machine.slice/libpod-" + "4f1c" * 16 + ".scope"
CONMON = ("/usr/bin/conmon", "-c", "4f1c" * 16, "-n", "llm")


def managed_of(host: Host, named_units: tuple[str, ...] = ()):  # type: ignore[no-untyped-def]
    """The one container or user's unit of a host, and what is then seen."""
    seen = {pid: item for pid, item in host.seen.items() if item.recognition or item.used}

    def see(pids: set[int]) -> dict[int, object]:
        return {pid: host.seen[pid] for pid in pids}

    found = _managed(
        seen,
        list(host.processes.values()),
        host.processes,
        {pid: item.executable for pid, item in host.seen.items()},
        see,
        lambda pids: {pid: host.seen[pid].argv for pid in pids},
        named_units,
        lambda path: {pid for pid, item in host.seen.items() if item.cgroup.startswith(path)},
        lambda pid: host.seen[pid].cgroup,
    )
    assert len(found) == 1
    name = next(iter(found))
    return name, found[name], seen


def boxed(cgroup: str = BOX) -> Host:
    host = Host().vllm(name="", cgroup=cgroup)
    return host.process(50, ("sh", "-c", "vllm serve"), executable="/usr/bin/dash", cgroup=cgroup)


def test_a_container_is_everybody_in_its_cgroup_and_lives_with_its_monitor() -> None:
    name, managed, seen = managed_of(boxed().process(40, CONMON, comm="conmon", cgroup="/machine.slice/x.scope"))
    assert name == str(managed.owner) == "container podman 4f1c4f1c4f1c (llm)"
    assert managed.pids == {50, *range(100, 110)}
    assert (managed.engine, managed.alive, managed.unit, managed.doubtful_unit) == ("vllm", True, "", "")
    assert {item.owner for pid, item in seen.items() if pid in managed.pids} == {managed.owner}
    assert not managed_of(boxed())[1].alive


@pytest.mark.parametrize(
    "argv, comm, units",
    [
        (CONMON, "conmon", ("llm.service", "")),
        (("/usr/bin/podman", "run", "--name=llm", "image"), "podman", ("llm.service", "")),
        (("/usr/bin/podman", "run", "image"), "podman", ("", "llm.service")),
        (("/usr/bin/podman", "run", "--name=other", "image"), "podman", ("", "")),
        (("/usr/bin/docker", "run", "image"), "docker", ("", "")),
    ],
)
def test_the_unit_that_runs_a_container_is_that_of_its_monitor_or_of_the_client_that_waits(
    argv: tuple[str, ...], comm: str, units: tuple[str, str]
) -> None:
    host = boxed().process(40, CONMON, comm="conmon", cgroup="/machine.slice/x.scope")
    host.process(41, argv, comm=comm, cgroup="/system.slice/llm.service")
    host.process(42, ("/usr/bin/podman", "ps"), comm="podman", cgroup="/system.slice/llm.service")
    if argv == CONMON:
        host.without(40)
    managed = managed_of(host)[1]
    assert (managed.unit, managed.doubtful_unit) == units
    told = managed_of(host, ("llm.service",))[1]
    assert (told.unit, told.doubtful_unit) == (max(units), "")


def test_a_session_over_ssh_that_waits_for_a_container_is_no_unit_that_runs_it() -> None:
    host = boxed().process(40, CONMON, comm="conmon", cgroup="/machine.slice/x.scope")
    host.process(41, ("podman", "run", "--name=llm", "image"), comm="podman", cgroup="/system.slice/ssh.service")
    assert managed_of(host)[1].unit == ""


@pytest.mark.parametrize("beside, alone", [(("tail", "-f", "/dev/null"), False), ((), True)])
def test_a_users_unit_is_an_engines_alone_where_nobody_else_is_in_it(beside: tuple[str, ...], alone: bool) -> None:
    cgroup = "/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service"
    host = boxed(cgroup)
    if beside:
        host.process(51, beside, executable="/usr/bin/tail", cgroup=cgroup)
    assert managed_of(host)[1].alone == alone
