# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from ansible_collections.gpuops.inference.plugins.action.inference_service import parse_read


@pytest.mark.parametrize(
    "text, alive, lines",
    [
        ("gpuops: alive\nline\n", True, ["line"]),
        ("gpuops: ended\na\nb\n", False, ["a", "b"]),
        ("Welcome to this host!\n\ngpuops: ended\nline\n", False, ["line"]),
        ("", True, []),
        ("Welcome\n", True, []),
    ],
)
def test_only_the_answer_itself_says_that_a_process_ended(text: str, alive: bool, lines: list[str]) -> None:
    assert parse_read(text) == (alive, lines)
