# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record the command line of a real engine: every option, as its own parser registers it.

Run inside the engine's environment: `record_flags.py vllm > flags/vllm.json`. The stand-ins build their
parsers from these files, so that they refuse exactly what the real engines refuse.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from typing import Any, Callable, Optional


def vllm_parser() -> tuple[str, argparse.ArgumentParser]:
    import vllm
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return vllm.__version__, make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))


def sglang_parser() -> tuple[str, argparse.ArgumentParser]:
    from sglang.srt.server_args import ServerArgs
    from sglang.version import __version__

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return __version__, parser


def kind(convert: Optional[Callable[[str], Any]]) -> str:
    """What an option's value must look like, found by asking its converter."""
    samples = (
        ("str", "any words"),
        ("size", "1k"),
        ("json", '{"a": 1}'),
        ("float", "1.5"),
        ("int", "5"),
        ("json", "{}"),
    )
    for name, sample in samples:
        try:
            (convert or str)(sample)
        except (ValueError, TypeError, argparse.ArgumentTypeError):
            continue
        return name
    return "str"


def literal(value: Any) -> Any:
    """A default that JSON can carry, else None: the stand-ins need no others."""
    try:
        parsed = ast.literal_eval(repr(value))
    except (ValueError, SyntaxError):
        return None
    return parsed if isinstance(parsed, (bool, int, float, str)) and parsed != argparse.SUPPRESS else None


def option(parser: argparse.ArgumentParser, action: argparse.Action) -> dict[str, Any]:
    # The parser's own table also holds spellings that it accepts and hides from its help.
    spellings = [word for word, owner in parser._option_string_actions.items() if owner is action]
    entry: dict[str, Any] = {"flags": spellings or [action.dest], "dest": action.dest}
    if action.nargs == 0:
        entry["action"] = "true"
        off = getattr(action, "negative_option_strings", None) or [w for w in spellings if w.startswith("--no-")]
        if isinstance(action, argparse.BooleanOptionalAction):
            entry["off"] = sorted(off)
    else:
        if kind(action.type) != "str":
            entry["kind"] = kind(action.type)
        if action.nargs is not None:
            entry["nargs"] = action.nargs
        if action.choices:
            entry["choices"] = [str(choice) for choice in action.choices]
    if literal(action.default) not in (None, False):
        entry["default"] = literal(action.default)
    if action.required and spellings:
        entry["required"] = True
    return entry


def main() -> None:
    name = sys.argv.pop()
    version, parser = {"vllm": vllm_parser, "sglang": sglang_parser}[name]()
    options = [option(parser, action) for action in parser._actions if action.dest != "help"]
    head = json.dumps({"engine": name, "version": version})[:-1]
    print(head + ', "options": [\n' + ",\n".join(json.dumps(entry) for entry in options) + "\n]}")


if __name__ == "__main__":
    main()
