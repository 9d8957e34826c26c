# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._hold import HoldError, Holds
from ansible_collections.gpuops.inference.plugins.module_utils._record import RecordError


@pytest.fixture
def holds(tmp_path: Path) -> Holds:
    return Holds(tmp_path / "hold", tmp_path / "units")


def test_a_hold_says_who_and_why_and_makes_systemd_look_for_it(holds: Holds) -> None:
    assert holds.place(["vllm.service"], "driver update", "10.0.0.1") == ["vllm.service"]
    hold = holds.read("vllm.service")
    assert hold is not None
    assert "vllm.service is held since" in str(hold)
    assert "by 10.0.0.1: driver update" in str(hold)
    drop_in = (holds.units / "vllm.service.d" / "90-gpuops-hold.conf").read_text()
    assert f"AssertPathExists=!{holds.directory}/vllm.service\n" in drop_in
    assert "Restart=no\n" in drop_in
    assert holds.all() == [hold]


def test_an_older_hold_keeps_its_own_words(holds: Holds) -> None:
    holds.place(["vllm.service"], "first", "a")
    assert holds.place(["vllm.service", "sglang.service"], "second", "b") == ["sglang.service"]
    hold = holds.read("vllm.service")
    assert hold is not None
    assert hold.reason == "first"


def test_lifting_leaves_nothing_behind_and_spares_other_drop_ins(holds: Holds) -> None:
    holds.place(["vllm.service", "sglang.service"], "x", "y")
    other = holds.units / "sglang.service.d" / "50-other.conf"
    other.write_text("[Unit]\n")
    assert holds.lift(["vllm.service", "sglang.service", "never.service"]) == ["vllm.service", "sglang.service"]
    assert holds.all() == []
    assert not (holds.units / "vllm.service.d").exists()
    assert list((holds.units / "sglang.service.d").iterdir()) == [other]
    assert holds.lift(["vllm.service"]) == []


def test_a_directory_that_only_root_reads_says_so(holds: Holds) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving up root takes root")
    holds.place(["vllm.service"], "x", "y")
    for directory in (holds.directory.parent, holds.directory):
        directory.chmod(0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(RecordError, match="become: true"):
            holds.all()
    finally:
        os.seteuid(0)


def test_an_expired_hold_is_none_and_can_be_taken_over(holds: Holds) -> None:
    holds.place(["vllm.service"], "short", "a", until=time.time() - 1)
    assert holds.read("vllm.service") is None
    assert holds.place(["vllm.service"], "next", "b") == ["vllm.service"]


def test_a_hold_for_one_drain_ends_with_its_process(tmp_path: Path, holds: Holds) -> None:
    program = f"""
import sys
from pathlib import Path
sys.path[:0] = {sys.path!r}
from ansible_collections.gpuops.inference.plugins.module_utils._hold import Holds
holds = Holds(Path({str(holds.directory)!r}), Path({str(holds.units)!r}))
holds.place(["vllm.service"], "drain", "x", lasting=False)
print(holds.read("vllm.service"), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as drain:
        assert drain.stdout is not None
        assert b"is held" in drain.stdout.readline()
        assert holds.read("vllm.service") is not None
        drain.communicate()
    assert holds.read("vllm.service") is None
    assert holds.lift(["vllm.service"]) == ["vllm.service"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "vllm", "a/b.service", "", "x" * 300 + ".service", "a\n.service"])
def test_a_name_that_is_no_unit_leads_nowhere(holds: Holds, name: str) -> None:
    with pytest.raises(HoldError):
        holds.read(name)


def test_a_percent_sign_in_the_path_is_no_specifier(tmp_path: Path) -> None:
    holds = Holds(tmp_path / "a%b", tmp_path / "units")
    holds.place(["vllm.service"], "x", "y")
    assert "a%%b/vllm.service" in (tmp_path / "units" / "vllm.service.d" / "90-gpuops-hold.conf").read_text()


def test_a_hold_that_is_over_still_refuses_until_it_is_lifted(holds: Holds) -> None:
    holds.place(["vllm.service", "sglang.service"], "drain", "a", until=time.time() - 1)
    assert holds.read("vllm.service") is None
    assert holds.left_over(["vllm.service", "other.service"]) == ["vllm.service"]
    holds.lift(["vllm.service"])
    assert holds.left_over(["vllm.service"]) == []


def test_a_hold_of_another_release_is_named(holds: Holds) -> None:
    holds.directory.mkdir(mode=0o700)
    (holds.directory / "vllm.service").write_text('{"unit": "vllm.service", "colour": "red"}')
    with pytest.raises(RecordError, match=r"hold/vllm\.service"):
        holds.read("vllm.service")
