# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start a playbook and interrupt it the moment a host's journal tells of a stage or a phase.

    interrupt.py HOST WAY MATCH COMMAND...

MATCH is a field of the journal, as in GPUOPS_PHASE=started. WAY is what happens then:

    controller   the playbook is killed, with its workers and their ssh
    ssh          the host's sshd processes that serve it are killed
    module       the module itself is killed, as by the OOM killer
    async        nothing: the playbook is over before, and the module has no connection

Prints what was done. Ends with 0 if the playbook was interrupted there; its own end before that is a failure.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 300.0
LATE = 10.0
"""Seconds that the journal may take to tell of what a playbook did that is over."""

ON_HOST = r"""
import contextlib, json, os, signal, subprocess, sys, time

AGAIN = 2.0

# Asked now: systemd may be busy when it counts.
listener = int(subprocess.check_output(["systemctl", "show", "--property=MainPID", "--value", "ssh.service"]))

def sessions():
    # Pid and start time of the sshd processes that serve a connection each.
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            name, _, rest = open(f"/proc/{pid}/stat", errors="replace").read().partition("(")[2].rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        if name.startswith("sshd") and int(pid) != listener:
            found.add((int(pid), int(fields[19])))
    return found

def kill(pid, start):
    descriptor = os.pidfd_open(pid)
    fields = open(f"/proc/{pid}/stat", errors="replace").read().rpartition(")")[2].split()
    assert int(fields[19]) == start
    signal.pidfd_send_signal(descriptor, signal.SIGKILL)

def at_work():
    text = open("/run/gpuops/lock").read() if os.path.exists("/run/gpuops/lock") else ""
    return json.loads(text) if text else {}

way, match = sys.argv[1:]
cursor = subprocess.check_output(["journalctl", "--quiet", "--lines=1", "--output=cat", "--show-cursor"], text=True)
after = "--after-cursor=" + cursor.split("-- cursor: ")[1].strip()
before = sessions()
print("watching", flush=True)
follow = ["journalctl", "--follow", "--quiet", "--output=cat", after, match]
with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as seen:
    line = seen.stdout.readline().strip()
    holder = at_work()
    killed, over = [], None
    # Between two tasks nobody is connected. Who is just leaving may have been answered: then the next one is cut off.
    while way == "ssh" and (over is None or time.monotonic() < over):
        for session in sorted(sessions() - before - set(killed)):
            with contextlib.suppress(OSError):
                kill(*session)
                killed.append(session)
                over = over or time.monotonic() + AGAIN
        time.sleep(0.05)
    if way == "module":
        killed = [(holder["pid"], holder["start"])]
        kill(*killed[0])
    told = {"seen": line, "at_work": holder.get("command", ""), "killed": [pid for pid, _ in killed]}
    print(json.dumps(told), flush=True)
    seen.kill()
"""


def line_of(watch: subprocess.Popen[str], child: subprocess.Popen[bytes], deadline: float) -> str:
    """What the watch on the host says, "" where the command ends without it or the time is up."""
    assert watch.stdout is not None
    while time.monotonic() < deadline:
        if select.select([watch.stdout], [], [], 0.2)[0]:
            return watch.stdout.readline().strip()
        if child.poll() is not None:
            deadline = min(deadline, time.monotonic() + LATE)
    return ""


def main(host: str, way: str, match: str, command: list[str]) -> int:
    on_host = ["timeout", f"{LIMIT:g}", "python3", "-c", ON_HOST, way, match]
    watching = [str(ROOT / "tests/simulator/hosts"), "exec", host, "--", *on_host]
    with subprocess.Popen(watching, stdout=subprocess.PIPE, text=True) as watch, tempfile.TemporaryFile() as said:
        assert watch.stdout is not None
        watch.stdout.readline()
        # A session of its own: its process group is the controller with all its workers, and nothing else.
        with subprocess.Popen(command, start_new_session=True, stdout=said, stderr=subprocess.STDOUT) as child:
            line = line_of(watch, child, time.monotonic() + LIMIT)
            if way == "controller" and child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait(LIMIT) if line else None
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
        watch.kill()
        said.seek(0)
        text = said.read().decode(errors="replace")
    wanted = {"controller": -signal.SIGKILL, "async": 0}
    # Ansible's own word, and ours where a fleet's run writes down what became of the host.
    lost = "UNREACHABLE" in text or "unreachable: " in text
    if line and code == wanted.get(way, code) and (way != "ssh" or lost):
        print(line)
        return 0
    print(text)
    print(f"{command[0]} ended with {code}; what the host's journal told of {match}: {line or 'nothing'}")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4], sys.argv[4:]))
