# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._holders import (
    Descriptors,
    Nodes,
    cgroup,
    executable,
    find_nodes,
    parse_stat,
    process_table,
    read_process,
    scan_descriptors,
)

REST = "S 1 2 3 4 5 4194560 0 0 0 0 0 0 0 0 20 0 3 0 12345 1000 100 18446744073709551615"


def test_this_process_is_read_as_the_system_calls_tell_it() -> None:
    process = read_process(os.getpid())
    assert process is not None
    assert (process.pid, process.ppid, process.session, process.uid) == (
        os.getpid(),
        os.getppid(),
        os.getsid(0),
        os.geteuid(),
    )
    assert process_table()[os.getpid()].identity == process.identity
    assert executable(os.getpid()) == os.readlink("/proc/self/exe")
    assert cgroup(os.getpid()) or Path("/proc/self/cgroup").read_text() == ""


def test_who_is_not_there_is_none() -> None:
    assert read_process(2**22 + 1) is None
    assert executable(2**22 + 1) == cgroup(2**22 + 1) == ""


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=64))
def test_a_name_may_hold_anything(name: str) -> None:
    process = parse_stat(f"77 ({name}) {REST}")
    assert (process.pid, process.comm, process.state, process.ppid) == (77, name, "S", 1)
    assert (process.pgrp, process.session, process.threads, process.start) == (2, 3, 3, 12345)


@given(st.text(max_size=200))
def test_what_is_no_stat_line_is_a_value_error_and_nothing_else(text: str) -> None:
    try:
        parse_stat(text)
    except ValueError:
        return


@pytest.mark.parametrize(
    "state, threads, dead", [("Z", 1, True), ("X", 0, True), ("Z", 2, False), ("D", 1, False), ("R", 1, False)]
)
def test_a_zombie_is_dead_unless_a_thread_lives(state: str, threads: int, dead: bool) -> None:
    assert parse_stat(f"1 (x) {REST}".replace(" S ", f" {state} ").replace(" 0 3 0 ", f" 0 {threads} 0 ")).dead is dead


def test_nodes_are_told_apart_by_their_numbers_and_directories_are_none(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("making device nodes takes root")
    for minor, name in ((50, "nvidia0"), (51, "nvidia7"), (52, "nvidia-uvm"), (53, "nvidiactl"), (54, "nvidia-caps")):
        os.mknod(tmp_path / name, stat.S_IFCHR | 0o600, os.makedev(4, minor))
    (tmp_path / "nvidia1").mkdir()
    nodes = find_nodes(tmp_path)
    assert dict(nodes.minors) == {os.makedev(4, 50): 0, os.makedev(4, 51): 7}
    assert nodes.uvm == {os.makedev(4, 52)}
    assert not nodes.by_name
    assert nodes.count == 2


def test_nodes_that_share_a_number_are_told_apart_by_name(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("making device nodes takes root")
    for name in ("nvidia0", "nvidia1", "nvidia-uvm"):
        os.mknod(tmp_path / name, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    assert find_nodes(tmp_path).by_name


def fake_process(root: Path, pid: int, links: dict[str, str], task: bool = False) -> None:
    directory = root / str(pid) / "task" / str(pid + 1) / "fd" if task else root / str(pid) / "fd"
    directory.mkdir(parents=True)
    for number, target in links.items():
        (directory / number).symlink_to(target)


def test_descriptors_are_found_by_device_number_whatever_the_path_says(tmp_path: Path) -> None:
    null = os.stat("/dev/null").st_rdev
    zero = os.stat("/dev/zero").st_rdev
    nodes = Nodes({null: 3}, frozenset({zero}))
    fake_process(tmp_path, 10, {"0": "/dev/null", "1": "/dev/zero", "2": "socket:[1]"})
    fake_process(tmp_path, 11, {"0": "/tmp/dev/null"})
    process = parse_stat(f"10 (a) {REST}")
    scan = scan_descriptors([process, parse_stat(f"11 (b) {REST}"), parse_stat(f"12 (gone) {REST}")], nodes, tmp_path)
    assert dict(scan.by_pid) == {10: Descriptors(frozenset({3}), True)}
    assert scan.unreadable == frozenset()


def test_the_threads_of_a_dead_leader_are_looked_at(tmp_path: Path) -> None:
    nodes = Nodes({os.stat("/dev/null").st_rdev: 5}, frozenset())
    fake_process(tmp_path, 20, {}, task=False)
    fake_process(tmp_path, 20, {"4": "/dev/null"}, task=True)
    zombie = parse_stat(f"20 (a) {REST}".replace(" S ", " Z "))
    assert scan_descriptors([zombie], nodes, tmp_path).by_pid[20].minors == {5}


def test_link_text_decides_where_numbers_cannot(tmp_path: Path) -> None:
    fake_process(
        tmp_path, 30, {"0": "/dev/nvidia4", "1": "/dev/nvidia-uvm", "2": "/dev/nvidiactl", "3": "/dev/nvidia44x"}
    )
    scan = scan_descriptors([parse_stat(f"30 (a) {REST}")], Nodes({}, frozenset(), by_name=True), tmp_path)
    assert scan.by_pid[30] == Descriptors(frozenset({4}), True)


def test_a_name_a_terminal_would_obey_is_shown_escaped(tmp_path: Path) -> None:
    (tmp_path / "20").mkdir()
    (tmp_path / "20" / "stat").write_text(f"20 (\x1b[2J\nx) {REST}")
    process = read_process(20, tmp_path)
    assert process is not None
    assert process.comm == "\\x1b[2J\\nx"


def test_a_node_below_a_chroot_is_a_node(tmp_path: Path) -> None:
    nodes = Nodes({1: 5}, frozenset(), by_name=True)
    fake_process(tmp_path, 20, {"4": "/srv/jail/dev/nvidia5", "5": "/srv/jail/dev/nvidia-uvm"}, task=False)
    assert scan_descriptors([parse_stat(f"20 (a) {REST}")], nodes, tmp_path).by_pid == {
        20: Descriptors(frozenset({5}), uvm=True)
    }
