# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that is lost while a unit is deployed fails for its own pivot, and does not end the run of the others."""

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
CONNECTION = """
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = "{name: gone, short_description: never there, description: x, author: x, options: {}}"


class Connection(ConnectionBase):
    transport = "gone"

    def _connect(self):
        raise AnsibleConnectionFailure("nobody is there")

    exec_command = put_file = fetch_file = close = lambda self, *args, **kwargs: self._connect()
"""
ENGINE = {
    **dict.fromkeys(("environment_text", "unit_text"), "x"),
    **{f"{name}_path": f"/nowhere/{name}" for name in ("environment", "secrets", "configuration", "unit")},
    "user": "nobody", "unit": "vllm.service", "secrets": [], "environment": {}, "configuration": "",
}  # fmt: skip


ROLE = {"ansible.builtin.include_role": {"name": "gpuops.inference.engine"}}
SECRETS = [
    task
    for task in yaml.safe_load((ROOT / "roles/engine/tasks/main.yml").read_text())[1]["block"]
    if task["name"] in ("Write the secrets", "Stop where the host was lost meanwhile")
]


@pytest.mark.parametrize(
    "tasks, told",
    [
        ([ROLE], "the host cannot be reached any more"),
        (SECRETS, "could not be reached while vllm.service was deployed"),
    ],
)
@pytest.mark.parametrize("acts, code", [(True, 0), (False, 4)])
def test_lost_while_it_is_deployed(
    tmp_path: Path, acts: bool, code: int, tasks: list[dict[str, Any]], told: str
) -> None:
    (tmp_path / "gone.py").write_text(CONNECTION)
    (tmp_path / "ansible.cfg").write_text("")
    variables: dict[str, Any] = {
        "engine_name": "vllm", "engine_secrets": {}, "engine_layout": {"engines": {"vllm": ENGINE}},
        "ansible_connection": "gone", "fleet_acts": acts,
        "_engine": ENGINE, "_engine_deployed": {"secret_files": ["/s"]}, "_engine_texts": {"/s": "A=x"},
    }  # fmt: skip
    block = {
        "block": tasks,
        "rescue": [{"ansible.builtin.debug": {"msg": "rescued: {{ ansible_failed_result.msg }}"}}],
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [block]}]))
    settings = {
        "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"), "ANSIBLE_LOCAL_TEMP": str(tmp_path),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_CONNECTION_PLUGINS": str(tmp_path),
    }  # fmt: skip
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    done = subprocess.run(
        [program, "-i", "ghost,", str(tmp_path / "play.yml"), "-e", json.dumps(variables)],
        capture_output=True, text=True, env={**os.environ, **settings}, timeout=120, check=False,
    )  # fmt: skip
    printed = done.stdout + done.stderr
    assert done.returncode == code, printed
    assert ("rescued: " in printed and told in printed) == acts, printed
