# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a fleet costs the controller: seconds, CPU and memory of ansible-playbook by number of hosts, ours and theirs.

Over SSH all names stand for one simulated host, each with a connection of its own. That is honest for the controller,
which cannot tell, and not for the hosts' side: they share two cores, so wall time over SSH is theirs as much as ours.
The 200 hosts of the second part are local and answer with what was recorded.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BENCHMARK = Path(__file__).resolve().parent
ROOT = BENCHMARK.parent.parent

OVER_SSH = (1, 4, 16)
RECORDED = (50, 200)
FORKS = 16
THEIR_STEPS = 12
"""Tasks of drain_builtin.yml that ask the host."""


@dataclass(frozen=True)
class Cost:
    """One run: its seconds, seconds of CPU with all workers, and the peak of the largest process in MiB."""

    wall: float
    cpu: float
    memory: float


def cost(inventory: Path, playbook: Path, *arguments: str) -> Cost:
    """Run a playbook, and ask the kernel what it and its workers took."""
    command = ["ansible-playbook", "-i", str(inventory), "--forks", str(FORKS), str(playbook), *arguments]
    environment = {
        **os.environ,
        "ANSIBLE_NOCOLOR": "true",
        "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=20s",
    }
    with tempfile.TemporaryFile() as said:
        began = time.monotonic()
        child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)
        _pid, status, usage = os.wait4(child.pid, 0)
        wall = time.monotonic() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(command)} failed:\n{said.read().decode()[-3000:]}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


@contextmanager
def inventory(hosts: dict[str, dict[str, Any]], variables: dict[str, Any]) -> Iterator[Path]:
    """An inventory in a directory of its own, with the group variables of the simulator."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        path = Path(directory, "hosts.json")
        path.write_text(json.dumps({"gpu_hosts": {"hosts": hosts, "vars": variables}}))
        Path(directory, "group_vars").symlink_to(ROOT / "inventories/sim/group_vars")
        yield path


Row = tuple[str, Cost, Cost]
"""A number of hosts, ours and theirs."""


def over_ssh(host: str, simulated: Path, read: Callable[[str], bytes]) -> list[Row]:
    """`vLLM is deployed and serves`, which it is, said by pivot_to_vllm.yml and serving_builtin.yml."""
    group = json.loads(simulated.read_text().partition("\n")[2])["gpu_hosts"]
    files = [
        {"path": path, "mode": mode, "content": base64.b64encode(read(path)).decode()}
        for path, mode in (
            ("/etc/systemd/system/vllm.service", "0644"),
            ("/etc/gpuops/vllm.service.env", "0644"),
            ("/etc/gpuops/vllm.service.secrets", "0600"),
        )
    ]
    rows = []
    for number in OVER_SSH:
        with tempfile.TemporaryDirectory(prefix="bench-") as sockets:
            names = {
                f"gpu{index:02}": {**group["hosts"][host], "ansible_control_path": f"{sockets}/{index}"}
                for index in range(number)
            }
            with inventory(names, {**group["vars"], "bench_files": files}) as path:
                # Each opens its connections anew.
                mine = cost(path, ROOT / "pivot_to_vllm.yml", "-e", "gpuops_fleet=true")
            theirs = {
                name: {**variables, "ansible_control_path": f"{sockets}/their-{name}"}
                for name, variables in names.items()
            }
            with inventory(theirs, {**group["vars"], "bench_files": files}) as path:
                rows.append((f"{number} over SSH", mine, cost(path, BENCHMARK / "serving_builtin.yml")))
    return rows


def recorded(answer: str) -> list[Row]:
    """A drain of hosts that answer at once: our look and act, and as many tasks as drain_builtin.yml has that ask."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        Path(scratch, "recorded.json").write_text(answer)
        for name in ("recorded_look.yml", "recorded_act.yml"):
            Path(scratch, name).write_bytes((BENCHMARK / name).read_bytes())
        ask = {"ansible.builtin.command": {"argv": ["cat", f"{scratch}/recorded.json"]}, "changed_when": False}
        tasks = [{"name": f"Step {step}", **ask} for step in range(THEIR_STEPS)]
        theirs = Path(scratch, "builtin.yml")
        theirs.write_text(json.dumps([{"hosts": "gpu_hosts", "serial": "10%", "gather_facts": False, "tasks": tasks}]))
        local = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            "bench_directory": scratch,
        }
        for number in RECORDED:
            with inventory({f"gpu{index:03}": {} for index in range(number)}, local) as path:
                mine = cost(path, BENCHMARK / "recorded.yml", "-e", "gpuops_fleet=true")
                rows.append((f"{number} recorded", mine, cost(path, theirs)))
    return rows


def table(rows: list[Row]) -> str:
    """A line for each number of hosts: ours, theirs, and the one divided by the other."""
    lines = ["| hosts | wall | | CPU of the controller | | largest process | |", "|---|---|---|---|---|---|---|"]
    for name, mine, theirs in rows:
        cells = []
        for what, unit in (("wall", "s"), ("cpu", "s"), ("memory", "MiB")):
            one, other = getattr(mine, what), getattr(theirs, what)
            cells += [f"{one:.1f} / {other:.1f} {unit}", f"{one / other:.2f}x"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
