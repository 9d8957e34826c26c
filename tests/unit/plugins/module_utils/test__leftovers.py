# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Segments are real files of a temporary directory on the machine's own /dev/shm, held by real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._holders import Process, process_table, read_process
from ansible_collections.gpuops.inference.plugins.module_utils._leftovers import (
    Leftovers,
    Segment,
    dead_segments,
    engine_uids,
    find_leftovers,
    find_segments,
    remove_segments,
)
from ansible_collections.gpuops.inference.plugins.module_utils._plan import Policy, judge
from ansible_collections.gpuops.inference.plugins.module_utils._probe import Probe

from .hosts import Host, unit

NAMES = ("psm_1a2b3c4d", "sem.mp-x1y2", "sgl_shm_mq_4194304_0", "nccl-AbC")


@pytest.fixture
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


def put(shm: Path, *names: str) -> None:
    for name in names:
        (shm / name).write_bytes(b"x" * 4096)


HOLDERS = {
    "maps": "import mmap; f = open(sys.argv[1], 'r+b'); kept = mmap.mmap(f.fileno(), 0); f.close()",
    "has it open": "kept = open(sys.argv[1], 'rb')",
}


@contextmanager
def holder(how: str, path: Path) -> Iterator[int]:
    program = f"import signal, sys; {HOLDERS[how]}; print('up', flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline() == b"up\n"
            yield process.pid
        finally:
            process.kill()


def left(shm: Path, host: Host | None = None, holder: int = 0) -> Leftovers:
    """What is found where only the holder and we run: a user may not look into other people's processes."""

    def table() -> dict[int, Process]:
        return {pid: process for pid in (os.getpid(), holder) if (process := read_process(pid)) is not None}

    snapshot = (host or Host()).snapshot()
    with Probe((sys.executable,), "/nonexistent", shm / "workers") as probe:
        return find_leftovers(probe, snapshot, judge(snapshot, Policy()), shm, table)


def test_only_files_with_an_engines_kind_of_name_are_segments(shm: Path) -> None:
    put(shm, *NAMES, "pulse-shm-1", "psm")
    (shm / "psm_directory").mkdir()
    (shm / "psm_link").symlink_to("/etc/passwd")
    assert [segment.name for segment in find_segments(shm)] == sorted(NAMES)


def test_what_nobody_holds_is_left_over(shm: Path) -> None:
    put(shm, *NAMES)
    found = left(shm)
    assert [segment.name for segment in found.segments] == sorted(NAMES)
    assert "4 segments of dead engines" in found.lines()[0]
    assert 0 < found.free_mib <= found.total_mib


@pytest.mark.parametrize("how", ["maps", "has it open"])
def test_what_somebody_holds_is_in_use(shm: Path, how: str) -> None:
    put(shm, "psm_used", "psm_left")
    with holder(how, shm / "psm_used") as pid:
        assert [segment.name for segment in left(shm, holder=pid).segments] == ["psm_left"]
    assert len(left(shm).segments) == 2


def test_a_file_of_the_same_name_that_somebody_holds_is_another_one(shm: Path) -> None:
    put(shm, "psm_used")
    with holder("has it open", shm / "psm_used") as pid:
        (shm / "psm_used").unlink()
        put(shm, "psm_used")
        assert [segment.name for segment in left(shm, holder=pid).segments] == ["psm_used"]


def test_segments_are_not_judged_where_a_process_cannot_be_looked_into(shm: Path) -> None:
    put(shm, *NAMES)
    snapshot = Host().snapshot()
    with Probe(("/nonexistent",), "/nonexistent", shm / "workers") as probe:
        found = find_leftovers(probe, snapshot, (), shm, process_table)
    assert found.segments == () and "cannot be read" in found.unclear


def segment(name: str = "psm_1", uid: int = 999, inode: int = 7, changed: float = 1000.0) -> Segment:
    return Segment(name, 4096, uid, 26, inode, changed)


def test_a_segment_that_a_living_engine_may_just_have_made_is_its_own() -> None:
    assert dead_segments([segment()], (), (), [(999, 900.0)]) == []
    assert dead_segments([segment()], (), (), [(999, 1100.0)]) == [segment()]
    assert dead_segments([segment()], (), (), [(998, 900.0)]) == [segment()]


def test_a_pid_in_the_name_is_looked_for_and_hexadecimal_digits_are_no_pid() -> None:
    mine = segment("sgl_shm_mq_4711_0")
    assert dead_segments([mine], (), (4711,), ()) == []
    assert dead_segments([mine], (), (4712,), ()) == [mine]
    assert dead_segments([segment("psm_4711")], (), (4711,), ()) == [segment("psm_4711")]


def test_removal_takes_the_same_file_alone(shm: Path) -> None:
    put(shm, "psm_1", "psm_2", "psm_3")
    (shm / "psm_4").write_bytes(b"")
    seen = find_segments(shm)
    # Another file has taken the name; a link; somebody was faster.
    os.rename(shm / "psm_4", shm / "psm_2")
    (shm / "psm_3").unlink()
    removed = remove_segments(seen, shm)
    assert [item.name for item in removed] == ["psm_1"]
    assert [path.name for path in shm.iterdir()] == ["psm_2"]
    assert remove_segments([replace(found, uid=found.uid + 1) for found in find_segments(shm)], shm) == []


def test_only_users_of_engines_lose_segments() -> None:
    host = Host().vllm(uid=997)
    host.process(400, ("python3", "train.py"), uses=frozenset({7}), uid=1001)
    snapshot = host.snapshot()
    assert engine_uids(snapshot, judge(snapshot, Policy())) == {997, 0}


def test_the_port_of_a_unit_that_does_not_run_is_told_with_who_has_it(shm: Path) -> None:

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        argv = ("/opt/vllm/bin/vllm", "serve", "/m", "--port", str(port))
        host = Host().unit(unit("vllm.service", argv, active="failed", sub="failed"), [])
        (line,) = left(shm, host).lines()
        assert f"port {port} of vllm.service" in line and f"pid {os.getpid()}" in line
        host = Host().unit(unit("vllm.service", argv), [])
        assert left(shm, host).lines() == []
