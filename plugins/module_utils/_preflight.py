# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Whether a pivot to a layout can end well on this host, asked before anything on it is touched.

Each check is a generator of messages that say what is wrong and what to do. All of them run, so that one look tells
everything. Nothing is changed.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import pwd
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils import _parsing
from ansible_collections.gpuops.inference.plugins.module_utils._drift import changed_arguments, is_ours
from ansible_collections.gpuops.inference.plugins.module_utils._engines import (
    argument,
    serving,
    unknown_to,
    version_numbers,
)
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, GpuReading, excerpt
from ansible_collections.gpuops.inference.plugins.module_utils._masking import mask_command
from ansible_collections.gpuops.inference.plugins.module_utils._memory import Need, advice, reckon, told
from ansible_collections.gpuops.inference.plugins.module_utils._options import knob
from ansible_collections.gpuops.inference.plugins.module_utils._paths import CONFIG, STATE
from ansible_collections.gpuops.inference.plugins.module_utils._ports import listeners
from ansible_collections.gpuops.inference.plugins.module_utils._safetensors import (
    ModelError,
    model_config,
    model_faults,
    weight_bytes,
)
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import EngineUnit, Snapshot, concerns
from ansible_collections.gpuops.inference.plugins.module_utils._units import run_command

SYSTEMD, KERNEL, PYTHON = 249, (5, 14), (3, 9)
"""The oldest that everything here was written for: pidfd, cgroup.kill, the settings in our units."""

LARGEST_COMPLAINT = 400
"""Characters of an engine's own message: enough for the flag and what it takes, not for a list of 200 models."""

LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")

ENDING = 1.0
"""Seconds that a killed process may take to end."""

ROOM_MIB = 16
"""What unit, environment, backups and records need at the very most."""


@dataclass(frozen=True)
class Problem:
    """One reason why the pivot would not end well."""

    check: str
    message: str


def problems(check: str, messages: Iterable[str]) -> list[Problem]:
    """The messages of one check."""
    return [Problem(check, message) for message in messages]


def story(found: Sequence[Problem], unit: str) -> str:
    """All problems in one message."""
    count = "one problem stands" if len(found) == 1 else f"{len(found)} problems stand"
    lines = [f"{number}. [{problem.check}] {problem.message}" for number, problem in enumerate(found, 1)]
    return "\n".join([f"{count} in the way of {unit} on this host; nothing was touched:", *lines])


# --- the host ---------------------------------------------------------------------------------------------------------


def platform_faults(
    systemd: Optional[int], cgroups: str, kernel: str = "", python: tuple[int, ...] = ()
) -> Iterator[str]:
    """What is too old. systemd is its version, None where it does not run this host."""
    kernel, python = kernel or platform.release(), python or tuple(sys.version_info[:2])
    if systemd is None:
        yield "systemd is not running here; engines are started and stopped through it"
    elif systemd < SYSTEMD:
        yield f"systemd is {systemd}; {SYSTEMD} or newer is needed"
    if cgroups != "v2":
        yield f"cgroups are {cgroups}; v2 is needed: boot the host with systemd.unified_cgroup_hierarchy=1"
    version = re.match(r"(\d+)\.(\d+)", kernel)
    if version and (int(version[1]), int(version[2])) < KERNEL:
        yield f"the kernel is {kernel}; {'.'.join(map(str, KERNEL))} or newer is needed"
    if python[:2] < PYTHON:
        yield f"Python is {'.'.join(map(str, python))}; {'.'.join(map(str, PYTHON))} or newer is needed"


def systemd_version() -> Optional[int]:
    """The version of the systemd that runs this host, None where none does."""
    if not Path("/run/systemd/system").is_dir():
        return None
    found = re.match(r"systemd (\d+)", run_command(["systemctl", "--version"], 20.0).out)
    return int(found[1]) if found else 0


def prepared_faults(needed: Sequence[Path] = (CONFIG, STATE)) -> Iterator[str]:
    """What the role gpu_host makes, and a deployment writes into."""
    missing = [str(path) for path in needed if not path.is_dir()]
    if missing:
        yield f"{' and '.join(missing)} missing: prepare the host first, with gpu_host.yml"


