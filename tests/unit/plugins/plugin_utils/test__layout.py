# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A layout is merged, checked and completed once; everything wrong with it is said at once."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpuops.inference.plugins.module_utils._engines import recognise_command, serving
from ansible_collections.gpuops.inference.plugins.plugin_utils._layout import LayoutError, resolve
from ansible_collections.gpuops.inference.plugins.plugin_utils._secrets import secret_files

SHIPPED = sorted((Path(__file__).parents[4] / "roles/layout/files").glob("*.yml"))


@pytest.fixture
def kimi() -> dict[str, Any]:
    (path,) = (path for path in SHIPPED if path.stem == "kimi_k25_int4_tp8")
    layout: dict[str, Any] = yaml.safe_load(path.read_text())
    return layout


def resolved(layout: dict[str, Any], **changes: Any) -> dict[str, Any]:
    before = copy.deepcopy((layout, changes))
    arguments: dict[str, Any] = {"overrides": {}, "secrets": {}, "name": "test", **changes}
    result = resolve(layout, **arguments)
    assert before == (layout, changes), "the layout that was handed in stays as it was"
    return result


def faults(layout: dict[str, Any], overrides: dict[str, Any], **changes: Any) -> list[str]:
    with pytest.raises(LayoutError) as caught:
        resolved(layout, overrides=overrides, **changes)
    title, *found = str(caught.value).split("\n- ")
    assert title == "the layout test cannot be used as written:"
    return found


def shipped() -> list[Any]:
    """Every shipped layout, each of its instances, with and without its EAGLE-3."""
    found = []
    for path in SHIPPED:
        layout = yaml.safe_load(path.read_text())
        for instance in layout.get("instances") or [""]:
            for eagle3 in sorted({False, "eagle3" in layout}):
                name = "-".join(filter(None, (path.stem, instance, "eagle3" * eagle3)))
                found.append(pytest.param(layout, {"instance": instance, "eagle3": eagle3}, id=name))
    return found


@pytest.mark.parametrize(("written", "mode"), shipped())
def test_shipped_layouts_start_what_the_engines_are_recognised_by(
    written: dict[str, Any], mode: dict[str, Any]
) -> None:
    layout = resolved(written, **mode)
    for name, engine in layout["engines"].items():
        started = recognise_command(engine["argv"])
        assert started and (started.engine, started.role) == (name, "main")
        serves = serving(name, engine["argv"])
        assert (serves.model, serves.served_model) == (layout["model"]["path"], layout["model"]["served_name"])
        assert (serves.host, serves.port) == (engine["host"], engine["port"])
        assert not serves.profiling
    json.dumps(layout)


def test_kimi_for_vllm(kimi: dict[str, Any]) -> None:
    engine = resolved(kimi)["engines"]["vllm"]
    command = " ".join(engine["argv"])
    assert command.startswith("/opt/vllm/bin/vllm serve /models/Kimi-K2.5 --host 127.0.0.1 --port 8000 ")
    for words in (
        "--served-model-name kimi-k2.5", "--tensor-parallel-size 8", "--trust-remote-code",
        "--mm-encoder-tp-mode data", "--tool-call-parser kimi_k2", "--enable-auto-tool-choice",
        "--reasoning-parser kimi_k2", "--attention-backend TRITON_MLA", "--disable-custom-all-reduce",
        "--gpu-memory-utilization 0.93", "--shutdown-timeout 30",
    ):  # fmt: skip
        assert words in command
    assert engine["environment"]["NCCL_P2P_LEVEL"] == "SYS"
    assert engine["environment"]["VLLM_ENGINE_READY_TIMEOUT_S"] == "3600"
    assert engine["unit_path"] == "/etc/systemd/system/vllm.service"
    assert engine["environment_path"] == "/etc/gpuops/vllm.service.env"


def test_kimi_for_sglang_with_and_without_speculation(kimi: dict[str, Any]) -> None:
    plain = resolved(kimi)["engines"]["sglang"]
    assert " ".join(plain["argv"]).startswith("/opt/sglang/bin/python -m sglang.launch_server --model-path /models/")
    assert "--speculative-algorithm" not in plain["argv"]
    assert plain["models"] == ["/models/Kimi-K2.5"]
    drafted = resolved(kimi, eagle3=True)["engines"]["sglang"]
    assert "--speculative-algorithm EAGLE3" in " ".join(drafted["argv"])
    assert drafted["models"] == ["/models/Kimi-K2.5", "/models/kimi-k2.5-eagle3"]
    elsewhere = {"eagle3": {"engines": {"sglang": {"flags": {"speculative-draft-model-path": "/srv/draft"}}}}}
    assert resolved(kimi, eagle3=True, overrides=elsewhere)["engines"]["sglang"]["models"][1] == "/srv/draft"
    assert resolved(kimi, overrides=elsewhere)["engines"]["sglang"]["models"] == ["/models/Kimi-K2.5"]


