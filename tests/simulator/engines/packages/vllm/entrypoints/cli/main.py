# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The console script `vllm`."""

from __future__ import annotations

import sys

from standin.recorded import VLLM

from vllm.entrypoints.common.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

OTHERS = "chat complete launch bench collect-env download-kernels preload run-batch snapshot".split()


def main() -> int:
    parser = FlexibleArgumentParser(prog="vllm", description="vLLM CLI")
    parser.add_argument("-v", "--version", action="version", version=VLLM["version"])
    commands = parser.add_subparsers(dest="subparser")
    serve = make_arg_parser(commands.add_parser("serve"))
    for name in OTHERS:
        commands.add_parser(name)
    args = parser.parse_args()
    if args.subparser != "serve":
        parser.print_help()
        return 0
    validate_parsed_serve_args(args)
    if args.config:
        sys.exit("the stand-in does not read configuration files")
    from standin import vllm

    return vllm.serve(args, serve)
