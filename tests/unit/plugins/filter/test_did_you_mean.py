# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpuops.inference.plugins.filter.did_you_mean import FilterModule

did_you_mean = FilterModule().filters()["did_you_mean"]
KNOWN = ["gpuops_hosts", "gpuops_fleet", "gpuops_ready_timeout", "gpuops_layout"]


def test_near_and_far_names() -> None:
    assert did_you_mean(["gpuops_hosts", "gpuops_reday_timeout", "gpuops_colour", "gpuops_hsots"], KNOWN) == [
        "gpuops_colour",
        "gpuops_hsots (did you mean gpuops_hosts?)",
        "gpuops_reday_timeout (did you mean gpuops_ready_timeout?)",
    ]
    assert did_you_mean([], KNOWN) == []


def test_a_text_is_no_list() -> None:
    with pytest.raises(AnsibleFilterError, match="two lists"):
        did_you_mean("gpuops_hosts", KNOWN)
