# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The look of an undrain refuses what would lift more than was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
ASKED: dict[str, Any] = {"fleet_undrain_units": [], "layout_instance": "", "drain_gpus": ["all"]}


@pytest.mark.parametrize(
    "settings, refused",
    [
        ({}, False),
        ({"layout_instance": "a"}, True),
        ({"drain_gpus": ["0", "1"]}, True),
        ({"layout_instance": "a", "fleet_undrain_units": ["vllm-a"]}, False),
    ],
)
def test_a_part_of_a_host_needs_its_units_named(tmp_path: Path, settings: dict[str, Any], refused: bool) -> None:
    first = yaml.safe_load((ROOT / "roles/fleet/tasks/undrain_look.yml").read_text())[0]
    play = [{"hosts": "localhost", "gather_facts": False, "connection": "local", "tasks": [first]}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", str(tmp_path / "play.yml")]
    (tmp_path / "ansible.cfg").write_text("")
    environment = {**os.environ, "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"), "ANSIBLE_LOCAL_TEMP": str(tmp_path)}
    done = subprocess.run(
        [*command, "-e", json.dumps({**ASKED, **settings})],
        capture_output=True, text=True, env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert ("name the units of the part" in done.stdout, done.returncode != 0) == (refused, refused), done.stdout + done.stderr
