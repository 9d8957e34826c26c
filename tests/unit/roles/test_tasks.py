# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Single tasks of roles that decide whether to go on, in a real ansible-playbook and without a host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES = Path(__file__).parents[3] / "roles"
ASKED: dict[str, Any] = {"fleet_undrain_units": [], "layout_instance": "", "drain_gpus": ["all"]}
HELD: dict[str, Any] = {"health": [], "free": False, "would_be_free": False, "msg": "GPU 0 is held by pid 4711"}
ILL: dict[str, Any] = {**HELD, "health": [{"check": "xid", "kind": "fault", "gpus": [3], "text": "an NVLink error"}]}


def run(directory: Path, file: str, name: str, variables: dict[str, Any], *options: str) -> tuple[bool, str]:
    """Run one task. Returns whether it failed, and what was printed."""
    task = next(task for task in yaml.safe_load((ROLES / file).read_text()) if task["name"] == name)
    return play(directory, task, variables, *options)


def play(directory: Path, task: dict[str, Any], variables: dict[str, Any], *options: str) -> tuple[bool, str]:
    plays = [{"hosts": "localhost", "gather_facts": False, "connection": "local", "tasks": [task]}]
    (directory / "play.yml").write_text(yaml.safe_dump(plays))
    (directory / "ansible.cfg").write_text("")
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    done = subprocess.run(
        [program, *options, "-i", "localhost,", str(directory / "play.yml"), "-e", json.dumps(variables)],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "ANSIBLE_CONFIG": str(directory / "ansible.cfg"), "ANSIBLE_LOCAL_TEMP": str(directory)},
    )  # fmt: skip
    return done.returncode != 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "settings, refused",
    [
        ({}, False),
        ({"layout_instance": "a"}, True),
        ({"drain_gpus": ["0", "1"]}, True),
        ({"layout_instance": "a", "fleet_undrain_units": ["vllm-a"]}, False),
    ],
)
def test_an_undrain_of_a_part_of_a_host_needs_its_units_named(
    tmp_path: Path, settings: dict[str, Any], refused: bool
) -> None:
    name = "Refuse to lift for a part of a host what all of it is held by"
    failed, told = run(tmp_path, "fleet/tasks/undrain_look.yml", name, {**ASKED, **settings})
    assert (failed, "name the units of the part" in told) == (refused, refused), told


@pytest.mark.parametrize("seen, stops", [(HELD, False), (ILL, True)])
def test_hardware_stops_and_holders_do_not_which_a_drain_may_be_told_to_end(
    tmp_path: Path, seen: dict[str, Any], stops: bool
) -> None:
    name = "Stop where the hardware is not well"
    failed, told = run(tmp_path, "drain/tasks/health.yml", name, {"drain_verified": seen}, "--check")
    assert failed == stops, told


@pytest.mark.parametrize("mode", ["never", "return"])
def test_a_role_that_has_nothing_to_take_back_fails(tmp_path: Path, mode: str) -> None:
    begun = {"pivot_begun": {"mode": mode, "msg": "no pivot was made on this host"}}
    failed, told = run(tmp_path, "pivot/tasks/go_back.yml", "Stop where there is nothing to take back", begun)
    assert (failed, "no pivot was made" in told) == (mode == "never",) * 2, told


def test_a_way_back_says_which_item_of_a_loop_failed_and_why(tmp_path: Path) -> None:
    items = [{"changed": True}, {"failed": True, "msg": "cannot write /etc/gpuops/a.secrets"}]
    for result in ({"msg": "One or more items failed", "results": items}, items[1]):
        seen = {"ansible_failed_task": {"name": "Write the secrets"}, "ansible_failed_result": result}
        failed, told = run(tmp_path, "pivot/tasks/rollback.yml", "Keep why it failed", seen, "-v")
        assert not failed and "Write the secrets: cannot write /etc/gpuops/a.secrets" in told, told


def metas(tasks: list[dict[str, Any]], inherited: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The conditions of meta in a file, each as a task that tells only how it was decided."""
    for task in tasks:
        variables = {**inherited, **task.get("vars", {})}
        if "ansible.builtin.meta" in task:
            yield {"ansible.builtin.debug": {"msg": "decided"}, "when": task["when"], "vars": variables}
        yield from metas(task.get("block", []), variables)


@pytest.mark.parametrize("wrong", [{}, {"odd": None}, {"odd": 5}], ids=["undefined", "null", "number"])
@pytest.mark.parametrize("file", ["drain/tasks/drain.yml", "fleet/tasks/look.yml", "fleet/tasks/act.yml"])
def test_what_one_host_has_written_wrong_does_not_end_the_run_of_all(
    tmp_path: Path, file: str, wrong: dict[str, Any]
) -> None:
    # Ansible gives up all hosts where a condition of meta cannot be evaluated. The playbooks give each hook a default.
    hook = "{{ odd | default([]) }}"
    over: dict[str, Any] = {"outcome": "skipped", "cause": ""}
    seen = {
        "drain_health": "{{ odd }}", "drain_result": {"drained": True}, "fleet_hook_after": hook, "fleet_found": {},
        "fleet_looked": {"gpuops_outcome": over}, "fleet_gate": {"go": True, "soak": 0},
        "fleet_ended": {"gpuops_outcome": over, "serving": True}, **wrong,
    }  # fmt: skip
    for task in metas(yaml.safe_load((ROLES / file).read_text()), {}):
        failed, told = play(tmp_path, task, seen)
        assert not failed, told
