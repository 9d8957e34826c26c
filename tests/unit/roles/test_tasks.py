# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Single tasks of roles that decide whether to go on, in a real ansible-playbook and without a host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
    play = [{"hosts": "localhost", "gather_facts": False, "connection": "local", "tasks": [task]}]
    (directory / "play.yml").write_text(yaml.safe_dump(play))
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
