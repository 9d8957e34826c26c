# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._backup import forget, keep, look, put_back
from ansible_collections.gpuops.inference.plugins.module_utils._record import RecordError


def test_everything_comes_back_byte_for_byte(tmp_path: Path) -> None:
    system, kept = tmp_path / "system", tmp_path / "kept"
    system.mkdir()
    unit, secrets, absent = system / "vllm.service", system / "vllm.service.secrets", system / "new.service"
    linked, masked, real = system / "linked.service", system / "masked.service", tmp_path / "real.service"
    drop_in = system / "vllm.service.d" / "10-x.conf"
    drop_in.parent.mkdir()
    drop_in.write_bytes(b"[Service]\n")
    unit.write_bytes(b"\xff\x00[Unit]\r\n")
    unit.chmod(0o644)
    secrets.write_bytes(b"KEY=1\n")
    secrets.chmod(0o600)
    real.write_bytes(b"real\n")
    linked.symlink_to(real)
    masked.symlink_to("/dev/null")
    before = look(map(str, (unit, secrets, absent, linked, masked, drop_in)))
    keep(before, kept)
    assert put_back(before, kept) == []

    unit.write_bytes(b"new")
    unit.chmod(0o640)
    secrets.unlink()
    absent.write_bytes(b"made by the pivot")
    real.write_bytes(b"written through the link")
    masked.unlink()
    masked.write_bytes(b"unmasked")
    drop_in.unlink()
    drop_in.parent.rmdir()
    changed = put_back(before, kept)
    assert set(changed) == set(before)
    assert look(before) == before
    assert unit.read_bytes() == b"\xff\x00[Unit]\r\n"
    assert linked.is_symlink() and linked.read_bytes() == b"real\n"
    assert os.readlink(masked) == "/dev/null"
    assert not absent.exists()
    assert put_back(before, kept) == []
    assert b"made by the pivot" in {copy.read_bytes() for copy in kept.iterdir()}, "what failed can be read later"
    assert not list(system.glob(".*")), "no scratch file is left"


def test_a_link_put_where_a_file_was(tmp_path: Path) -> None:
    unit = tmp_path / "vllm.service"
    unit.write_bytes(b"file\n")
    before = look([str(unit)])
    keep(before, tmp_path / "kept")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"not ours\n")
    unit.unlink()
    unit.symlink_to(elsewhere)
    put_back(before, tmp_path / "kept")
    assert not unit.is_symlink() and unit.read_bytes() == b"file\n"
    assert elsewhere.read_bytes() == b"not ours\n"


def test_a_directory_where_a_file_should_be_is_named(tmp_path: Path) -> None:
    unit = tmp_path / "vllm.service"
    unit.write_bytes(b"x")
    before = look([str(unit)])
    keep(before, tmp_path / "kept")
    unit.unlink()
    unit.mkdir()
    (unit / "inside").mkdir()
    with pytest.raises(RecordError, match="cannot put .*vllm.service back from .*kept"):
        put_back(before, tmp_path / "kept")


def test_a_file_that_changes_meanwhile_is_not_kept_under_a_false_digest(tmp_path: Path) -> None:
    unit = tmp_path / "vllm.service"
    unit.write_bytes(b"x")
    before = look([str(unit)])
    unit.write_bytes(b"y")
    with pytest.raises(RecordError, match="changed while"):
        keep(before, tmp_path / "kept")


def test_forgetting_twice(tmp_path: Path) -> None:
    keep(look([__file__]), tmp_path / "kept")
    forget(tmp_path / "kept")
    forget(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
