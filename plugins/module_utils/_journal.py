# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Entries in the host's journal with fields of their own: `journalctl GPUOPS_ACTION=signal` finds every signal sent.

The actions are stage, hold, stop, kill, signal, lift and end of a drain, and phase of a pivot.
"""

from __future__ import annotations

import socket
import struct

SOCKET = "/run/systemd/journal/socket"
LONGEST_VALUE = 8192
"""Bytes: entries stay far below what one datagram carries."""
NOTICE = 5


class Journal:
    """Sends entries, never waits and never raises: a journal that is full or absent must not stop a drain."""

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path
        self._lost = 0
        self._cause = ""

    @property
    def warning(self) -> str:
        """What could not be written and why, in one sentence; '' if all was."""
        if not self._lost:
            return ""
        return f"{self._lost} entries could not be written to the journal at {self._path}: {self._cause}"

    def send(self, message: str, priority: int = NOTICE, **fields: object) -> None:
        """One entry; each field is stored as GPUOPS_NAME."""
        named = {f"GPUOPS_{name.upper()}": str(value) for name, value in fields.items()}
        entry = {"MESSAGE": message, "PRIORITY": str(priority), "SYSLOG_IDENTIFIER": "gpuops", **named}
        data = b"".join(_field(name, value) for name, value in entry.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(data, self._path)
        except OSError as error:
            self._lost += 1
            self._cause = error.strerror or type(error).__name__


def _field(name: str, value: str) -> bytes:
    """Length-prefixed, as systemd's native protocol wants it for values with line breaks; right for all others too."""
    # Cut between characters: with half of one, journalctl would show the whole value as binary data.
    data = value.encode("utf-8", "replace")[:LONGEST_VALUE].decode("utf-8", "ignore").encode("utf-8")
    return name.encode("ascii") + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
