# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._environment import (
    configured_key,
    parse_environment,
    read_environment,
    secrets_of,
)


@pytest.mark.parametrize(
    "text, variables",
    [
        ("", {}),
        ("A=1\nB = 2 \n", {"A": "1", "B": "2"}),
        ("# A=1\n; B=2\n\n  C=3", {"C": "3"}),
        ("# goes on \\\nA=1\nB=2", {"B": "2"}),
        ("no assignment\nA=1", {"A": "1"}),
        ("A=two words  \n", {"A": "two words"}),
        ("A='single \\ $x \" '", {"A": 'single \\ $x " '}),
        ('A="double \\" \\\\ \\$ \\x"', {"A": 'double " \\ $ \\x'}),
        ("A='two\nlines'\nB=1", {"A": "two\nlines", "B": "1"}),
        ('A="joined \\\nline"', {"A": "joined line"}),
        ("A=joined \\\nline", {"A": "joined line"}),
        ("A=back\\slash\\ ", {"A": "backslash "}),
        ("A=in'side", {"A": "in'side"}),
        ("A='one'\"two\"three", {"A": "onetwothree"}),
        ("A=x=y #no comment", {"A": "x=y #no comment"}),
        ("A=1\nA=2", {"A": "2"}),
        ("A=", {"A": ""}),
        ('A="never closed', {"A": "never closed"}),
    ],
)
def test_it_is_read_as_systemd_reads_it(text: str, variables: dict[str, str]) -> None:
    assert parse_environment(text) == variables


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    parse_environment(text)


def test_later_files_win_and_missing_ones_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("A=1\nB=1\n")
    (tmp_path / "b.env").write_text("B=2\n")
    files = [str(tmp_path / "*.env"), str(tmp_path / "missing")]
    assert read_environment(files) == {"A": "1", "B": "2"}


def test_secrets_are_told_by_their_names() -> None:
    assert secrets_of({"VLLM_API_KEY": "swordfish", "NCCL_P2P_LEVEL": "SYS", "HF_TOKEN": ""}) == ["swordfish"]


@pytest.mark.parametrize(
    "text, key",
    [
        ("port: 1\napi-key: swordfish # the key\n", "swordfish"),
        ('"api_key": "sword fish"', "sword fish"),
        ("api-key: 'it'", "it"),
        ("api-key: 'it''s'", "it's"),
        (r'api-key: "a\"b\\"', 'a"b\\'),
        ('api-key: ""', None),
        ("other-api-key: x\nmax_api_key: y", None),
        ("", None),
    ],
)
def test_the_key_in_a_configuration_file(tmp_path: Path, text: str, key: Optional[str]) -> None:
    (tmp_path / "sglang.yaml").write_text(text)
    assert configured_key(str(tmp_path / "sglang.yaml")) == key
    assert configured_key(None) is None
