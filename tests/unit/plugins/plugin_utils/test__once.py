# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.plugin_utils._once import once


def test_the_same_question_is_worked_out_once_and_another_anew(tmp_path: Path) -> None:
    made: list[str] = []

    def make() -> dict[str, str]:
        made.append("x")
        return {"a": "ü"}

    for asked in (["a", {"b": 1}], ["a", {"b": 1}], ["a", {"b": "1"}], ["a", {"b": True}]):
        assert once(tmp_path / "answers", asked, make) == {"a": "ü"}
    assert len(made) == 3
    for asked in ({date(2026, 1, 1): 1}, {date(2026, 1, 2): 1}, {date(2026, 1, 2): 1}):
        once(tmp_path / "answers", asked, make)
    assert len(made) == 5


def test_a_failure_is_no_answer(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError

    for dummy in range(2):
        with pytest.raises(ValueError):
            once(tmp_path, "a", fail)
    assert once(tmp_path, "a", lambda: 1) == 1


def test_processes_that_ask_at_once_wait_for_the_first(tmp_path: Path) -> None:
    def make() -> int:
        with (tmp_path / "made").open("a") as file:
            file.write("x")
        return 1

    children = []
    for dummy in range(8):
        pid = os.fork()
        if pid == 0:
            os._exit(once(tmp_path / "answers", "a", make) != 1)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 8
    assert (tmp_path / "made").read_text() == "x"