def room_faults(layout: Mapping[str, Any], engine: Mapping[str, Any]) -> Iterator[str]:
    """Memory of the machine, and room where something will be written."""
    wanted = layout["host"]
    total = _memory_total_mib()
    if total < wanted["memory_mib"]:
        yield f"the host has {total} MiB of memory; the layout asks for {wanted['memory_mib']} (host.memory_mib)"
    demands = {
        "/dev/shm": (
            wanted["shm_mib"],
            "a drain with remove_leftovers (gpuops_remove_leftovers: true) removes what dead engines left there",
        ),
        engine["cache_directory"]: (wanted["cache_mib"], "compiled kernels are kept there"),
        **{
            str(Path(path).parent): (ROOM_MIB, "the deployment writes there")
            for path in (engine["unit_path"], engine["environment_path"], engine["state_directory"])
        },
    }
    for path, (needed, why) in demands.items():
        there = _nearest(Path(path))
        figures = os.statvfs(there)
        free = figures.f_bavail * figures.f_frsize >> 20
        if free < needed:
            yield f"{there} has {free} MiB free, {needed} are needed; {why}"
        if figures.f_files and not figures.f_favail:
            yield f"{there} has no free inodes; {why}"


def _memory_total_mib() -> int:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    found = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) >> 10 if found else 0


def _nearest(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())


# --- GPUs and driver --------------------------------------------------------------------------------------------------


def nvml_faults(reading: GpuReading) -> Iterator[str]:
    """Whether the driver can be asked at all: without it no release could ever be proven."""
    if reading.source != "nvml" or not reading.usable:
        yield "; ".join(reading.problems) or "NVML does not answer"


def gpu_faults(layout: Mapping[str, Any], reading: GpuReading) -> Iterator[str]:
    """Whether the host has the GPUs that the layout asks for, and each is fit to be used."""
    wanted = layout["gpus"]
    if not reading.gpus:
        return
    own = own_gpus(layout, reading)
    if len(own) < wanted["count"]:
        asked = f" ({', '.join(map(str, wanted['indexes']))})" if wanted["indexes"] else ""
        yield f"the layout needs {wanted['count']} GPUs{asked}, the host has {len(own)} of them; choose another layout"
    small = [gpu for gpu in own if gpu.memory and gpu.memory.total < wanted["memory_mib"]]
    if small:
        yield (
            f"{_named(small)} {'has' if len(small) == 1 else 'have'} {min(_total_mib(gpu) for gpu in small)} MiB; "
            f"the layout needs {wanted['memory_mib']} on each (gpus.memory_mib)"
        )
    split = [gpu for gpu in own if gpu.mig]
    if split:
        yield (
            f"{_named(split)} {'is' if len(split) == 1 else 'are'} split by MIG, which is not handled; "
            "`nvidia-smi -i INDEX -mig 0` ends it"
        )
    # What ails a GPU is among the reading's problems, with what to do. An unusable reading has told them all.
    ailing = [gpu for gpu in own if gpu.error] if reading.usable else []
    told = {text: None for gpu in ailing for text in reading.problems if re.search(rf"\bGPU {gpu.index}\b", text)}
    yield from told or [f"{gpu.label}: {gpu.error}" for gpu in ailing]


def own_gpus(layout: Mapping[str, Any], reading: GpuReading) -> list[Gpu]:
    """The GPUs that a layout is for: the named ones, else any of the host."""
    indexes = layout["gpus"]["indexes"]
    return [gpu for gpu in reading.gpus if not indexes or gpu.index in indexes]


def memory_need(layout: Mapping[str, Any], engine: Mapping[str, Any], reading: GpuReading) -> Optional[Need]:
    """What the engine will need of each GPU, of which the smallest counts; None where that cannot be told."""
    sizes = [gpu.memory.total for gpu in own_gpus(layout, reading) if gpu.memory]
    total = min(sizes, default=layout["gpus"]["memory_mib"]) << 20
    try:
        weights = sum(weight_bytes(Path(directory)) for directory in engine["models"])
        config = model_config(Path(engine["models"][0]))
    except (ModelError, OSError):
        # What is wrong with the files is told where they are checked.
        return None
    return reckon(engine["engine"], engine["flags"], config, weights, total, layout["concurrency"])


def memory_faults(name: str, need: Optional[Need]) -> Iterator[str]:
    """Whether the model cannot fit."""
    if need is not None and not need.fits:
        yield (
            f"it cannot fit: {told(name, need)}; {advice(name, need)} "
            f"(engines.{name}.flags in the overrides of the layout, concurrency beside it)"
        )


