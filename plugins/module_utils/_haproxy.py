# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""One server of one HAProxy backend, by the runtime socket."""

from __future__ import annotations

import csv
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass

FORCED_MAINT, FORCED_DRAIN = 0x01, 0x08
"""What an operator set, among the bits of srv_admin_state."""

MAINT = "maint"
"""Never set here, so whoever set it wants it so."""

NAME = re.compile(r"[A-Za-z0-9_.:-]+\Z")
"""What HAProxy takes as a name: nothing that could end the command or begin another one."""

_LONGEST = 16 << 20

Ask = Callable[[str], str]
"""Sends one command and returns the whole answer."""


class HaproxyError(Exception):
    """What HAProxy refused or could not be asked, and what to do about it."""


@dataclass(frozen=True)
class Server:
    """How a server stands."""

    state: str
    """ready, drain or maint: what was last asked of it."""
    sessions: int
    status: str
    """As HAProxy sees it: UP, DOWN, DRAIN, MAINT, no check ..."""

    @property
    def settled(self) -> bool:
        return self.status.startswith(("UP", "no check")) if self.state == "ready" else not self.sessions


def ask_socket(path: str, timeout: float = 10.0) -> Ask:
    """Ask the HAProxy behind a UNIX socket."""

    def ask(command: str) -> str:
        answer = b""
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(timeout)
                line.connect(path)
                line.sendall(command.encode("ascii") + b"\n")
                while len(answer) < _LONGEST and (piece := line.recv(65536)):
                    answer += piece
        except FileNotFoundError:
            raise HaproxyError(
                f"{path} is not there: HAProxy does not run, or its configuration has no `stats socket ... level admin`"
            ) from None
        except OSError as error:
            raise HaproxyError(f"HAProxy cannot be asked at {path}: {error.strerror or error}") from error
        return answer.decode("utf-8", "replace")

    return ask


def look(ask: Ask, backend: str, name: str) -> Server:
    """How the server stands now. Raises HaproxyError where there is no such server."""
    states = _rows(ask(f"show servers state {backend}"), " ")
    mine = next((row for row in states if row.get("srv_name") == name), None)
    if mine is None:
        known = sorted({row["srv_name"] for row in states if row.get("srv_name")})
        raise HaproxyError(
            f"the backend {backend} has no server {name}, only {', '.join(known)}"
            if known
            else f"HAProxy has no backend {backend} with servers"
        )
    stats = _rows(ask(f"show stat {backend} 4 -1"), ",")
    stat = next((row for row in stats if row.get("svname") == name), {})
    admin = int(mine["srv_admin_state"])
    state = MAINT if admin & FORCED_MAINT else "drain" if admin & FORCED_DRAIN else "ready"
    return Server(state, int(stat.get("scur") or 0), stat.get("status") or "")


def _rows(text: str, separator: str) -> list[dict[str, str]]:
    """A table whose header begins with `# `; a version line may come before it."""
    lines = text.splitlines()
    head = next((number for number, line in enumerate(lines) if line.startswith("# ")), None)
    if head is None:
        return []
    table = [lines[head][2:], *(line for line in lines[head + 1 :] if line.strip())]
    return list(csv.DictReader(table, delimiter=separator))


def aim_of(server: Server, state: str) -> str:
    """What to ask for where `state` is wanted."""
    return MAINT if server.state == MAINT else state


def set_state(ask: Ask, backend: str, name: str, state: str) -> None:
    """Ask for another state. HAProxy says nothing if all is well."""
    said = ask(f"set server {backend}/{name} state {state}").strip()
    if "denied" in said.lower():
        raise HaproxyError("HAProxy refuses: the socket needs `level admin` in its configuration")
    if said:
        raise HaproxyError(f"HAProxy refuses: {' '.join(said.split())[:160]}")


def settle(
    look_once: Callable[[], Server], patience: float, clock: Callable[[], float], wait: Callable[[float], None]
) -> Server:
    """Wait until the server is as asked: drained and without a session, or ready and up for HAProxy's own checks."""
    deadline = clock() + patience
    server = look_once()
    while not server.settled and clock() < deadline:
        wait(min(0.25, max(deadline - clock(), 0.0)))
        server = look_once()
    return server
