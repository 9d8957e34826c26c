#!/usr/bin/env python
# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the collection beside what it replaces, on one simulated host, and writes docs/benchmarks.md anew.

Each subject takes its turn in each round, so that whatever else the machine does falls on all of them; medians and
ratios count. A missed target is told and fails nothing: this machine may be busy.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Optional

import fleet

BENCHMARK = Path(__file__).resolve().parent
ROOT = BENCHMARK.parent.parent
UTILS = "plugins/module_utils"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- written by make bench: begin -->", "<!-- end -->"

# A host of its own, so that those of `make demo` and the tests stay as they are.
os.environ.setdefault("GPUOPS_SIM_PREFIX", f"gpuops-bench-{hashlib.sha256(bytes(ROOT)).hexdigest()[:8]}")
HOST = "sim-debian13"
UNIT = "vllm.service"
MONITORS = ("nvidia-dcgm", "dcgm-exporter", "nvidia-persistenced", "nvidia-fabricmanager")
THERE = "/run/benchmark"  # on the host; gone with it
ROUNDS = 3
LOADS = (4.0, 6.0, 8.0)
"""Seconds that the engine loads, by round: a loop with a delay meets its end at different moments."""
QUIET = 2.0
STABLE = 3.0
"""Seconds that gpu_drain keeps on purpose, by default; drain_builtin.yml keeps the same."""


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


# --- the host ---------------------------------------------------------------------------------------------------------


def simulator(*arguments: str, data: Optional[bytes] = None) -> str:
    command = [str(ROOT / "tests/simulator/hosts"), *arguments]
    return subprocess.run(command, input=data or b"", stdout=subprocess.PIPE, check=True, timeout=300).stdout.decode()


def on_host(*command: str, data: Optional[bytes] = None) -> str:
    return simulator("exec", HOST, "--", *command, data=data)


def background(*command: str) -> subprocess.Popen[str]:
    """A program on the host that goes on until its stdin is closed."""
    argv = [str(ROOT / "tests/simulator/hosts"), "exec", HOST, "--", "env", "PYTHONDONTWRITEBYTECODE=1", *command]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def carry() -> None:
    """What is measured on the host itself: our scan as it is in the checkout, and the programs beside this one."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted((ROOT / UTILS).glob("*.py")):
            archive.add(path, f"ansible_collections/gpuops/inference/{UTILS}/{path.name}")
        for name in ("crowd.py", "peak.py", "recipe.sh"):
            archive.add(BENCHMARK / name, name)
    on_host("sh", "-ec", f"mkdir -p {THERE}; tar -xC {THERE}", data=buffer.getvalue())


def serving() -> None:
    simulator("reset", HOST, "--serving", "vllm")


def shown(unit: str, name: str) -> str:
    return on_host("systemctl", "show", f"--property={name}", "--value", unit).strip()


def stopping_seconds() -> float:
    """How long the engine's processes took to end, as systemd saw it."""
    began, ended = (int(shown(UNIT, f"{name}TimestampMonotonic")) for name in ("ActiveExit", "InactiveEnter"))
    return (ended - began) / 1e6


def monitors() -> list[str]:
    return [shown(unit, "MainPID") for unit in MONITORS]


# --- the controller ---------------------------------------------------------------------------------------------------


@dataclass
class Played:
    """One run of a playbook: seconds it took, seconds of CPU here, commands over SSH, when its last task was told."""

    wall: float
    cpu: float
    commands: int
    told: float


