# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let torchvision's CUDA build be imported beside a torch for CPUs: it asks for two operators that it cannot load."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class Before(MetaPathFinder):
    """Declares the operators when torchvision is first asked for, and finds nothing itself."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            for operator in OPERATORS:
                torch.library.define(f"torchvision::{operator}", SCHEMA)


sys.meta_path.insert(0, Before())
