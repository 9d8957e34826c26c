# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What would spoil a pivot is found before it begins, and told with what to do."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpuops.inference.plugins.module_utils import _preflight as preflight
from ansible_collections.gpuops.inference.plugins.module_utils._engines import Recognition
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, GpuReading, Memory
from ansible_collections.gpuops.inference.plugins.module_utils._holders import Process
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import EngineUnit, Seen, Snapshot
from ansible_collections.gpuops.inference.plugins.module_utils._units import parse_show
from ansible_collections.gpuops.inference.plugins.plugin_utils._layout import resolve

LAYOUTS = Path(__file__).parents[4] / "roles/layout/files"


@pytest.fixture
def layout() -> dict[str, Any]:
    written = yaml.safe_load((LAYOUTS / "kimi_k25_int4_tp8.yml").read_text())
    return resolve(written, {"host": {"memory_mib": 1, "shm_mib": 0, "cache_mib": 0}}, {}, "kimi")


def gpu(index: int, **changes: Any) -> Gpu:
    whole = Gpu(index=index, uuid=f"GPU-{index}", minor=index, memory=Memory(97887, 637, 0, 97250, 2), mig=False)
    return replace(whole, **changes)


def reading(*gpus: Gpu, **changes: Any) -> GpuReading:
    return replace(GpuReading(gpus, "580.126.09", "13.580", "nvml", (), True), **changes)


EIGHT = tuple(gpu(index) for index in range(8))


# --- the host ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("systemd", "cgroups", "kernel", "python", "found"),
    [
        (252, "v2", "6.1.0-31-amd64", (3, 11), []),
        (249, "v2", "5.14.0", (3, 9), []),
        (248, "v2", "6.1", (3, 11), ["systemd is 248; 249 or newer is needed"]),
        (None, "v2", "6.1", (3, 11), ["systemd is not running here"]),
        (252, "hybrid", "6.1", (3, 11), ["cgroups are hybrid; v2 is needed"]),
        (252, "v2", "5.10.0-30-amd64", (3, 8), ["the kernel is 5.10.0-30-amd64; 5.14", "Python is 3.8; 3.9"]),
    ],
)
def test_platform(systemd: int | None, cgroups: str, kernel: str, python: tuple[int, int], found: list[str]) -> None:
    faults = list(preflight.platform_faults(systemd, cgroups, kernel, python))
    assert len(faults) == len(found) and all(fault.startswith(begin) for fault, begin in zip(faults, found))


def test_a_host_that_was_never_prepared_is_sent_to_the_playbook_that_does(tmp_path: Path) -> None:
    assert list(preflight.prepared_faults((tmp_path, tmp_path))) == []
    (fault,) = preflight.prepared_faults((tmp_path, tmp_path / "etc", tmp_path / "var"))
    assert "gpu_host.yml" in fault
    assert f"{tmp_path}/etc and {tmp_path}/var missing" in fault


def test_room(layout: dict[str, Any]) -> None:
    engine = layout["engines"]["vllm"]
    assert list(preflight.room_faults(layout, engine)) == []
    layout["host"] = {"memory_mib": 1 << 30, "shm_mib": 1 << 30, "cache_mib": 1 << 30}
    memory, shm, cache = preflight.room_faults(layout, engine)
    assert "host.memory_mib" in memory and shm.startswith("/dev/shm has ") and "compiled kernels" in cache


# --- GPUs and driver --------------------------------------------------------------------------------------------------


def test_gpus_that_fit(layout: dict[str, Any]) -> None:
    assert list(preflight.gpu_faults(layout, reading(*EIGHT))) == []
    assert list(preflight.nvml_faults(reading(*EIGHT))) == []


