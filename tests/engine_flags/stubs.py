# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets an engine's argument parser be imported without torch, transformers and everything else that it imports.

The engine's own modules are real, as is what its parser is made with (argparse, pydantic, msgspec). Whatever else is
imported and not installed becomes a module in which every name exists, and does nothing.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import types
from abc import ABCMeta
from typing import Any, Optional

KERNELS = ("vllm.ir", "vllm.kernels", "sglang.kernels", "sglang.srt.layers", "sglang.srt.utils.hf_transformers_patches")
"""Modules of the engines themselves that the parser imports on its way and that cannot do without a GPU's libraries."""

ABSENT = ("libtpu", "torch_npu", "torch_xla", "tpu_info", "amdsmi", "npu", "hpu", "musa", "hip")
"""What marks a host of another kind by being there."""

VALUES: dict[str, Any] = {
    "torch.iinfo": lambda *_dtype: types.SimpleNamespace(min=-(2**63), max=2**63 - 1),
    "dill.dumps": lambda *_args, **_keywords: b"",
    "torch.library.infer_schema": lambda *_args, **_keywords: "() -> ()",
}
"""What the parser calculates with."""


class Meta(ABCMeta):
    """Classes that take part in any expression: attribute, call, index, union."""

    def __getattr__(cls, name: str) -> Any:
        if name == "__class_validators__":
            return []
        if name.startswith("__"):
            raise AttributeError(name)
        return nothing(name)

    def __getitem__(cls, _key: Any) -> Any:
        return cls

    def __setitem__(cls, _key: Any, _value: Any) -> None:
        pass

    def __or__(cls, _other: Any) -> Any:
        return cls

    def __ror__(cls, _other: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        # A decorator leaves what it decorates as it is.
        if cls.__dict__.get("stub") and len(args) == 1 and not keywords and callable(args[0]):
            return args[0]
        return super().__call__()

    def register(cls, *args: Any, **_keywords: Any) -> Any:
        return args[-1] if args else nothing("register")

    def __int__(cls) -> int:
        return 0

    def __lt__(cls, _other: Any) -> bool:
        return False

    def __radd__(cls, other: Any) -> Any:
        return other

    __index__ = __int__
    __le__ = __gt__ = __ge__ = __lt__
    __rmul__ = __add__ = __mul__ = __radd__


class Nothing(metaclass=Meta):
    """An instance of such a class."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        return {"type": "any"}

    def __init__(self, *_args: Any, **_keywords: Any) -> None:
        pass

    def __init_subclass__(cls, **_keywords: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return nothing(name)

    def __call__(self, *args: Any, **_keywords: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else Nothing()

    def __getitem__(self, _key: Any) -> Any:
        return Nothing()

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __int__(self) -> int:
        return 0

    __index__ = __len__ = __int__

    def __lt__(self, _other: Any) -> bool:
        return False

    def __radd__(self, other: Any) -> Any:
        return other

    __le__ = __gt__ = __ge__ = __lt__
    __rmul__ = __add__ = __mul__ = __radd__

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass


def nothing(name: str) -> Any:
    """A class of this name."""
    return Meta(name, (Nothing,), {"stub": True})


class Stub(types.ModuleType):
    """A module in which every name exists."""

    __path__ = ()
    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ABSENT:
            raise AttributeError(name)
        value = VALUES.get(f"{self.__name__}.{name}", nothing(name))
        setattr(self, name, value)
        return value


class Finder:
    """Comes first, and takes what is not installed."""

    def __init__(self) -> None:
        self.known = dict.fromkeys((*sys.stdlib_module_names, *ABSENT), True)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Optional[Any]:
        top = name.partition(".")[0]
        if top not in self.known:
            self.known[top] = True  # while it is looked for, we are asked as well
            self.known[top] = importlib.util.find_spec(top) is not None
        if self.known[top] and not f"{name}.".startswith(tuple(f"{kernel}." for kernel in KERNELS)):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """From here on nothing is missing."""
    installed = importlib.metadata.version

    def version(name: str) -> str:
        try:
            return installed(name)
        except importlib.metadata.PackageNotFoundError:
            return Stub.__version__

    importlib.metadata.version = version
    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
