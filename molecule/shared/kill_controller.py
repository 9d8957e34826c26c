# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start a playbook and kill it, all of it, the moment the record on a host shows a phase.

    kill_controller.py HOST RECORD PHASE COMMAND...

Ends with 0 if it killed the command in that phase; the command's own end before that is a failure.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 300.0


def phase(host: str, record: str) -> str:
    read = [ROOT / "tests/simulator/hosts", "exec", host, "--", "cat", f"/var/lib/gpuops/{record}"]
    answer = subprocess.run(read, capture_output=True, check=False)
    return str(json.loads(answer.stdout)["phase"]) if answer.returncode == 0 and answer.stdout else ""


def main(host: str, record: str, wanted: str, command: list[str]) -> int:
    left_before = phase(host, record)
    deadline = time.monotonic() + LIMIT
    # A session of its own: its process group is the controller with all its workers, and nothing else.
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        try:
            begun = False
            while time.monotonic() < deadline:
                now = phase(host, record)
                begun = begun or now != left_before
                if begun and now == wanted:
                    os.killpg(child.pid, signal.SIGKILL)
                    print(f"killed {command[0]} (pid {child.pid}) in phase {now}")
                    return 0
                if child.poll() is not None:
                    break
                time.sleep(0.2)
            assert child.stdout is not None
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            print(child.stdout.read().decode(errors="replace"))
            print(f"{command[0]} never came to phase {wanted}; the record's phase is {phase(host, record) or 'none'}")
            return 1
        finally:
            child.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4], sys.argv[4:]))
