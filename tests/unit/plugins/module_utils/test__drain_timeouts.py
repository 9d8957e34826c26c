# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._drain import Timeouts

from .hosts import VLLM, unit

NAME = "vllm.service"


@pytest.mark.parametrize(
    ("stop", "own", "arguments", "told"),
    [
        (None, 90.0, (), ""),
        (None, 600.0, (), "killed 120 s after it was asked to stop, although its TimeoutStopSec=600 "),
        (None, math.inf, (), "although its TimeoutStopSec=infinity "),
        (600.0, 600.0, (), ""),
        (10.0, 60.0, (), "killed 10 s after"),
        # systemd's time is what the drain keeps, and the engine asked for more than that.
        (None, 60.0, ("--shutdown-timeout", "75"), "although its --shutdown-timeout 75 "),
        (80.0, 60.0, ("--shutdown-timeout=75",), ""),
        (10.0, 5.0, ("--shutdown-timeout", "soon"), ""),
    ],
)
def test_what_a_drain_would_cut_off(stop: float, own: float, arguments: tuple[str, ...], told: str) -> None:
    described = replace(unit(NAME, (*VLLM[1:], *arguments)), stop_timeout=own)
    warning = Timeouts(stop=stop).cut(described, "vllm")
    assert (told in warning) if told else not warning
    assert not warning or "gpuops_stop_timeout" in warning


def test_a_unit_whose_engine_has_no_such_flag() -> None:
    assert not Timeouts().cut(replace(unit(NAME), stop_timeout=90.0), "sglang")
