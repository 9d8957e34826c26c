# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._drift import (
    Running,
    changed_arguments,
    changed_environment,
    changed_files,
    differences,
    fingerprint,
    foreign_drop_ins,
    newer_files,
    on_its_port,
)
from ansible_collections.gpuops.inference.plugins.module_utils._units import Unit, parse_show

(BARE,) = parse_show("Id=vllm.service\n")
ARGV = ("/opt/vllm/bin/vllm", "serve", "/models/K", "--port", "8000")


@pytest.fixture
def unit(tmp_path: Path) -> Unit:
    drop_ins = tmp_path / "vllm.service.d"
    drop_ins.mkdir()
    for path in (tmp_path / "vllm.service", drop_ins / "10-more.conf", drop_ins / "90-gpuops-hold.conf"):
        path.write_text(path.name)
    return replace(
        BARE,
        fragment_path=str(tmp_path / "vllm.service"),
        drop_in_paths=(str(drop_ins / "10-more.conf"), str(drop_ins / "90-gpuops-hold.conf")),
        environment_files=(str(tmp_path / "vllm.env"),),
        exec_start=ARGV,
    )


def test_what_a_start_reads_is_compared_by_content(unit: Unit) -> None:
    before = fingerprint(unit)
    os.utime(unit.fragment_path, (0, 0))
    assert changed_files(before, fingerprint(unit)) == []
    Path(unit.fragment_path).write_text("other")
    Path(unit.drop_in_paths[0]).unlink()
    Path(unit.environment_files[0]).write_text("A=1")
    assert changed_files(before, fingerprint(unit)) == [
        f"{unit.environment_files[0]} is new",
        f"{unit.fragment_path} has changed",
        f"{unit.drop_in_paths[0]} is gone",
    ]


def test_a_hold_is_no_drift(unit: Unit) -> None:
    before = fingerprint(unit)
    Path(unit.drop_in_paths[1]).unlink()
    assert changed_files(before, fingerprint(replace(unit, drop_in_paths=unit.drop_in_paths[:1]))) == []


def test_without_a_fingerprint_the_times_of_the_files_tell(unit: Unit) -> None:
    os.utime(unit.fragment_path, (1000, 1000))
    os.utime(unit.drop_in_paths[0], (2000, 2000))
    assert newer_files(unit, 3000) == []
    assert newer_files(unit, 1999.5) == []
    assert newer_files(unit, 1500) == [f"{unit.drop_in_paths[0]} was written after the start"]


@pytest.mark.parametrize(
    "running",
    [(), ARGV, ("/usr/bin/python3.11", *ARGV), ("/opt/vllm/bin/python3", *ARGV)],
)
def test_arguments_as_in_the_unit(unit: Unit, running: tuple[str, ...]) -> None:
    assert changed_arguments(unit, running) == []


def test_arguments_with_blanks_are_no_drift(unit: Unit) -> None:
    configured = replace(unit, exec_start=(*ARGV, "--note", '{"a":', "1}"))
    assert changed_arguments(configured, (*ARGV, "--note", '{"a": 1}')) == []


def test_variables_that_systemd_filled_in_are_no_drift(unit: Unit) -> None:
    configured = replace(unit, exec_start=(*ARGV, "--tp", "${TP}"))
    assert changed_arguments(configured, (*ARGV, "--tp", "8")) == []
    assert changed_arguments(configured, (*ARGV[:-1], "8001", "--tp", "8")) != []


def test_other_arguments_are_told_without_their_secrets(unit: Unit) -> None:
    running = (*ARGV[:-1], "8001", "--api-key", "swordfish", "--profiler-config", "torch")
    (sentence,) = changed_arguments(unit, running)
    assert sentence == (
        "it runs with `--port 8001 --api-key ******** --profiler-config torch` where its unit says `--port 8000`"
    )


@pytest.mark.parametrize(
    ("more_here", "more_there", "sentence"),
    [
        (("--x", "3", "--x", "4"), ("--x", "4"), "it runs with `--x 3`, which its unit does not say"),
        (("--x", "4"), ("--x", "3", "--x", "4"), "it runs without `--x 3`, which its unit says"),
        (("--a", "--b"), ("--b", "--a"), "it runs with its unit's arguments in another order or number"),
    ],
)
def test_what_one_side_alone_says(
    unit: Unit, more_here: tuple[str, ...], more_there: tuple[str, ...], sentence: str
) -> None:
    configured = replace(unit, exec_start=(*ARGV, *more_there))
    assert changed_arguments(configured, (*ARGV, *more_here)) == [sentence]


def test_other_values_in_the_environment_are_told_by_name() -> None:
    files = {"A": "1", "TOKEN": "swordfish", "GONE": "x"}
    assert changed_environment(files, {"A": "1", "TOKEN": "tunafish", "HOME": "/"}) == [
        "its environment has other values than its files for TOKEN"
    ]
    assert changed_environment(files, {}) == []


@pytest.mark.parametrize(
    ("fragment", "drop_in", "found"),
    [
        ("# Written by gpuops.inference, role engine", "/etc/systemd/system/vllm.service.d/mine.conf", True),
        ("# Written by gpuops.inference, role engine", "/run/systemd/system/vllm.service.d/90-gpuops-hold.conf", False),
        ("# Written by gpuops.inference, role engine", "/usr/lib/systemd/system/service.d/10-abort.conf", False),
        ("[Service]", "/etc/systemd/system/vllm.service.d/mine.conf", False),
    ],
)
def test_a_drop_in_on_a_unit_of_ours_is_told(unit: Unit, fragment: str, drop_in: str, found: bool) -> None:
    Path(unit.fragment_path).write_text(fragment)
    assert foreign_drop_ins(replace(unit, drop_in_paths=(drop_in,))) == ([drop_in] if found else [])


def test_a_unit_that_systemd_has_not_read_again_and_a_masked_one(unit: Unit) -> None:
    running = replace(unit, active_state="active", load_state="masked", invocation_id="a")
    record = {"invocation_id": "a", "files": fingerprint(running)}
    found = differences(running, Running(ARGV, stale=True), record, {})
    assert [(str(difference), difference.restart) for difference in found] == [
        (
            "its unit files changed and systemd had not read them: "
            "a pivot to it, or restart_on_drift, applies what the files say",
            True,
        ),
        (
            "it is masked, so that nothing can start it: `systemctl unmask vllm.service` lets it start again",
            False,
        ),
    ]


def test_nothing_runs_and_nothing_differs(unit: Unit) -> None:
    assert differences(replace(unit, active_state="inactive"), Running(stale=True), None, {"A": "1"}) == []


def test_somebody_else_on_its_port_is_told() -> None:
    assert on_its_port(8000, []) == []
    (difference,) = on_its_port(8000, ["nginx (pid 7, nginx.service)"])
    assert str(difference).startswith("nginx (pid 7, nginx.service) listens on its port 8000: ")
    assert not difference.restart
