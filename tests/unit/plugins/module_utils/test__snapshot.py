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
