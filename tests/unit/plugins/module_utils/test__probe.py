# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe against real processes: real workers under made-up interpreters, killed, hung and crashed for real."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _gpus, _holders, _masking, _paths, _probe, _worker
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import GpuProcess, Memory
from ansible_collections.gpuops.inference.plugins.module_utils._probe import Probe

FIXTURES = Path(__file__).parents[2] / "fixtures"
PATIENCE = 20.0
"""Seconds for what should take a fraction of one; only a failing test waits for them."""


class Host:
    """Makes interpreters, an nvidia-smi and a place for notes, all below one temporary directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.notes = root / "run" / "workers"

    def program(self, name: str, text: str) -> str:
        path = self.root / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    def interpreter(self, name: str, prelude: str = "") -> str:
        """An interpreter that takes `-I -c SOURCE` and runs `prelude` first; pynvml is wherever that puts it."""
        run = "import sys\nexec(compile(sys.argv[-1], 'worker', 'exec'), {'__name__': '__main__'})\n"
        return self.program(name, f"#!{sys.executable} -IS\n{textwrap.dedent(prelude)}\n{run}")

    def with_pynvml(self, **scenario: Any) -> str:
        library = self.root / "site"
        library.mkdir()
        shutil.copy(FIXTURES / "pynvml.py", library)
        scenario.setdefault("gpus", [{} for _index in range(8)])
        (library / "scenario.json").write_text(json.dumps(scenario), encoding="ascii")
        (library / "nvidia_ml_py-13.0.0.dist-info").mkdir()
        return self.interpreter("with-pynvml", f"import sys; sys.path.insert(0, {str(library)!r})")

    def without_pynvml(self, name: str = "without-pynvml") -> str:
        return self.interpreter(name)

    def probe(self, *interpreters: str, nvidia_smi: str = "/nonexistent/nvidia-smi") -> Probe:
        return Probe(interpreters, nvidia_smi, self.notes)

    def ready_probe(self, *interpreters: str, nvidia_smi: str = "/nonexistent/nvidia-smi") -> Probe:
        """One whose worker runs already, so that a short deadline is spent on the question alone."""
        probe = self.probe(*interpreters, nvidia_smi=nvidia_smi)
        assert probe.cmdlines([os.getpid()], PATIENCE)
        return probe

    def noted(self) -> list[str]:
        return sorted(os.listdir(self.notes)) if self.notes.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@contextmanager
def running(argv: Sequence[str | bytes], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that says when it has come as far as the test needs, by a line on stdout; ended afterwards."""
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def ends(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], PATIENCE)[0])
    finally:
        os.close(descriptor)


# --- GPUs by NVML -----------------------------------------------------------------------------------------------------


def test_reads_everything_about_every_gpu(host: Host) -> None:
    gpus: list[dict[str, Any]] = [{} for _index in range(8)]
    gpus[2] = {"used": 90000, "compute": [[4242, 89000]], "graphics": [[4242, 10], [77, None]]}
    with host.probe(host.with_pynvml(gpus=gpus)) as probe:
        reading = probe.gpus(PATIENCE)
    assert (reading.usable, reading.source, reading.problems) == (True, "nvml", ())
    assert (reading.driver_version, reading.nvml_version) == ("575.57.08", "12.575.57.08")
    assert [gpu.index for gpu in reading.gpus] == list(range(8))
    gpu = reading.gpus[2]
    assert gpu.processes == (GpuProcess(77, None, "graphics"), GpuProcess(4242, 89000, "compute"))
    assert gpu.as_dict() == {
        "index": 2,
        "uuid": "GPU-00000002",
        "pci_bus_id": "00000000:03:00.0",
        "minor": 5,
        "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "memory": {"total": 97887, "reserved": 636, "used": 90000, "free": 7251, "version": 2},
        "mig": False,
        "mps": False,
        "persistence": True,
        "error": None,
    }


def test_a_driver_without_the_second_memory_call_gives_version_1(host: Host) -> None:
    with host.probe(host.with_pynvml(gpus=[{"used": 1000}], no_memory_v2=True)) as probe:
        gpu = probe.gpus(PATIENCE).gpus[0]
    assert gpu.memory == Memory(97887, 0, 1636, 96251, 1)
    assert gpu.error is None