def test_overrides_change_add_and_remove(kimi: dict[str, Any]) -> None:
    engines = resolved(
        kimi,
        overrides={
            "model": {"path": "/srv/kimi"},
            "environment": {"OMP_NUM_THREADS": 4},
            "engines": {
                "vllm": {
                    "port": "8010",
                    "flags": {"max-model-len": 65536, "max-num-batched-tokens": None, "max-num-seqs": 32},
                    "environment": {"NCCL_P2P_LEVEL": None},
                },
                "sglang": {"venv": None, "flags": {"model-loader-extra-config": {"num_threads": 8}}},
            },
        },
    )["engines"]
    vllm, sglang = engines["vllm"], engines["sglang"]
    command = " ".join(vllm["argv"])
    assert "/srv/kimi" in vllm["argv"] and "--max-model-len 65536" in command and "--max-num-seqs 32" in command
    assert "--max-num-batched-tokens" not in command
    assert vllm["port"] == 8010
    assert "NCCL_P2P_LEVEL" not in vllm["environment"] and "NCCL_P2P_LEVEL" in sglang["environment"]
    assert sglang["environment"]["OMP_NUM_THREADS"] == "4"
    assert '{"enable_multithread_load":true,"num_threads":8}' in sglang["argv"]
    assert sglang["venv"] == "/opt/sglang", "null gives a key of the layout its default back"


def test_of_a_secret_only_the_name_is_kept(kimi: dict[str, Any]) -> None:
    layout = resolved(kimi, secrets={"vllm": {"VLLM_API_KEY": "hunter2"}})
    assert layout["engines"]["vllm"]["secrets"] == ["VLLM_API_KEY"]
    assert "hunter2" not in json.dumps(layout)


@pytest.mark.parametrize("value", ["hunter2\r", "hunter2\0", "hunter2\n", 8])
def test_a_secret_that_cannot_be_carried_is_refused_by_name(kimi: dict[str, Any], value: Any) -> None:
    (fault,) = faults(kimi, {}, secrets={"vllm": {"VLLM_API_KEY": value}})
    assert "VLLM_API_KEY" in fault and "hunter2" not in fault


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        ({"modle": {}}, "modle: unknown; did you mean model?"),
        ({"engines": {"vllm": {"flagz": {}}}}, "engines.vllm.flagz: unknown; did you mean flags?"),
        ({"engines": {"llvm": {}}}, "engines.llvm: unknown; did you mean vllm?"),
        ({"gpus": {"count": 0}}, "gpus.count: at least one"),
        ({"gpus": {"indexes": [0, 0, 1, 2, 3, 4, 5, 6]}}, "are not 8 different GPUs"),
        ({"concurrency": 0}, "concurrency: at least one"),
        ({"gpus": {"indexes": list(range(8))}, "environment": {"CUDA_VISIBLE_DEVICES": "0"}}, "already says"),
        ({"engines": {"sglang": {"flags": {"config": "/x"}}}}, "flags.config: the layout's flags, or layout_secrets"),
        ({"gpus": {"count": "eight"}}, "unable to convert to int"),
        ({"gpus": {"count": 4}}, "tensor-parallel-size x pipeline-parallel-size is 8, but gpus.count is 4"),
        ({"model": {"path": "Kimi-K2.5"}}, "not an absolute path"),
        ({"model": {"path": "/models/../etc"}}, "not an absolute path"),
        ({"model": {"path": None}}, "missing required arguments: path"),
        ({"devices": ["/dev/nvidia* rw"]}, "no device that systemd can allow"),
        ({"environment": {"HF_TOKEN": "x"}}, "use layout_secrets"),
        ({"environment": {"A": "x\ry"}}, "environment: A holds a control character"),
        ({"environment": {"A": True}}, "write the value as a string"),
        ({"engines": {"vllm": {"flags": {"api-key": "x"}}}}, "everybody on the host can read a command line"),
        ({"engines": {"vllm": {"flags": {"port": 1}}}}, "flags.port: the layout's port already says this"),
        ({"engines": {"vllm": {"flags": {"tensor-parallel-size": "x"}}}}, "must be whole numbers"),
        ({"engines": {"vllm": {"flags": {"a_b": 1}}}}, "write a-b"),
        ({"engines": {"vllm": {"flags": {"shutdown-timeout": 60}}}}, "needs at least 90"),
        ({"engines": {"vllm": {"environment": {"VLLM_PROCESS_NAME_PREFIX": "x"}}}}, "usual titles"),
        ({"engines": {"vllm": {"environment": {"CUDA_VISIBLE_DEVICES": "0,1"}}}}, "names 2 GPUs, but gpus.count is 8"),
        ({"engines": {"vllm": {"user": "root"}}}, "not as root"),
        ({"engines": {"vllm": {"port": 80}}}, "1024 and 65535"),
        ({"engines": {"vllm": {"restart": "often"}}}, "value of restart must be one of"),
        ({"engines": {"vllm": {"unit": "vllm"}}}, "no name for a service unit"),
        ({"engines": {"vllm": {"unit": "sglang.service"}}}, "each needs its own"),
        ({"engines": {"sglang": None}}, "missing required arguments: sglang"),
    ],
)  # fmt: skip
def test_faults_say_what_to_write(kimi: dict[str, Any], overrides: dict[str, Any], fault: str) -> None:
    assert any(fault in found for found in faults(kimi, overrides)), faults(kimi, overrides)


