# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model directory is whole, or what is wrong with it is named."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._safetensors import model_faults

SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


def write_shard(path: Path, tensors: dict[str, int]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    for number, shard in enumerate(SHARDS):
        write_shard(tmp_path / shard, {f"layer.{number}.a": 16, f"layer.{number}.b": 8})
    weights = {f"layer.{number}.{part}": shard for number, shard in enumerate(SHARDS) for part in "ab"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    return tmp_path


def test_a_whole_model_has_no_fault(model: Path) -> None:
    assert list(model_faults(model)) == []


def test_a_model_in_one_file_needs_no_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_shard(tmp_path / "model.safetensors", {"a": 4})
    assert list(model_faults(tmp_path)) == []


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def huge_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 1 << 62) + b"{}")


def broken_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 4) + b"{]}]")


def list_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 2) + b"[]")


def no_offsets(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 8) + b'{"a":{}}')


def other_tensors(path: Path) -> None:
    write_shard(path, {"layer.1.a": 16})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (Path.unlink, f"1 of 3 shards are missing: {SHARDS[1]}"),
        (cut, f"{SHARDS[1]} is cut short: "),
        (grow, f"{SHARDS[1]} is longer than its tensors: "),
        (empty, f"{SHARDS[1]} has no safetensors header (0 bytes)"),
        (pointer, f"{SHARDS[1]} is a pointer of Git LFS, not the file; `git lfs pull` fetches it"),
        (huge_header, f"{SHARDS[1]} has no safetensors header (10 bytes)"),
        (broken_header, f"the header of {SHARDS[1]} is not JSON"),
        (list_header, f"the header of {SHARDS[1]} is not a JSON object"),
        (no_offsets, f"the header of {SHARDS[1]} describes a tensor without its place"),
        (other_tensors, f"{SHARDS[1]} lacks 1 tensors that the index puts there: layer.1.b"),
    ],
)
def test_the_shard_is_named(model: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(model / SHARDS[1])
    (fault,) = model_faults(model)
    assert fault.startswith(message)


def test_every_shard_is_looked_at(model: Path) -> None:
    (model / SHARDS[0]).unlink()
    cut(model / SHARDS[2])
    assert [SHARDS[0] in fault or SHARDS[2] in fault for fault in model_faults(model)] == [True, True]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.json", None, "config.json cannot be read: No such file or directory"),
        ("config.json", "{", "config.json is not JSON"),
        ("model.safetensors.index.json", "{}", "model.safetensors.index.json names no shards"),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"a": "../../etc/passwd"}}',
            "model.safetensors.index.json names a shard that is no file beside it: '../../etc/passwd'",
        ),
    ],
)
def test_what_describes_the_model_is_read(model: Path, file: str, text: str | None, message: str) -> None:
    if text is None:
        (model / file).unlink()
    else:
        (model / file).write_text(text)
    assert list(model_faults(model)) == [message]


def test_no_model_at_all(tmp_path: Path) -> None:
    assert list(model_faults(tmp_path / "nowhere")) == ["there is no such directory"]
    (tmp_path / "config.json").write_text("{}")
    (fault,) = model_faults(tmp_path)
    assert "neither an index" in fault
