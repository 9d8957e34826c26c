# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where vLLM 0.33 defines the options of `vllm serve`."""

from __future__ import annotations

import argparse

from standin.flags import add_options


def make_arg_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    add_options(parser, "vllm")
    return parser


def validate_parsed_serve_args(args: argparse.Namespace) -> None:
    if args.enable_auto_tool_choice and not args.tool_call_parser:
        raise TypeError("Error: --enable-auto-tool-choice requires --tool-call-parser")
    if args.enable_log_outputs and not args.enable_log_requests:
        raise TypeError("Error: --enable-log-outputs requires --enable-log-requests")
