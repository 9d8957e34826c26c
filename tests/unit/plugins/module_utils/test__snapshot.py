# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from dataclasses import replace

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, GpuReading
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import attached_gpus, claimed_gpus

GPUS = tuple(Gpu(index, uuid=f"GPU-{index}abc-0000", minor=3 - index) for index in range(4))
READING = GpuReading(GPUS, usable=True, source="nvml")


@pytest.mark.parametrize(
    "visible, claims",
    [
        (None, None),
        ("0,1", {0, 1}),
        (" 3 , 2 ", {2, 3}),
        ("GPU-1abc-0000", {1}),
        ("GPU-2abc,0", {0, 2}),
        ("7", None),
        ("MIG-GPU-1", None),
        ("", None),
        ("all", None),
    ],
)
def test_what_an_engine_was_given_is_read_or_counts_for_all(visible: str | None, claims: set[int] | None) -> None:
    assert claimed_gpus(visible, READING) == claims


def test_the_node_number_is_the_minor_and_not_the_index() -> None:
    assert attached_gpus([0, 1], READING) == {3, 2}


def test_a_node_that_no_gpu_claims_counts_for_those_whose_minor_is_unknown() -> None:
    vague = replace(READING, gpus=(*GPUS[:2], *(replace(gpu, minor=None) for gpu in GPUS[2:])))
    assert attached_gpus([3], vague) == {0}
    assert attached_gpus([0], vague) == {2, 3}
