# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbooks read, the example inventory shows and the roles declare must be the same names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from jinja2.nativetypes import NativeEnvironment

from ansible_collections.gpuops.inference.plugins.modules import gpu_drain

ROOT = Path(__file__).parents[3]
MAPPING = (ROOT / "playbooks/vars/main.yml").read_text()
EXAMPLE = (ROOT / "inventories/example/group_vars/gpu_hosts.yml").read_text()


def names(text: str) -> set[str]:
    return set(re.findall(r"\bgpuops_[a-z0-9_]+\b", text))


def options(role: str) -> dict[str, dict[str, object]]:
    spec = yaml.safe_load((ROOT / "roles" / role / "meta/argument_specs.yml").read_text())["argument_specs"]
    return {name: option for entry in spec.values() for name, option in entry["options"].items()}


def test_the_example_shows_every_variable_and_no_other() -> None:
    assert names(EXAMPLE) - {"gpuops_"} == names(MAPPING)


def test_playbooks_read_only_what_is_mapped() -> None:
    for path in (ROOT / "playbooks").glob("*.yml"):
        assert names(path.read_text()) <= names(MAPPING), path


def test_only_what_a_role_declares_is_set() -> None:
    roles = ("layout", "preflight", "drain", "pivot", "gpu_host", "fleet")
    declared = {name for role in roles for name in options(role)}
    assert set(yaml.safe_load(MAPPING)) <= declared


@pytest.mark.parametrize("role", ["drain", "pivot", "gpu_host", "fleet"])
def test_defaults_are_the_declared_ones(role: str) -> None:
    defaults = yaml.safe_load((ROOT / "roles" / role / "defaults/main.yml").read_text())
    assert defaults == {name: option["default"] for name, option in options(role).items() if "default" in option}


def test_all_drains_of_a_pivot_set_what_the_users_drain_would_set() -> None:
    def drains(node: object) -> list[set[str]]:
        if isinstance(node, list):
            return [found for item in node for found in drains(item)]
        if not isinstance(node, dict):
            return []
        role = node.get("ansible.builtin.include_role") or node.get("ansible.builtin.import_role") or {}
        mine = [set(node["vars"])] if role.get("name") == "gpuops.inference.drain" else []
        return mine + [found for item in node.values() for found in drains(item)]

    tasks = sorted((ROOT / "roles/pivot/tasks").glob("*.yml"))
    found = [names for path in tasks for names in drains(yaml.safe_load(path.read_text()))]
    # There, and on the way back.
    assert len(found) == 2
    # A hold with an end would not last for the pivot, and hardware is looked at before anything is stopped.
    assert all(names >= set.intersection(*found) | {"drain_health", "drain_hold_until"} for names in found)


def test_the_drain_role_has_every_option_of_its_module() -> None:
    module = yaml.safe_load(gpu_drain.DOCUMENTATION)["options"]
    role = {name.removeprefix("drain_"): option for name, option in options("drain").items()}
    shared = {"gpus", "gpu_count", "protect", "threshold_mib", "stable_for"}
    assert set(role) == set(module) | shared | {"health", "xid_window"}
    for name, option in module.items():
        assert (role[name]["type"], role[name].get("choices")) == (
            option["type"],
            option.get("choices"),
        ), name


def test_an_undrain_that_starts_nothing_leaves_no_engine_that_serves() -> None:
    environment = NativeEnvironment()
    environment.filters["bool"] = bool
    (play,) = yaml.safe_load((ROOT / "playbooks/undrain.yml").read_text())
    frees = environment.from_string(play["vars"]["fleet_frees"])
    assert frees.render(fleet_undrain_start=True, fleet_undrained={"ran": ["vllm.service"]}) is False
    for start, undrained in ((True, {"ran": []}), (True, {"msg": "failed"}), (False, {"ran": ["vllm.service"]})):
        assert frees.render(fleet_undrain_start=start, fleet_undrained=undrained) is True
