# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""What is known of each engine, in one place: how its processes look, what its arguments mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

PYTHON_NAME = re.compile(r"^python(\d+(\.\d+)?)?$|^pypy3?$")
"""Base name of an interpreter's executable; an editor or a pager with an engine's name in its line is none."""

MULTIPROCESSING_CHILD = re.compile(
    r"^from multiprocessing\.(resource_tracker|spawn|forkserver|semaphore_tracker) import "
)
"""The `-c` program of CPython's own helper processes (Lib/multiprocessing)."""

COMM_LENGTH = 15
"""TASK_COMM_LEN - 1: the kernel cuts process names here."""


@dataclass(frozen=True)
class Engine:
    """One inference server program."""

    name: str
    title: re.Pattern[str]
    """Exact process titles (setproctitle) of its children."""
    comm: re.Pattern[str]
    """The same titles as the kernel cuts them, for a process whose command line cannot be read."""
    modules: tuple[str, ...]
    """`python -m MODULE` starts the server."""
    console_script: str
    """`SCRIPT serve` starts the server."""
    model_flags: tuple[str, ...]
    default_port: int
    profiler_flags: tuple[str, ...]
    """Arguments and environment variables that make it a profiling run."""


ENGINES: dict[str, Engine] = {
    "vllm": Engine(
        name="vllm",
        # Read in v1/engine/core.py and v1/executor/multiproc_executor.py of 0.15 to 0.33: names grow
        # suffixes in the order DP, PP, PCP, TP, DCP, EP. APIServer appears with several API servers.
        title=re.compile(r"^VLLM::(EngineCore|Worker|APIServer|DPCoordinator)(_[A-Z]*\d+)*$"),
        comm=re.compile(r"^VLLM::(EngineCor|Worker|APIServer|DPCoordina)"),
        modules=("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main"),
        console_script="vllm",
        model_flags=("--model",),
        default_port=8000,
        profiler_flags=("--profiler-config", "VLLM_TORCH_PROFILER_DIR"),
    ),
    "sglang": Engine(
        name="sglang",
        title=re.compile(
            r"^sglang::(scheduler|detokenizer|data_parallel_controller|tokenizer_worker|router)((_[A-Z]+\d+)*|:\d+)$"
        ),
        comm=re.compile(r"^sglang::"),
        modules=("sglang.launch_server",),
        console_script="sglang",
        model_flags=("--model-path", "--model"),
        default_port=30000,
        profiler_flags=("SGLANG_TORCH_PROFILER_DIR",),
    ),
}


@dataclass(frozen=True)
class Recognition:
    """A process recognised as an engine's: `main` answers requests and owns the others, `worker` carries a title."""

    engine: str
    role: str


def recognise(argv: Sequence[str], executable: str) -> Optional[Recognition]:
    """Tell which engine a process belongs to, or None.

    argv is the command line as the kernel holds it, executable the path of the running program. Only whole
    words in their places count: `tail -f vllm.log` and `vim vllm serve` are not engines.
    """
    if not argv or not PYTHON_NAME.match(_base(executable)):
        return None
    for engine in ENGINES.values():
        if engine.title.match(argv[0]):
            return Recognition(engine.name, "worker")
    return recognise_command(argv)


def recognise_command(argv: Sequence[str]) -> Optional[Recognition]:
    """Tell which engine a command line starts, be it a running process's or a unit's ExecStart."""
    words = list(argv)
    if words and PYTHON_NAME.match(_base(words[0])):
        words = _after_interpreter_options(words)
        if words[:1] == ["-m"]:
            for engine in ENGINES.values():
                if words[1:2] and words[1] in engine.modules:
                    return Recognition(engine.name, "main")
            return None
    if len(words) >= 2 and words[1] == "serve":
        for engine in ENGINES.values():
            if _base(words[0]) == engine.console_script:
                return Recognition(engine.name, "main")
    return None


def recognise_comm(comm: str) -> Optional[Recognition]:
    """The same from the kernel's short name alone, where the command line could not be read."""
    for engine in ENGINES.values():
        if engine.comm.match(comm):
            return Recognition(engine.name, "worker")
    return None


def is_multiprocessing_child(argv: Sequence[str]) -> bool:
    """Whether this is one of CPython's helper processes, which engines leave behind without a title."""
    return any(
        flag == "-c" and MULTIPROCESSING_CHILD.match(program) is not None
        for flag, program in zip(argv[1:6], argv[2:7])
    )


def argument(argv: Sequence[str], *flags: str) -> Optional[str]:
    """The value of the last of these flags, written `--flag value` or `--flag=value`."""
    value: Optional[str] = None
    for position, word in enumerate(argv):
        name, equals, attached = word.partition("=")
        if name in flags:
            if equals:
                value = attached
            elif position + 1 < len(argv):
                value = argv[position + 1]
    return value


@dataclass(frozen=True)
class Serving:
    """Where an engine answers and for which model, as its command line says."""

    engine: str
    host: str
    port: int
    served_model: Optional[str]
    model: Optional[str]
    profiling: tuple[str, ...]


def serving(engine_name: str, argv: Sequence[str]) -> Serving:
    """Read an engine's command line. A host that means every address is asked on loopback."""
    engine = ENGINES[engine_name]
    host = argument(argv, "--host") or "127.0.0.1"
    port = argument(argv, "--port") or ""
    model = argument(argv, *engine.model_flags)
    if model is None and "serve" in argv:
        follows = list(argv)[list(argv).index("serve") + 1 :]
        model = follows[0] if follows and not follows[0].startswith("-") else None
    return Serving(
        engine=engine_name,
        host="127.0.0.1" if host in ("0.0.0.0", "::", "") else host,
        port=int(port) if port.isdigit() else engine.default_port,
        served_model=argument(argv, "--served-model-name") or model,
        model=model,
        profiling=tuple(word for word in argv if word.split("=")[0].split(".")[0] in engine.profiler_flags),
    )


def _base(path: str) -> str:
    return path.removesuffix(" (deleted)").rsplit("/", 1)[-1]


def _after_interpreter_options(words: list[str]) -> list[str]:
    """Drop the interpreter and its own options, so that what follows is `-m MODULE` or a script."""
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
    return rest
