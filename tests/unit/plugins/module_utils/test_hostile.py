# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What processes, the driver and files say may be anything: no error that nobody documented, nothing unescaped."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._arguments import gpu_table, process_rows
from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import GpuReading
from ansible_collections.gpuops.inference.plugins.module_utils._hold import Holds
from ansible_collections.gpuops.inference.plugins.module_utils._holders import (
    cgroup,
    sigkill_pending,
    wait_channel,
)
from ansible_collections.gpuops.inference.plugins.module_utils._log import Log
from ansible_collections.gpuops.inference.plugins.module_utils._masking import printable
from ansible_collections.gpuops.inference.plugins.module_utils._owners import owner_of
from ansible_collections.gpuops.inference.plugins.module_utils._plan import Policy, make_plan
from ansible_collections.gpuops.inference.plugins.module_utils._ports import listeners
from ansible_collections.gpuops.inference.plugins.module_utils._probe import Probe
from ansible_collections.gpuops.inference.plugins.module_utils._quiesce import read_load
from ansible_collections.gpuops.inference.plugins.module_utils._record import RecordError, read_json
from ansible_collections.gpuops.inference.plugins.module_utils._units import UnitsError, parse_duration, parse_show

sys.path.insert(0, str(Path(__file__).parent))
from hosts import ALL, Host, unit

