# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._engines import (
    Recognition,
    argument,
    is_multiprocessing_child,
    recognise,
    recognise_comm,
    recognise_command,
    serving,
)

PYTHON = "/usr/bin/python3.11"


@pytest.mark.parametrize(
    "line, engine, role",
    [
        ("/opt/vllm/bin/python3 /opt/vllm/bin/vllm serve /m -tp 8", "vllm", "main"),
        ("python3 -m vllm.entrypoints.openai.api_server --model /m", "vllm", "main"),
        ("python3 -u -X dev -W ignore -m vllm.entrypoints.openai.api_server", "vllm", "main"),
        ("python3 -m vllm.entrypoints.cli.main serve /m", "vllm", "main"),
        ("VLLM::EngineCore", "vllm", "worker"),
        ("VLLM::EngineCore_DP1", "vllm", "worker"),
        ("VLLM::Worker", "vllm", "worker"),
        ("VLLM::Worker_DP0_PP1_TP3_EP3", "vllm", "worker"),
        ("/opt/sglang/bin/python -m sglang.launch_server --model-path /m", "sglang", "main"),
        ("/opt/sglang/bin/python3 /opt/sglang/bin/sglang serve --model-path /m", "sglang", "main"),
        ("sglang::scheduler", "sglang", "worker"),
        ("sglang::scheduler_DP0_TP0_EP0", "sglang", "worker"),
        ("sglang::detokenizer", "sglang", "worker"),
        ("sglang::data_parallel_controller", "sglang", "worker"),
    ],
)
def test_an_engine_is_recognised(line: str, engine: str, role: str) -> None:
    assert recognise(line.split(), PYTHON) == Recognition(engine, role)


@pytest.mark.parametrize(
    "line",
    [
        "python3 -m http.server vllm serve",
        "python3 train.py --engine vllm serve",
        "python3 -c vllm serve",
        "python3 -m vllm_exporter",
        "VLLM::Workers",
        "xVLLM::Worker",
        "sglang::schedulers",
        "python3 /opt/bin/vllm-cleaner serve",
        "python3 /opt/vllm/bin/vllm bench",
        "python3 -m vllm.entrypoints.cli.main bench serve",
        "python3 -m vllm.entrypoints.cli.main",
        "",
    ],
)
def test_what_only_looks_like_one_is_not(line: str) -> None:
    assert recognise(line.split(" ") if line else [], PYTHON) is None


def test_only_a_python_can_be_an_engines_process_but_a_unit_may_name_the_script() -> None:
    argv = ["/opt/vllm/bin/vllm", "serve", "/m"]
    assert recognise(argv, "/usr/bin/tail") is None
    assert recognise(argv, f"{PYTHON} (deleted)") == Recognition("vllm", "main")
    assert recognise_command(argv) == Recognition("vllm", "main")


def test_the_kernels_short_name_is_enough_where_nothing_else_can_be_read() -> None:
    assert recognise_comm("VLLM::EngineCor") == Recognition("vllm", "worker")
    assert recognise_comm("sglang::schedul") == Recognition("sglang", "worker")
    assert recognise_comm("vllm") is None


@given(st.lists(st.text(max_size=20), max_size=8), st.text(max_size=30))
def test_any_command_line_can_be_looked_at(argv: list[str], executable: str) -> None:
    recognise(argv, executable)
    is_multiprocessing_child(argv)
    serving("vllm", argv)
    serving("sglang", argv)


def test_the_last_of_an_argument_counts_in_both_spellings() -> None:
    argv = ["--port", "1", "--port=2", "--host"]
    assert argument(argv, "--port") == "2"
    assert argument(argv, "--host") is None


def test_where_an_engine_answers_is_read_from_its_command_line() -> None:
    where = serving(
        "vllm", ["/opt/vllm/bin/vllm", "serve", "/models/K", "--host", "0.0.0.0", "--served-model-name", "kimi"]
    )
    assert (where.host, where.port, where.served_model, where.model) == ("127.0.0.1", 8000, "kimi", "/models/K")
    assert where.profiling == ()
    where = serving("sglang", ["python", "-m", "sglang.launch_server", "--model-path", "/m", "--port", "31000"])
    assert (where.port, where.served_model) == (31000, "/m")


def test_a_profiling_run_is_seen() -> None:
    line = "vllm serve /m --profiler-config {} --profiler-config.profiler torch"
    assert serving("vllm", line.split()).profiling == ("--profiler-config", "--profiler-config.profiler")


def test_pythons_own_helpers_are_known_by_their_program() -> None:
    assert is_multiprocessing_child(["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"])
    assert is_multiprocessing_child(["python", "-B", "-c", "from multiprocessing.spawn import spawn_main; x"])
    assert not is_multiprocessing_child(["python", "-c", "print('from multiprocessing.spawn import ')"])


@pytest.mark.parametrize("port", ["\u00b2", "9" * 5000, "-1", ""])
def test_a_port_that_is_none_is_the_default(port: str) -> None:
    assert serving("vllm", ["vllm", "serve", "/m", "--port", port]).port == 8000
