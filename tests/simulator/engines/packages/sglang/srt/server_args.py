# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where SGLang defines its options."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence

from standin.flags import add_options


class ServerArgs:
    """The part of the real class that checks a command line."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        add_options(parser, "sglang")


def prepare_server_args(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Options of the file named by --config come first, so that the others win."""
    words = list(argv)
    for position, word in enumerate(words):
        name, equals, path = word.partition("=")
        if name == "--config":
            path = path if equals else words[position + 1]
            return parser.parse_args([*_configured(path), *words])
    return parser.parse_args(words)


def _configured(path: str) -> list[str]:
    """A file of `option: value` lines, the part of YAML that such files need."""
    words = []
    with open(os.path.expanduser(path)) as lines:
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or line.startswith("#"):
                continue
            flag, value = "--" + name.strip().replace("_", "-"), value.strip()
            value = json.loads(value) if value.startswith('"') else value.strip("'")
            words += {"true": [flag], "false": []}.get(value, [flag, value])
    return words