def _named(gpus: Sequence[Gpu]) -> str:
    return ", ".join(gpu.label if len(gpus) == 1 else f"GPU {gpu.index}" for gpu in gpus)


def _total_mib(gpu: Gpu) -> int:
    return gpu.memory.total if gpu.memory else 0


def driver_faults(reading: GpuReading, dev: Path = Path("/dev"), libraries: Sequence[str] = LIBRARIES) -> Iterator[str]:
    """What keeps a new CUDA process from starting although a running one works: after an upgrade, a missing node."""
    nodes = ["nvidiactl", "nvidia-uvm", *(f"nvidia{gpu.minor}" for gpu in reading.gpus if gpu.minor is not None)]
    missing = [f"{dev}/{node}" for node in nodes if not (dev / node).exists()]
    if missing:
        yield (
            f"{', '.join(missing)} not there, so no CUDA process can start; `nvidia-modprobe -u -c 0` makes the nodes, "
            "and nvidia-persistenced keeps them"
        )
    library = next((path for path in (Path(place, "libcuda.so.1") for place in libraries) if path.exists()), None)
    version = library.resolve().name.partition(".so.")[2] if library else ""
    if "." in version and reading.driver_version and version != reading.driver_version:
        yield (
            f"libcuda is {version} and the loaded driver {reading.driver_version}: what runs goes on, but no new CUDA "
            "process can start; reboot, or load the matching driver, before the pivot"
        )


# --- the engine -------------------------------------------------------------------------------------------------------


def model_check(engine: Mapping[str, Any]) -> Iterator[str]:
    """Whether every directory that the engine loads from is whole."""
    for directory in engine["models"]:
        for fault in model_faults(Path(directory)):
            yield f"{directory}: {fault}; fetch what is missing (whole files need not be fetched again)"


@dataclass(frozen=True)
class Installed:
    """What the engine's own interpreter said."""

    version: str
    faults: tuple[Problem, ...]


def ask_engine(engine: Mapping[str, Any], timeout: float) -> Installed:
    """Import the engine as the unit's user and have its own parser read the command line.

    No GPU is visible to it: an import must not open a context beside an engine that serves.
    """
    name, python, program = engine["engine"], engine["python"], engine["argv"][0]
    absent = [path for path in dict.fromkeys((python, program)) if not os.access(path, os.X_OK)]
    if absent:
        text = f"{' and '.join(absent)} cannot be run; install {name} into {engine['venv']}"
        return Installed("", (Problem("engine", text),))
    files = [str(path) for directory in engine["models"] for path in _model_files(Path(directory))]
    request = {"words": engine["arguments"], "files": files}
    with tempfile.TemporaryDirectory(prefix="gpuops-preflight-") as scratch:
        answer = _run_as_user(
            [python, "-I", "-B", "-c", _source(), name], json.dumps(request), engine["user"], scratch, timeout
        )
    return Installed(excerpt(str(answer.get("version", ""))), tuple(_engine_faults(engine, answer)))


def _model_files(directory: Path) -> list[Path]:
    return sorted([*directory.glob("*.json"), *directory.glob("*.safetensors")])


def _engine_faults(engine: Mapping[str, Any], answer: Mapping[str, Any]) -> Iterator[Problem]:
    name = engine["engine"]
    version, wanted = str(answer.get("version", "")), engine["version"]
    numbers = version_numbers(wanted)
    if version and version_numbers(version)[: len(numbers)] != numbers:
        yield Problem(
            "engine",
            f"the layout writes its flags for {name} {wanted}, and {excerpt(version)} is installed; "
            f"change engines.{name}.version in the overrides of the layout",
        )
    for variable in engine["environment"]:
        change = unknown_to(name, version, variable)
        if change and change.instead:
            yield Problem(
                "environment",
                f"{name} {excerpt(version)} does not read {variable}; {change.instead} (engines.{name} in the "
                "overrides of the layout)",
            )
    if "broken" in answer:
        text = excerpt(str(answer["broken"]), LARGEST_COMPLAINT)
        yield Problem("engine", f"{name} in {engine['venv']} cannot be imported: {text}; install it again")
    if "rejected" in answer:
        text = excerpt(str(answer["rejected"]), LARGEST_COMPLAINT)
        yield Problem(
            "flags",
            f"{name} {version} does not take the layout's flags: {text}; {_replacements(engine, version)}"
            f"change engines.{name}.flags in the overrides of the layout (null leaves a flag out)",
        )
    unreadable = answer.get("unreadable") or []
    if unreadable:
        more = f" and {len(unreadable) - 1} more files" if len(unreadable) > 1 else ""
        yield Problem("model", f"the user {engine['user']} may not read {unreadable[0]}{more}; chmod -R a+rX")


