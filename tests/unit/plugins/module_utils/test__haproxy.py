# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HAProxy's answers as HAProxy 2.6 and 3.0 give them."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._haproxy import (
    NAME,
    HaproxyError,
    Server,
    aim_of,
    ask_socket,
    look,
    set_state,
    settle,
)


class Haproxy:
    """A backend with two servers; each look ends one session."""

    def __init__(self, admin: int = 0, sessions: int = 0) -> None:
        self.admin, self.sessions = admin, sessions
        self.commands: list[str] = []
        self.refuses = ""
        self.now = self.up_at = 0.0

    def ask(self, command: str) -> str:
        self.commands.append(command)
        if command == "show servers state inference":
            return (
                "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight\n"
                f"3 inference 1 gpu01 10.0.0.1 2 {self.admin} 1\n3 inference 2 gpu02 10.0.0.2 2 0 1\n\n"
            )
        if command.startswith("show servers state"):
            return "Can't find backend.\n\n"
        if command.startswith("show stat"):
            up = "UP" if self.now >= self.up_at else "DOWN"
            status = "MAINT" if self.admin & 1 else "DRAIN" if self.admin & 8 else up
            self.sessions = max(self.sessions - 1, 0) if self.admin & 8 else self.sessions
            return f"# pxname,svname,qcur,qmax,scur,smax,status\ninference,gpu01,0,0,{self.sessions},9,{status}\n\n"
        if not self.refuses:
            self.admin = {"drain": 8, "ready": 0}[command.rpartition(" ")[2]]
        return f"{self.refuses}\n"

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def settle(self, patience: float) -> Server:
        return settle(lambda: look(self.ask, "inference", "gpu01"), patience, lambda: self.now, self.wait)


@pytest.mark.parametrize("admin, state", [(0, "ready"), (1, "maint"), (9, "maint"), (8, "drain"), (0x20, "ready")])
def test_what_an_operator_asked_for_is_told_from_what_checks_see(admin: int, state: str) -> None:
    assert look(Haproxy(admin, 2).ask, "inference", "gpu01").state == state


@pytest.mark.parametrize(
    "backend, name, told",
    [
        ("inference", "gpu03", "has no server gpu03, only gpu01, gpu02"),
        ("other", "gpu01", "no backend other"),
    ],
)
def test_a_name_that_is_not_there_is_told(backend: str, name: str, told: str) -> None:
    with pytest.raises(HaproxyError, match=told):
        look(Haproxy().ask, backend, name)


@pytest.mark.parametrize("wanted", ["drain", "ready"])
@pytest.mark.parametrize("admin, kept", [(0, False), (8, False), (1, True), (9, True)])
def test_what_an_operator_keeps_in_maintenance_stays_there(admin: int, kept: bool, wanted: str) -> None:
    assert aim_of(look(Haproxy(admin).ask, "inference", "gpu01"), wanted) == ("maint" if kept else wanted)


def test_a_drain_waits_for_the_last_session() -> None:
    haproxy = Haproxy(sessions=5)
    set_state(haproxy.ask, "inference", "gpu01", "drain")
    assert haproxy.settle(60.0) == Server("drain", 0, "DRAIN")
    assert haproxy.now == 1.0


def test_a_drain_ends_at_its_deadline() -> None:
    haproxy = Haproxy(admin=8, sessions=500)
    assert haproxy.settle(2.0).sessions > 400
    assert haproxy.now == 2.0


def test_a_ready_server_is_waited_for_until_it_is_up() -> None:
    haproxy = Haproxy()
    haproxy.up_at = 3.0
    assert haproxy.settle(2.0).status == "DOWN" and haproxy.now == 2.0
    assert haproxy.settle(2.0).status == "UP" and haproxy.now == 3.0


@pytest.mark.parametrize("said, told", [("Permission denied", "level admin"), ("No such server.", "No such server")])
def test_a_refusal_is_told(said: str, told: str) -> None:
    haproxy = Haproxy()
    haproxy.refuses = said
    with pytest.raises(HaproxyError, match=told):
        set_state(haproxy.ask, "inference", "gpu01", "drain")


@pytest.mark.parametrize("name", ["gpu01;shutdown", "a b", "a\n", "", "a/b"])
def test_a_name_cannot_carry_another_command(name: str) -> None:
    assert not NAME.match(name)


def test_the_socket_is_asked_one_command_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def answer() -> None:
            line, _peer = server.accept()
            with line:
                line.sendall(b"you said " + line.recv(100))

        thread = threading.Thread(target=answer)
        thread.start()
        assert ask_socket(str(path))("show info") == "you said show info\n"
        thread.join()
    with pytest.raises(HaproxyError, match="Connection refused"):
        ask_socket(str(path))("show info")
    with pytest.raises(HaproxyError, match="stats socket .* level admin"):
        ask_socket(str(tmp_path / "none"))("show info")
