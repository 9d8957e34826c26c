# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Single tasks of roles that decide whether to go on, in a real ansible-playbook and without a host.

One run has all the cases, for its start costs more than they do. Each has a play and a host of its own, so that none
sees what another left.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROLES = Path(__file__).parents[3] / "roles"


class Case(NamedTuple):
    about: str
    tasks: list[dict[str, Any]]
    variables: dict[str, Any]
    fails: bool
    says: str = ""
    keeps_to_itself: str = ""
    option: str = ""


def named(file: str, name: str) -> list[dict[str, Any]]:
    return [task for task in yaml.safe_load((ROLES / file).read_text()) if task["name"] == name]


def undrains() -> Iterator[Case]:
    told = "name the units of the part"
    task = named("fleet/tasks/undrain_look.yml", "Refuse to lift for a part of a host what all of it is held by")
    asked: dict[str, Any] = {"fleet_undrain_units": [], "layout_instance": "", "drain_gpus": ["all"]}
    for part in ({"layout_instance": "a"}, {"drain_gpus": ["0", "1"]}):
        yield Case(f"an undrain of a part needs its units named: {part}", task, {**asked, **part}, True, told)
    for whole in ({}, {"layout_instance": "a", "fleet_undrain_units": ["vllm-a"]}):
        about = f"an undrain needs no more than that: {whole}"
        yield Case(about, task, {**asked, **whole}, False, keeps_to_itself=told)


def looks_at_hardware() -> Iterator[Case]:
    task = named("drain/tasks/health.yml", "Stop where the hardware is not well")
    held: dict[str, Any] = {"health": [], "free": False, "would_be_free": False, "msg": "GPU 0 is held by pid 4711"}
    ill = {**held, "health": [{"check": "xid", "kind": "fault", "gpus": [3], "text": "an NVLink error"}]}
    about = "holders do not stop a look, a drain may be told to end them"
    yield Case(about, task, {"drain_verified": held}, False, option="--check")
    yield Case("hardware stops a look", task, {"drain_verified": ill}, True, option="--check")


def ways_back() -> Iterator[Case]:
    task = named("pivot/tasks/go_back.yml", "Stop where there is nothing to take back")
    none = "no pivot was made"
    for mode, fails in (("never", True), ("return", False)):
        begun = {"pivot_begun": {"mode": mode, "msg": f"{none} on this host"}}
        about = f"a role that has nothing to take back fails: {mode}"
        yield Case(about, task, begun, fails, *((none, "") if fails else ("", none)))
    task = named("pivot/tasks/rollback.yml", "Keep why it failed")
    items = [{"changed": True}, {"failed": True, "msg": "cannot write /etc/gpuops/a.secrets"}]
    for what, result in (("a loop", {"msg": "One or more items failed", "results": items}), ("a task", items[1])):
        seen = {"ansible_failed_task": {"name": "Write the secrets"}, "ansible_failed_result": result}
        about = f"a way back says which item failed and why: {what}"
        yield Case(about, task, seen, False, "Write the secrets: cannot write /etc/gpuops/a.secrets")


