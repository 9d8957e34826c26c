# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a fleet costs the controller: seconds, CPU and memory of ansible-playbook by number of hosts, ours and theirs.

Over SSH all names stand for one simulated host, each with a connection of its own. That is honest for the controller,
which cannot tell, and not for the hosts' side: they share the machine, so wall time over SSH is theirs as much as ours.
Where a drain is measured, a script that answers each module with what was recorded stands in the place of the host's
Python: all that the controller does is real, and no host has to be waited for.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

BENCHMARK = Path(__file__).resolve().parent
ROOT = BENCHMARK.parent.parent

OVER_SSH = (1, 4, 16)
RECORDED = (50, 200)
FORKS = 16

Run = Callable[..., str]
"""Runs a command on the simulated host, with `data` on its standard input."""


@dataclass(frozen=True)
class Cost:
    """One run: its seconds, seconds of CPU with all workers, and the peak of the largest process in MiB."""

    wall: float
    cpu: float
    memory: float


@dataclass(frozen=True)
class Row:
    """What was done on how many hosts, ours and theirs."""

    what: str
    hosts: int
    ours: Cost
    theirs: Cost


def cost(inventory: Path, playbook: Path, *arguments: str, **environment: str) -> Cost:
    """Run a playbook, and ask the kernel what it and its workers took."""
    command = ["ansible-playbook", "-i", str(inventory), str(playbook), *arguments]
    everything = {
        **os.environ,
        "ANSIBLE_NOCOLOR": "true",
        "ANSIBLE_FORKS": str(FORKS),
        # For the local connection too, which has a setting of its own.
        "ANSIBLE_PIPELINING": "true",
        "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=20s",
        **environment,
    }
    with tempfile.TemporaryFile() as said:
        began = time.monotonic()
        child = subprocess.Popen(command, cwd=ROOT, env=everything, stdout=said, stderr=said)
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


@contextmanager
def names(number: int, host: str, simulated: Path, **variables: Any) -> Iterator[Path]:
    """An inventory of so many names for one simulated host, whose connections are opened anew."""
    group = json.loads(simulated.read_text().partition("\n")[2])["gpu_hosts"]
    with tempfile.TemporaryDirectory(prefix="bench-") as sockets:
        hosts = {
            f"gpu{index:02}": {**group["hosts"][host], "ansible_control_path": f"{sockets}/{index}"}
            for index in range(number)
        }
        with inventory(hosts, {**group["vars"], **variables}) as path:
            yield path


@contextmanager
def their_drain() -> Iterator[Path]:
    """drain_builtin.yml without its windows."""
    (play,) = yaml.safe_load((BENCHMARK / "drain_builtin.yml").read_text())
    play["tasks"] = [task for task in play["tasks"] if "ansible.builtin.pause" not in task]
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        path = Path(directory, "drain.yml")
        path.write_text(json.dumps([play]))
        yield path


def deployed(on_host: Run) -> list[dict[str, str]]:
    """What serving_builtin.yml has to know of the files that are there, so that it changes nothing."""
    return [
        {"path": path, "mode": mode, "content": base64.b64encode(on_host("cat", path).encode()).decode()}
        for path, mode in (
            ("/etc/systemd/system/vllm.service", "0644"),
            ("/etc/gpuops/vllm.service.env", "0644"),
            ("/etc/gpuops/vllm.service.secrets", "0600"),
        )
    ]


def answering(answer: str, directory: str) -> dict[str, str]:
    """Files by path: a Python that answers each module, ours with what was recorded of a drain, and what it answers."""
    theirs = {"changed": False, "status": 200, "rc": 0, "stderr": "", "content": IDLE}
    answers = {
        "ours": {**json.loads(answer), "would_change": True},
        "memory": {**theirs, "stdout": "\n".join(["0"] * 8)},
        "theirs": {**theirs, "stdout": ""},
    }
    # The module comes on its standard input, its arguments with it.
    script = f"""#!/bin/sh
module=$(cat)
case $module in *gpuops.inference*) answer=ours ;; *memory.used*) answer=memory ;; *) answer=theirs ;; esac
exec cat {directory}/$answer.json
"""
    texts = {f"{directory}/{name}.json": json.dumps(text) for name, text in answers.items()}
    return {**texts, f"{directory}/python": script}


def over_ssh(host: str, simulated: Path, on_host: Run, answer: str, sizes: Sequence[int] = OVER_SSH) -> list[Row]:
    """`vLLM is deployed and serves`, which it is; then a drain."""
    files, there = deployed(on_host), "/run/answering"
    for path, text in answering(answer, there).items():
        on_host("sh", "-c", 'mkdir -p "${1%/*}" && cat >"$1" && chmod 755 "$1"', "sh", path, data=text.encode())
    python = {"ansible_python_interpreter": f"{there}/python"}
    serves, drains = [], []
    with their_drain() as theirs:
        for number in sizes:
            with names(number, host, simulated) as path:
                mine = cost(path, ROOT / "pivot_to_vllm.yml", "-e", "gpuops_fleet=true")
            with names(number, host, simulated, bench_files=files) as path:
                serves.append(Row("serves already, SSH", number, mine, cost(path, BENCHMARK / "serving_builtin.yml")))
            with names(number, host, simulated, **python) as path:
                mine = cost(path, ROOT / "drain.yml", "-e", "gpuops_fleet=true")
            with names(number, host, simulated, **python) as path:
                drains.append(Row("drain, SSH", number, mine, cost(path, theirs)))
    return serves + drains


