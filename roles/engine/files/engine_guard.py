# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine's unit asks before it starts its engine, and how it stops one.

  engine_guard.py start HOST PORT    exit 75 and say why, if a process holds a GPU of the unit or the port is taken;
                                     systemd does not try that again
  engine_guard.py stop [PID]         SIGTERM, then wait a few seconds for the process to end

Standard library only, and an answer also when the driver has none: who holds a GPU is read from descriptors. The driver
is asked only where CUDA_VISIBLE_DEVICES gives the unit a part of the GPUs, for then an engine on the others may stay; a
holder that it does not place on other GPUs is in the way.
"""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Optional

REFUSED = os.EX_TEMPFAIL
GPU_NODE = re.compile(r"/dev/nvidia\d+\b")
UVM_NODE = "/dev/nvidia-uvm"
"""Open in every process with a CUDA context, and in no monitor."""

SMI_SECONDS = 15.0
"""nvidia-smi wakes GPUs without persistence one by one, 1 to 3 s each."""

FIRST_TERM_SECONDS = 6.0
"""A second SIGTERM this long after the first was seen to end a vLLM that was loading."""


def refuse_start(host: str, port: int) -> int:
    """Print one line for each reason not to start; 0 when there is none."""
    reasons = []
    holders = [pid for pid in pids() if holds_gpu(pid)]
    claimed = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if holders and claimed:
        holders = sorted(set(holders) - elsewhere(claimed))
    if holders:
        reasons.append(
            "GPUs are still held by "
            + ", ".join(map(describe, holders[:8]))
            + (f" and {len(holders) - 8} more" if len(holders) > 8 else "")
            + "; drain the host before this unit starts"
        )
    taken = port_problem(host, port)
    if taken:
        reasons.append(taken)
    for reason in reasons:
        print(f"refused: {reason}", file=sys.stderr, flush=True)
    if reasons and os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()):
        give_up(unit_of(os.getpid()))
    return REFUSED if reasons else 0


def give_up(unit: str) -> None:
    """Order the stop of the unit whose start we refuse, so that its Restart= does not try again every few seconds.

    Only a main process can be told apart by its exit status (RestartPreventExitStatus=), this one cannot.
    """
    # The stop begins with a SIGTERM to us; our own exit status is what the unit shall show.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["systemctl", "--no-block", "stop", "--", unit], timeout=10, check=False)


def elsewhere(claimed: list[str]) -> set[int]:
    """Processes that have contexts, as the driver tells, and none of them on a claimed GPU (index or UUID)."""
    gpus = rows("--query-gpu=index,uuid")
    ours = {uuid for index, uuid in gpus if any(name == index or uuid.startswith(name) for name in claimed)}
    if len(ours) < len(claimed):
        # What cannot be found cannot be told apart.
        return set()
    contexts = [(int(pid), uuid) for pid, uuid in rows("--query-compute-apps=pid,gpu_uuid") if pid.isdigit()]
    return {pid for pid, _uuid in contexts} - {pid for pid, uuid in contexts if uuid in ours}


def rows(query: str) -> list[tuple[str, str]]:
    """Pairs that nvidia-smi answers; none when it does not, or not in time."""
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=SMI_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    pairs = [line.split(", ", 1) for line in done.stdout.splitlines()]
    return [(pair[0].strip(), pair[1].strip()) for pair in pairs if len(pair) == 2]


def pids() -> list[int]:
    """Every process there is."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def holds_gpu(pid: int) -> bool:
    """Whether a process has a GPU's node and the node of unified memory open."""
    links = list(descriptors(pid))
    return any(link.startswith(UVM_NODE) for link in links) and any(map(GPU_NODE.match, links))


def descriptors(pid: int) -> Iterator[str]:
    """Targets of a process's descriptors, also where its first thread has ended and others live on."""
    directories = [f"/proc/{pid}/fd"]
    if not names_in(directories[0]):
        directories = [f"/proc/{pid}/task/{thread}/fd" for thread in names_in(f"/proc/{pid}/task")]
    for directory in directories:
        for name in names_in(directory):
            yield target(f"{directory}/{name}")


def target(link: str) -> str:
    """Where a link in /proc points; empty when it is gone, or kept even from root."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def names_in(directory: str) -> list[str]:
    """Names in a directory of /proc; none when its process has ended (a zombie's are refused even to root)."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def port_problem(host: str, port: int) -> Optional[str]:
    """Why the port cannot be bound, or None."""
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # As servers do: what waits in TIME_WAIT is no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return f"cannot listen on {host} port {port}: {error.strerror}"
        sockets = listening_sockets(port)
        owners = [pid for pid in pids() if not sockets.isdisjoint(descriptors(pid))]
        return f"port {port} is taken by " + (", ".join(map(describe, owners)) or "another network namespace")
    return None


def listening_sockets(port: int) -> set[str]:
    """Descriptor targets of all sockets that listen on a TCP port."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(table):
            with open(table, encoding="ascii") as lines:
                rows = [line.split() for line in lines][1:]
            found |= {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}
    return found


def describe(pid: int) -> str:
    """A process for a human: its pid, its name, and the unit it belongs to."""
    return f"{pid} ({read(f'/proc/{pid}/comm') or 'gone'}, {unit_of(pid)})"


def unit_of(pid: int) -> str:
    """The innermost unit in a process's cgroup path."""
    units = re.findall(r"[^/]+\.(?:service|scope)", read(f"/proc/{pid}/cgroup"))
    return units[-1] if units else "no unit"


def read(path: str) -> str:
    """A short text of /proc, safe to print; empty when its process has ended."""
    try:
        with open(path, encoding="utf-8", errors="replace") as text:
            return "".join(char if char.isprintable() else "?" for char in text.read().strip())
    except OSError:
        return ""


def stop(pid: int) -> int:
    """Send SIGTERM and wait for the end, but not long: what is still there gets systemd's own SIGTERM next."""
    try:
        process = os.pidfd_open(pid)
        signal.pidfd_send_signal(process, signal.SIGTERM)
    except ProcessLookupError:
        return 0
    select.select([process], [], [], FIRST_TERM_SECONDS)
    return 0


def main(arguments: list[str]) -> int:
    """Run one of the two verbs."""
    if len(arguments) == 3 and arguments[0] == "start":
        return refuse_start(arguments[1], int(arguments[2]))
    if arguments[:1] == ["stop"] and len(arguments) <= 2:
        # Without a pid: the engine has ended by itself.
        return stop(int(arguments[1])) if len(arguments) == 2 else 0
    print(__doc__, file=sys.stderr)
    return os.EX_USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
