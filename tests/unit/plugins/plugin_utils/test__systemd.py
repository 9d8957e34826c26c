# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quoting for systemd: whatever goes in comes out of a reader that knows nothing of the writer."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.plugin_utils._systemd import (
    LONGEST,
    directive_words,
    environment_file,
    exec_start,
    exec_word,
)


def _load_reader() -> ModuleType:
    spec = importlib.util.spec_from_file_location("systemd_reader", Path(__file__).with_name("systemd_reader.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reader = _load_reader()


def systemd_takes(char: str) -> bool:
    code = ord(char)
    return not (0xFDD0 <= code <= 0xFDEF or code % 0x10000 in (0xFFFE, 0xFFFF))


ANY = st.characters(exclude_categories=["Cs"]).filter(systemd_takes)
NASTY = st.sampled_from("\"'\\$%;#`{}[]: \t\n=*~|&<>!-")
WORDS = st.text(st.one_of(NASTY, ANY).filter(lambda char: char != "\0"))
VALUES = st.text(st.one_of(NASTY, ANY).filter(lambda char: char in "\t\n" or (ord(char) >= 32 and ord(char) != 127)))
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)


@given(st.lists(WORDS))
@example([";"])
@example(["#", "; x", "a\\", "%n", "${HOME}", '{"a": 1}', 'it\'s "both"', "\n", "\x01", ""])
def test_a_command_line_is_read_as_it_was_written(words: list[str]) -> None:
    argv = ["/opt/engine/bin/serve", *words]
    unit = f"[Service]\nExecStart={exec_start(argv)}\nUser=engine\n"
    assert reader.command(reader.directive(unit, "ExecStart")) == argv


@given(WORDS.filter(lambda word: all(ord(char) > 31 and char not in "\"'\\\x7f" for char in word)))
def test_a_program_may_live_almost_anywhere(name: str) -> None:
    program = f"/opt/{name}"
    assert reader.command(exec_start([program])) == [program]


@given(st.dictionaries(NAMES, VALUES))
@example({"A": "", "B": "two\nlines", "C": ' "quoted" $HOME `id` \\', "D": "# no comment", "E": "; neither"})
def test_an_environment_is_read_as_it_was_written(variables: dict[str, str]) -> None:
    assert reader.environment(environment_file(variables)) == variables


@given(st.lists(WORDS.filter(bool)))
def test_directive_words_are_read_as_they_were_written(words: list[str]) -> None:
    assert [word.replace("%%", "%") for word in reader.words_of(directive_words(words))] == words


def test_one_option_to_a_line_so_that_a_diff_shows_what_changed() -> None:
    argv = ["/opt/vllm/bin/vllm", "serve", "/models/m", "--port", "8000", "--json", '{"a":1}', "--flag"]
    assert exec_start(argv).split(" \\\n    ") == [
        ":/opt/vllm/bin/vllm serve /models/m",
        "--port 8000",
        """--json '{"a":1}'""",
        "--flag",
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "needs a program"),
        (["vllm"], "absolute path"),
        (["/opt/it's/vllm"], "no program with a quote"),
        (["/opt/a\\b"], "no program with a quote"),
        (["/opt/a\tb"], "no program with a quote"),
        (["/bin/x", "a\0b"], "NUL"),
        (["/bin/x", "\ud800"], "no Unicode character"),
        (["/bin/x", "\ufffe"], "no Unicode character"),
        (["/bin/x", "x" * (LONGEST + 1)], "longer"),
    ],
)
def test_what_no_command_line_can_carry_is_refused(argv: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exec_start(argv)


@pytest.mark.parametrize("value", ["top\rsecret", "top\0secret", "top\x1bsecret", "top\x7fsecret", "topsecret\ud800"])
def test_a_value_that_systemd_would_drop_is_refused_and_never_shown(value: str) -> None:
    with pytest.raises(ValueError, match=r"^API_KEY ") as caught:
        environment_file({"API_KEY": value})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "1A", "A B", "A-B", "Ä", "A=B", "A\n"])
def test_a_name_that_systemd_would_drop_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name for an environment variable"):
        environment_file({name: "x"})


def test_name_and_value_share_the_length_that_the_kernel_takes() -> None:
    environment_file({"NAME": "x" * (LONGEST - len("NAME="))})
    with pytest.raises(ValueError, match="longer"):
        environment_file({"NAME": "x" * (LONGEST - len("NAME=") + 1)})


def test_json_stays_readable() -> None:
    assert exec_word('{"num_threads":16}') == """'{"num_threads":16}'"""
