# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine is told and what it has: its model, its GPUs, and the faults it plays."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Optional

import gpusim

from . import recorded

GIB = 1024


class Trouble(Exception):
    """The engine ends with this line."""


class Model:
    """A model directory as an engine sees it."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(os.path.join(path, "config.json")) as config:
                self.config = json.load(config)
            self.architecture = self.config["architectures"][0]
        except (OSError, ValueError, LookupError):
            raise Trouble(path) from None
        try:
            with open(os.path.join(path, "model.safetensors.index.json")) as index:
                self.shards = sorted(set(json.load(index)["weight_map"].values()))
        except FileNotFoundError:
            self.shards = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))

    def shard(self, position: int) -> None:
        """Look at one shard. Raises Trouble with the loader's words where it is missing."""
        path = os.path.join(self.path, self.shards[position])
        if not os.path.exists(path):
            raise Trouble(recorded.FATAL["shard"].format(missing=path))


class Faults:
    """The faults of one engine, as they are now."""

    def __init__(self, engine: str) -> None:
        self.engine = engine

    def __call__(self, name: str) -> Optional[str]:
        assert name in recorded.FAULTS, name
        return gpusim.fault(f"{self.engine}.{name}")

    def seconds(self, name: str, default: float) -> float:
        text = self(name)
        return float(text) if text else default


class Card:
    """One worker's GPU: the nodes it opens and the memory it takes there."""

    def __init__(self, gpu: gpusim.Gpu, fraction: float, rank: int, late: float) -> None:
        self.gpu = gpu
        self.rank = rank
        self.fraction = fraction
        self.wanted = int(gpu.total * fraction)
        self.nodes = gpusim.open_nodes()
        time.sleep(late * rank)
        self.free = gpu.total - gpu.reserved - gpusim.used(gpu.number)
        self.memory = gpusim.allocate(gpu.number, min(512, self.wanted))
        self.weights = int(self.wanted * recorded.WEIGHTS_SHARE)

    def values(self) -> dict[str, Any]:
        total = self.gpu.total
        return {
            "rank": self.rank, "fraction": self.fraction, "free": self.free / GIB, "total": total / GIB,
            "wanted": self.wanted / GIB, "free_gib": self.free / GIB, "weights_gib": self.weights / GIB,
            "kv_gib": (self.wanted - self.weights) / GIB, "left_gib": (total - self.weights) / GIB,
        }  # fmt: skip

    def check(self, fatal: str) -> None:
        """Raises Trouble where somebody else holds what this worker needs."""
        if self.free < self.wanted:
            raise Trouble(recorded.FATAL[fatal].format(**self.values()))

    def crash(self, fault: str, **values: Any) -> None:
        """Raise the Trouble that a fault asks for: a known one by its key, or any line."""
        text = recorded.FATAL.get(fault or "oom", fault)
        raise Trouble(text.format(**self.values(), **values) if fault in recorded.FATAL or not fault else text)


def visible(wanted: Optional[str]) -> list[gpusim.Gpu]:
    """The GPUs that CUDA shows: all, or those of a list of indices or UUIDs, in its order."""
    every = gpusim.gpus()
    if not wanted:
        return every
    found = []
    for word in wanted.split(","):
        match = [gpu for gpu in every if word.strip() in (str(gpu.number), gpu.uuid)]
        if not match:
            break  # CUDA's own rule: the list ends at the first name it does not know
        found += match
    return found
