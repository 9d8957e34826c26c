# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM's parser: underscores count as dashes, and `--option.key value` fills a JSON option."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from typing import Any, Optional


class FlexibleArgumentParser(argparse.ArgumentParser):
    """argparse with vLLM's two freedoms."""

    def parse_args(self, args: Optional[Sequence[str]] = None, namespace: Any = None) -> Any:  # type: ignore[override]
        given = list(sys.argv[1:] if args is None else args)
        words: list[str] = []
        dotted: dict[str, Any] = {}
        while given:
            word = given.pop(0)
            if not word.startswith("--"):
                words.append(word)
                continue
            name, equals, value = word.partition("=")
            option, dot, path = name.partition(".")
            option = option.replace("_", "-")
            if not dot:
                words.append(option + equals + value)
                continue
            if not equals:
                value = given.pop(0) if given else ""
            branch = dotted.setdefault(option, {})
            *keys, last = path.split(".")
            for key in keys:
                branch = branch.setdefault(key, {})
            branch[last] = _value(value)
        for option, content in dotted.items():
            words += [option, json.dumps(content)]
        return super().parse_args(words, namespace)


def _value(text: str) -> Any:
    if re.fullmatch(r"\d+(\.\d+)?[kKmMgGtT]", text):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
