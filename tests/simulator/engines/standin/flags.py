# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parsers with the options of the real engines, as ../flags/ENGINE.json records them."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable
from typing import Any

RECORDS = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "flags")


def _size(text: str) -> int:
    """vLLM's numbers: 128k is 128,000, 128K is 131,072, auto and -1 are left to the engine."""
    if text.strip().lower() in ("auto", "-1"):
        return -1
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)", text.strip())
    if not match:
        raise ValueError(text)
    number, suffix = match.groups()
    power = "kmgt".find(suffix.lower()) + 1 if suffix else 0
    return int(number) * 1024**power if suffix.isupper() else int(float(number) * 1000**power)


KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "json": json.loads, "size": _size}


class Switch(argparse.Action):
    """A flag without a value, among whose spellings some mean no."""

    def __init__(self, option_strings: list[str], dest: str, off: list[str], **keywords: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **keywords)
        self.off = off

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, option_string not in self.off)


def add_options(parser: argparse.ArgumentParser, engine: str) -> None:
    """Register every option of an engine, as its own parser does."""
    with open(os.path.join(RECORDS, f"{engine}.json")) as record:
        options = json.load(record)["options"]
    for option in options:
        flags = option["flags"]
        keywords: dict[str, Any] = {"default": option.get("default")}
        if flags[0].startswith("-"):
            keywords["dest"] = option["dest"]
        if "required" in option:
            keywords["required"] = True
        if option.get("action") == "true":
            keywords.update(action=Switch, off=option.get("off", []), default=option.get("default", False))
        else:
            if "nargs" in option:
                keywords["nargs"] = option["nargs"]
            kind = option.get("kind")
            if kind:
                keywords["type"] = KINDS[kind]
            if "choices" in option:
                keywords["choices"] = [KINDS.get(kind, str)(choice) for choice in option["choices"]]
        parser.add_argument(*flags, **keywords)


def given(parser: argparse.ArgumentParser, namespace: argparse.Namespace) -> dict[str, Any]:
    """What the command line says beyond the defaults; keys are not shown."""
    skipped = ("subparser", "config")
    values = {n: v for n, v in vars(namespace).items() if n not in skipped and v != parser.get_default(n)}
    return {name: "***" if "api_key" in name else value for name, value in values.items()}
