# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible_collections.gpuops.inference.plugins.module_utils._drain import LONGEST_CURVE, NotQuietError, Story
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, Memory
from ansible_collections.gpuops.inference.plugins.module_utils._telling import causes
from ansible_collections.gpuops.inference.plugins.module_utils._units import UnitsError


def gpus(*used: int) -> list[Gpu]:
    return [
        Gpu(index, memory=Memory(total=97871, used=mib, free=97871 - mib, reserved=0, version=2))
        for index, mib in enumerate(used)
    ]


def used(story: Story) -> list[dict[str, int]]:
    return [sample["used_mib"] for sample in story.as_dict()["memory_samples"]]


def test_the_curve_has_a_point_for_each_change_and_none_for_a_gpu_that_does_not_tell() -> None:
    story = Story()
    for reading in (gpus(900, 700), gpus(900, 700), gpus(900, 0), [*gpus(900), Gpu(1)], [Gpu(0)]):
        story.see_memory(reading)
    assert used(story) == [{"0": 900, "1": 700}, {"0": 900, "1": 0}, {"0": 900}]


def test_a_long_curve_becomes_coarse_and_keeps_its_ends_in_order() -> None:
    story = Story()
    for mib in range(10 * LONGEST_CURVE, 0, -1):
        story.see_memory(gpus(mib))
    values = [point["0"] for point in used(story)]
    assert len(values) <= LONGEST_CURVE
    assert values == sorted(values, reverse=True)
    assert (values[0], values[-1]) == (10 * LONGEST_CURVE, 1)


def test_a_hold_that_cannot_be_lifted_does_not_hide_why_the_drain_ended() -> None:
    try:
        try:
            try:
                raise OSError("not for people")
            except OSError:
                raise NotQuietError("vllm.service is not idle") from None
        finally:
            raise UnitsError("vllm.socket cannot be started again")
    except UnitsError as error:
        assert causes(error) == ["vllm.service is not idle", "vllm.socket cannot be started again"]
