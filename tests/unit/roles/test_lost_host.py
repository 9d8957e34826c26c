# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that is lost while a unit is deployed fails for its own pivot, and does not end the run of the others."""

from __future__ import annotations

import json
import os
import re
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


# What is done to a host, and what it is told when that cannot be done to it.
CASES = {
    "role": ([ROLE], "the host cannot be reached any more"),
    "secrets": (SECRETS, "could not be reached while vllm.service was deployed"),
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One run for all: of each case a host that a fleet acts on, and one that is on its own."""
    directory = tmp_path_factory.mktemp("lost")
    (directory / "gone.py").write_text(CONNECTION)
    (directory / "ansible.cfg").write_text("")
    variables: dict[str, Any] = {
        "engine_name": "vllm", "engine_secrets": {}, "engine_layout": {"engines": {"vllm": ENGINE}},
        "ansible_connection": "gone",
        "_engine": ENGINE, "_engine_deployed": {"secret_files": ["/s"]}, "_engine_texts": {"/s": "A=x"},
    }  # fmt: skip
    rescue = [{"ansible.builtin.debug": {"msg": "rescued: {{ ansible_failed_result.msg }}"}}]
    plays = [
        {"hosts": f"*-{case}", "gather_facts": False, "tasks": [{"block": tasks, "rescue": rescue}]}
        for case, (tasks, _told) in CASES.items()
    ]
    (directory / "play.yml").write_text(yaml.safe_dump(plays))
    settings = {
        "ANSIBLE_CONFIG": str(directory / "ansible.cfg"), "ANSIBLE_LOCAL_TEMP": str(directory),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_CONNECTION_PLUGINS": str(directory),
    }  # fmt: skip
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    hosts = {f"{kind}-{case}": {"fleet_acts": kind == "fleet"} for case in CASES for kind in ("alone", "fleet")}
    (directory / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    done = subprocess.run(
        [program, "-i", str(directory / "hosts.yml"), str(directory / "play.yml"), "-e", json.dumps(variables)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **settings}, timeout=120,
        check=False,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("acts", [True, False], ids=["fleet", "alone"])
def test_lost_while_it_is_deployed(printed: str, acts: bool, case: str) -> None:
    host = f"{'fleet' if acts else 'alone'}-{case}"
    told = re.findall(rf'^ok: \[{host}\] => {{\s*"msg": "rescued: (.*)"', printed, re.MULTILINE)
    assert [CASES[case][1] in text for text in told] == [True] * acts, printed
    ended = re.search(rf"^{host} .* unreachable=(\d) +failed=(\d)", printed, re.MULTILINE)
    assert ended, printed
    assert ended.groups() == (str(int(not acts)), "0"), printed
