# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This plugin util is PRIVATE to the collection; it can change in any release.
"""Command-line flags as data: a mapping can be merged and diffed, a list of words cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(\.[a-z0-9_-]+)*")


def flags_to_argv(flags: Mapping[str, Any]) -> list[str]:
    """Words for a mapping of flag names without dashes to values, in the mapping's order.

    None leaves a flag out, True gives the bare flag, a list one flag with several values, a mapping JSON.
    ValueError says which flag cannot be written, and how it could.
    """
    argv: list[str] = []
    for name, value in flags.items():
        if value is not None:
            argv += _words(str(name), value)
    return argv


def _words(name: str, value: Any) -> list[str]:
    if not _NAME.fullmatch(name):
        tidy = name.lstrip("-").replace("_", "-").lower()
        hint = f"; write {tidy}" if tidy != name and _NAME.fullmatch(tidy) else ""
        raise ValueError(f"flag {name!r}: a flag's name is written without leading dashes, in dashes{hint}")
    flag = "--" + name
    if value is True:
        return [flag]
    if value is False:
        raise ValueError(
            f"flag {name!r}: false says too little; null leaves the flag out, and where the engine "
            f"has a negative form, `no-{name}: true` writes it"
        )
    if isinstance(value, (list, tuple)):
        if not value:
            raise ValueError(f"flag {name!r}: an empty list gives the flag no value; null leaves the flag out")
        words = [_text(name, element) for element in value]
    else:
        words = [_text(name, value)]
    if any(word.startswith("-") for word in words):
        # argparse takes a word with a dash for the next flag unless it is attached, which only one can be.
        if len(words) > 1:
            raise ValueError(f"flag {name!r}: a value that begins with a dash cannot stand in a list")
        return [f"{flag}={words[0]}"]
    return [flag, *words]


def _text(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"flag {name!r}: cannot be written from a value of type {type(value).__name__}")
    return str(value)