NASTY = st.sampled_from(
    [
        "\n",
        "\0",
        "\x1b[31m",
        "\x1b]0;gone\x07",
        "\r",
        "\u202e",
        "{{ 1/0 }}",
        "{% raw %}",
        "\udcff",
        "\u2028",
        "%",
        ") S 1 (",
        "x" * 5000,
    ]
)
TEXT = st.lists(NASTY | st.text(max_size=20), max_size=8).map("".join)
BYTES = st.binary(max_size=200) | TEXT.map(lambda text: text.encode("utf-8", "replace"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
# Function-scoped directories and processes are told apart by their content.
few = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in strings(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("name", ["status", "cgroup", "wchan"])
@few
@given(content=BYTES)
@example(content=b"SigPnd:\n")
@example(content=b"ShdPnd:\txyz\n")
@example(content=b"0::\xff\x1b[31m\n")
def test_any_file_of_a_process_can_be_read(tmp_path: Path, name: str, content: bytes) -> None:
    process = tmp_path / "77"
    process.mkdir(exist_ok=True)
    (process / name).write_bytes(content)
    if name == "status":
        sigkill_pending(77, tmp_path)
    elif name == "cgroup":
        assert str(owner_of(cgroup(77, tmp_path))).isprintable()
    else:
        wait_channel(77, tmp_path)


@few
@given(TEXT)
def test_any_owner_is_named_in_one_printable_line(name: str) -> None:
    for shape in ("/system.slice/{}.service", "/user@1000.service/app.slice/{}.service", "/libpod-{}.scope", "/{}"):
        path = shape.format(name)
        owner = owner_of(path)
        assert all(text.isprintable() for text in strings(owner.as_dict())), path
        assert str(owner).isprintable(), path


@few
@given(TEXT, TEXT, TEXT)
def test_whatever_processes_call_themselves_the_plan_is_told_safely(argument: str, comm: str, path: str) -> None:
    host = Host().vllm()
    # As read_process gives it: the name of a process is cleaned where it is read.
    host.process(500, ("/usr/bin/python3", argument, f"--api-key={argument}"), comm=printable(comm), uses=ALL,
                 cgroup=f"/system.slice/{path}.service")  # fmt: skip
    host.unit(unit("vllm.service", ("/opt/vllm/bin/vllm", "serve", argument.replace("\n", " "))), [100])
    snapshot = host.snapshot()
    plan = make_plan(snapshot, Policy())
    told = [*plan.refusals, *plan.unsettled, *plan.steps(), *strings(process_rows(plan.judged))]
    assert all(text.isprintable() and len(text) < 3000 for text in told)
    assert gpu_table(plan.gpus, plan.judged).replace("\n", "").isprintable()


@given(TEXT)
@example("1.2.3s")
@example("1" * 400 + "y")
def test_a_time_span_is_a_number_or_a_units_error(text: str) -> None:
    with suppress(UnitsError):
        assert parse_duration(text) >= 0


@given(
    st.lists(st.sampled_from(["Id=", "MainPID=", "TimeoutStopUSec=", "Job=", "ExecStart=", "\n", "\n\n"]) | TEXT).map(
        "".join
    )
)
@example("MainPID=\N{SUPERSCRIPT TWO}")
@example("NRestarts=" + "9" * 5000)
def test_whatever_systemctl_shows_is_units_or_a_units_error(text: str) -> None:
    with suppress(UnitsError):
        parse_show(text)


@few
@given(content=BYTES, comm=BYTES)
def test_whoever_has_a_port_is_named_in_one_printable_line(tmp_path: Path, content: bytes, comm: bytes) -> None:
    net = tmp_path / "net"
    net.mkdir(exist_ok=True)
    (net / "tcp").write_text(
        "  sl\n   0: 00000000:1F40 00000000:0000 0A 0:0 00:0 0 0 0 4242 1 0 100 0 0 10 0\n", encoding="ascii"
    )
    process = tmp_path / "77"
    (process / "fd").mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (process / "fd" / "3").symlink_to("socket:[4242]")
    (process / "comm").write_bytes(comm)
    (process / "cgroup").write_bytes(content)
    (listener,) = listeners(8000, proc=tmp_path)
    assert str(listener).isprintable()


@few
@given(st.text(max_size=300) | JSON.map(json.dumps))
@example("[" * 100_000)
def test_a_file_of_ours_is_an_object_or_a_record_error(text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "file")
        path.write_text(text, encoding="utf-8", errors="replace")
        with suppress(RecordError):
            assert read_json(path) is None or isinstance(read_json(path), dict)


@few
@given(st.dictionaries(st.sampled_from(["unit", "reason", "who", "since", "until", "pid", "start"]), JSON))
@example({"unit": "x.service", "reason": "", "who": "", "since": "", "until": "tomorrow"})
@example({"unit": "x.service", "reason": "", "who": "", "since": 0, "until": 0, "pid": "7", "start": []})
def test_a_hold_is_read_or_a_record_error(data: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        places = [Path(directory, name) for name in ("hold", "units", "kept", "kept-units", "owed", "kept-owed")]
        holds = Holds(*places)
        places[0].mkdir()
        (places[0] / "x.service").write_text(json.dumps(data))
        with suppress(RecordError):
            for hold in holds.all():
                assert str(hold).isprintable()


@given(TEXT, st.sampled_from(sorted(ENGINES)))
def test_any_text_is_a_load_or_none(text: str, engine: str) -> None:
    gauges = "".join(f"{name} {value}\n" for name, value in ((ENGINES[engine].running_metric, text), ("x", "nan")))
    load = read_load(ENGINES[engine], f"{text}\n{gauges}")
    assert load is None or not math.isnan(load.running) or not load.idle


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=400) | st.just(b"y" * 3_000_000))
def test_a_log_gives_all_of_any_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log").write_bytes(content)
    said = []
    with Log(["cat", str(tmp_path / "log")]) as log:
        while not log.ended:
            said += log.lines()
    assert len("".join(said)) <= len(content)


HOSTILE_ANSWERS = {
    "truncated": b'{"item": "sys',
    "not text": b"\xff\xfe\n",
    "no object": b'7\n"item"\n[]\n',
    "no system": b'{"item": "system", "value": null}\n{"end": true}\n',
    "wrong types": b'{"item": [], "value": {}}\n',
    "a list for a GPU": b'{"item": 0, "value": [1, 2]}\n{"end": true}\n',
    "very deep": b"[" * 200_000 + b"\n",
    "very long": b'"' + b"x" * 2_000_000 + b"\n",
    "nothing at all": b"",
}


@pytest.mark.parametrize("name", HOSTILE_ANSWERS)
def test_whatever_a_worker_answers_it_is_a_reading(tmp_path: Path, name: str) -> None:
    (tmp_path / "said").write_bytes(HOSTILE_ANSWERS[name])
    # Where no line is ever ended, the whole deadline is spent.
    deadline = 0.3 if name in ("truncated", "nothing at all") else 20.0
    hello = json.dumps({"item": "nvml", "value": "13.0"}).encode() + b'\n{"end": true}\n'
    (tmp_path / "hello").write_bytes(hello)
    liar = tmp_path / "python"
    liar.write_text(f"#!/bin/sh\nread request\ncat {tmp_path}/hello\nread request\ncat {tmp_path}/said\nread request\n")
    liar.chmod(0o755)
    with Probe([str(liar)], nvidia_smi="/nonexistent", notes=tmp_path / "notes") as probe:
        probe.start(20.0)
        reading = probe.gpus(deadline)
        assert isinstance(reading, GpuReading)
        assert all(text.isprintable() for text in reading.problems)
        probe.start(20.0)
        assert probe.cmdlines([1], deadline) in ({}, {1: ()})