def play(*arguments: str, told: str = "") -> Played:
    """Run ansible with a connection of its own. `told` is how the line begins that shows the end of a task."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        log = Path(directory) / "commands"
        log.touch()
        environment = {
            **os.environ,
            "ANSIBLE_SSH_EXECUTABLE": str(BENCHMARK / "counted-ssh"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": directory,
            "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=20s",
            "ANSIBLE_NOCOLOR": "true",
            "GPUOPS_BENCH_SSH_LOG": str(log),
            "PYTHONUNBUFFERED": "1",
        }
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        moment = 0.0
        said = []
        with subprocess.Popen(
            arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as child:
            assert child.stdout
            for line in child.stdout:
                said.append(line)
                if told and line.startswith(told):
                    moment = time.time()
        wall = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if child.returncode:
            sys.exit(f"{' '.join(arguments)} failed:\n{''.join(said)}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Played(wall, cpu, len(log.read_text().splitlines()), moment)


def playbook(name: str, *arguments: str, told: str = "") -> Played:
    inventory = simulator("inventory").strip()
    return play("ansible-playbook", "-i", inventory, str(name), *arguments, told=told)


# --- what is measured -------------------------------------------------------------------------------------------------


@dataclass
class Figures:
    """Everything measured, one entry for each round."""

    overhead: list[float] = field(default_factory=list)
    recipe_overhead: list[float] = field(default_factory=list)
    drain: list[Played] = field(default_factory=list)
    builtin: list[Played] = field(default_factory=list)
    scan: dict[str, Any] = field(default_factory=dict)
    ready: list[float] = field(default_factory=list)
    builtin_ready: list[float] = field(default_factory=list)
    peaks: dict[str, dict[str, float]] = field(default_factory=dict)
    recipe_killed: int = 0
    ours_killed: int = 0


def measure_drains(figures: Figures) -> None:
    for number in range(ROUNDS):
        say(f"drain {number + 1} of {ROUNDS}: gpu_drain, the recipe, ansible.builtin")
        serving()
        there = monitors()
        figures.drain.append(playbook(str(BENCHMARK / "drain.yml")))
        result = json.loads(on_host("sh", "-c", "cat /var/lib/gpuops/records/*.json"))
        figures.overhead.append(result["seconds"] - stopping_seconds() - QUIET - STABLE)
        stages = ", ".join(f"{stage['name']} {stage['seconds']:.2f}" for stage in result["stages"])
        say(f"  {result['seconds']:.2f} s, the processes {stopping_seconds():.2f} s; {stages}")
        figures.ours_killed = max(figures.ours_killed, changed(there))

        serving()
        carry()
        there = monitors()
        timed = 'began=$EPOCHREALTIME; bash "$1" >&2; echo "$began $EPOCHREALTIME"'
        began, ended = map(float, on_host("bash", "-c", timed, "bash", f"{THERE}/recipe.sh").split())
        figures.recipe_overhead.append(ended - began - stopping_seconds())
        figures.recipe_killed = max(figures.recipe_killed, changed(there))

        serving()
        figures.builtin.append(playbook(str(BENCHMARK / "drain_builtin.yml")))


def changed(before: list[str]) -> int:
    return sum(was != now for was, now in zip(before, monitors()))


def measure_ready(figures: Figures) -> None:
    serving()
    for number, load in enumerate(LOADS):
        say(f"ready {number + 1} of {len(LOADS)}: inference_service, then uri; {load:g} s of loading")
        simulator("fault", HOST, "set", "vllm.load-seconds", f"{load:g}")
        for name, told, seen in (
            ("ready.yml", "changed: ", figures.ready),
            ("ready_builtin.yml", "ok: ", figures.builtin_ready),
        ):
            on_host("systemctl", "stop", UNIT)
            played = playbook(str(BENCHMARK / name), told=told)
            seen.append(played.told - ready_moment())


def ready_moment() -> float:
    """When the engine itself said that it is ready, by the journal's clock, which is ours."""
    match = f"_SYSTEMD_INVOCATION_ID={shown(UNIT, 'InvocationID')}"
    lines = on_host("journalctl", "--output=json", match).splitlines()
    (said,) = [
        entry for entry in map(json.loads, lines) if str(entry["MESSAGE"]).endswith("Application startup complete.")
    ]
    return int(said["__REALTIME_TIMESTAMP"]) / 1e6


def measure_scan(figures: Figures) -> None:
    say("scan: 2,000 processes with 100 descriptors, our scan and fuser")
    simulator("reset", HOST)
    carry()
    with background("python3", f"{THERE}/crowd.py", str(ROUNDS + 2)) as crowd:
        assert crowd.stdin and crowd.stdout
        figures.scan = json.loads(crowd.stdout.readline())
        figures.peaks["gpu_info among 2,000 processes"] = measure_peak(
            "ansible", "gpu_hosts", "-i", simulator("inventory").strip(), "-b", "-m", "gpuops.inference.gpu_info"
        )
        crowd.stdin.close()
    if len(set(figures.scan["found"].values())) != 1:
        sys.exit(f"the scans found different numbers of holders: {figures.scan['found']}")


def measure_peak(*command: str) -> dict[str, float]:
    carry()
    with background("python3", f"{THERE}/peak.py") as watch:
        play(*command)
        out, _err = watch.communicate()
    return dict(json.loads(out))


# --- telling ----------------------------------------------------------------------------------------------------------


