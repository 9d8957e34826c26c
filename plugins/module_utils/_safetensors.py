# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Whether a model directory is whole, from the headers of its shards: seconds, where reading the weights takes minutes.

A safetensors file is an 8-byte little-endian length, a JSON header of that length, and tensors at the offsets that the
header names. So its header says how long the file must be.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LONGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""

_LFS_POINTER = b"version https://git-lfs"


class ModelError(Exception):
    """A file of a model is not what it has to be; the text names it."""


def model_faults(directory: Path) -> Iterator[str]:
    """Everything that is missing from a model directory, or cut short in it. Nothing if it is whole."""
    if not directory.is_dir():
        yield "there is no such directory"
        return
    try:
        _json(directory / "config.json")
        shards = _shards(directory)
    except ModelError as error:
        yield str(error)
        return
    missing = sorted(shard for shard in shards if not (directory / shard).is_file())
    if missing:
        yield f"{len(missing)} of {len(shards)} shards are missing: {_some(missing)}"
    for shard in sorted(set(shards) - set(missing)):
        try:
            _check_shard(directory / shard, shards[shard])
        except ModelError as error:
            yield str(error)


def weight_bytes(directory: Path) -> int:
    """What the shards hold, by the sizes of their files. Raises ModelError or OSError where one is not there."""
    return sum((directory / shard).stat().st_size for shard in _shards(directory))


def model_config(directory: Path) -> dict[str, Any]:
    """The model's config.json. Raises ModelError."""
    return _json(directory / "config.json")


def _shards(directory: Path) -> dict[str, set[str]]:
    """Tensors that each shard must hold, by file name; the set is empty where no index says."""
    indexes = sorted(directory.glob("*.safetensors.index.json"))
    if not indexes:
        shards: dict[str, set[str]] = {path.name: set() for path in directory.glob("*.safetensors")}
        if not shards:
            raise ModelError("there is neither an index (model.safetensors.index.json) nor a .safetensors file")
        return shards
    weight_map = _json(indexes[0]).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{indexes[0].name} names no shards")
    shards = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or os.sep in shard:
            raise ModelError(f"{indexes[0].name} names a shard that is no file beside it: {str(shard)[:80]!r}")
        shards.setdefault(shard, set()).add(tensor)
    return shards


def _check_shard(path: Path, tensors: set[str]) -> None:
    try:
        with path.open("rb") as shard:
            size = os.fstat(shard.fileno()).st_size
            start = shard.read(8)
            if (start + shard.read(len(_LFS_POINTER) - 8)) == _LFS_POINTER:
                raise ModelError(f"{path.name} is a pointer of Git LFS, not the file; `git lfs pull` fetches it")
            (length,) = struct.unpack("<Q", start) if len(start) == 8 else (0,)
            if not 2 <= length <= LONGEST_HEADER or 8 + length > size:
                raise ModelError(f"{path.name} has no safetensors header ({size} bytes)")
            shard.seek(8)
            header = _parse(shard.read(length), f"the header of {path.name}")
    except OSError as error:
        raise ModelError(f"{path.name} cannot be read: {error.strerror}") from error
    header.pop("__metadata__", None)
    expected = 8 + length + max((_end(path.name, tensor) for tensor in header.values()), default=0)
    if size != expected:
        cut = "cut short" if size < expected else "longer than its tensors"
        raise ModelError(f"{path.name} is {cut}: {size} bytes, its header asks for {expected}")
    lacking = sorted(tensors - header.keys())
    if lacking:
        raise ModelError(f"{path.name} lacks {len(lacking)} tensors that the index puts there: {_some(lacking)}")


def _end(name: str, tensor: Any) -> int:
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(isinstance(offset, int) for offset in offsets):
        raise ModelError(f"the header of {name} describes a tensor without its place")
    return int(offsets[1])


def _json(path: Path) -> dict[str, Any]:
    try:
        return _parse(path.read_bytes(), path.name)
    except OSError as error:
        raise ModelError(f"{path.name} cannot be read: {error.strerror}") from error


def _parse(data: bytes, what: str) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except ValueError as error:
        raise ModelError(f"{what} is not JSON") from error
    if not isinstance(parsed, dict):
        raise ModelError(f"{what} is not a JSON object")
    return parsed


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
