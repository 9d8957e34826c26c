# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._units import (
    Completed,
    Units,
    UnitsError,
    cgroup_dir,
    cgroup_io_bytes,
    cgroup_kill,
    cgroup_pids,
    cgroup_populated,
    cgroup_version,
    parse_duration,
    parse_show,
    run_command,
)

# As systemd 252 and 257 print it, in their order.
VLLM = r"""Restart=on-failure
TimeoutStopUSec=1min 30s
MainPID=412
Result=success
NRestarts=2
ExecMainCode=0
ExecMainStatus=0
ExecStart={ path=/opt/vllm/bin/vllm ; argv[]=/opt/vllm/bin/vllm serve /models/Kimi-K2.5 --port 8000 ; \
ignore_errors=no ; start_time=[Mon 2026-11-30 08:47:25 UTC] ; stop_time=[n/a] ; pid=412 ; \
code=(null) ; status=0/0 }
ControlGroup=/system.slice/vllm.service
EnvironmentFiles=/etc/gpuops/vllm.service.env (ignore_errors=no)
EnvironmentFiles=/etc/gpuops/a b.secrets (ignore_errors=yes)
User=vllm
KillMode=mixed
SendSIGKILL=yes
Id=vllm.service
RequiredBy=inference.target
BoundBy=
UpheldBy=
OnFailure="notify\\x2dadmin.service"
TriggeredBy=vllm.timer vllm.path
LoadState=loaded
ActiveState=active
SubState=running
FragmentPath=/etc/systemd/system/vllm.service
DropInPaths=/run/systemd/system/vllm.service.d/90-gpuops-hold.conf
UnitFileState=enabled
InactiveExitTimestampMonotonic=1627881021
Job=
NeedDaemonReload=no
ConditionResult=yes
AssertResult=yes
InvocationID=f48ccba1c3a34a919016002465f7dbc0
""".replace("\\\n", "")

MISSING = """\
Restart=no
TimeoutStopUSec=infinity
MainPID=0
Result=success
NRestarts=0
ExecMainCode=0
ExecMainStatus=0
ControlGroup=
User=
KillMode=control-group
SendSIGKILL=yes
Id=nope.service
RequiredBy=
BoundBy=
UpheldBy=
OnFailure=
TriggeredBy=
LoadState=not-found
ActiveState=inactive
SubState=dead
FragmentPath=
DropInPaths=
UnitFileState=
InactiveExitTimestampMonotonic=0
Job=
NeedDaemonReload=no
ConditionResult=no
AssertResult=no
InvocationID=
"""


class Systemctl:
    """A runner that answers from a script and remembers what it was asked."""

    def __init__(self, out: str = "", rc: int = 0, err: str = "") -> None:
        self.answer = Completed(rc, out, err)
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, argv: Sequence[str], timeout: float) -> Completed:
        self.asked.append(tuple(argv))
        return self.answer


def test_one_call_tells_all_units() -> None:
    systemctl = Systemctl(VLLM + "\n" + MISSING)
    units = Units(systemctl).show(["vllm", "nope.service"])
    assert len(systemctl.asked) == 1
    vllm = units["vllm"]
    assert vllm.name == "vllm.service"
    assert vllm.exists and vllm.running
    assert vllm.exec_start == ("/opt/vllm/bin/vllm", "serve", "/models/Kimi-K2.5", "--port", "8000")
    assert vllm.environment_files == ("/etc/gpuops/vllm.service.env", "/etc/gpuops/a b.secrets")
    assert vllm.stop_timeout == 90
    assert vllm.n_restarts == 2
    assert vllm.triggered_by == ("vllm.timer", "vllm.path")
    assert vllm.on_failure == (r"notify\x2dadmin.service",)
    assert vllm.bound_by == ()
    assert vllm.job == 0
    assert vllm.started == pytest.approx(1627.881021)
    nope = units["nope.service"]
    assert not nope.exists and not nope.running
    assert nope.control_group == "" and nope.exec_start == ()
    assert nope.stop_timeout == math.inf


def test_no_unit_needs_no_call() -> None:
    systemctl = Systemctl()
    assert Units(systemctl).show([]) == {}
    Units(systemctl).stop([])
    assert systemctl.asked == []


def test_newlines_and_empty_lines_in_a_command_line_stay_in_it() -> None:
    hostile = VLLM.replace("--port 8000", "--note a\n\nMainPID=1\n\nb --port 8000")
    vllm, nope = parse_show(hostile + "\n" + MISSING)
    assert vllm.main_pid == 412
    assert vllm.name == "vllm.service"
    assert nope.name == "nope.service"


def test_a_unit_that_waits_for_its_restart_does_not_run() -> None:
    waiting = VLLM.replace("ActiveState=active", "ActiveState=activating").replace(
        "SubState=running", "SubState=auto-restart"
    )
    assert not parse_show(waiting)[0].running


