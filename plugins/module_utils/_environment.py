# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Where a host keeps its engines' secrets: a unit's EnvironmentFile=, and the file that an engine's --config names."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Optional

from ansible_collections.gpuops.inference.plugins.module_utils._masking import is_secret_name

# A line of the flat YAML that both engines take for options.
_CONFIGURED_KEY = re.compile(
    r"^[\"']?api[-_]key[\"']?\s*:\s*(?:(\"(?:[^\"\\]|\\.)*\")|'((?:[^']|'')*)'|([^\s#]+))", re.MULTILINE
)

# What a backslash protects between double quotes; before anything else it is just a backslash.
_ESCAPABLE = '"\\`$'


def parse_environment(text: str) -> dict[str, str]:
    """Variables of an environment file. Like systemd, it skips what is no assignment."""
    variables: dict[str, str] = {}
    position = 0
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        if text[position] in " \t\r\n":
            position += 1
        elif text[position] in "#;" or "=" not in text[position:end]:
            # A comment goes on behind a backslash as well.
            while end < len(text) and text[end - 1] == "\\":
                following = text.find("\n", end + 1)
                end = len(text) if following < 0 else following
            position = end + 1
        else:
            equals = text.index("=", position)
            value, after = _value(text, equals + 1)
            variables[text[position:equals].strip()] = value
            position = after
    return variables


def _value(text: str, position: int) -> tuple[str, int]:
    """The value that begins at position, and where the next line begins."""
    value = ""
    # Quotes count at the beginning of a value and right after other quotes only.
    may_quote = True
    kept = 0
    while position < len(text) and text[position] != "\n":
        character = text[position]
        position += 1
        if character in "'\"" and may_quote:
            quoted, position = _quoted(text, position, character)
            value += quoted
            kept = len(value)
        elif character == "\\":
            if text[position : position + 1] != "\n":
                value += text[position : position + 1]
                kept = len(value)
            position += 1
            may_quote = False
        elif character in " \t\r":
            # Blanks around a value are not part of it, blanks inside an unquoted one are.
            value += "" if may_quote else character
        else:
            value += character
            kept = len(value)
            may_quote = False
    return value[:kept], position + 1


def _quoted(text: str, position: int, quote: str) -> tuple[str, int]:
    value = ""
    while position < len(text) and text[position] != quote:
        character = text[position]
        position += 1
        if character == "\\" and quote == '"' and position < len(text):
            following = text[position]
            position += 1
            value += "" if following == "\n" else following if following in _ESCAPABLE else character + following
        else:
            value += character
    return value, position + 1


def read_environment(files: Iterable[str]) -> dict[str, str]:
    """Variables of a unit's environment files, later ones win; a file that is not there holds none.

    Raises OSError for a file that is there and cannot be read.
    """
    variables: dict[str, str] = {}
    for pattern in files:
        for path in sorted(glob.glob(pattern)):
            variables.update(parse_environment(Path(path).read_text(encoding="utf-8", errors="replace")))
    return variables


def parse_assignments(words: Iterable[str]) -> dict[str, str]:
    """Variables of `NAME=value` words, such as Environment= has."""
    return dict(word.split("=", 1) for word in words if "=" in word)


def secrets_of(variables: Mapping[str, str]) -> list[str]:
    """The values that must not be shown."""
    return [value for name, value in variables.items() if value and is_secret_name(name)]


def configured_key(path: Optional[str]) -> Optional[str]:
    """The client key in an engine's configuration file, None if it has none or path is None. Raises OSError."""
    found = _CONFIGURED_KEY.search(Path(path).read_text(encoding="utf-8", errors="replace")) if path else None
    if not found:
        return None
    double, single, plain = found.groups()
    if double is not None:
        # As we write it; YAML has more escapes, which no key needs.
        with suppress(ValueError):
            return str(json.loads(double)) or None
    return (double or (single or "").replace("''", "'") or plain) or None