def test_seven_of_eight(layout: dict[str, Any]) -> None:
    (fault,) = preflight.gpu_faults(layout, reading(*EIGHT[:7]))
    assert fault.startswith("the layout needs 8 GPUs, the host has 7")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory": Memory(81559, 500, 0, 81000, 2)}, "GPU 3 (GPU-3) has 81559 MiB; the layout needs 97000"),
        ({"mig": True}, "GPU 3 (GPU-3) is split by MIG"),
        ({"error": "GPU_IS_LOST", "memory": None}, "GPU 3 (GPU-3): the driver lost it"),
    ],
)
def test_one_gpu_that_does_not_fit(layout: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    gpus = tuple(gpu(index, **changes) if index == 3 else gpu(index) for index in range(8))
    told = ("GPU 3 (GPU-3): the driver lost it (NVML: GPU_IS_LOST): reboot",) if "error" in changes else ()
    (fault,) = preflight.gpu_faults(layout, reading(*gpus, problems=told))
    assert fault.startswith(message)


@pytest.mark.parametrize("changes", [{"source": "nvidia-smi"}, {"usable": False}, {"source": "none", "gpus": ()}])
def test_without_nvml_no_release_could_be_proven(changes: dict[str, Any]) -> None:
    (fault,) = preflight.nvml_faults(reading(*EIGHT, problems=("no pynvml", "apply gpu_host"), **changes))
    assert fault == "no pynvml; apply gpu_host"


def test_nodes_and_library_must_suit_a_new_process(tmp_path: Path) -> None:
    for node in ("nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for minor in range(8))):
        (tmp_path / node).touch()
    assert list(preflight.driver_faults(reading(*EIGHT), tmp_path, [])) == []
    (tmp_path / "nvidia-uvm").unlink()
    (fault,) = preflight.driver_faults(reading(*EIGHT), tmp_path, [])
    assert fault.startswith(f"{tmp_path}/nvidia-uvm not there") and "nvidia-modprobe" in fault


@pytest.mark.parametrize(("version", "fits"), [("580.126.09", True), ("590.44.01", False)])
def test_an_upgraded_library_stops_the_next_engine_though_this_one_serves(
    tmp_path: Path, version: str, fits: bool
) -> None:
    (tmp_path / f"libcuda.so.{version}").touch()
    (tmp_path / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
    faults = list(preflight.driver_faults(reading(), Path("/dev"), [str(tmp_path)]))
    assert fits is not any("libcuda is 590.44.01 and the loaded driver 580.126.09" in fault for fault in faults)


# --- the engine -------------------------------------------------------------------------------------------------------

ENGINE = """
import argparse
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--port", type=int)
        parser.add_argument("--backend", choices=["a", "b"])
"""


MYSELF = pwd.getpwuid(os.geteuid()).pw_name


class Venv:
    """An installed engine: its interpreter, and modules that can be changed."""

    def __init__(self, root: Path, interpreter: str = sys.executable) -> None:
        self.root, self.site = root, root / "site"
        (self.site / "sglang/srt").mkdir(parents=True)
        (self.site / "sglang/__init__.py").write_text("__version__ = '0.5.23'\n")
        (self.site / "sglang/srt/__init__.py").touch()
        self.arguments = self.site / "sglang/srt/server_args.py"
        self.arguments.write_text(ENGINE)
        self.python = root / "python"
        self.python.write_text(
            textwrap.dedent(f"""\
                #!{interpreter}
                import runpy, sys
                sys.path.insert(0, {str(self.site)!r})
                source = sys.argv[sys.argv.index("-c") + 1]
                sys.argv = sys.argv[sys.argv.index("-c") + 1 :]
                exec(compile(source, "-c", "exec"), {{"__name__": "__main__"}})
                """)
        )
        self.python.chmod(0o755)

    def write(self, module: str, source: str) -> None:
        path = self.site.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    def ask(
        self,
        *arguments: str,
        models: Sequence[str] = (),
        timeout: float = 60.0,
        user: str = MYSELF,
        name: str = "sglang",
        **more: Any,
    ) -> preflight.Installed:
        engine = {
            "engine": name, "python": str(self.python), "argv": [str(self.python)], "venv": str(self.root),
            "arguments": list(arguments), "models": models, "user": user,
            "version": "", "flags": {}, "environment": {}, **more,
        }  # fmt: skip
        return preflight.ask_engine(engine, timeout)


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    return Venv(tmp_path / "venv")


def test_another_version_than_the_layout_was_written_for(venv: Venv) -> None:
    assert not venv.ask("--model-path", "/m", version="0.5").faults
    (fault,) = venv.ask("--model-path", "/m", version="0.5.9").faults
    assert (fault.check, "sglang 0.5.9, and 0.5.23 is installed" in fault.message) == ("engine", True)


def test_what_became_of_a_flag_or_a_variable_is_said(venv: Venv) -> None:
    old = {"cuda-graph-max-bs": 8}
    (fault,) = venv.ask("--model-path", "/m", "--cuda-graph-max-bs", "8", flags=old).faults
    assert "`engines.sglang.version: '0.5.23'` writes cuda-graph-max-bs-decode for it" in fault.message
    assert not venv.ask("--model-path", "/m", environment={"SGLANG_ENABLE_SPEC_V2": "1"}).faults, (
        "nothing depends on it"
    )
    venv.write("vllm.__init__", "__version__ = '0.33.0'\n")
    faults = venv.ask(name="vllm", environment={"VLLM_ATTENTION_BACKEND": "X", "NCCL_PROTO": "LL"}).faults
    (variable,) = [fault for fault in faults if fault.check == "environment"]
    assert "vllm 0.33.0 does not read VLLM_ATTENTION_BACKEND; the flag attention-backend says it" in variable.message


def test_flags_that_the_engine_takes(venv: Venv) -> None:
    installed = venv.ask("--model-path", "/m", "--port", "30000", "--backend", "a")
    assert (installed.version, installed.faults) == ("0.5.23", ())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--swap-space", "4"), "unrecognized arguments: --swap-space 4"),
        (("--backend", "c"), "invalid choice: 'c'"),
        (("--port", "x"), "invalid int value: 'x'"),
        (("--help",), "the parser ends with status 0"),
    ],
)
def test_a_flag_that_the_engine_rejects_is_told_in_its_words(
    venv: Venv, words: tuple[str, ...], complaint: str
) -> None:
    (fault,) = venv.ask("--model-path", "/m", *words).faults
    assert fault.check == "flags"
    assert complaint in fault.message and "sglang 0.5.23" in fault.message and "engines.sglang.flags" in fault.message


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("import torch_of_another_world", "No module named 'torch_of_another_world'"),
        ("raise OSError('libcudart.so.13: cannot open')", "libcudart.so.13: cannot open"),
        ("import os; os._exit(3)", "its interpreter ends early: exit status 3"),
        ("print('noise', flush=True); import os, sys; sys.stderr.write('Fatal\\n'); os.abort()", "Fatal"),
    ],
)
def test_an_engine_that_cannot_be_imported(venv: Venv, source: str, complaint: str) -> None:
    venv.arguments.write_text(source)
    (fault,) = venv.ask().faults
    assert fault.check == "engine" and complaint in fault.message


def test_what_an_import_prints_does_not_matter(venv: Venv) -> None:
    venv.arguments.write_text("print('INFO: loading')\n" + ENGINE)
    assert venv.ask("--model-path", "/m").faults == ()


def test_an_import_that_hangs_is_not_waited_for(venv: Venv) -> None:
    venv.arguments.write_text("import threading; threading.Event().wait()")
    (fault,) = venv.ask(timeout=0.5).faults
    assert "not imported within 0.5 s" in fault.message


def test_no_gpu_is_visible_to_the_import(venv: Venv) -> None:
    venv.arguments.write_text(
        "import os\nassert os.environ['CUDA_VISIBLE_DEVICES'] == ''\nassert os.access(os.environ['HOME'], os.W_OK)\n"
        + ENGINE
    )
    assert venv.ask("--model-path", "/m").faults == ()


def test_an_engine_that_is_not_installed(venv: Venv) -> None:
    shutil.rmtree(venv.root)
    (fault,) = venv.ask().faults
    assert fault.check == "engine" and fault.message.endswith(f"install sglang into {venv.root}")


VLLM_ARGUMENTS = """
def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--max-model-len", type=int)
    return parser
"""
VLLM_PARSER = "from argparse import ArgumentParser as FlexibleArgumentParser\n"


@pytest.mark.parametrize(
    ("arguments", "parser"),
    [
        ("vllm.entrypoints.common.cli_args", "vllm.utils.argparse_utils"),  # 0.33
        ("vllm.entrypoints.launchers.cli_args", "vllm.utils.argparse_utils"),  # 0.32
        ("vllm.entrypoints.openai.cli_args", "vllm.utils.__init__"),  # before
    ],
)
def test_vllm_keeps_moving_its_parser(venv: Venv, arguments: str, parser: str) -> None:
    venv.write(arguments, VLLM_ARGUMENTS)
    venv.write(parser, VLLM_PARSER)
    assert venv.ask("/m", "--max-model-len", "8", name="vllm").faults == ()
    (fault,) = venv.ask("/m", "--swap-space", "4", name="vllm").faults
    assert "unrecognized arguments: --swap-space 4" in fault.message


def test_a_dependency_that_is_missing_is_not_taken_for_an_older_version(venv: Venv) -> None:
    venv.write("vllm.entrypoints.launchers.cli_args", "import a_dependency\n")
    venv.write("vllm.entrypoints.openai.cli_args", VLLM_ARGUMENTS)
    (fault,) = venv.ask(name="vllm").faults
    assert "vllm in " in fault.message and "No module named 'a_dependency'" in fault.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as another user")
@pytest.mark.skipif(not os.access("/usr/bin/python3", os.X_OK), reason="needs an interpreter that everybody may run")
def test_a_model_that_the_engines_user_may_not_read() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        venv, model = Venv(Path(place, "venv"), "/usr/bin/python3"), Path(place, "model")
        model.mkdir()
        (model / "config.json").touch(mode=0o600)
        (fault,) = venv.ask("--model-path", "/m", models=[str(model)], user="not-made-yet").faults
    assert fault.check == "model" and f"the user not-made-yet may not read {model}/config.json" in fault.message


