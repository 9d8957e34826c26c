# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import shlex
from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.action.gpu_drain import how_to_undrain

HOLDS = [{"unit": "vllm-a.service", "purpose": "drain"}, {"unit": "sglang-a.service", "purpose": "pivot"}]
WHERE = {"groups": {"gpu_hosts": ["gpu1"]}, "ansible_inventory_sources": ["/srv/my fleet.yml", "more.yml"]}


def test_a_drain_names_what_it_holds_and_the_command_that_ends_it() -> None:
    told = how_to_undrain({"holds": HOLDS}, {"gpus": ["all"]}, "gpu1", WHERE)
    assert told.startswith("vllm-a.service cannot be started until the hold ends.")
    command = shlex.split(told.partition("This ends it: ")[2])
    assert command == [
        "ansible-playbook", "-i", "/srv/my fleet.yml", "-i", "more.yml", "gpuops.inference.undrain", "--limit", "gpu1",
    ]  # fmt: skip


def test_of_a_part_of_a_host_the_command_lifts_its_own_units_only() -> None:
    told = how_to_undrain({"holds": HOLDS}, {"gpus": ["0", "1"]}, "gpu1", WHERE)
    assert shlex.split(told)[-1] == '{"gpuops_undrain_units": ["vllm-a.service"]}'


def test_of_a_host_that_is_in_no_group_gpu_hosts_the_command_names_the_host() -> None:
    told = how_to_undrain({"holds": HOLDS}, {}, "gpu2", {**WHERE, "ansible_inventory_sources": ["a.yml"]})
    assert shlex.split(told)[-4:] == ["a.yml", "gpuops.inference.undrain", "-e", "gpuops_hosts=gpu2"]


@pytest.mark.parametrize(
    "holds, arguments",
    [([], {}), (HOLDS[1:], {}), (HOLDS, {"hold_for": "pivot"})],
    ids=["none", "a pivot's", "in a pivot"],
)
def test_what_a_pivot_holds_is_not_for_an_undrain(holds: list[dict[str, Any]], arguments: dict[str, Any]) -> None:
    assert not how_to_undrain({"holds": holds}, arguments, "gpu1", WHERE)