def test_unsupported_memory_is_unknown_memory_and_no_error(host: Host) -> None:
    with host.probe(host.with_pynvml(gpus=[{}, {}], errors={"memory.1": 3})) as probe:
        reading = probe.gpus(PATIENCE)
    assert reading.gpus[0].memory is not None
    assert (reading.gpus[1].memory, reading.gpus[1].error, reading.usable) == (None, None, True)


@pytest.mark.parametrize("call", ["handle.5", "uuid.5", "memory.5", "compute.5", "graphics.5", "mpscompute.5"])
def test_one_lost_gpu_hides_no_other(host: Host, call: str) -> None:
    with host.probe(host.with_pynvml(errors={call: 15})) as probe:
        reading = probe.gpus(PATIENCE)
    assert [gpu.error for gpu in reading.gpus] == [None] * 5 + ["GPU_IS_LOST"] + [None] * 2
    assert reading.usable
    assert [problem[:5] for problem in reading.problems] == ["GPU 5"]
    assert "fallen off the bus" in reading.problems[0]


@pytest.mark.parametrize("call", ["minor.1", "pci.1", "name.1", "persistence.1", "mig.1"])
def test_an_error_about_a_side_issue_costs_only_that_value(host: Host, call: str) -> None:
    with host.probe(host.with_pynvml(gpus=[{}, {}], errors={call: 999})) as probe:
        reading = probe.gpus(PATIENCE)
    assert (reading.gpus[1].error, reading.problems) == (None, ())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (18, "driver and library versions differ (NVML: LIB_RM_VERSION_MISMATCH): running processes go on"),
        (9, "nvidia kernel module is not loaded (NVML: DRIVER_NOT_LOADED)"),
        (4, "no right to ask the driver (NVML: NO_PERMISSION): run as root"),
        (999, "internal error (NVML: UNKNOWN)"),
        (4711, "NVML: ERROR_4711"),
    ],
)
def test_a_failed_start_of_nvml_is_told_in_words(host: Host, code: int, words: str) -> None:
    with host.probe(host.with_pynvml(errors={"init": code})) as probe:
        reading = probe.gpus(PATIENCE)
        assert (reading.usable, reading.gpus, len(reading.problems)) == (False, (), 1)
        assert words in reading.problems[0]


def test_no_gpu_at_all_is_not_usable(host: Host) -> None:
    with host.probe(host.with_pynvml(gpus=[])) as probe:
        reading = probe.gpus(PATIENCE)
    assert not reading.usable
    assert "no GPU was found" in reading.problems[0]


def test_a_process_list_that_grows_while_it_is_read(host: Host) -> None:
    listed = [[pid, 1] for pid in range(100, 140)]
    with host.probe(host.with_pynvml(gpus=[{"compute": listed}], grows=3)) as probe:
        gpu = probe.gpus(PATIENCE).gpus[0]
    assert [process.pid for process in gpu.processes] == list(range(100, 140))


def test_the_drivers_with_long_records_are_asked_by_the_older_call(host: Host) -> None:
    listed = [[4242, 10], [4243, 20]]
    symbols = {"nvmlDeviceGetConfComputeMemSizeInfo": True, "nvmlDeviceGetRunningProcessDetailList": False}
    long = ["nvmlDeviceGetComputeRunningProcesses_v3"]
    with host.probe(host.with_pynvml(gpus=[{"compute": listed}], symbols=symbols, long_records=long)) as probe:
        gpu = probe.gpus(PATIENCE).gpus[0]
    assert gpu.processes == (GpuProcess(4242, 10, "compute"), GpuProcess(4243, 20, "compute"))


def test_a_driver_with_unversioned_lists_only(host: Host) -> None:
    kinds = ("Compute", "Graphics", "MPSCompute")
    symbols = {f"nvmlDeviceGet{kind}RunningProcesses_v{version}": False for kind in kinds for version in (2, 3)}
    with host.probe(host.with_pynvml(gpus=[{"compute": [[4242, 10], [4243, None]]}], symbols=symbols)) as probe:
        gpu = probe.gpus(PATIENCE).gpus[0]
    assert gpu.processes == (GpuProcess(4242, 10, "compute"), GpuProcess(4243, None, "compute"))


