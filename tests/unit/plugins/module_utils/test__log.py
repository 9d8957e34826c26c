# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import select
import sys

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._log import Log, journalctl
from ansible_collections.gpuops.inference.plugins.module_utils._units import UnitsError


def said(log: Log, seconds: float = 10) -> list[str]:
    """The next lines, once something can be read."""
    assert select.select([log], [], [], seconds)[0]
    return log.lines()


def everything(program: str) -> list[str]:
    lines = []
    with Log([sys.executable, "-c", program]) as log:
        while not log.ended:
            lines += said(log)
    return lines


def test_whole_lines_come_as_they_are_said() -> None:
    with Log(["sh", "-c", "echo one; printf 'tw'; sleep 600"]) as log:
        assert said(log) == ["one"]
        assert log.lines() == []
        assert not log.ended


def test_the_rest_comes_at_the_end() -> None:
    assert everything(r"import os; os.write(1, b'a\nb \xc3'); os.write(1, b'\xa4\xff')") == ["a", "b \xe4\ufffd"]


def test_a_bar_that_redraws_is_many_lines() -> None:
    assert everything(r"import os; os.write(1, b'\r 1/3\r 2/3\r 3/3\n\n \nend\n')") == [" 1/3", " 2/3", " 3/3", "end"]


def test_a_line_without_an_end_is_cut_and_not_kept_for_ever() -> None:
    lines = everything("import os; [os.write(1, b'x' * 1000) for i in range(1000)]")
    assert sum(map(len, lines)) == 1_000_000
    assert len(lines) > 1


def test_the_follower_does_not_outlive_us() -> None:
    with Log(["sleep", "600"]) as log:
        child = log._child
    assert child.poll() is not None


def test_both_what_the_unit_says_and_what_systemd_says_of_it_are_followed() -> None:
    assert journalctl("abc")[-3:] == ["_SYSTEMD_INVOCATION_ID=abc", "+", "INVOCATION_ID=abc"]


def test_a_command_that_is_missing_is_named() -> None:
    with pytest.raises(UnitsError, match="cannot run /nope/journalctl"):
        Log(["/nope/journalctl"])
