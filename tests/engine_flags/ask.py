# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs beside an unpacked engine: asks its parser as the preflight does, many times in one process.

`ask.py ENGINE DIRECTORY PARSING`, a JSON list of requests on stdin, their answers on stdout. A request is a list of
words for the parser, the text of a file for --config, or null: then all flags are listed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from typing import Any

import stubs


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("parsing", path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def configured(text: str) -> list[str]:
    """What SGLang's own reader makes of a configuration file."""
    try:
        from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger
    except ImportError:
        from sglang.srt.server_args_config_parser import ConfigArgumentMerger
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        merged: list[str] = ConfigArgumentMerger(parsing.sglang_parser()).merge_config_with_args(
            ["--config", file.name]
        )
    return merged


def answer(request: Any) -> Any:
    if isinstance(request, str):
        return configured(request)
    if request is None:
        return sorted(parsing.PARSERS[engine]()._option_string_actions)
    return parsing.ask(engine, request, [])


engine, directory, source = sys.argv[1:]
replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
sys.path.insert(0, directory)
stubs.install()
parsing = load(source)
replies.write(json.dumps([answer(request) for request in json.load(sys.stdin)]))
replies.flush()
os._exit(0)
