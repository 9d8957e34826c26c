# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._hold import Hold, Holds
from ansible_collections.gpuops.inference.plugins.module_utils._units import Completed, Units
from ansible_collections.gpuops.inference.plugins.modules.gpu_undrain import undrain


def systemctl(argv: Sequence[str], timeout: float) -> Completed:
    words = [word for word in argv[1:] if not word.startswith("--")]
    shown = "\n".join(f"Id={name}\nLoadState=loaded\nActiveState=inactive\n" for name in words[1:])
    return Completed(0, shown if words[0] == "show" else "", "")


SYSTEMD = Units(systemctl)


@pytest.fixture
def holds(tmp_path: Path) -> Holds:
    made = Holds(*(tmp_path / name for name in ("hold", "run", "kept", "etc", "owed", "kept-owed")))
    drained = [Hold("vllm.service", "driver update", "ops", ran=True), Hold("old.service", "driver update", "ops")]
    made.place([*drained, Hold("sglang.service", "pivot to vllm", "ops", purpose="pivot")], SYSTEMD)
    return made


def test_what_ran_is_told_by_each_call_until_it_is_paid(holds: Holds) -> None:
    would = undrain(holds, SYSTEMD, set(), check_mode=True)
    assert (would["changed"], would["ran"]) == (True, ["vllm.service"])
    assert holds.owed() == [], "check mode writes nothing"
    first = undrain(holds, SYSTEMD, set(), check_mode=False)
    assert (first["changed"], first["ran"]) == (True, ["vllm.service"])
    assert [hold["unit"] for hold in first["left"]] == ["sglang.service"]
    second = undrain(holds, SYSTEMD, set(), check_mode=False)
    assert (second["changed"], second["lifted"], second["ran"]) == (False, [], ["vllm.service"])
    assert "vllm.service ran before the drain and does not run now; gpuops_undrain_start" in second["msg"]
    holds.forget_owed(["vllm.service"])
    assert undrain(holds, SYSTEMD, set(), check_mode=False)["ran"] == []


def test_only_named_units_are_lifted_and_only_their_starts_are_told(holds: Holds) -> None:
    undrain(holds, SYSTEMD, {"vllm.service"}, check_mode=False)
    other = undrain(holds, SYSTEMD, {"sglang.service"}, check_mode=False)
    assert [hold["unit"] for hold in other["lifted"]] == ["sglang.service"]
    assert other["ran"] == []
    assert undrain(holds, SYSTEMD, {"vllm.service"}, check_mode=False)["ran"] == ["vllm.service"]


def test_a_unit_that_was_removed_is_owed_nothing(holds: Holds) -> None:
    undrain(holds, SYSTEMD, set(), check_mode=False)
    shown = "Id=vllm.service\nLoadState=not-found\nActiveState=inactive\n"
    removed = Units(lambda argv, timeout: Completed(0, shown if "show" in argv else "", ""))
    assert undrain(holds, removed, set(), check_mode=False)["ran"] == []
    assert holds.owed() == []
