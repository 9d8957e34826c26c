# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Who is on the host and which GPU nodes each process has open.

Reads only what the kernel answers without taking the target's memory lock (stat, cgroup, links), so that a process
stuck in the driver cannot stop the scan. Command lines are the probe worker's job.
"""

from __future__ import annotations

import os
import re
import stat as stat_modes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional, Union

from ansible_collections.gpuops.inference.plugins.module_utils._masking import printable

PROC = Path("/proc")
DEV = Path("/dev")
GPU_NODE = re.compile(r"^nvidia(\d+)$")
KERNEL_THREAD_FLAG = 0x00200000
"""PF_KTHREAD, include/linux/sched.h."""


@dataclass(frozen=True)
class Process:
    """One process, identified by pid AND start time (clock ticks since boot)."""

    pid: int
    start: int
    ppid: int
    pgrp: int
    session: int
    state: str
    threads: int
    uid: int
    comm: str
    kernel_thread: bool = False

    @property
    def identity(self) -> tuple[int, int]:
        return (self.pid, self.start)

    @property
    def dead(self) -> bool:
        """A zombie holds nothing, unless a thread of it lives on."""
        return self.state in "ZX" and self.threads <= 1


def parse_stat(text: str) -> Process:
    """Parse /proc/PID/stat (proc(5)); the name may hold spaces, brackets and newlines.

    Raises ValueError on anything else.
    """
    before, opened, rest = text.partition("(")
    comm, closed, after = rest.rpartition(")")
    fields = after.split()
    if not opened or not closed or len(fields) < 20:
        raise ValueError("not a line of /proc/PID/stat")
    return Process(
        pid=int(before),
        comm=comm,
        state=fields[0],
        ppid=int(fields[1]),
        pgrp=int(fields[2]),
        session=int(fields[3]),
        kernel_thread=bool(int(fields[6]) & KERNEL_THREAD_FLAG),
        threads=int(fields[17]),
        start=int(fields[19]),
        uid=-1,
    )


def read_process(pid: int, proc: Path = PROC) -> Optional[Process]:
    """One process, or None if there is none (any more)."""
    base = f"{proc}/{pid}"
    try:
        # One read gives the whole line; a buffered file asks the kernel five times as much.
        with open(f"{base}/stat", "rb", buffering=0) as stream:
            parsed = parse_stat(stream.read(4096).decode("utf-8", "replace"))
        uid = os.stat(base).st_uid
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # Not permitted: /proc is mounted with hidepid and we are not root.
        return None
    # A process names itself, and its name ends up in messages.
    return Process(**{**parsed.__dict__, "uid": uid, "comm": printable(parsed.comm)})


def process_table(proc: Path = PROC) -> dict[int, Process]:
    """Every process that can be seen now, by pid."""
    found = (read_process(int(name), proc) for name in os.listdir(proc) if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def executable(pid: int, proc: Path = PROC) -> str:
    """Path of the running program; empty for kernel threads, zombies and what is gone."""
    return _link(f"{proc}/{pid}/exe")


def cgroup(pid: int, proc: Path = PROC) -> str:
    """Path in the unified hierarchy, such as /system.slice/vllm.service; empty if the process is gone."""
    try:
        with open(f"{proc}/{pid}/cgroup", encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if line.startswith("0::"):
                    return line[3:].rstrip("\n").removesuffix(" (deleted)")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return ""


def same_network(pid: int, proc: Path = PROC) -> bool:
    """Whether a process's loopback is ours, so that where it listens can be asked; a container's mostly is not."""
    try:
        return os.path.samestat(os.stat(f"{proc}/{pid}/ns/net"), os.stat(f"{proc}/self/ns/net"))
    except OSError:
        return True


def wait_channel(pid: int, proc: Path = PROC) -> str:
    """The kernel function a process sleeps in; empty if it runs or cannot be told."""
    try:
        with open(f"{proc}/{pid}/wchan", encoding="ascii", errors="replace") as stream:
            text = stream.read().strip()
    except OSError:
        return ""
    return "" if text == "0" else text


_PENDING = re.compile(r"^S(?:ig|hd)Pnd:\s([0-9a-f]+)$", re.MULTILINE)


def sigkill_pending(pid: int, proc: Path = PROC) -> bool:
    """Whether SIGKILL was sent and the process (any thread of it) has not died of it."""
    try:
        with open(f"{proc}/{pid}/status", encoding="utf-8", errors="replace") as stream:
            masks = [int(mask, 16) for mask in _PENDING.findall(stream.read())]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(mask & (1 << 8) for mask in masks)


@dataclass(frozen=True)
class Nodes:
    """The GPU nodes of this host, by device number.

    `minors` gives the N of /dev/nvidiaN (NVML's minor number, which is not its index). Device numbers are the rule;
    where two nodes share one, the text of the link decides and `by_name` says so.
    """

    minors: Mapping[int, int]
    uvm: frozenset[int]
    by_name: bool = False

    @property
    def count(self) -> int:
        return len(set(self.minors.values()))


def find_nodes(dev: Path = DEV) -> Nodes:
    """Build the map from the nodes themselves; nothing about major numbers is assumed."""
    minors: dict[int, int] = {}
    uvm: set[int] = set()
    names = 0
    for entry in os.scandir(dev):
        match = GPU_NODE.match(entry.name)
        if not match and not entry.name.startswith("nvidia-uvm"):
            continue
        status = entry.stat()
        if not stat_modes.S_ISCHR(status.st_mode):
            continue
        if match:
            minors[status.st_rdev] = int(match.group(1))
            names += 1
        elif entry.name == "nvidia-uvm":
            uvm.add(status.st_rdev)
    return Nodes(minors, frozenset(uvm), by_name=names != len(minors) or bool(uvm & set(minors)))


@dataclass(frozen=True)
class Descriptors:
    """What one process has open: minors of GPU nodes, and whether CUDA's uvm node is among them."""

    minors: frozenset[int] = frozenset()
    uvm: bool = False


@dataclass(frozen=True)
class DescriptorScan:
    """Descriptors by pid, and the processes that could not be read (no rights), which might be holders."""

    by_pid: Mapping[int, Descriptors] = field(default_factory=dict)
    unreadable: frozenset[int] = frozenset()


def scan_descriptors(processes: Iterable[Process], nodes: Nodes, proc: Path = PROC) -> DescriptorScan:
    """Look at every descriptor of these processes. Those that vanish meanwhile hold nothing."""
    by_pid: dict[int, Descriptors] = {}
    unreadable: set[int] = set()
    for process in processes:
        try:
            minors, uvm = _process_nodes(process, nodes, proc)
        except PermissionError:
            unreadable.add(process.pid)
            continue
        if minors or uvm:
            by_pid[process.pid] = Descriptors(frozenset(minors), uvm)
    return DescriptorScan(by_pid, frozenset(unreadable))


def _process_nodes(process: Process, nodes: Nodes, proc: Path) -> tuple[set[int], bool]:
    if process.state != "Z" or process.threads <= 1:
        return _open_nodes(f"{proc}/{process.pid}/fd", nodes)
    # A leader that called pthread_exit shows no descriptors of its own; its living threads keep them.
    for task in _listing(f"{proc}/{process.pid}/task"):
        minors, uvm = _open_nodes(f"{proc}/{process.pid}/task/{task}/fd", nodes)
        if minors or uvm:
            return minors, uvm
    return set(), False


def _open_nodes(directory: str, nodes: Nodes) -> tuple[set[int], bool]:
    try:
        # Links are read relative to their directory: walking the whole path for each takes half as long again.
        base = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return set(), False
    try:
        return _nodes_in(base, nodes)
    finally:
        os.close(base)


def _nodes_in(base: int, nodes: Nodes) -> tuple[set[int], bool]:
    minors: set[int] = set()
    uvm = False
    for name in _listing(base):
        try:
            link = os.readlink(name, dir_fd=base)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        # Following a link can block on a dead network file system; a device node's cannot.
        # Of a process in a chroot, the link has the chroot's path before it.
        if "/dev/" not in link or not (link.startswith("/dev/") or "/dev/nvidia" in link):
            continue
        if nodes.by_name:
            match = GPU_NODE.match(link.rpartition("/")[2])
            if match:
                minors.add(int(match.group(1)))
            uvm = uvm or link.endswith("/dev/nvidia-uvm")
            continue
        try:
            number = os.stat(name, dir_fd=base).st_rdev
        except (FileNotFoundError, ProcessLookupError):
            continue
        if number in nodes.minors:
            minors.add(nodes.minors[number])
        uvm = uvm or number in nodes.uvm
    return minors, uvm


def _listing(directory: Union[str, int]) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, ProcessLookupError):
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