def test_all_faults_come_at_once(kimi: dict[str, Any]) -> None:
    found = faults(kimi, {"gpus": {"count": 4}, "engines": {"vllm": {"port": 80}, "sglang": {"user": "root"}}})
    assert len(found) == 4


def test_halves_have_everything_of_their_own() -> None:
    (written,) = (yaml.safe_load(path.read_text()) for path in SHIPPED if path.stem == "llama33_70b_fp8_tp4")
    low, high = (resolved(written, instance=name)["engines"]["vllm"] for name in "ab")
    assert (low["environment"]["CUDA_VISIBLE_DEVICES"], high["environment"]["CUDA_VISIBLE_DEVICES"]) == (
        "0,1,2,3",
        "4,5,6,7",
    )
    assert (low["unit"], high["unit"]) == ("vllm-a.service", "vllm-b.service")
    assert (low["port"], high["port"]) == (8000, 8001)
    for key in (
        "unit_path",
        "environment_path",
        "secrets_path",
        "configuration_path",
        "state_directory",
        "cache_directory",
    ):
        assert low[key] != high[key]
    named = resolved(written, instance="a", overrides={"engines": {"vllm": {"unit": "chat.service"}}})
    assert named["engines"]["vllm"]["unit"] == "chat.service"
    assert resolved(written, instance="a", overrides={"instances": {"a": {"gpus": {"indexes": [4, 5, 6, 7]}}}})["gpus"][
        "indexes"
    ] == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        ("", "is deployed in parts (a, b), one at a time: name one with layout_instance"),
        ("c", "no instance 'c' (it has: a, b)"),
    ],
)
def test_a_layout_of_parts_needs_to_know_which(kimi: dict[str, Any], instance: str, message: str) -> None:
    with pytest.raises(LayoutError, match=re.escape(message)):
        resolved(kimi, overrides={"instances": {"a": {}, "b": {}}}, instance=instance)
    with pytest.raises(LayoutError, match="it has: none"):
        resolved(kimi, instance="a")


