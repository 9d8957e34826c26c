# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._ports import Listener, listeners, strangers


def listening(family: socket.AddressFamily, address: str) -> socket.socket:
    server = socket.socket(family)
    server.bind((address, 0))
    server.listen()
    return server


@pytest.fixture
def loopback() -> Iterator[socket.socket]:
    with listening(socket.AF_INET, "127.0.0.1") as server:
        yield server


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::", ""])
def test_we_are_found_and_named(loopback: socket.socket, host: str) -> None:
    (found,) = listeners(loopback.getsockname()[1], host)
    assert found.pid == os.getpid()
    assert str(found).startswith(f"{found.comm} (pid {os.getpid()}")


def test_another_address_of_the_host_is_no_obstacle(loopback: socket.socket) -> None:
    assert listeners(loopback.getsockname()[1], "127.0.0.2") == []


def test_a_wildcard_of_the_other_family_is_one() -> None:
    try:
        server = listening(socket.AF_INET6, "::")
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        assert [found.pid for found in listeners(server.getsockname()[1], "127.0.0.1")] == [os.getpid()]


def test_a_port_that_is_bound_and_not_listening_is_free() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert listeners(bound.getsockname()[1]) == []


def test_a_socket_that_nobody_seems_to_hold_counts_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n"
    )
    assert listeners(8000, "127.0.0.1", tmp_path) == [Listener(0, "", "")]
    assert str(Listener(0, "", "")) == "a process that cannot be seen from here"
    assert str(Listener(7, "nginx", "/system.slice/nginx.service")) == "nginx (pid 7, nginx.service)"


def test_a_socket_of_our_own_is_no_strangers(loopback: socket.socket) -> None:
    port = loopback.getsockname()[1]
    assert strangers(port, "127.0.0.1", {os.getpid()}) == []
    (found,) = strangers(port, "127.0.0.1", {1})
    assert found.pid == os.getpid()
