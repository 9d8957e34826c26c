# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard of an engine unit, against real processes and sockets. Real nodes are the simulated hosts' job."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "roles/engine/files/engine_guard.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("engine_guard", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


guard = _load()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server


def test_a_free_port(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    assert guard.port_problem("127.0.0.1", port) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_taken_port_is_refused_and_its_owner_named(listener: socket.socket, host: str) -> None:
    port = listener.getsockname()[1]
    done = run("start", host, str(port))
    assert done.returncode == os.EX_TEMPFAIL
    assert f"refused: port {port} is taken by {os.getpid()} (" in done.stderr


def test_a_start_that_systemd_ordered_is_given_up(listener: socket.socket, tmp_path: Path) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/did\n')
    systemctl.chmod(0o755)
    words = [sys.executable, "-I", str(SCRIPT), "start", "127.0.0.1", str(listener.getsockname()[1])]
    # A shell has the pid of what it turns into, as the child has that systemd makes.
    for program, calls in (('exec "$@"', 0), ('SYSTEMD_EXEC_PID=$$ exec "$@"', 1)):
        done = subprocess.run(
            ["sh", "-c", program, "sh", *words],
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SYSTEMD_EXEC_PID": str(os.getpid())},
            capture_output=True,
            check=False,
        )
        assert done.returncode == os.EX_TEMPFAIL
        did = (tmp_path / "did").read_text() if (tmp_path / "did").exists() else ""
        assert did == f"--no-block stop -- {guard.unit_of(os.getpid())}\n" * calls


def test_what_waits_in_time_wait_is_no_obstacle(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()) as client:
        served, _peer = listener.accept()
        served.close()
        client.recv(1)
    port = listener.getsockname()[1]
    listener.close()
    assert guard.port_problem("127.0.0.1", port) is None


def test_an_address_of_another_host() -> None:
    assert guard.port_problem("192.0.2.1", 8000).startswith("cannot listen on 192.0.2.1 port 8000: ")


@pytest.mark.parametrize(
    ("links", "holds"),
    [
        (["/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"], True),
        (["/dev/nvidia0", "/dev/nvidiactl"], False),
        (["/dev/nvidiactl", "/dev/nvidia-uvm"], False),
        (["/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"], False),
        (["/home/me/dev/nvidia0", "/dev/nvidia-uvm"], False),
        ([], False),
    ],
)
def test_a_holder_has_a_gpu_and_unified_memory_open(
    monkeypatch: pytest.MonkeyPatch, links: list[str], holds: bool
) -> None:
    monkeypatch.setattr(guard, "descriptors", lambda pid: iter(links))
    assert guard.holds_gpu(1) is holds


GPUS = "0, GPU-aaaa\n1, GPU-bbbb\n"
CONTEXTS = "100, GPU-aaaa\n101, GPU-bbbb\n102, GPU-aaaa\n102, GPU-bbbb\n"


@pytest.mark.parametrize(
    ("claimed", "contexts", "in_the_way"),
    [
        ("", CONTEXTS, {100, 101, 102, 103}),
        ("0", CONTEXTS, {100, 102, 103}),
        ("GPU-bb", CONTEXTS, {101, 102, 103}),
        ("0,1", CONTEXTS, {100, 101, 102, 103}),
        ("7", CONTEXTS, {100, 101, 102, 103}),
        ("0", "exit", {100, 101, 102, 103}),
    ],
)
def test_a_part_of_the_gpus(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    claimed: str,
    contexts: str,
    in_the_way: set[int],
) -> None:
    smi = tmp_path / "nvidia-smi"
    answers = f"*query-gpu=*) printf '{GPUS!s}' ;; *) printf '{contexts!s}' ;;".replace("\n", "\\n")
    smi.write_text(f"#!/bin/sh\ncase $1 in {answers} esac\n" if contexts != "exit" else "#!/bin/sh\nexit 9\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", claimed)
    monkeypatch.setattr(guard, "pids", lambda: [100, 101, 102, 103, 104])
    monkeypatch.setattr(guard, "holds_gpu", lambda pid: pid < 104)
    monkeypatch.setattr(guard, "port_problem", lambda host, port: None)
    assert guard.refuse_start("127.0.0.1", 1) == guard.REFUSED
    told = capsys.readouterr().err
    assert {pid for pid in range(100, 105) if f"{pid} (" in told} == in_the_way


def test_descriptors_outlive_the_first_thread() -> None:
    program = (
        "import ctypes, os, threading, time\n"
        "held = os.open('/dev/zero', os.O_RDONLY)\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('up', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout
        child.stdout.readline()
        try:
            while "Z" not in Path(f"/proc/{child.pid}/stat").read_text().split(")")[1]:
                os.sched_yield()
            assert "/dev/zero" in set(guard.descriptors(child.pid))
        finally:
            child.kill()


def test_a_process_that_is_gone_has_no_descriptors() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert list(guard.descriptors(child.pid)) == []
    assert guard.describe(child.pid) == f"{child.pid} (gone, no unit)"


def test_stop_ends_what_listens_to_the_first_term() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert run("stop", str(child.pid)).returncode == 0
        assert child.wait(5) == -signal.SIGTERM


def test_stop_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "FIRST_TERM_SECONDS", 0.05)
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        assert guard.stop(child.pid) == 0
        assert child.poll() is None, "systemd's own SIGTERM comes next"
        child.kill()


@pytest.mark.parametrize("arguments", [("stop",), ("stop", str(2**22 + 1))])
def test_stop_of_an_engine_that_has_ended(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).returncode == 0


def test_usage() -> None:
    done = run("begin")
    assert done.returncode == os.EX_USAGE and "engine_guard.py start HOST PORT" in done.stderr
