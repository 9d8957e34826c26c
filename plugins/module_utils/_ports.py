# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Who listens on a TCP port, from /proc alone and without anything that can block."""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.inference.plugins.module_utils._masking import printable

PROC = Path("/proc")

_LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """A process that listens; pid 0 where it cannot be seen (another pid namespace, or the kernel itself)."""

    pid: int
    comm: str
    cgroup: str

    def __str__(self) -> str:
        if not self.pid:
            return "a process that cannot be seen from here"
        unit = self.cgroup.rstrip("/").rpartition("/")[2]
        return printable(f"{self.comm} (pid {self.pid}" + (f", {unit})" if unit else ")"))


def listeners(port: int, host: str = "0.0.0.0", proc: Path = PROC) -> list[Listener]:
    """Processes that keep somebody else from listening on host and port. Host is an address, or `localhost`."""
    inodes = {inode for address, inode in _sockets(port, proc) if _collide(address, host)}
    if not inodes:
        return []
    found = list(_owners(inodes, proc))
    return found or [Listener(0, "", "")]


def strangers(port: int, host: str, own: Collection[int], proc: Path = PROC) -> list[Listener]:
    """The same without the processes `own`. Everybody's descriptors are read only if a socket is none of theirs."""
    inodes = {inode for address, inode in _sockets(port, proc) if _collide(address, host)}
    for pid in own if inodes else ():
        inodes -= {link[8:-1] for link in _links(proc / str(pid)) if link.startswith("socket:[")}
    if not inodes:
        return []
    return list(_owners(inodes, proc)) or [Listener(0, "", "")]


def _sockets(port: int, proc: Path) -> Iterator[tuple[str, str]]:
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / table).read_text(encoding="ascii").splitlines()[1:]
        except FileNotFoundError:
            # A kernel without IPv6.
            continue
        for line in lines:
            fields = line.split()
            address, number = fields[1].rsplit(":", 1)
            if fields[3] == _LISTEN and int(number, 16) == port:
                yield _address(address), fields[9]


def _address(text: str) -> str:
    # Words of four bytes in the machine's order.
    words = struct.unpack(f">{len(text) // 8}I", bytes.fromhex(text))
    address = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
    return str(getattr(address, "ipv4_mapped", None) or address)


def _collide(bound: str, wanted: str) -> bool:
    wanted = {"localhost": "127.0.0.1", "": "0.0.0.0"}.get(wanted, wanted)
    any_address = ("0.0.0.0", "::")
    return bound in any_address or wanted in any_address or bound == wanted


def _owners(inodes: set[str], proc: Path) -> Iterator[Listener]:
    links = {f"socket:[{inode}]" for inode in inodes}
    for directory in proc.iterdir():
        # Processes come and go under our eyes.
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if directory.name.isdigit() and any(link in links for link in _links(directory)):
                yield Listener(
                    pid=int(directory.name),
                    comm=(directory / "comm").read_text(encoding="utf-8", errors="replace").strip(),
                    cgroup=_cgroup(directory),
                )


def _links(process: Path) -> Iterator[str]:
    # Descriptors, and whole processes, come and go under our eyes.
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for fd in (process / "fd").iterdir():
            with suppress(OSError):
                yield os.readlink(fd)


def _cgroup(directory: Path) -> str:
    for line in (directory / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("0::"):
            return line[3:]
    return ""
