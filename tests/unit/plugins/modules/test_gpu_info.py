# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.modules import gpu_info


@pytest.mark.parametrize("text", ["{", "{}", '{"since": ""}'])
def test_a_broken_record_of_a_drain_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(gpu_info, "RECORDS", tmp_path)
    assert gpu_info.last_drain() is None
    (tmp_path / "20261130T080000-drain-7.json").write_text('{"since": "2026-11-30T08:00:00+00:00", "user": "ops"}')
    found = gpu_info.last_drain()
    assert found is not None and (found["at"], found["who"]) == ("2026-11-30T08:00:00+00:00", "ops")
    (tmp_path / "20261130T090000-drain-7.json").write_text(text)
    assert gpu_info.last_drain() is None