def metas(tasks: list[dict[str, Any]], inherited: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The conditions of meta in a file, each as a task that tells only how it was decided."""
    for task in tasks:
        variables = {**inherited, **task.get("vars", {})}
        if "ansible.builtin.meta" in task:
            yield {"ansible.builtin.debug": {"msg": "decided"}, "when": task["when"], "vars": variables}
        yield from metas(task.get("block", []), variables)


def what_one_host_has_written_wrong() -> Iterator[Case]:
    # Ansible gives up all hosts where a condition of meta cannot be evaluated. The playbooks give each hook a default.
    hook = "{{ odd | default([]) }}"
    over: dict[str, Any] = {"outcome": "skipped", "cause": ""}
    seen = {
        "drain_health": "{{ odd }}", "drain_result": {"drained": True}, "fleet_hook_after": hook, "fleet_found": {},
        "fleet_looked": {"gpuops_outcome": over}, "fleet_gate": {"go": True, "soak": 0},
        "fleet_ended": {"gpuops_outcome": over, "serving": True},
    }  # fmt: skip
    wrongs: dict[str, dict[str, Any]] = {"undefined": {}, "null": {"odd": None}, "number": {"odd": 5}}
    lookup = {"odd": "{{ lookup('ansible.builtin.file', '/nonexistent') }}"}
    for file in ("drain/tasks/drain.yml", "fleet/tasks/look.yml", "fleet/tasks/act.yml"):
        tasks = list(metas(yaml.safe_load((ROLES / file).read_text()), {}))
        for what, wrong in wrongs.items():
            about = f"what one host has written wrong does not end the run of all: {what} in {file}"
            yield Case(about, tasks, {**seen, **wrong}, False)
    yield Case("no end of a host hangs on what comes after it", tasks, {**seen, **lookup}, False)
    # What a condition of meta cannot do without, a task before it has asked for: that one fails its host alone.
    asks = {
        "drain/tasks/drain.yml": "Drain the GPUs",
        **{f"fleet/tasks/{kind}_look.yml": "Keep what was seen" for kind in ("pivot", "restore", "rollback")},
    }
    for file, name in asks.items():
        (task,) = named(file, name)
        asked = [{"ansible.builtin.debug": {"msg": "goes on"}, "when": task["when"]}]
        yield Case(
            f"what cannot be evaluated fails in {file}", asked, {**seen, **lookup}, True, "/nonexistent", "goes on"
        )
        for what, value in (("null", None), ("none", []), ("some", ["all"])):
            right = {"drain_health": value, "fleet_hook_after": value}
            yield Case(f"what can be evaluated does not fail in {file}: {what}", asked, right, False, "goes on")


def ends_of_roles() -> Iterator[Case]:
    seen = {"drain_result": {"drained": True}, "drain_health": [], "_engine_deployed": {"secret_files": []}}
    for file in ("drain/tasks/drain.yml", "engine/tasks/main.yml"):
        tasks = list(metas(yaml.safe_load((ROLES / file).read_text()), {}))
        yield Case(f"a role ends where nothing is left to do: {file}", tasks, seen, False, "decided")
        for option in ("--skip-tags=always", "--skip-tags=tagged"):
            about = f"no role ends itself where Ansible would not find its end: {file} with {option}"
            yield Case(about, tasks, seen, False, keeps_to_itself="decided", option=option)


def hosts_that_came_later() -> Iterator[Case]:
    tasks = list(metas(yaml.safe_load((ROLES / "fleet/tasks/tell.yml").read_text()), {}))
    about = "a host that came to the inventory in the middle of a run does not end it"
    yield Case(about, tasks, {"fleet_told": {"gpuops_outcomes": {}}}, False, "decided")


CASES = [
    *undrains(),
    *looks_at_hardware(),
    *ways_back(),
    *what_one_host_has_written_wrong(),
    *ends_of_roles(),
    *hosts_that_came_later(),
]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What was printed of each case, by what it is about."""
    told: dict[str, str] = {}
    for option in {case.option for case in CASES}:
        told.update(run(tmp_path_factory.mktemp("run"), option))
    return told


def run(directory: Path, option: str) -> dict[str, str]:
    cases = [case for case in CASES if case.option == option]
    plays = [
        {
            "name": case.about,
            "hosts": f"host{number}",
            "gather_facts": False,
            "connection": "local",
            "tasks": [
                {
                    # As extra variables do, a case's stand above those that a task has itself.
                    "block": [{**task, "vars": {**task.get("vars", {}), **case.variables}} for task in case.tasks],
                    # Ansible ends a run after a play that left nobody.
                    "rescue": [{"ansible.builtin.meta": "noop"}],
                }
            ],
        }
        for number, case in enumerate(cases)
    ]
    (directory / "play.yml").write_text(yaml.safe_dump(plays))
    (directory / "ansible.cfg").write_text("")
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    hosts = "".join(f"host{number}," for number in range(len(cases)))
    done = subprocess.run(
        [program, "-v", *[option] * bool(option), "-i", hosts, str(directory / "play.yml")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
        env={**os.environ, "ANSIBLE_CONFIG": str(directory / "ansible.cfg"), "ANSIBLE_LOCAL_TEMP": str(directory)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    dummy, *parts = re.split(r"^PLAY \[(.*)\] \**$", done.stdout.partition("\nPLAY RECAP ")[0], flags=re.MULTILINE)
    assert parts[::2] == [case.about for case in cases], done.stdout
    assert len(set(parts[::2])) == len(cases), "told apart by what they are about"
    return dict(zip(parts[::2], parts[1::2]))


@pytest.mark.parametrize("case", CASES, ids=[case.about for case in CASES])
def test_a_task_decides(printed: dict[str, str], case: Case) -> None:
    assert case.tasks
    told = printed[case.about]
    assert ("fatal: [host" in told) == case.fails, told
    assert case.says in told
    assert not case.keeps_to_itself or case.keeps_to_itself not in told