def test_an_answer_for_fewer_units_is_refused() -> None:
    with pytest.raises(UnitsError, match="asked systemd for 2 units and read 1"):
        Units(Systemctl(VLLM)).show(["vllm", "sglang"])


def test_failures_carry_the_words_of_systemctl() -> None:
    with pytest.raises(UnitsError, match=r"`systemctl start --no-block -- nope` failed: .*not found"):
        Units(Systemctl(rc=5, err="Failed to start nope.service:\n Unit nope.service not found.\n")).start("nope")


def test_verbs_never_wait_for_jobs_and_never_take_a_name_for_an_option() -> None:
    systemctl = Systemctl()
    units = Units(systemctl)
    units.start("a")
    units.restart("a")
    units.stop(["a", "b"])
    assert all("--no-block" in argv and "--" in argv for argv in systemctl.asked)
    assert systemctl.asked[-1][-3:] == ("--", "a", "b")


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("1min 30s", 90),
        ("infinity", math.inf),
        ("", 0),
        ("0", 0),
        ("1h 2min 3s 4ms 5us", 3723.004005),
        ("1w 2d", 777600),
        ("500ms", 0.5),
        ("1month", 2629800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


def test_a_duration_in_another_tongue_is_an_error() -> None:
    with pytest.raises(UnitsError, match="cannot read"):
        parse_duration("5 Minuten")


def test_a_command_that_hangs_is_named() -> None:
    with pytest.raises(UnitsError, match=r"sleep 600.* did not answer within 0.1 s"):
        run_command(["sleep", "600"], 0.1)


def test_a_command_that_is_missing_is_named() -> None:
    with pytest.raises(UnitsError, match="No such file"):
        run_command(["/nope/systemctl"], 1)


def test_a_command_is_heard_whatever_it_says() -> None:
    done = run_command([sys.executable, "-c", r"import os; os.write(1, b'a\xff\n'); raise SystemExit(3)"], 10)
    assert (done.rc, done.out) == (3, "a\ufffd\n")


# --- cgroups: plain files in a temporary directory stand for the kernel's ---


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpu io memory pids\n")
    unit = tmp_path / "system.slice" / "vllm.service"
    (unit / "worker" / "inner").mkdir(parents=True)
    for directory, pids in (
        (unit, "10\n11\n"),
        (unit / "worker", "0\n"),
        (unit / "worker" / "inner", "12\n"),
    ):
        (directory / "cgroup.procs").write_text(pids)
    (unit / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (unit / "cgroup.kill").write_text("")
    (unit / "io.stat").write_text("8:0 rbytes=100 wbytes=20 rios=1 wios=1 dbytes=7 dios=0\n259:0 rbytes=3 wbytes=0\n")
    return tmp_path


VLLM_CGROUP = "/system.slice/vllm.service"


def test_pids_come_from_the_whole_tree(root: Path) -> None:
    assert cgroup_pids(VLLM_CGROUP, root) == {10, 11, 12}


def test_a_cgroup_that_is_gone_is_empty(root: Path) -> None:
    assert cgroup_pids("/system.slice/gone.service", root) == set()
    assert not cgroup_populated("/system.slice/gone.service", root)
    assert cgroup_io_bytes("/system.slice/gone.service", root) == 0
    cgroup_kill("/system.slice/gone.service", root)
    assert cgroup_pids("", root) == set()
    assert not cgroup_populated("", root)


def test_populated_and_bytes(root: Path) -> None:
    assert cgroup_populated(VLLM_CGROUP, root)
    assert cgroup_io_bytes(VLLM_CGROUP, root) == 123


def test_kill_writes_the_kernels_file(root: Path) -> None:
    cgroup_kill(VLLM_CGROUP, root)
    assert (root / "system.slice/vllm.service/cgroup.kill").read_text() == "1"


def test_kill_without_the_kernels_file_says_what_is_missing(root: Path) -> None:
    (root / "system.slice/vllm.service/cgroup.kill").unlink()
    with pytest.raises(UnitsError, match="needs kernel 5.14"):
        cgroup_kill(VLLM_CGROUP, root)
    assert not (root / "system.slice/vllm.service/cgroup.kill").exists()


@pytest.mark.parametrize("control_group", ["", "/", "//", "/system.slice/../..", "/.."])
def test_the_root_cgroup_is_nobodys_unit(root: Path, control_group: str) -> None:
    with pytest.raises(UnitsError, match="not the cgroup"):
        cgroup_kill(control_group, root)
    with pytest.raises(UnitsError, match="not the cgroup"):
        cgroup_dir(control_group, root)


@pytest.mark.parametrize(
    "made, version", [("unified/cgroup.controllers", "hybrid"), ("systemd/x", "v1"), ("other", "none")]
)
def test_older_hierarchies_are_refused_by_name(tmp_path: Path, made: str, version: str) -> None:
    (tmp_path / made).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / made).write_text("")
    assert cgroup_version(tmp_path) == version
    with pytest.raises(UnitsError, match=f"found: {version}"):
        cgroup_pids(VLLM_CGROUP, tmp_path)