def test_a_driver_without_any_process_list_cannot_vouch_for_a_gpu(host: Host) -> None:
    symbols = {f"nvmlDeviceGetComputeRunningProcesses{suffix}": False for suffix in ("", "_v2", "_v3")}
    with host.probe(host.with_pynvml(gpus=[{}], symbols=symbols)) as probe:
        assert probe.gpus(PATIENCE).gpus[0].error == "FUNCTION_NOT_FOUND"


def test_mps_clients_and_mig_are_seen(host: Host) -> None:
    with host.probe(host.with_pynvml(gpus=[{"mpscompute": [[50, 5]]}, {"mig": True}])) as probe:
        gpus = probe.gpus(PATIENCE).gpus
    assert [(gpu.mps, gpu.mig) for gpu in gpus] == [(True, False), (False, True)]
    assert gpus[0].processes == (GpuProcess(50, 5, "mps"),)


def test_an_mps_server_is_seen_by_its_name(host: Host) -> None:
    rename = "open('/proc/self/comm','w').write('nvidia-cuda-mps-server'); print(); input()"
    with running([sys.executable, "-Ic", rename]) as server:
        interpreter = host.with_pynvml(gpus=[{"compute": [[server.pid, 5]]}, {}])
        with host.probe(interpreter) as probe:
            assert [gpu.mps for gpu in probe.gpus(PATIENCE).gpus] == [True, False]


# --- NVML that hangs or crashes ---------------------------------------------------------------------------------------


def test_a_hang_ends_at_the_deadline_and_is_not_tried_again(host: Host) -> None:
    with host.ready_probe(host.with_pynvml(hang=["init"])) as probe:
        began = time.monotonic()
        reading = probe.gpus(0.3)
        assert 0.27 < time.monotonic() - began < 0.3 + PATIENCE / 4
        assert (reading.usable, reading.gpus, reading.source) == (False, (), "none")
        assert "the driver does not answer (NO_ANSWER)" in reading.problems[0]
        assert all(ends(pid) for pid, _start in probe.workers)

        began = time.monotonic()
        assert probe.gpus(PATIENCE) == probe.gpus(PATIENCE)
        assert time.monotonic() - began < PATIENCE / 4
        assert not probe.gpus(PATIENCE).usable
        # What does not touch the driver goes on, in a worker of its own.
        assert probe.cmdlines([os.getpid()], PATIENCE)
        assert len(probe.workers) == 2
    assert host.noted() == []


def test_what_was_answered_before_the_hang_is_kept(host: Host) -> None:
    with host.ready_probe(host.with_pynvml(hang=["uuid.3"])) as probe:
        reading = probe.gpus(1.0)
    assert not reading.usable
    assert [gpu.uuid for gpu in reading.gpus[:3]] == ["GPU-00000000", "GPU-00000001", "GPU-00000002"]
    assert [gpu.error for gpu in reading.gpus] == [None] * 3 + ["NO_ANSWER"] * 5
    assert [problem.partition(":")[0] for problem in reading.problems] == [
        "the driver does not answer (NO_ANSWER)",
        "GPU 3, GPU 4, GPU 5, GPU 6, GPU 7",
    ]


def test_a_crash_of_the_library_is_told(host: Host) -> None:
    with host.probe(host.with_pynvml(crash=["uuid.1"])) as probe:
        reading = probe.gpus(PATIENCE)
        assert not reading.usable
        assert reading.problems[0].startswith("the query of the driver broke off (pid ")
        assert "ended (signal 6)" in reading.problems[0]
        assert probe.cmdlines([os.getpid()], PATIENCE)


# --- which interpreter ------------------------------------------------------------------------------------------------


def test_interpreters_are_tried_in_order_and_each_step_is_told(host: Host) -> None:
    broken = host.program("broken", "#!/bin/sh\necho 'No module named encodings' >&2\nexit 1\n")
    garbage = host.program("garbage", "#!/bin/sh\necho Hello\ncat >/dev/null\n")
    silent = host.program("silent", "#!/bin/sh\nexec sleep 600\n")
    bare = host.without_pynvml()
    with host.probe("/nonexistent/python", broken, garbage, bare, host.with_pynvml()) as probe:
        reading = probe.gpus(PATIENCE)
        assert reading.usable
        told = [problem.partition(" ")[0] for problem in reading.problems]
        assert told == ["/nonexistent/python", broken, garbage, bare]
        assert "No such file" in reading.problems[0]
        assert "ended (exit code 1): No module named encodings" in reading.problems[1]
        assert "answers nonsense: b'Hello'" in reading.problems[2]
        assert "No module named 'pynvml'" in reading.problems[3]
        assert len(host.noted()) == 1
    with host.probe(silent) as probe:
        reading = probe.gpus(0.2)
        assert not reading.usable
        assert silent in reading.problems[0]
    assert host.noted() == []


