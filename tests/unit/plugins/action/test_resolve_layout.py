# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role layout in a real ansible-playbook over several hosts: what is worked out once is right for each of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpuops.inference.plugins.action.resolve_layout import OPTIONS
from ansible_collections.gpuops.inference.plugins.modules.resolve_layout import ARGUMENTS, DOCUMENTATION
from ansible_collections.gpuops.inference.plugins.plugin_utils._layout import resolve
from ansible_collections.gpuops.inference.plugins.plugin_utils._secrets import digests

ROOT = Path(__file__).parents[4]
KIMI = ROOT / "roles/layout/files/kimi_k25_int4_tp8.yml"
MINE: dict[str, Any] = {
    "model": {"path": "/models/m", "served_name": "m"},
    "gpus": {"count": 1, "memory_mib": 1},
    "engines": {"vllm": {}, "sglang": {}},
}
SMALLER = {"engines": {"vllm": {"flags": {"max-num-seqs": 1}}}}
RIGHT: dict[str, dict[str, Any]] = {
    "first": {},
    "alike": {},
    "smaller": {"layout_overrides": SMALLER},
    "keyed": {"layout_secrets": {"vllm": {"VLLM_API_KEY": "hunter2"}}},
    "inline": {"layout_source": MINE},
    "one": {"layout_source": "templated", "variant": "one"},
    "two": {"layout_source": "templated", "variant": "two"},
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unread": ({"layout_overide": {}}, "no one reads: layout_overide (did you mean layout_overrides?)"),
    "unknown": ({"layout_source": "kimi"}, "there is no layout kimi in "),
    "climbs": ({"layout_source": "../hosts"}, "known are kimi_k25_int4_tp8, latin, list, llama33_70b_fp8_tp4"),
    "latin": ({"layout_source": "latin"}, "/layouts/latin.yml cannot be read: 'utf-8' codec"),
    "list": ({"layout_source": "list"}, "the layout list is not a mapping"),
    "text": ({"layout_overrides": "model.path=/x"}, "layout_overrides must be a mapping (gpuops_"),
    "secret": ({"layout_secrets": {"vllm": "x"}}, "vllm_secrets must be a mapping (gpuops_"),
    "faulty": ({"layout_overrides": {"gpus": {"count": 2}}}, "cannot be used as written:\\n- engines."),
}
# Starts no process on a host.
KEEP = """
import json, pathlib
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        pathlib.Path(self._task.args["dest"]).write_text(json.dumps(self._task.args["value"]))
        return {}
"""


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The layouts of all hosts, resolved in one run: what each got, and what was printed."""
    directory = tmp_path_factory.mktemp("resolved")
    (directory / "layouts").mkdir()
    templated = {**MINE, "model": {"path": "/models/{{ variant }}", "served_name": "m"}}
    (directory / "layouts/templated.yml").write_text(yaml.safe_dump(templated))
    (directory / "layouts/list.yml").write_text("[]")
    (directory / "layouts/latin.yml").write_bytes("# für alle".encode("latin-1"))
    (directory / "action_plugins").mkdir()
    (directory / "action_plugins/keep.py").write_text(KEEP)
    wrong = {f"{name}{index}": variables for name, (variables, _text) in WRONG.items() for index in range(2)}
    groups = {"right": {"hosts": RIGHT}, "wrong": {"hosts": wrong}}
    inventory = {"all": {"children": groups, "vars": {"ansible_connection": "local"}}}
    (directory / "hosts.yml").write_text(json.dumps(inventory))
    tasks = [
        {"import_role": {"name": "gpuops.inference.layout"}},
        {"keep": {"value": "{{ layout_resolved }}", "dest": f"{directory}/{{{{ inventory_hostname }}}}.json"}},
    ]
    plays = [{"hosts": group, "gather_facts": False, "tasks": tasks} for group in groups]
    (directory / "play.yml").write_text(yaml.safe_dump(plays))
    (directory / "ansible.cfg").write_text("")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(directory / "hosts.yml"), "play.yml"],
        capture_output=True, text=True, timeout=240, check=False, cwd=directory,
        env={
            **os.environ, "ANSIBLE_CONFIG": str(directory / "ansible.cfg"), "ANSIBLE_LOCAL_TEMP": str(directory),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_NOCOLOR": "1",
        },
    )  # fmt: skip
    found = {path.stem: json.loads(path.read_text()) for path in directory.glob("*.json")}
    return found, done.stdout + done.stderr


def test_hosts_that_ask_for_the_same_get_the_same_and_others_their_own(resolved: tuple[dict[str, Any], str]) -> None:
    found, told = resolved
    kimi = yaml.safe_load(KIMI.read_text())

    def same(host: str, overrides: dict[str, Any]) -> None:
        for name, engine in resolve(kimi, overrides, {}, KIMI.stem)["engines"].items():
            mine = dict(found[host]["engines"][name])
            unit = mine.pop("unit_text")
            guard = (ROOT / "roles/engine/files/engine_guard.py").read_text()
            texts = {
                engine["unit_path"]: unit,
                engine["environment_path"]: engine["environment_text"],
                "/opt/gpuops/engine_guard.py": guard,
            }
            assert mine.pop("digests") == digests(texts)
            assert mine == engine, told
            assert f"ExecStart={engine['exec_start']}\n" in unit and unit.endswith("WantedBy=multi-user.target\n")

    same("first", {})
    same("alike", {})
    same("smaller", SMALLER)
    assert found["keyed"]["engines"]["vllm"]["secrets"] == ["VLLM_API_KEY"]
    assert found["inline"]["name"] == "inline"
    assert [found[host]["model"]["path"] for host in ("one", "two")] == ["/models/one", "/models/two"]
    assert "hunter2" not in told + json.dumps(found)


def test_everybody_is_told_what_is_wrong(resolved: tuple[dict[str, Any], str]) -> None:
    found, told = resolved
    assert set(found) == set(RIGHT)
    for name, (_variables, text) in WRONG.items():
        failures = [line for line in told.splitlines() if line.startswith(f"fatal: [{name}")]
        assert len(failures) == 2 and all(text in line for line in failures), told


def test_module_action_and_role_take_the_same() -> None:
    spec = yaml.safe_load((ROOT / "roles/layout/meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    defaults = yaml.safe_load((ROOT / "roles/layout/defaults/main.yml").read_text())
    assert set(spec["options"]) == set(defaults) == {f"layout_{option}" for option in OPTIONS}
    assert list(ARGUMENTS) == list(yaml.safe_load(DOCUMENTATION)["options"]) == list(OPTIONS)
