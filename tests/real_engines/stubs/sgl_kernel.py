# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang's CUDA kernels, for a machine that has no use for them: every name is there, and none may be called."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*dummy: object, **dummies: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU")

    return missing