def test_a_pynvml_that_is_not_nvidias_current_one_is_refused(host: Host) -> None:
    with host.probe(host.with_pynvml(old_pynvml=True)) as probe:
        assert "pynvml.py is not of a current nvidia-ml-py" in probe.gpus(PATIENCE).problems[0]


def test_any_python_serves_for_processes(host: Host) -> None:
    with host.probe("/nonexistent/python", host.without_pynvml(), host.without_pynvml("another")) as probe:
        assert probe.cmdlines([os.getpid()], PATIENCE)
        assert len(host.noted()) == 1


# --- nvidia-smi -------------------------------------------------------------------------------------------------------

SMI = """#!/bin/sh
case $1 in
--query-gpu=*memory.reserved*) {reserved} ;;
--query-gpu=*) {gpus} ;;
--query-compute-apps=*) {apps} ;;
esac
"""


def smi(host: Host, reserved: str = "", gpus: str = "exit 99", apps: str = ":") -> str:
    rows = "echo '2, 0, GPU-0, 0:1:0.0, 575, Enabled, [N/A], 97887, 1, 2, 636, RTX, PRO'; "
    rows += "echo '2, 1, GPU-1, 0:2:0.0, 575, Disabled, Disabled, [N/A], [N/A], [N/A], [N/A], RTX'"
    return host.program("nvidia-smi", SMI.format(reserved=reserved or rows, gpus=gpus, apps=apps))


def test_without_pynvml_nvidia_smi_is_read(host: Host) -> None:
    apps = "echo 'GPU-0, 4242, 800'; echo 'GPU-0, 4243, [N/A]'"
    with host.probe(host.without_pynvml(), nvidia_smi=smi(host, apps=apps)) as probe:
        reading = probe.gpus(PATIENCE)
        assert (reading.usable, reading.source, reading.driver_version) == (True, "nvidia-smi", "575")
        assert reading.gpus[0].memory == Memory(97887, 636, 1, 2, 2)
        assert reading.gpus[0].name == "RTX, PRO"
        assert reading.gpus[0].processes == (GpuProcess(4242, 800, "compute"), GpuProcess(4243, None, "compute"))
        assert (reading.gpus[1].memory, reading.gpus[1].error, reading.gpus[1].minor) == (None, None, None)
        assert any("no device numbers" in problem for problem in reading.problems)
        assert probe.cmdlines([os.getpid()], PATIENCE)
    assert host.noted() == []


def test_the_driver_itself_tells_the_device_numbers_that_nvidia_smi_does_not(host: Host) -> None:
    for place, told in (("0000:01:00.0", "Device Minor: \t 5\nGPU UUID: x\n"), ("0000:02:00.0", "Model: none\n")):
        (host.root / "driver" / place).mkdir(parents=True)
        (host.root / "driver" / place / "information").write_text(told)
    # Told apart by where they sit, however the bus id is written.
    rows = "echo '2, 0, GPU-0, 00000000:01:00.0, 575, Enabled, [N/A], 97887, 1, 2, 636, RTX'; "
    rows += "echo '2, 1, GPU-1, 00000000:02:00.0, 575, Enabled, [N/A], 97887, 1, 2, 636, RTX'"
    probe = Probe([host.without_pynvml()], smi(host, reserved=rows), host.notes, str(host.root / "driver"))
    with probe:
        reading = probe.gpus(PATIENCE)
    assert [gpu.minor for gpu in reading.gpus] == [5, None]
    assert reading.usable


def test_a_library_out_of_pythons_reach_may_be_in_nvidia_smis(host: Host) -> None:
    with host.probe(host.with_pynvml(errors={"init": 12}), nvidia_smi=smi(host)) as probe:
        reading = probe.gpus(PATIENCE)
    assert (reading.usable, reading.source) == (True, "nvidia-smi")
    assert any("LIBRARY_NOT_FOUND" in problem for problem in reading.problems)