def span(values: Sequence[float], unit: str, digits: int = 2) -> str:
    if min(values) == max(values):
        return f"{values[0]:.{digits}f} {unit}".rstrip()
    middle = f"{median(values):.{digits}f} {unit}".rstrip()
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def row(
    what: str, ours: Sequence[float], theirs: Sequence[float], unit: str, most: Optional[float], ratio: Optional[float],
    digits: int = 2,
) -> tuple[str, ...]:  # fmt: skip
    """One line of the table. `most` is the target for ours, `ratio` the one for ours divided by theirs."""
    seen = median(ours) / median(theirs)
    met = (most is None or median(ours) <= most) and (ratio is None or seen <= ratio)
    targets = [f"at most {most:g} {unit}".rstrip()] if most is not None else []
    targets += [f"at most {ratio:g}x"] if ratio is not None else []
    verdict = ("yes" if met else "no") if targets else ""
    return what, span(ours, unit, digits), span(theirs, unit, digits), f"{seen:.2f}", ", ".join(targets), verdict


def table(figures: Figures) -> str:
    def of(played: Sequence[Played], name: str, less: float = 0.0) -> list[float]:
        return [getattr(run, name) - less for run in played]

    windows = QUIET + STABLE
    rows = [
        ("what", "ours", "theirs", "ratio", "target", "met"),
        ("---",) * 6,
        row("drain of 8 GPUs: beyond processes and windows; the recipe's sleeps", figures.overhead,
            figures.recipe_overhead, "s", 0.3, None),
        row("scan of 2,000 processes x 100 descriptors; `fuser`", figures.scan["ours"], figures.scan["theirs"], "s",
            None, 0.8),
        row("ready is seen after it is so; `uri` with `until`", figures.ready, figures.builtin_ready, "s", 0.5, None),
        row("drain over SSH: commands; ansible.builtin", of(figures.drain, "commands"), of(figures.builtin, "commands"),
            "", 4, None, 0),
        row("drain over SSH: wall, windows included", of(figures.drain, "wall"), of(figures.builtin, "wall"), "s", None,
            None, 1),
        row("drain over SSH: wall without the windows", of(figures.drain, "wall", windows),
            of(figures.builtin, "wall", windows), "s", None, 0.5, 1),
        row("drain over SSH: CPU of the controller", of(figures.drain, "cpu"), of(figures.builtin, "cpu"), "s", None,
            0.5),
    ]  # fmt: skip
    for what, peaks in figures.peaks.items():
        shown = ", ".join(f"{name} {mib:.0f} MiB" for name, mib in peaks.items())
        rows.append((f"peak memory, {what}", shown, "", "", "", ""))
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    lines[1] = "|---" * 6 + "|"
    return "\n".join(lines)


def circumstances(load: Sequence[float]) -> str:
    version = subprocess.run(["ansible", "--version"], stdout=subprocess.PIPE, check=True, text=True).stdout
    ansible = version.partition("[")[2].partition("]")[0]
    return (
        f"{ROUNDS} rounds, median (least to most). {os.cpu_count()} cores, load average {load[0]:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after; Linux {platform.release().partition('-')[0]}; ansible-{ansible}, Python "
        f"{platform.python_version()}; host {HOST}."
    )


def main() -> None:
    load = os.getloadavg()
    figures = Figures()
    simulator("up", HOST)
    try:
        playbook("gpu_host.yml")
        measure_scan(figures)
        measure_ready(figures)
        measure_drains(figures)
        serving()
        figures.peaks["gpu_drain"] = measure_peak(
            "ansible-playbook", "-i", simulator("inventory").strip(), str(BENCHMARK / "drain.yml")
        )
        record = on_host("sh", "-c", "cat /var/lib/gpuops/records/*-drain-*.json")
        say("fleet: pivot_to_vllm where vLLM serves, a drain, and the same with ansible.builtin, over SSH")
        # It was reset.
        playbook("gpu_host.yml")
        playbook("pivot_to_vllm.yml")
        subject = HOST, Path(simulator("inventory").strip()), on_host
        costs = fleet.over_ssh(*subject, record)
        say("fleet: advice")
        advice = fleet.advice(*subject)
        say("fleet: a drain of recorded hosts")
        costs += fleet.recorded(record)
    finally:
        simulator("down")
    killed = (
        f"Of {len(MONITORS)} monitors on the host (DCGM and the like), gpu_drain ended {figures.ours_killed}, "
        f"the recipe {figures.recipe_killed}."
    )
    text = "\n\n".join(
        [
            circumstances(load), table(figures), killed, "A fleet, ours / theirs:", fleet.table(costs),
            "What settings are worth:", advice,
        ]
    )  # fmt: skip
    before, _begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
