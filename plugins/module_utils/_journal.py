# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Entries in the host's journal with fields of their own: `journalctl GPUOPS_ACTION=signal` finds every signal sent."""

from __future__ import annotations

import socket
import struct

SOCKET = "/run/systemd/journal/socket"
LONGEST_VALUE = 8192
"""Bytes: entries stay far below what one datagram carries."""
NOTICE = 5


class Journal:
    """Sends entries, never waits and never raises: a journal that is full or absent must not stop a drain.

    What could not be sent is counted in `lost`.
    """

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path
        self.lost = 0

    def send(self, message: str, priority: int = NOTICE, **fields: object) -> None:
        """One entry; each field is stored as GPUOPS_NAME."""
        named = {f"GPUOPS_{name.upper()}": str(value) for name, value in fields.items()}
        entry = {"MESSAGE": message, "PRIORITY": str(priority), "SYSLOG_IDENTIFIER": "gpuops", **named}
        data = b"".join(_field(name, value) for name, value in entry.items())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(data, self._path)
            except OSError:
                self.lost += 1


def _field(name: str, value: str) -> bytes:
    """Length-prefixed, as systemd's native protocol wants it for values with line breaks; right for all others too."""
    data = value.encode("utf-8", "replace")[:LONGEST_VALUE]
    return name.encode("ascii") + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
