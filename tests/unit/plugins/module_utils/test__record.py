# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._record import (
    Lock,
    LockedError,
    RecordError,
    outlive_connection,
    read_json,
    whoami,
    write_bytes,
    write_json,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_json_round_trip_is_private_and_leaves_no_scratch(tmp_path: Path) -> None:
    path = tmp_path / "state" / "records" / "one.json"
    write_json(path, {"phase": "drained", "name": "\u00e9\n\udce9"})
    write_json(path, {"phase": "started", "name": "\u00e9\n\udce9"})
    assert read_json(path) == {"phase": "started", "name": "\u00e9\n\udce9"}
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["one.json"]


def test_a_killed_writer_of_the_same_pid_does_not_stop_the_next(tmp_path: Path) -> None:
    (tmp_path / f".a.json.{os.getpid()}").write_text("half")
    write_json(tmp_path / "a.json", {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_absent_is_none(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none.json") is None
    assert read_json(tmp_path / "no" / "none.json") is None


@pytest.mark.parametrize("content", [b"", b'{"phase": ', b"[]", b"\xff\xfe"])
def test_damaged_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pivot.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match="pivot.json is damaged"):
        read_json(path)


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o755)
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    with pytest.raises(RecordError, match="linked cannot be used"):
        write_json(tmp_path / "linked" / "a.json", {})
    (tmp_path / "victim").write_text("{}")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.json").symlink_to(tmp_path / "victim")
    with pytest.raises(RecordError, match="a.json"):
        read_json(tmp_path / "own" / "a.json")
    write_json(tmp_path / "own" / "a.json", {"new": True})
    assert (tmp_path / "victim").read_text() == "{}"
    (tmp_path / "own" / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(RecordError, match="lock"), Lock(tmp_path / "own" / "lock"):
        pass
    assert (tmp_path / "victim").read_text() == "{}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a stranger's directory")
def test_a_strangers_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "his").mkdir()
    os.chown(tmp_path / "his", 65534, 65534)
    with pytest.raises(RecordError, match="belongs to uid 65534"):
        write_json(tmp_path / "his" / "a.json", {})


def test_an_open_directory_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "wide").mkdir()
    os.chmod(tmp_path / "wide", 0o777)
    write_bytes(tmp_path / "wide" / "a", b"x")
    assert mode(tmp_path / "wide") == 0o700


def test_a_full_disk_keeps_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "a.json", {"old": True})

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match="a.json: No space left"):
        write_json(tmp_path / "a.json", {"old": False})
    assert read_json(tmp_path / "a.json") == {"old": True}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_second_lock_fails_and_names_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50000 192.0.2.1 22")
    path = tmp_path / "run" / "lock"
    with Lock(path, who="gpu_drain"):
        assert mode(path) == 0o600
        named = rf"gpu_drain \(pid {os.getpid()}, from 192.0.2.7, since "
        with pytest.raises(LockedError, match=named) as caught:
            Lock(path, 0, who="other").__enter__()
        assert caught.value.holder["start"] == whoami("x")["start"]
    with Lock(path, who="next"):
        assert json.loads(path.read_text())["command"] == "next"
    assert path.read_text() == ""


def test_lock_of_a_killed_process_is_free_though_its_name_stays(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, os, pathlib\n"
        "from ansible_collections.gpuops.inference.plugins.module_utils._record import Lock\n"
        "Lock(pathlib.Path(sys.argv[1]), who='doomed').__enter__()\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as child:
        assert child.stdout is not None and child.stdout.readline() == b"locked\n"
        with pytest.raises(LockedError, match=rf"doomed \(pid {child.pid}"), Lock(path):
            pass
        child.kill()
        child.wait()
        assert "doomed" in path.read_text()
        with Lock(path, who="next"):
            pass


def test_lock_waits_for_the_holder_within_its_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    first = Lock(path, who="first")
    first.__enter__()
    monkeypatch.setattr("time.sleep", lambda _seconds: first.__exit__())
    with Lock(path, timeout=5, who="second"):
        assert json.loads(path.read_text())["command"] == "second"


def test_a_holder_that_wrote_nothing_yet_or_less_is_still_reported(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Lock(path):
        path.write_bytes(b"")
        with pytest.raises(LockedError, match="has not written its name yet"), Lock(path):
            pass
        path.write_bytes(b'{"pid": 7}')
        with pytest.raises(LockedError, match=r"\? \(pid 7, from \?"), Lock(path):
            pass


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGPIPE])
def test_a_cut_connection_ends_no_call_that_has_begun(number: signal.Signals) -> None:
    child = os.fork()
    if not child:
        for default in (signal.SIGHUP, signal.SIGPIPE):
            signal.signal(default, signal.SIG_DFL)
        outlive_connection()
        os.kill(os.getpid(), number)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
