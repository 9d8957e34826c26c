# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, GpuProcess, GpuReading, Memory
from ansible_collections.gpuops.inference.plugins.module_utils._reserves import learn_reserves, without_reserves


def reading(*used: int, version: int = 1, driver: str = "470.1") -> GpuReading:
    gpus = (
        Gpu(index, uuid=f"GPU-{index}", memory=Memory(97887, 0, mib, 97887 - mib, version))
        for index, mib in enumerate(used)
    )
    return GpuReading(tuple(gpus), driver, source="nvml", usable=True)


def used(seen: GpuReading) -> list[tuple[int, int]]:
    return [(gpu.memory.reserved, gpu.memory.used) for gpu in seen.gpus if gpu.memory]


def test_what_is_learnt_of_an_idle_gpu_is_taken_off_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "reserves.json"
    assert used(without_reserves(reading(637, 640), path)) == [(0, 637), (0, 640)]
    learn_reserves(reading(637, 640), (), path)
    assert used(without_reserves(reading(637, 90_640), path)) == [(637, 0), (640, 90_000)]
    assert used(without_reserves(reading(600, 640), path)) == [(600, 0), (640, 0)], "less than it was is nothing"


def test_the_least_that_was_ever_seen_counts_and_learning_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "reserves.json"
    for mib in (900, 637, 800):
        learn_reserves(without_reserves(reading(mib), path), (), path)
    assert used(without_reserves(reading(1000), path)) == [(637, 363)]
    before = path.stat().st_mtime_ns
    learn_reserves(without_reserves(reading(637), path), (), path)
    assert path.stat().st_mtime_ns == before


def test_nothing_is_learnt_of_a_gpu_that_somebody_touches_or_that_shows_too_much(tmp_path: Path) -> None:
    path = tmp_path / "reserves.json"
    learn_reserves(reading(637), {0}, path)
    learn_reserves(reading(5000), (), path)
    seen = reading(637)
    listed = replace(seen.gpus[0], processes=(GpuProcess(7, 1, "compute"),))
    learn_reserves(replace(seen, gpus=(listed,)), (), path)
    learn_reserves(replace(seen, usable=False), (), path)
    learn_reserves(reading(4, version=2), (), path)
    assert not path.exists()


def test_another_driver_is_learnt_anew(tmp_path: Path) -> None:
    path = tmp_path / "reserves.json"
    learn_reserves(reading(637), (), path)
    other = reading(700, driver="470.2")
    assert without_reserves(other, path) == other
    learn_reserves(other, (), path)
    assert used(without_reserves(other, path)) == [(700, 0)]


@pytest.mark.parametrize("mib", ["7", '{"GPU-0": "x"}', "null"])
def test_a_file_that_cannot_be_understood_teaches_nothing(tmp_path: Path, mib: str) -> None:
    path = tmp_path / "reserves.json"
    for text in ("", "[]", "{}", f'{{"driver": "470.1", "mib": {mib}}}'):
        path.write_text(text)
        assert used(without_reserves(reading(637), path)) == [(0, 637)]
