# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Ansible finds out about one host, as the path of its Python, is not told of another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]


def test_a_fact_of_one_host_is_no_other_hosts(tmp_path: Path) -> None:
    look = yaml.safe_load((ROOT / "playbooks/_rolling.yml").read_text())[0]["tasks"]
    once = [task for task in look if task.get("run_once")]
    assert once, "the look has nothing left that Ansible could share"
    tasks = [
        {"ansible.builtin.import_tasks": str(ROOT / "playbooks/tasks/guard.yml"), "vars": {"gpuops_fleet": True}},
        *once,
        {"ansible.builtin.set_fact": {"mine": "{{ inventory_hostname }}", "cacheable": True}},
        {"ansible.builtin.assert": {"that": ["ansible_facts.mine == inventory_hostname"]}},
    ]
    play = {"hosts": "a,b", "connection": "local", "gather_facts": False, "tasks": tasks}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    (tmp_path / "ansible.cfg").write_text("")
    settings = {
        "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"), "ANSIBLE_LOCAL_TEMP": str(tmp_path),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
    }  # fmt: skip
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [program, "-i", "a,b,", str(tmp_path / "play.yml")]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