# --- port and the way back --------------------------------------------------------------------------------------------

SHOW = """\
ExecStart={{ path=/bin/sh ; argv[]={argv} ; ignore_errors=no ; start_time=[n/a] ; pid=0 }}
Id=vllm.service
LoadState=loaded
ActiveState=active
SubState=running
FragmentPath={fragment}
EnvironmentFiles={environment} (ignore_errors=no)
MainPID=100
TimeoutStopUSec=1min
"""


def engine_unit(tmp_path: Path, argv: str = "/bin/sh serve /", environment: str = "") -> EngineUnit:
    fragment = tmp_path / "vllm.service"
    fragment.write_text(f"[Service]\nEnvironmentFile=-{tmp_path}/optional.env\n")
    (unit,) = parse_show(SHOW.format(argv=argv, fragment=fragment, environment=environment or str(fragment)))
    return EngineUnit(unit, "vllm", frozenset({100}))


def process(pid: int) -> Process:
    return Process(pid, 1, 1, pid, pid, "S", 1, 0, "vllm")


def snapshot(unit: EngineUnit | None, **seen: Seen) -> Snapshot:
    members = {item.process.pid: item for item in seen.values()}
    units = {unit.unit.name: unit} if unit else {}
    return Snapshot(GpuReading(), {pid: item.process for pid, item in members.items()}, members, units)


def main_process(pid: int, argv: str) -> Seen:
    return Seen(process(pid), tuple(argv.split()), "/usr/bin/python3.11", recognition=Recognition("vllm", "main"))


def test_a_unit_that_runs_what_it_says_can_be_brought_back(tmp_path: Path) -> None:
    unit = engine_unit(tmp_path)
    for argv in ("/bin/sh serve /", "/usr/bin/python3 /bin/sh serve /"):
        seen = snapshot(unit, main=main_process(100, argv))
        assert list(preflight.rollback_faults("sglang.service", seen)) == []


def test_a_unit_that_runs_something_else_cannot(tmp_path: Path) -> None:
    seen = snapshot(engine_unit(tmp_path), main=main_process(100, "/bin/sh serve / --profiler-config x"))
    (fault,) = preflight.rollback_faults("sglang.service", seen)
    assert fault.startswith("vllm.service serves now and would not come back as it is: it runs with")
    assert "--profiler-config x" in fault and "(gpuops_allow_no_rollback)" in fault
    assert list(preflight.rollback_faults("vllm.service", seen)) == [], "it is the unit that will be deployed"


def test_files_that_a_rollback_needs(tmp_path: Path) -> None:
    unit = engine_unit(tmp_path, "/opt/nowhere/vllm serve /models/gone", f"{tmp_path}/gone.env")
    seen = snapshot(unit, main=main_process(100, "/opt/nowhere/vllm serve /models/gone"))
    program, environment, model = preflight.rollback_faults("sglang.service", seen)
    assert "/opt/nowhere/vllm is gone" in program
    assert "gone.env is gone" in environment
    assert "its model /models/gone is gone" in model
    optional = engine_unit(tmp_path, environment=f"{tmp_path}/optional.env")
    assert list(preflight.rollback_faults("sglang.service", snapshot(optional))) == []


def test_an_engine_without_a_unit_could_not_be_started_again() -> None:
    seen = snapshot(None, main=main_process(7, "/opt/vllm/bin/vllm serve /m --api-key hunter2"))
    (fault,) = preflight.rollback_faults("sglang.service", seen)
    assert fault.startswith("vllm runs without a unit (pid 7") and "(gpuops_allow_no_rollback)" in fault
    assert "hunter2" not in fault


def test_port() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        engine = {"engine": "vllm", "host": "127.0.0.1", "port": server.getsockname()[1]}
        (fault,) = preflight.port_faults(engine, snapshot(None))
        assert f"port {engine['port']} is taken by " in fault and "engines.vllm.port" in fault
        ours = snapshot(None, main=main_process(os.getpid(), "vllm serve"))
        assert list(preflight.port_faults(engine, ours)) == [], "an engine is drained first"
    assert list(preflight.port_faults(engine, snapshot(None))) == []


