# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This plugin util is PRIVATE to the collection; it can change in any release.
"""Text for systemd that means exactly the value it was made from, or a ValueError that says why it cannot.

The rules are those of systemd.service(5), "Command lines", and systemd.exec(5), EnvironmentFile=. Messages
never contain a value: it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

LONGEST = 128 * 1024 - 1
"""Bytes: the kernel's MAX_ARG_STRLEN, which bounds each argument and each `NAME=value`, less the closing NUL."""

_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_@%+=:,./-]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_CONTROL = {chr(code): f"\\x{code:02x}" for code in (*range(1, 32), 127)} | {"\n": "\\n", "\t": "\\t"}


def exec_start(argv: Sequence[str]) -> str:
    r"""The value of `ExecStart=` that runs argv, one option to a line so that a diff shows what changed.

    The prefix `:` keeps `$` literal: nothing of the environment, secrets least of all, gets into a command line.
    """
    if not argv:
        raise ValueError("a command line needs a program")
    if not argv[0].startswith("/"):
        raise ValueError("the program of a command line must be an absolute path")
    if any(char in "\"'\\" or char in _CONTROL for char in argv[0]):
        raise ValueError("systemd runs no program with a quote, a backslash or a control character in its path")
    words = [exec_word(word) for word in argv]
    lines = [[":" + words[0]]]
    for word, quoted in zip(argv[1:], words[1:]):
        if word.startswith("-"):
            lines.append([])
        lines[-1].append(quoted)
    return " \\\n    ".join(" ".join(line) for line in lines)


def exec_word(word: str) -> str:
    """One word of a command line. `%` is doubled; `$` is left to the prefix of the line."""
    _check_text(word)
    if "\0" in word:
        raise ValueError("holds a NUL, which no command line can carry")
    text = word.replace("%", "%%")
    if _PLAIN_WORD.fullmatch(text):
        return text
    quote = "'" if '"' in text and "'" not in text else '"'
    escapes = {**_CONTROL, "\\": "\\\\", quote: "\\" + quote}
    return quote + "".join(escapes.get(char, char) for char in text) + quote


def environment_file(variables: Mapping[str, str]) -> str:
    """Lines of an `EnvironmentFile=`, in the mapping's order; a value may span lines.

    ValueError names the variable, never its value.
    """
    return "".join(f"{name}={_environment_value(name, value)}\n" for name, value in variables.items())


def _environment_value(name: str, value: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for an environment variable: use letters, digits and underscores")
    try:
        _check_text(value, taken=len(name) + 1)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error
    if any(char in _CONTROL and char not in "\t\n" or char == "\0" for char in value):
        raise ValueError(
            f"{name} holds a control character, which systemd drops together with the variable; "
            "only tabs and newlines can be carried"
        )
    if _PLAIN_VALUE.fullmatch(value):
        return value
    return '"' + re.sub(r'([\\"`$])', r"\\\1", value) + '"'


def directive_words(words: Iterable[str]) -> str:
    """A list of paths or names for a directive that unquotes its words, such as `ReadWritePaths=`."""
    return " ".join(exec_word(word) for word in words)


def _check_text(text: str, taken: int = 0) -> None:
    # systemd ignores a line that is no valid UTF-8 by its own, stricter measure (basic/utf8.c).
    if any(_no_character(ord(char)) for char in text):
        raise ValueError("holds something that is no Unicode character, which systemd refuses")
    if len(text.encode()) + taken > LONGEST:
        raise ValueError(f"is longer than the {LONGEST} bytes that the kernel takes")


def _no_character(code: int) -> bool:
    return 0xD800 <= code <= 0xDFFF or 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE
