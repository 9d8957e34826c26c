# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.inference.plugins.module_utils._background import Tell, in_background, result_of

LONG = 30.0


def test_short_work_returns_its_result_and_leaves_nothing(tmp_path: Path) -> None:
    pid, result = in_background(lambda tell: {"pid": os.getpid()}, tmp_path / "made" / "work", LONG)
    assert result == {"pid": pid}
    assert pid != os.getpid()
    assert list((tmp_path / "made").iterdir()) == []


def test_long_work_goes_on_alone_and_tells(tmp_path: Path) -> None:
    path = tmp_path / "work"
    go_on, end = os.pipe()

    def work(tell: Tell) -> dict[str, Any]:
        tell({"unit": "vllm.service", "status": "loading"})
        os.read(go_on, 1)
        return {"session": os.getsid(0), "pid": os.getpid()}

    pid, result = in_background(work, path, 0.2)
    assert result is None
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"unit": "vllm.service", "status": "loading"}
    ]
    os.write(end, b"!")
    os.waitpid(pid, 0)
    assert result_of(path.read_text().splitlines()) == {"session": pid, "pid": pid}
    os.close(go_on)
    os.close(end)


def test_a_bug_comes_back_as_a_failure_with_its_traceback(tmp_path: Path) -> None:
    def work(tell: Tell) -> dict[str, Any]:
        raise LookupError("a bug of ours")

    result = in_background(work, tmp_path / "work", LONG)[1]
    assert result["failed"]
    assert "LookupError: a bug of ours" in result["exception"]


def test_a_process_that_was_killed_is_a_failure(tmp_path: Path) -> None:
    def work(tell: Tell) -> dict[str, Any]:
        tell({"unit": "vllm.service", "status": "loading"})
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    begun = time.monotonic()
    result = in_background(work, tmp_path / "work", LONG)[1]
    assert result["failed"] and "ended from outside" in result["msg"]
    assert time.monotonic() - begun < LONG / 2


def test_what_nobody_came_back_for_is_swept_away(tmp_path: Path) -> None:
    for name, age in (("old", 2 * 86400), ("young", 60)):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    in_background(lambda tell: {}, tmp_path / "work", LONG)
    assert [path.name for path in tmp_path.iterdir()] == ["young"]
