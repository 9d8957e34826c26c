# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m sglang.launch_server`."""

from __future__ import annotations

import argparse
import sys
import warnings

from sglang.srt.server_args import ServerArgs, prepare_server_args


def launch(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    args = prepare_server_args(parser, argv)
    from standin import sglang

    return sglang.serve(args, parser)


if __name__ == "__main__":
    warnings.warn(
        "'python -m sglang.launch_server' is still supported, but 'sglang serve' is the recommended entrypoint.\n"
        "  Example: sglang serve --model-path <model> [options]",
        UserWarning,
        stacklevel=1,
    )
    sys.exit(launch(sys.argv[1:]))
