# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's own Python binding and command line, against the simulated library (no host is needed)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SIMULATOR = Path(__file__).parent
MIB = 1024 * 1024


@pytest.fixture(scope="session")
def built() -> Path:
    return Path(subprocess.check_output([SIMULATOR / "hosts", "libraries"], text=True).strip())


class Machine:
    """Two GPUs of a machine of our own: its driver's files, and programs that run there."""

    def __init__(self, path: Path, built: Path) -> None:
        self.path = path
        self.built = built
        (wheel,) = (SIMULATOR.parent.parent / ".cache/wheels").glob("nvidia_ml_py-*.whl")
        self.env = os.environ | {
            "GPUSIM_ROOT": str(path), "GPUSIM_DEV": str(path), "LD_LIBRARY_PATH": str(built),
            "PYTHONPATH": f"{wheel}:{SIMULATOR}",
        }  # fmt: skip
        (path / "faults").mkdir()
        for index in range(2):
            (path / "alloc" / str(index)).mkdir(parents=True)
        (path / "gpus").write_text(
            "0 GPU-a 00000000:01:00.0 1 1000 100 NVIDIA Simulated One\n"
            "1 GPU-b 00000000:21:00.0 0 1000 100 NVIDIA Simulated Two\n"
        )
        for node in ("nvidiactl", "nvidia0", "nvidia1"):
            (path / node).touch()

    def fault(self, name: str, value: str = "") -> None:
        (self.path / "faults" / name).write_text(value + "\n")

    def nvml(self, expression: str) -> Any:
        """What an expression on the binding gives, or the name of NVML's error; `h` is a list of the GPUs' handles."""
        program = (
            "from pynvml import *\n"
            "try:\n"
            " nvmlInit(); h = [nvmlDeviceGetHandleByIndex(i) for i in range(nvmlDeviceGetCount())]\n"
            f" print(repr({expression}))\n"
            "except NVMLError as error:\n"
            " print(repr(type(error).__name__))\n"
        )
        return eval(subprocess.check_output([sys.executable, "-c", program], env=self.env, text=True, timeout=30))

    def smi(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [self.built / "nvidia-smi", *arguments]
        return subprocess.run(argv, env=self.env, stdout=subprocess.PIPE, text=True, check=False)

    @contextlib.contextmanager
    def holder(self, index: int, mib: int) -> Iterator[int]:
        """The pid of a process that has memory on a GPU, killed at the end."""
        program = f"import gpusim, signal; a = gpusim.allocate({index}, {mib}); print('ready'); signal.pause()"
        with subprocess.Popen([sys.executable, "-uc", program], env=self.env, stdout=subprocess.PIPE, text=True) as own:
            assert own.stdout and own.stdout.readline() == "ready\n"
            try:
                yield own.pid
            finally:
                own.kill()


@pytest.fixture
def machine(tmp_path: Path, built: Path) -> Machine:
    return Machine(tmp_path, built)


FABRIC = "exec('i = c_nvmlGpuFabricInfo_t(); nvmlDeviceGetGpuFabricInfo(h[0], byref(i))', globals())"
MEMORY = "[(m.used, m.free) for m in (nvmlDeviceGetMemoryInfo(x, version=nvmlMemory_v2) for x in h)]"


def test_identity(machine: Machine) -> None:
    assert machine.nvml("[nvmlDeviceGetUUID(x) for x in h]") == ["GPU-a", "GPU-b"]
    assert machine.nvml("[nvmlDeviceGetMinorNumber(x) for x in h]") == [1, 0]
    assert machine.nvml("nvmlDeviceGetPciInfo(h[1]).busId") == "00000000:21:00.0"
    assert machine.nvml("nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID('GPU-b'))") == 1
    assert machine.nvml("nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId('0000:21:00.0'))") == 1
    assert machine.nvml("nvmlDeviceGetHandleByUUID('GPU-x')") == "NVMLError_NotFound"
    assert machine.nvml("nvmlSystemGetNVMLVersion()").endswith(machine.nvml("nvmlSystemGetDriverVersion()"))


def test_it_opens_every_node_in_its_caller(machine: Machine) -> None:
    links = "[os.path.basename(os.readlink(entry)) for entry in os.scandir('/proc/self/fd')]"
    opened = machine.nvml(f"exec('import os') or {links}")
    assert {"nvidia0", "nvidia1", "nvidiactl"} <= set(opened)
    assert "nvidiactl" not in machine.nvml(f"exec('import os') or nvmlShutdown() or {links}")


def test_memory_lives_and_dies_with_its_process(machine: Machine) -> None:
    listed = "[(p.pid, p.usedGpuMemory) for p in nvmlDeviceGet{}RunningProcesses{}(h[1])]"
    with machine.holder(1, 300) as pid:
        assert machine.nvml(MEMORY) == [(0, 900 * MIB), (300 * MIB, 600 * MIB)]
        assert machine.nvml("nvmlDeviceGetMemoryInfo(h[1]).used") == 400 * MIB, "version 1 counts what is reserved"
        for version in ("", "_v2", "_v3"):
            assert machine.nvml(listed.format("Compute", version)) == [(pid, 300 * MIB)]
            assert machine.nvml(listed.format("Graphics", version)) == []
    assert machine.nvml(MEMORY)[1] == (0, 900 * MIB)
    assert machine.nvml(listed.format("Compute", "")) == []


def test_a_delayed_release_has_memory_and_no_process(machine: Machine) -> None:
    machine.fault("release-delay", "3600")
    with machine.holder(0, 300):
        pass
    for _look in range(2):
        assert machine.nvml(MEMORY)[0][0] == 300 * MIB
    assert machine.nvml("nvmlDeviceGetComputeRunningProcesses(h[0])") == []
    machine.fault("release-delay", "0")
    assert machine.nvml(MEMORY)[0][0] == 0


@pytest.mark.parametrize(
    ("fault", "value", "expression", "result"),
    [
        ("leak.0", "50", MEMORY, [(50 * MIB, 850 * MIB), (0, 900 * MIB)]),
        ("ghost.1", "4194304 70", "nvmlDeviceGetComputeRunningProcesses(h[1])[0].pid", 4194304),
        ("gpu-lost.1", "", "h", "NVMLError_GpuIsLost"),
        ("na.0", "", MEMORY, "NVMLError_NotSupported"),
        ("no-memory-v2", "", MEMORY, "NVMLError_FunctionNotFound"),
        ("no-memory-v2", "", "nvmlDeviceGetMemoryInfo(h[0]).used", 100 * MIB),
        ("version-mismatch", "", "h", "NVMLError_LibRmVersionMismatch"),
        ("count", "1", "len(h)", 1),
        ("mig.1", "", "[nvmlDeviceGetMigMode(x)[0] for x in h]", [0, 1]),
    ],
)
def test_faults(machine: Machine, fault: str, value: str, expression: str, result: object) -> None:
    machine.fault(fault, value)
    assert machine.nvml(expression) == result


@pytest.mark.parametrize(
    ("fault", "value", "expression", "without", "result"),
    [
        ("ecc.1", "3 7", "[nvmlDeviceGetTotalEccErrors(h[1], 1, kind) for kind in (0, 1)]", [0, 0], [3, 7]),
        ("ecc.1", "3 7", "nvmlDeviceGetTotalEccErrors(h[1], 0, 0)", 0, 0),
        ("remap.0", "1 2 1 0", "nvmlDeviceGetRemappedRows(h[0])", (0, 0, 0, 0), (1, 2, 1, 0)),
        ("pcie-width.0", "8", "[nvmlDeviceGetCurrPcieLinkWidth(x) for x in h]", [16, 16], [8, 16]),
        ("slowdown.0", "64", "[nvmlDeviceGetCurrentClocksEventReasons(x) for x in h]", [1, 1], [64, 1]),
        ("health-error.0", "999", "nvmlDeviceGetRemappedRows(h[0])", (0, 0, 0, 0), "NVMLError_Unknown"),
        ("fabric.0", "2 0", f"{FABRIC} or (i.state, i.status)", "NVMLError_NotSupported", (2, 0)),
    ],
)
def test_health(machine: Machine, fault: str, value: str, expression: str, without: object, result: object) -> None:
    assert machine.nvml(expression) == without
    machine.fault(fault, value)
    assert machine.nvml(expression) == result


@pytest.mark.parametrize("age", [1, 2, 3, 535])
def test_our_worker_reads_the_lists_of_every_age_of_drivers(machine: Machine, tmp_path: Path, age: int) -> None:
    """Symbols and record lengths of R440, R460, R580, and of R535.43 to R535.85, whose _v3 records are longer."""
    library = tmp_path / "libnvidia-ml.so.1"
    flags = f"-std=c11 -D_DEFAULT_SOURCE -DNVML_NO_UNVERSIONED_FUNC_DEFS -DLISTS={age} -fPIC -shared".split()
    source = SIMULATOR / "nvml" / "nvml.c"
    subprocess.run(["cc", *flags, f"-I{machine.built}", "-o", library, source, "-lpthread"], check=True)
    wheel, simulator = machine.env["PYTHONPATH"].split(":")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    machine.env |= {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": f"{tmp_path / 'site'}:{simulator}"}
    with machine.holder(1, 300) as one, machine.holder(1, 200) as two:
        worker = SIMULATOR.parent.parent / "plugins/module_utils/_worker.py"
        asked = b'{"op": "hello"}\n{"op": "gpus"}\n'
        told = subprocess.run(
            [sys.executable, worker], input=asked, env=machine.env, stdout=subprocess.PIPE, check=True, timeout=30
        )
        lines = [json.loads(line) for line in told.stdout.splitlines()]
        (gpu,) = [line["value"] for line in lines if line.get("item") == 1]
        assert gpu["errors"] == {}
        assert {(entry["pid"], entry["used"]) for entry in gpu["processes"]} == {(one, 300 * MIB), (two, 200 * MIB)}
        if age == 535:
            # What whoever takes the records of _v3 for ordinary ones gets: the second is no process.
            pids = machine.nvml("[p.pid for p in nvmlDeviceGetComputeRunningProcesses_v3(h[1])]")
            assert set(pids) != {one, two}


def test_a_hang_ignores_sigterm(machine: Machine) -> None:
    machine.fault("hang")
    smi = subprocess.Popen([machine.built / "nvidia-smi"], env=machine.env)
    with pytest.raises(subprocess.TimeoutExpired):
        smi.wait(0.5)
    smi.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        smi.wait(0.5)
    smi.kill()
    assert smi.wait(5) == -signal.SIGKILL


def test_command_line(machine: Machine) -> None:
    fields = "index,uuid,memory.used,memory.total,persistence_mode,mig.mode.current"
    apps = ("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits")
    with machine.holder(1, 300) as pid:
        assert machine.smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits").stdout == (
            "0, GPU-a, 0, 1000, Enabled, Disabled\n1, GPU-b, 300, 1000, Enabled, Disabled\n"
        )
        one = machine.smi("--query-gpu=memory.used", "--format=csv", "-i", "1")
        assert one.stdout == "memory.used [MiB]\n300 MiB\n"
        assert machine.smi(*apps).stdout == f"GPU-b, {pid}, 300\n"
        assert f"{pid}      C   {sys.executable}"[:40] in machine.smi().stdout
    assert "No running processes found" in machine.smi().stdout
    assert machine.smi("-L").stdout.splitlines()[1] == "GPU 1: NVIDIA Simulated Two (UUID: GPU-b)"


def test_command_line_failures(machine: Machine) -> None:
    assert machine.smi("--query-gpu=nonsense", "--format=csv").returncode == 2
    assert machine.smi("-i", "7").returncode == 6
    machine.fault("gpu-lost.0")
    lost = machine.smi("--query-gpu=index", "--format=csv,noheader")
    assert (lost.returncode, lost.stdout.splitlines()[1:]) == (15, ["1"])
    machine.fault("version-mismatch")
    assert machine.smi().returncode == 18
    (machine.path / "faults/version-mismatch").unlink()
    (machine.path / "nvidiactl").unlink()
    assert machine.smi().returncode == 9
    machine.env["LD_LIBRARY_PATH"] = ""
    assert machine.smi().returncode == 12


def test_it_loads_on_the_oldest_host(built: Path) -> None:
    """Compiled on the controller, it may need nothing newer than Debian 12's C library (2.36)."""
    for name in ("libnvidia-ml.so.1", "nvidia-smi"):
        versions = {tuple(map(int, text.split(b"\0")[0].split(b".")))
                    for text in (built / name).read_bytes().split(b"GLIBC_2.")[1:]}  # fmt: skip
        assert max(versions) <= (36,)
