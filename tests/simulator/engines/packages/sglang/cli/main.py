# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The console script `sglang`."""

from __future__ import annotations

import argparse
import sys

from sglang.version import __version__


def main() -> int:
    parser = argparse.ArgumentParser(prog="sglang")
    commands = parser.add_subparsers(dest="subcommand", required=True)
    for name in ("serve", "generate", "version"):
        commands.add_parser(name, add_help=False)
    args, rest = parser.parse_known_args()
    if args.subcommand == "serve":
        from sglang.launch_server import launch

        return launch(rest)
    print(f"sglang version: {__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
