# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.action.inference_service import Lines, parse_read, read_command


@pytest.mark.parametrize(
    "text, alive, lines",
    [
        ("gpuops: alive\nline\n", True, ["line"]),
        ("gpuops: ended\na\nb\n", False, ["a", "b"]),
        ("Welcome to this host!\n\ngpuops: ended\nline\n", False, ["line"]),
        ("", True, []),
        ("Welcome\n", True, []),
        ('gpuops: alive\nline\n{"result": {"m', True, ["line"]),
    ],
)
def test_only_the_answer_itself_says_that_a_process_ended(text: str, alive: bool, lines: list[str]) -> None:
    assert parse_read(text) == (alive, lines)


def test_a_file_goes_with_its_whole_result_and_not_with_a_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "it's told"

    def read(line: int) -> list[str]:
        command = ["/bin/sh", "-c", read_command(2**22 + 1, shlex.quote(str(file)), line)]
        return parse_read(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[1]

    progress = json.dumps({"unit": "vllm.service", "status": 'says {"result": "x"} \n.'})
    result = json.dumps({"result": {"msg": "x" * 9000 + "}}"}})
    file.write_text(progress + "\n")
    assert read(1) == [progress] and file.exists()
    for part in (10, 5000, len(result)):
        file.write_text(progress + "\n" + result[:part])
        assert read(1) == [progress] and read(2) == [] and file.exists()
    file.write_text(progress + "\n" + result + "\n")
    assert read(2) == [result] and not file.exists()
    assert read(3) == []


def told(phase: str, status: str, seconds: float, rest: str = "") -> str:
    return json.dumps({"unit": "vllm.service", "phase": phase, "status": status, "seconds": seconds, "rest": rest})


def test_a_line_for_each_phase_and_none_for_counters_where_nobody_watches() -> None:
    lines = Lines("gpu1", 1, terminal=False)
    assert lines.line(told("starting", "starting", 0.2, "about 21 min to go"), 0) == (
        "gpu1: vllm.service: starting (0 s, about 21 min to go)"
    )
    assert lines.line(told("loading", "loading, shard 1 of 64", 30), 30) == (
        "gpu1: vllm.service: loading, shard 1 of 64 (30 s)"
    )
    assert lines.line(told("loading", "loading, shard 9 of 64", 90), 90) == ""
    assert lines.line("a line of something else", 91) == ""


@pytest.mark.parametrize(("hosts", "shown"), [(1, [0, 5, 10, 15, 20]), (12, [0, 15])])
def test_on_a_terminal_counters_share_it_with_the_other_hosts(hosts: int, shown: list[int]) -> None:
    lines = Lines("gpu1", hosts, terminal=True)
    assert [at for at in range(0, 25, 5) if lines.line(told("loading", f"shard {at}", at), at)] == shown
