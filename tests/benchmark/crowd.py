# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a simulated host, as root: 2,000 processes with 100 descriptors each, looked at by our scan and by fuser.

    crowd.py ROUNDS

Prints one line, {"ours": [seconds], "theirs": [seconds], "found": {"ours": N, "theirs": N}}. The crowd stays until
stdin is closed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from ansible_collections.gpuops.inference.plugins.module_utils._holders import (
    find_nodes,
    process_table,
    scan_descriptors,
)

PROCESSES = 2000
DESCRIPTORS = 100
HOLDERS = 9


def open_like_a_server() -> None:
    """Mostly sockets; files, pipes, event counters and a few /dev/null. The whole crowd inherits them."""
    opened = [os.open("/dev/null", os.O_RDWR) for _number in range(4)]
    while len(opened) + 3 < DESCRIPTORS:
        opened += [
            *(end.detach() for _pair in range(2) for end in socket.socketpair()),
            *os.pipe(),
            os.eventfd(0),
            os.open(sys.executable, os.O_RDONLY),
        ]
    while len(opened) + 3 > DESCRIPTORS:
        os.close(opened.pop())


def member(nodes: list[str]) -> int:
    """One process that has these nodes open as well, and does nothing."""
    pid = os.fork()
    if pid == 0:
        for node in nodes:
            os.open(node, os.O_RDWR | os.O_NOCTTY)
        while True:
            signal.pause()
    return pid


def ours() -> set[int]:
    return set(scan_descriptors(process_table().values(), find_nodes()).by_pid)


def theirs(nodes: list[str]) -> set[int]:
    # It ends with 1 when a process vanished while it looked.
    done = subprocess.run(["fuser", *nodes], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return {int(pid) for pid in done.stdout.split()}


def main(rounds: int) -> None:
    nodes = sorted(str(path) for path in Path("/dev").glob("nvidia*") if path.is_char_device())
    open_like_a_server()
    pids = [member(nodes if number < HOLDERS else []) for number in range(PROCESSES)]
    try:
        seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
        found = {}
        for _round in range(rounds):
            for name, look in (("ours", ours), ("theirs", lambda: theirs(nodes))):
                began = time.monotonic()
                seen = look()
                seconds[name].append(time.monotonic() - began)
                found[name] = len(seen.intersection(pids))
        print(json.dumps({**seconds, "found": found}), flush=True)
        sys.stdin.read()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
