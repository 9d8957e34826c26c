# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import socket
import struct
from pathlib import Path

from ansible_collections.gpuops.inference.plugins.module_utils._journal import LONGEST_VALUE, Journal


def parse(data: bytes) -> dict[str, str]:
    """systemd's native protocol, the length-prefixed form."""
    fields = {}
    while data:
        name, _, data = data.partition(b"\n")
        (length,) = struct.unpack("<Q", data[:8])
        fields[name.decode()] = data[8 : 8 + length].decode()
        assert data[8 + length : 9 + length] == b"\n"
        data = data[9 + length :]
    return fields


def test_an_entry_arrives_with_its_fields_whatever_they_hold(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        journal = Journal(path)
        journal.send("two\nlines", target_pid=7, why="x" * (LONGEST_VALUE + 1))
        fields = parse(receiver.recv(65536))
    assert fields["MESSAGE"] == "two\nlines"
    assert fields["GPUOPS_TARGET_PID"] == "7"
    assert len(fields["GPUOPS_WHY"]) == LONGEST_VALUE
    assert journal.lost == 0


def test_an_absent_journal_stops_nothing_and_is_counted(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "nobody"))
    journal.send("lost")
    assert journal.lost == 1
