# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A mapping of flags becomes words that argparse reads back."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.plugin_utils._flags import flags_to_argv


@pytest.mark.parametrize(
    ("flags", "argv"),
    [
        ({}, []),
        ({"tp-size": 8, "mem-fraction-static": 0.94}, ["--tp-size", "8", "--mem-fraction-static", "0.94"]),
        ({"enable-metrics": True, "sleep-on-idle": None}, ["--enable-metrics"]),
        ({"cuda-graph-bs": [1, 2, 4]}, ["--cuda-graph-bs", "1", "2", "4"]),
        ({"extra": {"a": True, "n": [1], "u": "ü"}}, ["--extra", '{"a":true,"n":[1],"u":"ü"}']),
        ({"profiler-config.profiler": "torch"}, ["--profiler-config.profiler", "torch"]),
        ({"offset": -1}, ["--offset=-1"]),
        ({"empty": ""}, ["--empty", ""]),
    ],
)
def test_words(flags: dict[str, Any], argv: list[str]) -> None:
    assert flags_to_argv(flags) == argv


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"enable-metrics": False}, "`no-enable-metrics: true`"),
        ({"--tp-size": 8}, "write tp-size"),
        ({"tp_size": 8}, "write tp-size"),
        ({"bs": []}, "null leaves the flag out"),
        ({"bs": [1, "-2"]}, "cannot stand in a list"),
        ({"bs": [True]}, "type bool"),
        ({"bs": b"x"}, "type bytes"),
        ({"a b": 1}, "a flag's name"),
    ],
)
def test_what_cannot_be_written_is_refused_with_what_can(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flags_to_argv(flags)


@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    number=st.integers(),
    data=st.dictionaries(st.text(), st.integers() | st.text() | st.none()),
)
def test_argparse_reads_the_same_values(text: str, number: int, data: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--text")
    parser.add_argument("--number", type=int)
    parser.add_argument("--data", type=json.loads)
    read = parser.parse_args(flags_to_argv({"text": text, "number": number, "data": data}))
    assert (read.text, read.number, read.data) == (text, number, data)
