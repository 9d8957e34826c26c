# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._options import (
    option_faults,
    rights_faults,
    service_name,
)


@pytest.mark.parametrize(
    "params",
    [
        {"timeout": 0, "gpu_count": 8, "stop_timeout": None, "force": True, "reason": "-1"},
        {
            "protect": [
                "1",
                "/usr/bin/nvitop",
                "ssh.service",
                "session-4.scope",
                "jupyter.service of uid 1000",
                "container:llm",
            ]
        },
        {"units": ["vllm", "sglang.service", "vllm@0.service"], "port": 65535},
    ],
)
def test_what_can_be_meant(params: dict[str, Any]) -> None:
    assert list(option_faults(params)) == []


@pytest.mark.parametrize("value", [-1, -0.5, float("nan"), float("inf"), float("-inf")])
def test_numbers_that_nobody_can_mean(value: float) -> None:
    assert list(option_faults({"stable_for": value, "force": False})) == [
        f"stable_for is {value}; it must be a number that is not negative"
    ]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("units", ["../x.service"]),
        ("units", ["a b"]),
        ("units", [""]),
        ("units", ["*"]),
        ("units", ["-Hevil.service"]),
        ("units", ["vllm.service\n"]),
        ("protect", ["nvitop"]),
        ("protect", ["bin/nvitop"]),
        ("protect", ["container:"]),
        ("protect", [""]),
        ("port", 65536),
        ("port", 0),
    ],
)
def test_words_that_nobody_can_mean(option: str, value: Any) -> None:
    (fault,) = option_faults({option: value})
    assert fault.startswith(option)


def test_service_name() -> None:
    assert [service_name(name) for name in ("vllm", "vllm.service")] == ["vllm.service"] * 2


def test_rights() -> None:
    assert list(rights_faults(0)) == []
    assert "become: true" in next(rights_faults(1000))
