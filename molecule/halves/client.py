# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask an engine for one completion after the other until SIGTERM; then say, as JSON, how many came and which did not.

client.py PORT
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import urllib.request

PAUSE = 0.05
"""Seconds between an answer and the next request: leave the machine to what is tested."""


def main(port: str) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: ended.set())
    body = json.dumps({"model": "llama-3.3-70b", "prompt": "ping", "max_tokens": 1}).encode()
    answered, failed = 0, []
    while not ended.wait(PAUSE):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                if json.load(answer)["choices"]:
                    answered += 1
        except (OSError, ValueError, LookupError) as error:
            failed.append(f"after {answered}: {error}")
            if len(failed) == 20:
                break
    print(json.dumps({"answered": answered, "failed": failed}), flush=True)


main(sys.argv[1])