def _replacements(engine: Mapping[str, Any], version: str) -> str:
    """What became of the flags that this version does not know."""
    name = engine["engine"]
    told_of = []
    for flag in engine["flags"]:
        change = unknown_to(name, version, flag)
        if change:
            respelt = f"`engines.{name}.version: '{version}'` writes {change.other} for it"
            told_of.append(f"{flag}: {respelt if change.other else change.instead}; ")
    return "".join(told_of)


def _run_as_user(argv: Sequence[str], request: str, user: str, scratch: str, timeout: float) -> dict[str, Any]:
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        # Before the first deployment there is no such user: whoever has no rights of his own stands in.
        try:
            account = pwd.getpwnam(user)
        except KeyError:
            account = pwd.getpwnam("nobody")
        os.chown(scratch, account.pw_uid, account.pw_gid)
        identity = {
            "user": account.pw_uid,
            "group": account.pw_gid,
            "extra_groups": os.getgrouplist(account.pw_name, account.pw_gid),
        }
    try:
        # Not the module's run_command: this runs as another user, with a deadline.
        child = subprocess.Popen(  # pylint: disable=ansible-bad-function
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={
                "PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": scratch, "TMPDIR": scratch, "XDG_CACHE_HOME": scratch,
                "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            },
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            **identity,
        )  # fmt: skip
    except OSError as error:
        return {"broken": f"the user {user} cannot run it: {error.strerror}"}
    try:
        out, err = child.communicate(request, timeout)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        # Not waited for beyond this: an import that is stuck in the driver does not even die.
        with suppress(subprocess.TimeoutExpired):
            child.wait(ENDING)
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe:
                pipe.close()
        return {"broken": f"it was not imported within {timeout:g} s"}
    try:
        answer: dict[str, Any] = json.loads(out)
    except ValueError:
        said = err.strip().rpartition("\n")[2] or f"exit status {child.returncode}"
        return {"broken": f"its interpreter ends early: {said}"}
    return answer


def _source() -> str:
    loader = _parsing.__spec__.loader if _parsing.__spec__ else None
    source = loader.get_source(_parsing.__name__) if loader and hasattr(loader, "get_source") else None
    if not source:
        raise RuntimeError("the source of _parsing was not shipped with the module")
    return str(source)


def unit_faults(layout: Mapping[str, Any], systemd: int) -> Iterator[str]:
    """What systemd itself says to both units, read from a directory of their own."""
    engines = list(layout["engines"].values())
    with tempfile.TemporaryDirectory(prefix="gpuops-preflight-") as scratch:
        paths = []
        for engine in engines:
            paths.append(Path(scratch, engine["unit"]))
            paths[-1].write_text(engine["unit_text"], encoding="utf-8")
        # Without the option the units of the whole host are judged; 249 does not have it.
        options = ["--man=no"] + (["--recursive-errors=no"] if systemd >= 250 else [])
        done = run_command(["systemd-analyze", "verify", *options, *map(str, paths)], 60.0)
        # Whether the programs are there is asked of the engine itself, and of the incoming one alone.
        programs = tuple(f"Command {engine['argv'][0]} is not executable" for engine in engines)
        lines = [line.replace(f"{scratch}/", "") for line in done.err.splitlines()]
        complaints = [line for line in lines if not any(program in line for program in programs)]
        names = [engine["unit"] for engine in engines]
        for line in complaints:
            if any(name in line for name in names):
                yield f"systemd-analyze verify: {excerpt(line, LARGEST_COMPLAINT)}; correct the layout"


_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def port_faults(engine: Mapping[str, Any], snapshot: Snapshot) -> Iterator[str]:
    """Whether the port will be free once the engines are drained."""
    host, port = engine["host"], engine["port"]
    where = f"change engines.{engine['engine']}.port in the overrides of the layout"
    for listener in listeners(port, host):
        unit = listener.cgroup.rstrip("/").rpartition("/")[2]
        seen = snapshot.seen.get(listener.pid)
        if unit not in snapshot.units and not (seen and seen.recognition):
            yield f"port {port} is taken by {listener}; stop it, or {where}"
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            yield f"nothing can listen on {host}: {error.strerror or error}; {where.replace('.port', '.host')}"


# --- what changes for others ------------------------------------------------------------------------------------------


def changes(engine: Mapping[str, Any], snapshot: Snapshot, gpus: Sequence[int] = ()) -> Iterator[str]:
    """What a pivot changes for whoever wrote the unit that is there, and for clients of what serves now."""
    name, host, port = engine["unit"], engine["host"], engine["port"]
    known = snapshot.units.get(name)
    file = known.unit.fragment_path if known else engine["unit_path"]
    if os.path.exists(file) and not is_ours(file):
        yield f"{file} was not made from a layout and is replaced by what the layout says; rollback.yml puts it back"
    later = serving(engine["engine"], engine["argv"])
    for other, engine_unit in sorted(snapshot.units.items()):
        unit = engine_unit.unit
        if unit.active_state != "active" or (gpus and not concerns(engine_unit, gpus, snapshot)):
            continue
        now = serving(engine_unit.engine, unit.exec_start)
        listens = argument(unit.exec_start, "--host") or now.host
        if (listens, now.port) != (host, port):
            alone = "" if listens in _LOOPBACK or host not in _LOOPBACK else ", which only this host itself reaches"
            yield (
                f"clients: {other} answers on {listens} port {now.port}, {name} will on {host} port {port}{alone}; "
                f"point them there, or keep the address with engines.{engine['engine']}.host and .port in "
                "gpuops_layout_overrides"
            )
        if now.served_model != later.served_model:
            yield f"clients: the model {now.served_model} will be called {later.served_model}"


# --- the way back -----------------------------------------------------------------------------------------------------


def rollback_faults(incoming: str, snapshot: Snapshot, gpus: Sequence[int] = ()) -> Iterator[str]:
    """Whether what serves now, on these GPUs if some are named, could be brought back by starting its unit."""
    allow = f"if going back to it does not matter, pass {knob('allow_no_rollback', 'true')}"
    members = {pid for engine_unit in snapshot.units.values() for pid in engine_unit.pids}
    for pid, seen in sorted(snapshot.seen.items()):
        loose = seen.recognition and seen.recognition.role == "main" and pid not in members and not seen.process.dead
        if loose and seen.recognition and (not gpus or _shares(pid, gpus, snapshot)):
            yield (
                f"{seen.recognition.engine} runs without a unit (pid {pid}, {seen.owner}: "
                f"{mask_command(seen.argv, limit=120)}) and could not be started again; {allow}"
            )
    for name, engine_unit in sorted(snapshot.units.items()):
        serves = engine_unit.unit.active_state in ("active", "activating", "reloading")
        if name != incoming and serves and (not gpus or concerns(engine_unit, gpus, snapshot)):
            for fault in _way_back_faults(engine_unit, snapshot):
                yield f"{name} serves now and would not come back as it is: {fault}; {allow}"


def _shares(pid: int, gpus: Sequence[int], snapshot: Snapshot) -> bool:
    """Whether a server or a worker in its session uses one of the GPUs."""
    session = snapshot.seen[pid].process.session
    return any(seen.uses(gpus) for seen in snapshot.seen.values() if seen.process.session == session)


def _way_back_faults(engine_unit: EngineUnit, snapshot: Snapshot) -> Iterator[str]:
    unit = engine_unit.unit
    main = snapshot.seen.get(unit.main_pid)
    yield from changed_arguments(unit, main.argv if main else ())
    program = unit.exec_start[0] if unit.exec_start else ""
    texts = "".join(_text(path) for path in (unit.fragment_path, *unit.drop_in_paths))
    required = [path for path in unit.environment_files if f"EnvironmentFile=-{path}" not in texts]
    for path in (unit.fragment_path, program, *required):
        if path.startswith("/") and not glob.glob(path):
            yield f"{path} is gone"
    model = serving(engine_unit.engine, unit.exec_start).model
    if model and model.startswith("/") and not os.path.isdir(model):
        yield f"its model {model} is gone"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
