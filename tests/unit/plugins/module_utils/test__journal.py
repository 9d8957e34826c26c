# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._journal import LONGEST_VALUE, Journal


def parse(data: bytes) -> dict[str, str]:
    """systemd's native protocol, the length-prefixed form."""
    fields = {}
    while data:
        name, dummy, data = data.partition(b"\n")
        (length,) = struct.unpack("<Q", data[:8])
        fields[name.decode()] = data[8 : 8 + length].decode()
        assert data[8 + length : 9 + length] == b"\n"
        data = data[9 + length :]
    return fields


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "socket"))
        receiver.setblocking(False)
        yield receiver


def test_an_entry_arrives_with_its_fields(journald: socket.socket) -> None:
    journal = Journal(journald.getsockname())
    journal.send("two\nlines", priority=4, target_pid=7, action="signal")
    assert parse(journald.recv(65536)) == {
        "MESSAGE": "two\nlines",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "gpuops",
        "GPUOPS_TARGET_PID": "7",
        "GPUOPS_ACTION": "signal",
    }
    assert journal.warning == ""


@given(st.text(st.characters(), max_size=50), st.text(max_size=50))
def test_no_value_forges_a_field(message: str, value: str) -> None:
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"{directory}/socket")
        Journal(f"{directory}/socket").send(message, why=value)
        fields = parse(receiver.recv(65536))
    assert set(fields) == {"MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "GPUOPS_WHY"}
    assert fields["GPUOPS_WHY"] == value.encode("utf-8", "replace").decode()


@pytest.mark.parametrize("letter", ["x", "\N{EURO SIGN}", "\N{GRINNING FACE}"])
def test_a_long_value_is_cut_between_characters(journald: socket.socket, letter: str) -> None:
    Journal(journald.getsockname()).send(letter * LONGEST_VALUE)
    message = parse(journald.recv(65536))["MESSAGE"]
    assert message == letter * (LONGEST_VALUE // len(letter.encode()))


def test_an_absent_journal_stops_nothing(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "nobody"))
    journal.send("lost")
    journal.send("lost too")
    assert journal.warning == (
        f"2 entries could not be written to the journal at {tmp_path}/nobody: No such file or directory"
    )


def test_a_full_journal_is_not_waited_for(journald: socket.socket) -> None:
    journal = Journal(journald.getsockname())
    # The kernel keeps net.unix.max_dgram_qlen datagrams for a reader that does not read.
    limit = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text(encoding="ascii"))
    for _entry in range(limit + 5):
        journal.send("nobody reads this")
    assert journal.warning.endswith("Resource temporarily unavailable")