def test_an_old_nvidia_smi_knows_no_reserved_memory(host: Host) -> None:
    refusal = "echo 'Field \"memory.reserved\" is not a valid field to query.'; exit 2"
    row = "echo '1, 0, GPU-0, 0:1:0.0, 470, Enabled, [N/A], 97887, 640, 2, RTX'"
    with host.probe(host.without_pynvml(), nvidia_smi=smi(host, reserved=refusal, gpus=row)) as probe:
        reading = probe.gpus(PATIENCE)
    assert (reading.usable, reading.gpus[0].memory) == (True, Memory(97887, 0, 640, 2, 1))


@pytest.mark.parametrize(
    ("code", "words"),
    [(9, "DRIVER_NOT_LOADED"), (12, "LIBRARY_NOT_FOUND"), (18, "LIB_RM_VERSION_MISMATCH"), (77, "exit code 77")],
)
def test_how_nvidia_smi_ends_has_a_meaning(host: Host, code: int, words: str) -> None:
    failure = f"echo 'NVIDIA-SMI has failed'; exit {code}"
    with host.probe(host.without_pynvml(), nvidia_smi=smi(host, reserved=failure)) as probe:
        reading = probe.gpus(PATIENCE)
    assert not reading.usable
    assert any(words in problem and "NVIDIA-SMI has failed" in problem for problem in reading.problems)


def test_a_hanging_nvidia_smi_is_left_behind(host: Host) -> None:
    with host.ready_probe(host.without_pynvml(), nvidia_smi=smi(host, reserved="exec sleep 600")) as probe:
        began = time.monotonic()
        reading = probe.gpus(0.3)
        assert time.monotonic() - began < 0.3 + PATIENCE / 4
        assert not reading.usable
        assert "the driver does not answer" in reading.problems[0]
        assert all(ends(pid) for pid, _start in probe.workers - {probe.worker})
        assert probe.cmdlines([os.getpid()], PATIENCE)


def test_processes_that_cannot_be_listed_make_it_unusable(host: Host) -> None:
    with host.probe(host.without_pynvml(), nvidia_smi=smi(host, apps="exit 4")) as probe:
        reading = probe.gpus(PATIENCE)
    assert (len(reading.gpus), reading.usable) == (2, False)
    assert any("NO_PERMISSION" in problem for problem in reading.problems)


# --- processes --------------------------------------------------------------------------------------------------------

SPEAK = "print(flush=True); input()"


def test_command_lines_come_whole_and_without_padding(host: Host) -> None:
    odd = [sys.executable, "-Ic", SPEAK, "two words", "new\nline", b"caf\xe9".decode("latin-1"), "{{ x }}", "", ""]
    with running(odd) as process, host.probe(sys.executable) as probe:
        argv = probe.cmdlines([process.pid, 2**22 + 1], PATIENCE)
    assert argv == {process.pid: tuple(odd[:-2])}


def test_bytes_that_are_no_text_are_shown_as_such(host: Host) -> None:
    with running([sys.executable, "-Ic", SPEAK, b"\xff\x1b[31m"]) as process, host.probe(sys.executable) as probe:
        assert probe.cmdlines([process.pid], PATIENCE)[process.pid][-1] == "\\xff\x1b[31m"


def test_a_huge_command_line_is_cut(host: Host) -> None:
    huge = ["x" * 100_000] * 15
    with running([sys.executable, "-Ic", SPEAK, *huge]) as process, host.probe(sys.executable) as probe:
        argv = probe.cmdlines([process.pid, os.getpid()], PATIENCE)
    assert sum(map(len, argv[process.pid])) <= _worker.LIMIT
    assert argv[process.pid][:3] == (sys.executable, "-Ic", SPEAK)
    assert os.getpid() in argv


def test_zombies_and_kernel_threads_have_no_command_line(host: Host) -> None:
    zombie = subprocess.Popen(["/bin/true"])
    with host.probe(sys.executable) as probe:
        assert ends(zombie.pid)
        assert probe.cmdlines([zombie.pid], PATIENCE) == {zombie.pid: ()}
    zombie.wait()