def test_every_kind_of_value_can_be_changed_from_an_inventory(kimi: dict[str, Any]) -> None:
    layout = resolved(
        kimi,
        overrides={
            "model": {"served_name": "k2"},
            "gpus": {"count": 4, "memory_mib": "140000", "indexes": [4, 5, 6, 7]},
            "concurrency": 3,
            "host": {"shm_mib": 1},
            "devices": ["char-nvidia* rw", "/dev/fuse r"],
            "engines": {
                "vllm": {
                    "unit": "chat.service", "user": "chat", "venv": "/srv/vllm", "host": "0.0.0.0", "port": 9000,
                    "stop_timeout": 90, "restart": "no", "version": "0.33.0",
                    "flags": {
                        "tensor-parallel-size": 4,
                        "trust-remote-code": None,
                        "gpu-memory-utilization": 0.9,
                        "disable-access-log-for-endpoints": ["/health", "/metrics"],
                        "speculative-config": {"method": "ngram", "num_speculative_tokens": 2},
                    },
                    "environment": {"NCCL_PROTO": None, "OMP_NUM_THREADS": 16, "NCCL_DEBUG": "WARN"},
                },
                "sglang": {"flags": {"tp-size": 4}},
            },
        },
    )  # fmt: skip
    vllm = layout["engines"]["vllm"]
    command = " ".join(vllm["argv"])
    assert (layout["gpus"]["memory_mib"], layout["concurrency"], layout["host"]["shm_mib"]) == (140000, 3, 1)
    assert vllm["devices"] == ["char-nvidia* rw", "/dev/fuse r"], "a list is replaced, not added to"
    assert command.startswith(
        "/srv/vllm/bin/vllm serve /models/Kimi-K2.5 --host 0.0.0.0 --port 9000 --served-model-name k2"
    )
    assert "--disable-access-log-for-endpoints /health /metrics" in command
    assert '--speculative-config {"method":"ngram","num_speculative_tokens":2}' in command
    assert "--trust-remote-code" not in command and "--gpu-memory-utilization 0.9 " in command
    assert (vllm["unit_path"], vllm["user"], vllm["restart"]) == ("/etc/systemd/system/chat.service", "chat", "no")
    environment = vllm["environment"]
    assert "NCCL_PROTO" not in environment and environment["OMP_NUM_THREADS"] == "16"
    assert environment["NCCL_DEBUG"] == "WARN" and environment["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"


@pytest.mark.parametrize(
    ("version", "written", "flag"),
    [
        ("0.5.23", "cuda-graph-max-bs", "--cuda-graph-max-bs-decode"),
        ("0.5.9", "cuda-graph-max-bs-decode", "--cuda-graph-max-bs"),
        ("0.5.14", "cuda-graph-max-bs", "--cuda-graph-max-bs"),
        ("", "cuda-graph-max-bs", "--cuda-graph-max-bs"),
    ],
)
def test_flags_are_spelt_for_the_version(kimi: dict[str, Any], version: str, written: str, flag: str) -> None:
    engine = {"version": version, "flags": {written: 8}}
    argv = resolved(kimi, overrides={"engines": {"sglang": engine}})["engines"]["sglang"]["argv"]
    assert argv[argv.index(flag) + 1] == "8"


def test_what_a_version_does_not_know_is_refused_or_left_out(kimi: dict[str, Any]) -> None:
    old = {"engines": {"vllm": {"version": "0.17.1", "environment": {"VLLM_TORCH_PROFILER_DIR": "/tmp"}}}}
    flag, variable = faults(kimi, old)
    assert flag.startswith(
        "engines.vllm.flags.shutdown-timeout: vllm 0.17.1 does not know it (only since 0.18.0); null"
    )
    assert "environment.VLLM_TORCH_PROFILER_DIR" in variable and "the flag profiler-config says it" in variable
    assert "is no version" in faults(kimi, {"engines": {"vllm": {"version": "newest"}}})[0]
    for version, kept in (("0.5.9", True), ("0.5.21", False)):
        engine = resolved(kimi, eagle3=True, overrides={"engines": {"sglang": {"version": version}}})["engines"][
            "sglang"
        ]
        assert ("SGLANG_ENABLE_SPEC_V2" in engine["environment"]) is kept


def test_the_keys_of_sglang_stand_in_a_file(kimi: dict[str, Any]) -> None:
    secrets = {"sglang": {"SGLANG_API_KEY": 'it\'s "$ecret" % 1', "HF_TOKEN": "hunter2"}, "vllm": {"VLLM_API_KEY": "x"}}
    engines = resolved(kimi, secrets=secrets)["engines"]
    sglang = engines["sglang"]
    assert sglang["argv"][-2:] == ["--config", "/etc/gpuops/sglang.service.yaml"]
    assert sglang["configuration"] == {"api-key": "SGLANG_API_KEY"}
    files = secret_files(sglang, secrets["sglang"])
    assert files == {
        "/etc/gpuops/sglang.service.secrets": "HF_TOKEN=hunter2\n",
        "/etc/gpuops/sglang.service.yaml": 'api-key: "it\'s \\"$ecret\\" % 1"\n',
    }
    assert secret_files(engines["vllm"], {"VLLM_API_KEY": "x"}) == {
        "/etc/gpuops/vllm.service.secrets": "VLLM_API_KEY=x\n"
    }
    assert "$ecret" not in json.dumps(engines) and "hunter2" not in json.dumps(engines)
    assert "--config" not in engines["vllm"]["argv"] and "--config" not in resolved(kimi)["engines"]["sglang"]["argv"]
    for key in ("", "-rf", " x", "a\tb", "a\nb", "sch\u00fcssel"):
        (fault,) = faults(kimi, {}, secrets={"sglang": {"SGLANG_API_KEY": key}})
        assert fault.startswith("layout_secrets.sglang.SGLANG_API_KEY: ")
    assert len(faults(kimi, {}, secrets={"vllm": {"VLLM_API_KEY": "sch\u00fcssel"}})) == 1
    assert resolved(kimi, secrets={"vllm": {"HF_TOKEN": "sch\u00fcssel"}})


def test_speculation_needs_its_section(kimi: dict[str, Any]) -> None:
    del kimi["eagle3"]
    with pytest.raises(LayoutError, match="no section `eagle3`"):
        resolved(kimi, eagle3=True)