def test_what_changes_for_the_units_author_and_for_clients(tmp_path: Path) -> None:
    unit = engine_unit(tmp_path, "/bin/vllm serve /m --host 0.0.0.0 --port 8000 --served-model-name kimi")
    new = {"engine": "sglang", "unit": "sglang.service", "host": "127.0.0.1", "port": 30000}
    new["unit_path"] = str(tmp_path / "sglang.service")
    new["argv"] = "/bin/sglang serve --model-path /m --served-model-name kimi-k2.5".split()
    address, model = preflight.changes(new, snapshot(unit))
    assert address == (
        "clients: vllm.service answers on 0.0.0.0 port 8000, sglang.service will on 127.0.0.1 port 30000, which only "
        "this host itself reaches; point them there, or keep the address with engines.sglang.host and .port in "
        "gpuops_layout_overrides"
    )
    assert model == "clients: the model kimi will be called kimi-k2.5"
    same = {**new, "engine": "vllm", "unit": "vllm.service", "host": "0.0.0.0", "port": 8000}
    same["argv"] = "/bin/vllm serve /m --served-model-name kimi".split()
    (replaced,) = preflight.changes(same, snapshot(unit))
    assert replaced.startswith(f"{tmp_path}/vllm.service was not made from a layout and is replaced")
    (tmp_path / "vllm.service").write_text("# Written by gpuops.inference, role engine\n")
    assert list(preflight.changes(same, snapshot(unit))) == []


def test_an_address_of_another_host() -> None:
    (fault,) = preflight.port_faults({"engine": "vllm", "host": "192.0.2.1", "port": 8000}, snapshot(None))
    assert fault.startswith("nothing can listen on 192.0.2.1") and "engines.vllm.host" in fault


def test_half_a_host_needs_its_own_gpus_alone(layout: dict[str, Any]) -> None:
    layout["gpus"] = {"count": 2, "memory_mib": 97000, "indexes": [4, 5]}
    gpus = tuple(gpu(index, mig=index == 0) for index in range(8))
    assert list(preflight.gpu_faults(layout, reading(*gpus))) == []
    (fault,) = preflight.gpu_faults(layout, reading(*gpus[:5]))
    assert fault.startswith("the layout needs 2 GPUs (4, 5), the host has 1 of them")


def test_the_way_back_of_the_other_half_is_nobodys_business(tmp_path: Path) -> None:
    argv = "/bin/sh serve / --profiler-config x"
    main = replace(main_process(100, argv), claims=frozenset({0, 1}))
    for seen in (snapshot(engine_unit(tmp_path), main=main), snapshot(None, main=main)):
        assert len(list(preflight.rollback_faults("sglang.service", seen, [1, 2]))) == 1
        assert list(preflight.rollback_faults("sglang.service", seen, [2, 3])) == []


def test_memory_is_reckoned_from_the_files(layout: dict[str, Any], tmp_path: Path) -> None:
    engine = layout["engines"]["vllm"]
    engine["models"] = [str(tmp_path)]
    assert preflight.memory_need(layout, engine, reading(*EIGHT)) is None, "there is no model"
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}')
    with (tmp_path / "model.safetensors").open("wb") as shard:
        shard.truncate(547_000_000_000)
    need = preflight.memory_need(layout, engine, reading(*EIGHT))
    assert need and need.fits and list(preflight.memory_faults("vllm", need)) == []
    engine["flags"]["gpu-memory-utilization"] = 0.7
    (fault,) = preflight.memory_faults("vllm", preflight.memory_need(layout, engine, reading(*EIGHT)))
    assert fault.startswith("it cannot fit: each GPU: weights 63.7 + KV cache 8.6 (131072 tokens x 1) = 72.3 of the ")
    assert "lower max-model-len to at most " in fault and "gpu-memory-utilization" in fault


# --- units and the story ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_reads_the_units(layout: dict[str, Any]) -> None:
    version = preflight.systemd_version() or 252
    for engine in layout["engines"].values():
        engine["unit_text"] = f"[Service]\nExecStart={engine['exec_start']}\n"
    assert list(preflight.unit_faults(layout, version)) == []
    layout["engines"]["sglang"]["unit_text"] += "KillMode=sometimes\n"
    (fault,) = preflight.unit_faults(layout, version)
    assert "sglang.service:" in fault and "sometimes" in fault and "/tmp" not in fault


def test_all_problems_in_one_message() -> None:
    found = [*preflight.problems("port", ["taken"]), *preflight.problems("model", ["cut short", "missing"])]
    assert preflight.story(found, "sglang.service") == (
        "3 problems stand in the way of sglang.service on this host; nothing was touched:\n"
        "1. [port] taken\n2. [model] cut short\n3. [model] missing"
    )
    assert preflight.story(found[:1], "x.service").startswith("one problem stands in the way of x.service")