def test_only_the_named_variables_leave_a_process(host: Host) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0,1", "API_KEY": "hunter2", "EMPTY": ""}
    with running([sys.executable, "-Ic", SPEAK], env=environment) as process, host.probe(sys.executable) as probe:
        found = probe.environs([process.pid], ["CUDA_VISIBLE_DEVICES", "EMPTY", "ABSENT"], PATIENCE)
    assert found == {process.pid: {"CUDA_VISIBLE_DEVICES": "0,1", "EMPTY": ""}}


def test_maps_by_prefix(host: Host, tmp_path: Path) -> None:
    library = tmp_path / "libcuda two.so"
    library.write_bytes(b"x" * 4096)
    code = f"import mmap; f = open({str(library)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0); {SPEAK}"
    with running([sys.executable, "-Ic", code]) as process, host.probe(sys.executable) as probe:
        assert probe.maps([process.pid], [str(tmp_path)], PATIENCE) == {process.pid: (str(library),)}
        assert probe.maps([process.pid], ["/nonexistent"], PATIENCE) == {process.pid: ()}


def test_a_process_that_blocks_costs_only_its_own_answer(host: Host) -> None:
    with running([sys.executable, "-Ic", SPEAK]) as process:
        # The kernel blocks the reader while the target's memory lock is held; here the interpreter does.
        blocking = host.interpreter(
            "blocking",
            f"""
            import builtins, time
            real = open
            def slow(path, *arguments, **options):
                if path == "/proc/{process.pid}/cmdline":
                    time.sleep(3600)
                return real(path, *arguments, **options)
            builtins.open = slow
            """,
        )
        with host.ready_probe(blocking) as probe:
            pids = [os.getppid(), process.pid, os.getpid()]
            began = time.monotonic()
            assert set(probe.cmdlines(pids, 8.0)) == {os.getppid(), os.getpid()}
            assert 1.9 < time.monotonic() - began < 8.0
            assert probe.problems[-1].startswith(f"pid {process.pid}, state S")
            assert "blocks whoever reads its command line" in probe.problems[-1]
            began = time.monotonic()
            assert set(probe.cmdlines(pids, 8.0)) == {os.getppid(), os.getpid()}
            assert time.monotonic() - began < 1.9
            assert all(ends(pid) for pid, _start in probe.workers - {probe.worker})
    assert host.noted() == []


# --- the worker's manners ---------------------------------------------------------------------------------------------