def recorded(answer: str, sizes: Sequence[int] = RECORDED) -> list[Row]:
    """The same drain over hosts with a local connection."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch, their_drain() as theirs:
        for path, text in answering(answer, scratch).items():
            Path(path).write_text(text)
            Path(path).chmod(0o700)
        local = {
            "ansible_connection": "local", "ansible_become": False,
            "ansible_python_interpreter": f"{scratch}/python",
        }  # fmt: skip
        for number in sizes:
            with inventory({f"gpu{index:03}": {} for index in range(number)}, local) as hosts:
                mine = cost(hosts, ROOT / "drain.yml", "-e", "gpuops_fleet=true")
                rows.append(Row("drain, local", number, mine, cost(hosts, theirs)))
    return rows


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line that fits best."""
    x_mean, y_mean = (sum(values) / len(points) for values in zip(*points))
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x, _y in points)


def table(rows: Sequence[Row]) -> str:
    """A line for each number of hosts: ours, theirs, and the one divided by the other; and what one host more costs."""
    lines = [
        "| what | hosts | wall | | CPU of the controller | | largest process | | target | met |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]

    def line(what: str, hosts: str, pairs: Sequence[tuple[float, float, str]], target: str, met: bool) -> None:
        cells = [
            cell for one, other, unit in pairs for cell in (f"{one:.2f} / {other:.2f} {unit}", f"{one / other:.2f}x")
        ]
        cells += [""] * (6 - len(cells))
        lines.append(
            f"| {what} | {hosts} | {' | '.join(cells)} | {target} | {('yes' if met else 'no') if target else ''} |"
        )

    for what in dict.fromkeys(row.what for row in rows):
        mine = [row for row in rows if row.what == what]
        for row in mine:
            pairs = [(getattr(row.ours, key), getattr(row.theirs, key), unit) for key, unit in UNITS.items()]
            line(what, str(row.hosts), pairs, "", True)
        slopes = [
            (
                slope([(row.hosts, getattr(row.ours, key)) for row in mine]),
                slope([(row.hosts, getattr(row.theirs, key)) for row in mine]),
                unit,
            )
            for key, unit in UNITS.items()
            if key != "memory"
        ]
        line(what, "one more", slopes, "both slopes smaller", all(one < other for one, other, _unit in slopes))
    return "\n".join(lines)


NO_PERSIST = "-o ControlMaster=no -o ControlPath=none"
IDLE = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
"""What an engine says that nobody asks."""
UNITS = {"wall": "s", "cpu": "s", "memory": "MiB"}


def advice(host: str, simulated: Path, on_host: Run) -> str:
    """What the usual advice is worth here, setting by setting; each line is one run."""
    lines = ["| what | hosts | setting | wall | CPU of the controller |", "|---|---|---|---|---|"]
    files = deployed(on_host)

    def line(what: str, number: int, setting: str, playbook: Path, *arguments: str, **environment: str) -> None:
        with names(number, host, simulated, bench_files=files) as path:
            seen = cost(path, playbook, *arguments, **environment)
        lines.append(f"| {what} | {number} | {setting} | {seen.wall:.1f} s | {seen.cpu:.1f} s |")

    ours, theirs = (ROOT / "pivot_to_vllm.yml", "-e", "gpuops_fleet=true"), BENCHMARK / "serving_builtin.yml"
    for forks in (5, 16, 50):
        line("pivot_to_vllm, serves already", 16, f"forks {forks}", *ours, ANSIBLE_FORKS=str(forks))
    line("pivot_to_vllm, serves already", 4, "pipelining, ControlPersist", *ours)
    line("pivot_to_vllm, serves already", 4, "pipelining off", *ours, ANSIBLE_PIPELINING="false")
    line("pivot_to_vllm, serves already", 4, "ControlPersist off", *ours, ANSIBLE_SSH_ARGS=NO_PERSIST)
    line("ansible.builtin, the same", 4, "pipelining, ControlPersist", theirs)
    line("ansible.builtin, the same", 4, "pipelining off", theirs, ANSIBLE_PIPELINING="false")
    line("ansible.builtin, the same", 4, "ControlPersist off", theirs, ANSIBLE_SSH_ARGS=NO_PERSIST)
    line("ansible.builtin, the same", 4, "no facts gathered", theirs, ANSIBLE_GATHERING="explicit")
    line("ansible.builtin, the same", 4, "strategy host_pinned", theirs, ANSIBLE_STRATEGY="ansible.builtin.host_pinned")
    return "\n".join(lines)
