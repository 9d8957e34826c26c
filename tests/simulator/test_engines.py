# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-ins behave as the real engines were seen to: started by real command lines, looked at from outside."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional

import pytest

SIMULATOR = Path(__file__).resolve().parent
sys.path[:0] = [str(SIMULATOR), str(SIMULATOR / "engines")]

import venvs  # noqa: E402
from standin import recorded  # noqa: E402

PR_SET_CHILD_SUBREAPER = 36
GPUS = 4


def eventually(condition: Callable[[], Any], what: str, seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return result


def stat(pid: int) -> Optional[list[str]]:
    """State, parent, group, session ... or None where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def alive(pid: int) -> bool:
    found = stat(pid)
    return found is not None and found[0] != "Z"


class Host:
    """A directory that stands for the host, and the engines started in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.engines: list[Engine] = []
        (root / "faults").mkdir()
        (root / "dev").mkdir()
        nodes = ["nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for minor in range(GPUS))]
        for node in nodes:
            (root / "dev" / node).touch()
        for index in range(GPUS):
            (root / "alloc" / str(index)).mkdir(parents=True)
        (root / "gpus").write_text("".join(
            f"{i} GPU-{i}0000000-0000-0000-0000-000000000000 00000000:0{i}:00.0 {GPUS - 1 - i} 97887 637 Card\n"
            for i in range(GPUS)))  # fmt: skip
        self.model = root / "model"
        self.model.mkdir()
        shards = [f"model-{n:05d}-of-00008.safetensors" for n in range(1, 9)]
        for shard in shards:
            (self.model / shard).touch()
        (self.model / "config.json").write_text('{"architectures": ["KimiK25ForConditionalGeneration"]}')
        index = {"weight_map": dict(zip("abcdefgh", shards))}
        (self.model / "model.safetensors.index.json").write_text(json.dumps(index))
        for engine in ("vllm", "sglang"):
            venvs.make(engine, root / engine, sys.executable)
            self.fault(f"{engine}.load-seconds", "0.5")
        self.environment = {"PATH": os.environ["PATH"], "GPUSIM_ROOT": str(root), "GPUSIM_DEV": str(root / "dev")}

    def fault(self, name: str, value: str = "") -> None:
        (self.root / "faults" / name).write_text(value)

    def vllm(self, *flags: str, port: int = 0, **environment: str) -> Engine:
        return self.start([str(self.root / "vllm/bin/vllm"), "serve", str(self.model)], flags,
                          ["--tensor-parallel-size", str(GPUS)], port, environment)  # fmt: skip

    def sglang(self, *flags: str, port: int = 0, **environment: str) -> Engine:
        return self.start([str(self.root / "sglang/bin/python"), "-m", "sglang.launch_server", "--model-path",
                           str(self.model)], flags, ["--tp-size", str(GPUS)], port, environment)  # fmt: skip

    def start(
        self, command: list[str], flags: tuple[str, ...], tp: list[str], port: int, env: dict[str, str]
    ) -> Engine:
        port = port or free_port()
        argv = [*command, *tp, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "kimi-k2.5", *flags]
        engine = Engine(argv, port, self.root / f"log{len(self.engines)}", {**self.environment, **env})
        self.engines.append(engine)
        return engine

    def memory(self, pid: int) -> list[int]:
        """MiB this process holds on each GPU, by the files it has open."""
        held = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
        return [sum(int(file.read_text().split()[1]) for file in (self.root / "alloc" / str(i)).iterdir()
                    if str(file) in held) for i in range(GPUS)]  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Engine:
    """A running stand-in, in a session of its own so that nothing of it is ever lost sight of."""

    def __init__(self, argv: list[str], port: int, log: Path, environment: dict[str, str]) -> None:
        self.port = port
        self.log = log
        with log.open("wb") as output:
            self.main = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                         env=environment, start_new_session=True)  # fmt: skip

    def pids(self) -> list[int]:
        found = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        return [pid for pid in found if (fields := stat(pid)) and fields[0] != "Z" and int(fields[3]) == self.main.pid]

    def titled(self, prefix: str) -> dict[str, int]:
        """{title: pid} of living processes whose command line is a title that starts so."""
        titles = {Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(): pid for pid in self.pids()}
        return {title: pid for title, pid in titles.items() if title.startswith(prefix)}

    def says(self, text: str) -> None:
        eventually(lambda: text in self.log.read_text(), f"no line with {text!r} in\n{self.log.read_text()}")

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
            with connection.getresponse() as reply:
                return reply.status, reply.read().decode()

    def answers(self, path: str = "/health") -> Optional[int]:
        try:
            return self.ask(path)[0]
        except ConnectionError:
            return None

    def ready(self) -> Engine:
        # SGLang's /health generates a token and takes a second.
        path = "/ready" if "sglang.launch_server" in self.main.args else "/health"
        eventually(lambda: self.answers(path) == 200, f"not ready:\n{self.log.read_text()}")
        return self

    def ends(self, status: int) -> None:
        assert self.main.wait(20) == status, self.log.read_text()

    def nothing_left(self) -> None:
        eventually(lambda: not self.pids(), "processes are left")

    def close(self) -> None:
        eventually(lambda: not self.kill(), "processes are left")
        if self.main.returncode is None:
            self.main.wait(20)
        Path(f"/dev/shm/sglang_loads_{self.main.pid:08x}.shm").unlink(missing_ok=True)

    def kill(self) -> list[int]:
        """SIGKILL for all that live now; what is born meanwhile is met the next time.

        Not for multiprocessing's tracker: it ends when the others have, and removes what they leave in /dev/shm.
        """
        pids = self.pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        return pids


@pytest.fixture(autouse=True, scope="module")
def adopt_orphans() -> Iterator[None]:
    """Orphans become this process's children, which then can be told from the living ones of its parent."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    for engine in made.engines:
        engine.close()


@pytest.mark.parametrize("start", ["vllm", "sglang"])
def test_unknown_flag_is_refused(host: Host, start: str) -> None:
    engine = getattr(host, start)("--swap-space", "4")
    engine.ends(2)
    engine.says("error: unrecognized arguments: --swap-space 4")


def test_vllm_tree_memory_and_answers(host: Host) -> None:
    engine = host.vllm("--gpu-memory-utilization", "0.93")
    assert engine.answers() is None, "it listens only when it is ready"
    engine.ready()
    core = engine.titled("VLLM::EngineCore")["VLLM::EngineCore"]
    workers = engine.titled("VLLM::Worker")
    assert sorted(workers) == [f"VLLM::Worker_TP{rank}" for rank in range(GPUS)]
    assert {int(stat(pid)[1]) for pid in workers.values()} == {core}  # type: ignore[index]
    assert int(stat(core)[1]) == engine.main.pid  # type: ignore[index]
    assert Path(f"/proc/{core}/comm").read_text() == "VLLM::EngineCor\n"
    assert not Path(f"/proc/{core}/environ").read_bytes().strip(b"\0")
    for rank, pid in enumerate(workers.values()):
        expected = [0] * GPUS
        expected[int(list(workers)[rank][-1])] = int(97887 * 0.93)
        assert host.memory(pid) == expected
        nodes = {os.readlink(f"/proc/{pid}/fd/{fd}").rpartition("/")[2] for fd in os.listdir(f"/proc/{pid}/fd")}
        assert {"nvidiactl", "nvidia-uvm", "nvidia0", "nvidia3"} <= nodes
    status, text = engine.ask("/v1/completions", {"model": "kimi-k2.5", "prompt": "hi", "max_tokens": 3})
    assert status == 200 and json.loads(text)["choices"][0]["text"].strip()
    assert engine.ask("/v1/completions", {"model": "other", "prompt": "hi"})[0] == 404
    assert json.loads(engine.ask("/v1/models")[1])["data"][0]["id"] == "kimi-k2.5"
    metrics = engine.ask("/metrics")[1]
    assert 'vllm:num_requests_running{engine="0",model_name="kimi-k2.5"} 0.0' in metrics
    assert 'finished_reason="length"} 1.0' in metrics
    assert "\rLoading safetensors checkpoint shards:  50% Completed | 4/8 [" in engine.log.read_bytes().decode()


def test_vllm_sigterm_kills_the_tree_at_once(host: Host) -> None:
    engine = host.vllm().ready()
    engine.main.terminate()
    engine.ends(0)
    engine.nothing_left()
    assert "force killing remaining process EngineCore" in engine.log.read_text()


def test_vllm_with_a_shutdown_timeout_finishes_its_requests(host: Host) -> None:
    engine = host.vllm("--shutdown-timeout", "15").ready()
    with ThreadPoolExecutor() as pool:
        request = pool.submit(engine.ask, "/v1/completions", {"model": "kimi-k2.5", "prompt": "", "max_tokens": 800})
        eventually(lambda: "} 1.0" in engine.ask("/metrics")[1].splitlines()[2], "no request is running")
        engine.main.terminate()
        engine.says("mode=drain timeout=15s")
        assert engine.answers() == 200, "it is healthy while it drains"
        assert request.result()[0] == 200
    engine.ends(0)
    engine.nothing_left()
    assert "all workers exited gracefully" in engine.log.read_text()


def test_vllm_workers_outlive_the_api_server(host: Host) -> None:
    engine = host.vllm().ready()
    core, workers = engine.titled("VLLM::EngineCore"), engine.titled("VLLM::Worker")
    engine.main.kill()
    engine.ends(-signal.SIGKILL)
    time.sleep(0.5)
    assert engine.titled("VLLM::") == {**core, **workers}
    assert len(engine.pids()) == len(core) + len(workers) + 1, "the resource tracker lives on, too"
    assert engine.answers() is None
    assert int(stat(core["VLLM::EngineCore"])[1]) == os.getpid()  # type: ignore[index]
    assert sum(map(sum, map(host.memory, workers.values()))) > GPUS * 80_000
    # Told to end, the orphans do.
    os.kill(core["VLLM::EngineCore"], signal.SIGTERM)
    engine.nothing_left()


def test_vllm_sigterm_while_loading(host: Host) -> None:
    host.fault("vllm.load-seconds", "2")
    early = host.vllm()
    early.says("version")
    early.main.terminate()
    early.ends(-signal.SIGTERM)
    lost = host.vllm()
    lost.says("Initializing a V1 LLM engine")
    lost.main.terminate()
    lost.ready()
    twice = host.vllm(port=free_port(), CUDA_VISIBLE_DEVICES="3,2,1")
    twice.says("Resolved architecture")
    eventually(lambda: len(twice.pids()) > 2, "no EngineCore")
    time.sleep(0.1)
    twice.main.terminate()
    time.sleep(0.1)
    twice.main.terminate()
    twice.ends(130)
    twice.nothing_left()


@pytest.mark.parametrize("victim", ["VLLM::EngineCore", "VLLM::Worker_TP1"])
def test_vllm_ends_when_a_part_of_it_dies(host: Host, victim: str) -> None:
    engine = host.vllm().ready()
    os.kill(engine.titled(victim)[victim], signal.SIGKILL)
    engine.ends(0)
    engine.nothing_left()
    assert "EngineDeadError" in engine.log.read_text()


@pytest.mark.parametrize("start", ["vllm", "sglang"])
def test_children_look_spawned_before_they_have_titles(host: Host, start: str) -> None:
    host.fault(f"{start}.load-seconds", "3")
    engine = getattr(host, start)()
    pid = eventually(lambda: [p for p in engine.pids() if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()],
                     "no spawned child")[0]  # fmt: skip
    words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert words[0].endswith(b"/bin/python") and words[1] == b"-c" and words[-1] == b"--multiprocessing-fork"


def test_taken_port(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        vllm = host.vllm(port=port)
        vllm.ends(1)
        vllm.says("OSError: [Errno 98] Address already in use")
        sglang = host.sglang(port=port)
        sglang.says("[Errno 98] error while attempting to bind on address ('127.0.0.1'")
        time.sleep(0.3)
        assert len(sglang.titled("sglang::scheduler")) == GPUS, "it hangs with its memory held"
        assert sglang.main.poll() is None


@pytest.mark.parametrize("start", ["vllm", "sglang"])
def test_crash_while_loading(host: Host, start: str) -> None:
    host.fault(f"{start}.crash-loading", "nccl")
    engine = getattr(host, start)()
    engine.ends({"vllm": 1, "sglang": -signal.SIGKILL}[start])
    engine.nothing_left()
    engine.says("RuntimeError: NCCL error: unhandled cuda error")
    engine.says({"vllm": "Engine core initialization failed", "sglang": "Received sigquit"}[start])


@pytest.mark.parametrize("start", ["vllm", "sglang"])
def test_memory_held_by_somebody_else(host: Host, start: str) -> None:
    holder = host.vllm("--tensor-parallel-size", "1").ready()
    engine = getattr(host, start)()
    engine.says({"vllm": "Free memory on device cuda:0 (", "sglang": "The memory capacity is unbalanced"}[start])
    assert engine.main.wait(20) != 0
    holder.main.terminate()
    holder.ends(0)


@pytest.mark.parametrize("start", ["vllm", "sglang"])
def test_faults(host: Host, start: str) -> None:
    host.fault(f"{start}.crash-loop")
    engine = getattr(host, start)()
    engine.ends(1)
    engine.says("ImportError")
    (host.root / "faults" / f"{start}.crash-loop").unlink()
    host.fault(f"{start}.wrong-model", "other")
    engine = getattr(host, start)().ready()
    assert json.loads(engine.ask("/v1/models")[1])["data"][0]["id"] == "other"
    host.fault(f"{start}.fail-completion")
    assert engine.ask("/v1/completions", {"prompt": "", "max_tokens": 1})[0] == 500
    host.fault(f"{start}.unhealthy")
    assert engine.answers() == 503
    engine.main.terminate()
    engine.ends(0)
    engine.nothing_left()


def test_hang_while_loading(host: Host) -> None:
    host.fault("sglang.hang-loading")
    engine = host.sglang()
    engine.says("Init parallel begin.")
    time.sleep(1)
    assert len(engine.titled("sglang::scheduler")) == GPUS and engine.answers() is None


@pytest.mark.parametrize("start", ["vllm", "sglang"])
def test_stubborn_workers(host: Host, start: str) -> None:
    host.fault(f"{start}.ignore-term")
    engine = getattr(host, start)().ready()
    title = {"vllm": "VLLM::Worker_TP0", "sglang": "sglang::scheduler_TP0"}[start]
    workers = engine.titled(title[:-1])
    if start == "vllm":
        engine.main.kill()
        os.kill(engine.titled("VLLM::EngineCore")["VLLM::EngineCore"], signal.SIGTERM)
    for pid in workers.values():
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.6)
    assert engine.titled(title[:-1]) == workers


def test_keys(host: Host) -> None:
    vllm = host.vllm(VLLM_API_KEY="secret").ready()
    assert vllm.answers("/v1/models") == 401 and vllm.answers("/metrics") == 200
    assert vllm.ask("/v1/models", Authorization="Bearer secret")[0] == 200
    vllm.main.terminate()
    vllm.ends(0)
    config = host.root / "sglang.yaml"
    config.write_text("api-key: secret\nenable-metrics: true\n")
    sglang = host.sglang("--config", str(config)).ready()
    assert sglang.answers("/v1/models") == 401 and sglang.answers("/metrics") == 200
    assert sglang.ask("/v1/models", Authorization="Bearer secret")[0] == 200
    assert "secret" not in vllm.log.read_text() + sglang.log.read_text()


def test_sglang_tree_and_answers(host: Host) -> None:
    host.fault("sglang.load-seconds", "4")
    engine = host.sglang("--enable-metrics")
    eventually(lambda: engine.answers() == 503, "no warm-up seen", 10)
    engine.ready()
    tree = engine.titled("sglang::")
    assert sorted(tree) == ["sglang::detokenizer", *(f"sglang::scheduler_TP{rank}" for rank in range(GPUS))]
    assert {int(stat(pid)[1]) for pid in tree.values()} == {engine.main.pid}  # type: ignore[index]
    assert sum(host.memory(tree["sglang::scheduler_TP0"])) == int(97887 * 0.88)
    assert engine.ask("/v1/completions", {"model": "kimi-k2.5", "prompt": "", "max_tokens": 3})[0] == 200
    assert 'sglang:num_running_reqs{engine_type="unified",model_name="kimi-k2.5",tp_rank="0"} 0.0' in \
        engine.ask("/metrics")[1]  # fmt: skip
    assert b"\rMulti-thread loading shards:  50% Completed | 4/8 [" in engine.log.read_bytes()
    engine.main.terminate()
    engine.ends(0)
    engine.nothing_left()


def test_sglang_children_die_with_a_ready_launcher(host: Host) -> None:
    engine = host.sglang().ready()
    assert engine.answers("/metrics") == 404
    engine.main.kill()
    engine.ends(-signal.SIGKILL)
    engine.nothing_left()


def test_sglang_orphans_of_a_loading_launcher_go_on_to_allocate(host: Host) -> None:
    host.fault("sglang.load-seconds", "2")
    engine = host.sglang()
    eventually(lambda: len(engine.pids()) > GPUS + 2, "no children")
    engine.main.terminate()
    engine.ends(-signal.SIGTERM)
    orphans = eventually(lambda: engine.titled("sglang::scheduler"), "no orphans")
    eventually(lambda: sum(host.memory(next(iter(orphans.values())))) > 50_000, "they take no memory")
    engine.says("BrokenPipeError")
    eventually(lambda: set(engine.titled("sglang::")) == {"sglang::detokenizer"}, "the detokenizer stays")


def test_sglang_misses_a_scheduler(host: Host) -> None:
    engine = host.sglang().ready()
    os.kill(engine.titled("sglang::scheduler_TP2")["sglang::scheduler_TP2"], signal.SIGKILL)
    engine.says("Subprocess scheduler_2 (pid=")
    engine.ends(-signal.SIGKILL)
    engine.nothing_left()


def test_every_recorded_line_can_be_said() -> None:
    """Each text is a format string over values that the stand-ins have."""
    values = dict.fromkeys(
        "version model served tp rank non_default architecture max_model_len host port pid mode timeout core left"
        " status fatal running name child".split(), 1)  # fmt: skip
    values.update(dict.fromkeys("weights_seconds weights_gib kv_gib init_seconds free_gib left_gib".split(), 1.0))
    for recording in (recorded.VLLM, recorded.SGLANG):
        for lines in recording["log"].values():
            for who, dummy, dummy, text in lines:
                who.format(**values)
                text.format(**values)
