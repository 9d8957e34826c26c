# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a simulated process asks of the simulated driver: memory on a GPU, open nodes, and the faults switched on.

An allocation is a file under flock(2): it lives as long as a descriptor of it does, in whatever process, and
names the pid that made it, as the driver's own client records do.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import NamedTuple, Optional

ROOT = os.environ.get("GPUSIM_ROOT", "/var/lib/gpusim")
DEV = os.environ.get("GPUSIM_DEV", "/dev")


class Gpu(NamedTuple):
    """One line of ROOT/gpus; sizes in MiB."""

    number: int  # NVML's index
    uuid: str
    bus_id: str
    minor: int
    total: int
    reserved: int
    name: str


class Allocation:
    """Memory held on one GPU until close(), or until the last process with this descriptor is gone."""

    def __init__(self, index: int, mib: int, kind: str) -> None:
        self.kind = kind
        directory = os.path.join(ROOT, "alloc", str(index))
        # Locked before it has its name, so that nobody can take it for a dead one.
        self._pid = os.getpid()
        self._path = os.path.join(directory, f"{self._pid}.{id(self)}")
        unnamed = os.path.join(directory, f".{self._pid}.{id(self)}")
        self._fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self.resize(mib)
        os.rename(unnamed, self._path)

    def resize(self, mib: int) -> None:
        # One write of fixed width: a reader never sees half a number.
        os.pwrite(self._fd, b"%d %9d %s\n" % (self._pid, mib, self.kind.encode()), 0)
        self.mib = mib

    def close(self) -> None:
        os.close(self._fd)


def gpus() -> list[Gpu]:
    with open(os.path.join(ROOT, "gpus")) as table:
        rows = [line.split(None, 6) for line in table if line.strip() and not line.startswith("#")]
    return [
        Gpu(int(index), uuid, bus_id, int(minor), int(total), int(reserved), name.strip())
        for index, uuid, bus_id, minor, total, reserved, name in rows
    ]


def allocate(index: int, mib: int, kind: str = "compute") -> Allocation:
    """Open a context of this process on a GPU and take memory there. kind: compute or graphics."""
    return Allocation(index, mib, kind)


def used(index: int) -> int:
    """MiB taken on a GPU: by whoever lives, by those whose memory the driver has not given back yet, by a leak."""
    total = int(fault(f"leak.{index}") or 0)
    delay = float(fault("release-delay") or 0)
    directory = os.path.join(ROOT, "alloc", str(index))
    for name in os.listdir(directory):
        if name.startswith("."):
            continue
        try:
            fd = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if _lives(fd) or _lingers(fd, delay):
                total += int(os.pread(fd, 64, 0).split()[1])
        finally:
            os.close(fd)
    return total


def _lives(fd: int) -> bool:
    try:
        # Shared: two who look at the same time must not take each other for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _lingers(fd: int, delay: float) -> bool:
    """Whether a dead allocation still counts: it does for so long after somebody first saw it dead (../nvml/nvml.c)."""
    found = os.fstat(fd)
    return delay > 0 and (bool(found.st_mode & 0o222) or time.time() - found.st_mtime < delay)


def open_nodes(minors: Optional[list[int]] = None, uvm: bool = True) -> list[int]:
    """Open the control node and every GPU's (or these minors'), as NVML does, and uvm as CUDA does besides.

    Returns the descriptors, which stay open until the caller closes them or ends.
    """
    wanted = ["nvidiactl"] + (["nvidia-uvm"] if uvm else [])
    wanted += [f"nvidia{minor}" for minor in (sorted(gpu.minor for gpu in gpus()) if minors is None else minors)]
    # Terminals stand for the nodes: without O_NOCTTY a session leader would acquire one.
    flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
    return [os.open(os.path.join(DEV, name), flags) for name in wanted]


def fault(name: str) -> Optional[str]:
    """The parameter of a fault that is switched on (empty where it needs none), None where it is off."""
    try:
        with open(os.path.join(ROOT, "faults", name)) as switch:
            return switch.read().strip()
    except FileNotFoundError:
        return None