def test_the_worker_inherits_nothing(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nonexistent")
    monkeypatch.setenv("SECRET", "hunter2")
    with open(tmp_path / "lock", "w") as lock, host.probe(sys.executable) as probe:
        os.set_inheritable(lock.fileno(), True)
        assert probe.cmdlines([os.getpid()], PATIENCE)
        assert probe.worker is not None
        proc = Path(f"/proc/{probe.worker[0]}")
        targets = [os.readlink(entry) for entry in (proc / "fd").iterdir()]
        assert {target.partition(":")[0] for target in targets} == {"pipe"}
        assert os.readlink(proc / "cwd") == "/"
        assert os.getsid(probe.worker[0]) == probe.worker[0]
        names = {entry.partition(b"=")[0] for entry in (proc / "environ").read_bytes().split(b"\0") if entry}
        assert names <= {b"PATH", b"LD_LIBRARY_PATH", b"LC_ALL", b"LC_CTYPE"}


def test_the_worker_ends_with_the_probe(host: Host) -> None:
    with host.probe(sys.executable) as probe:
        assert probe.cmdlines([os.getpid()], PATIENCE)
        worker = probe.worker
        assert worker is not None
        assert host.noted() == [f"{worker[0]}-{worker[1]}"]
    assert not Path(f"/proc/{worker[0]}").exists()
    assert (probe.worker, host.noted()) == (None, [])


def test_the_worker_ends_when_its_module_is_killed(host: Host) -> None:
    module = f"""
import sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from ansible_collections.gpuops.inference.plugins.module_utils._probe import Probe
probe = Probe([{sys.executable!r}], "/nonexistent", Path({str(host.notes)!r}))
probe.cmdlines([1], {PATIENCE})
print(probe.worker[0], flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.kill()
    assert ends(worker)
    assert len(host.noted()) == 1
    with host.probe(sys.executable) as probe:
        assert probe.cmdlines([os.getpid()], PATIENCE)
        assert not any("stuck" in problem for problem in probe.problems)


def note(host: Host, process: subprocess.Popen[bytes], client: int, overdue: bool = False) -> tuple[int, int]:
    """The note of an earlier call about a query process."""
    start = _probe._start_time(process.pid)
    assert start is not None
    host.notes.mkdir(parents=True)
    text = json.dumps({"client": [client, _probe._start_time(client)], "overdue": overdue})
    (host.notes / f"{process.pid}-{start}").write_text(text, encoding="ascii")
    return process.pid, start


@pytest.mark.parametrize("overdue", [True, False])
def test_nothing_is_started_while_an_earlier_worker_is_stuck(host: Host, overdue: bool) -> None:
    with running([sys.executable, "-Ic", SPEAK]) as process:
        # Either it missed its deadline, or the module that started it is gone.
        stuck = note(host, process, client=os.getpid() if overdue else 2**22 + 1, overdue=overdue)
        with host.probe(host.with_pynvml()) as probe:
            reading = probe.gpus(PATIENCE)
            assert (reading.usable, reading.gpus) == (False, ())
            assert f"pid {process.pid}, state " in reading.problems[0]
            assert "stuck in the kernel" in reading.problems[0]
            assert probe.cmdlines([os.getpid()], PATIENCE) == {}
            assert (probe.worker, probe.workers) == (None, {stuck})
        process.kill()
        process.wait()
    with host.probe(host.interpreter("next")) as probe:
        assert probe.cmdlines([os.getpid()], PATIENCE)
    assert host.noted() == []


def test_the_worker_of_another_running_module_is_no_obstacle(host: Host) -> None:
    with running([sys.executable, "-Ic", SPEAK]) as process:
        note(host, process, client=os.getpid())
        with host.probe(sys.executable) as probe:
            assert probe.cmdlines([os.getpid()], PATIENCE)
        assert len(host.noted()) == 1


def test_a_reused_pid_or_a_torn_note_is_no_obstacle(host: Host) -> None:
    host.notes.mkdir(parents=True)
    (host.notes / f"{os.getpid()}-1").write_text('{"overdue": true}')
    (host.notes / f"{2**22 + 1}-1").write_text('{"over')
    (host.notes / "README").write_text("not ours")
    with host.probe(sys.executable) as probe:
        assert probe.cmdlines([os.getpid()], PATIENCE)
    assert host.noted() == ["README"]


def test_without_a_place_for_notes_it_works_all_the_same(host: Host) -> None:
    host.notes.parent.write_text("a file, where a directory should be")
    with host.probe(sys.executable) as probe:
        assert probe.cmdlines([os.getpid()], PATIENCE)


def test_sigchld_ignored_by_the_caller_does_not_matter(host: Host) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with host.ready_probe(host.with_pynvml(hang=["init"])) as probe:
            assert not probe.gpus(0.2).usable
            assert probe.cmdlines([os.getpid()], PATIENCE)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert host.noted() == []


def test_the_source_fits_an_argument_and_any_locale() -> None:
    source = _probe._source()
    assert source.isascii()
    assert len(source) < 128 * 1024 / 2
    assert "ansible_collections" not in source


def test_it_runs_from_an_archive_as_ansible_ships_it(host: Host) -> None:
    """Only what the import asks for is in the archive: a module that is not imported would not be shipped."""
    archive = host.root / "payload.zip"
    package = "ansible_collections/gpuops/inference/plugins/module_utils/"
    with zipfile.ZipFile(archive, "w") as payload:
        for part in range(1, len(package.split("/"))):
            payload.writestr("/".join(package.split("/")[:part]) + "/__init__.py", "")
        for module in (_gpus, _holders, _masking, _paths, _probe, _worker):
            assert module.__file__ is not None
            payload.write(module.__file__, package + Path(module.__file__).name)
    code = f"""
import sys
sys.path.insert(0, {str(archive)!r})
from pathlib import Path
from ansible_collections.gpuops.inference.plugins.module_utils._probe import Probe
with Probe([{host.with_pynvml()!r}], "/nonexistent", Path({str(host.notes)!r})) as probe:
    print(len(probe.gpus({PATIENCE}).gpus), __import__("json").__name__)
"""
    ran = subprocess.run([sys.executable, "-ISc", code], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("8 json\n", "")
