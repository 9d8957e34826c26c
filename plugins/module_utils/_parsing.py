# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Asks an engine's own parser whether it takes a command line, without starting the engine.

A stand-alone program: `_preflight` hands this source to the interpreter of the engine's virtual environment
(`python -I -c SOURCE ENGINE`, a JSON request on stdin). It answers with one line of JSON on its stdout.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, Callable, NoReturn

# Newest first: vLLM moved its front-end's arguments twice (0.33, 0.32, before).
VLLM_ARGUMENTS = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
VLLM_PARSERS = ("vllm.utils.argparse_utils", "vllm.utils")


class RejectedError(Exception):
    """The parser does not take the command line; the text is its own."""


def reject(message: str) -> NoReturn:
    """What a parser calls instead of printing its usage and leaving."""
    raise RejectedError(message)


def first_module(names: Sequence[str]) -> Any:
    """The first of these modules that exists. Other failures to import, such as of a dependency, are raised."""
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not (error.name and (name + ".").startswith(error.name + ".")):
                raise
    return importlib.import_module(names[-1])


def vllm_parser() -> argparse.ArgumentParser:
    """The parser of `vllm serve`."""
    arguments = first_module(VLLM_ARGUMENTS)
    parser: argparse.ArgumentParser = arguments.make_arg_parser(first_module(VLLM_PARSERS).FlexibleArgumentParser())
    return parser


def sglang_parser() -> argparse.ArgumentParser:
    """The parser of `python -m sglang.launch_server`."""
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return parser


PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {"vllm": vllm_parser, "sglang": sglang_parser}


def version_of(engine: str) -> str:
    """The installed version; empty where the package does not tell."""
    try:
        return importlib.metadata.version(engine)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(engine), "__version__", ""))


def ask(engine: str, words: Sequence[str], files: Sequence[str]) -> dict[str, Any]:
    """Whether this interpreter has the engine, whether it takes these words, and which files we may not read."""
    answer: dict[str, Any] = {"unreadable": [path for path in files if not os.access(path, os.R_OK)]}
    try:
        importlib.import_module(engine)
        answer["version"] = version_of(engine)
        parser = PARSERS[engine]()
    # Anything at all can go wrong while a program of this size is imported, and all of it means the same.
    except Exception as error:
        return {**answer, "broken": f"{type(error).__name__}: {error}"}
    parser.error = reject  # type: ignore[method-assign]
    try:
        parser.parse_args(list(words))
    except RejectedError as error:
        return {**answer, "rejected": str(error)}
    # A parser that leaves by itself (--help, --version) would not start a server either.
    except SystemExit as error:
        return {**answer, "rejected": f"the parser ends with status {error.code}"}
    except (ValueError, TypeError) as error:
        return {**answer, "rejected": f"{type(error).__name__}: {error}"}
    return answer


def main() -> None:
    """Answer one request. What imports print goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    answer = ask(sys.argv[1], request["words"], request["files"])
    replies.write(json.dumps(answer) + "\n")
    replies.flush()
    # Threads of a half-imported engine must not keep us here.
    os._exit(0)


if __name__ == "__main__":
    main()
