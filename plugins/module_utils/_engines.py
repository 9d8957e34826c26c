# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""What is known of each engine, in one place: how its processes look, what its arguments mean, what it says.

Log lines, endpoints and metrics were read in vLLM 0.15 to 0.33 and SGLang 0.5.9 to 0.5.23; `make test-flags` compares
what is said here of flags with what their own parsers take.
"""

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

PROGRESS = re.compile(r"(?:shards|Streamer|loader):\s+\d+% Completed \| (?P<done>\d+)/(?P<total>\d+) \[")
"""A step of the weight loading bar, which both engines print in the same words."""

ACCESS_LOG = re.compile(r"\"(?:GET|POST) /\S* HTTP/")
"""A request somebody made, we included: no sign of progress."""


@dataclass(frozen=True)
class Milestone:
    """A log line that shows how far a start has come."""

    line: re.Pattern[str]
    phase: str
    """What the engine does from here on, in words that fit after `while`."""


@dataclass(frozen=True)
class Cause:
    """A log line that explains a failed start."""

    line: re.Pattern[str]
    reason: str
    """In words; {names} are the named groups of the line."""
    final: bool = False
    """After this line the start is lost even where the engine does not exit. Other causes may be overcome."""
    vague: bool = False
    """It says only that something failed: a better cause, before it or after it, is shown instead."""
    who: str = ""
    """`gpu` or `port`: somebody else may have it, whom the log does not name."""


def _causes(*table: tuple[str, str], final: bool = False, vague: bool = False, who: str = "") -> tuple[Cause, ...]:
    return tuple(Cause(re.compile(line), reason, final, vague, who) for line, reason in table)


def _milestones(*table: tuple[str, str]) -> tuple[Milestone, ...]:
    return tuple(Milestone(re.compile(line), phase) for line, phase in table)


@dataclass(frozen=True)
class Change:
    """A flag (without dashes) or an environment variable that not every version knows."""

    name: str
    since: str = ""
    """The first version that knows it."""
    until: str = ""
    """The first version in which it was looked for and not found."""
    other: str = ""
    """The flag that says the same to the versions that do not know this one."""
    instead: str = ""
    """What to write for them, in words. Neither: it can be left out, they do by themselves what it asks for."""


LOADING = "loading weights"
JOINING = "joining the GPUs"
ANSWERING = "answering"

_GPU, _PORT = "gpu", "port"

# How both engines tell that a process of theirs ended.
_CHILD_ENDED = r"(?:crashed with exit code|died unexpectedly \(exit code:) "

CAUSES = (
    *_causes(
        # systemd, about a unit that did not get as far as its engine
        (r"^refused: (?P<why>.*)", "the unit's guard refused the start: {why}"),
        (r"Failed to locate executable (?P<what>[^:]+)", "the unit's program {what} does not exist"),
        (r"Failed at step (?P<step>\w+) spawning (?P<what>[^:]+): (?P<why>.*)", "cannot run {what} ({step}): {why}"),
        (r"Failed to load environment files: (?P<why>.*)", "the unit's environment file cannot be read: {why}"),
        (
            r"(?:has been|was) killed by the OOM killer|systemd-oomd killed",
            "the kernel killed it: the host's memory, or the unit's MemoryMax=, was used up",
        ),
    ),
    # the GPUs
    *_causes(
        (
            r"NCCL .*Failed to CUDA calloc (?P<size>\d+) bytes",
            "NCCL found no GPU memory left: lower gpu-memory-utilization or mem-fraction-static",
        ),
        (
            r"CUDA out of memory.*?Process (?P<pid>\d+) has (?P<held>[\d.]+ \w+) memory in use",
            "a GPU ran out of memory and process {pid} holds {held} of it: the GPUs were not drained",
        ),
        (
            r"CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)",
            "a GPU ran out of memory (tried to allocate {size}): the model does not fit, or somebody holds memory",
        ),
        (
            r"CUDA (?:error: )?out of memory|CUDA_ERROR_OUT_OF_MEMORY",
            "a GPU ran out of memory: the model does not fit, or somebody holds memory",
        ),
        who=_GPU,
    ),
    *_causes(
        (
            r"no kernel image is available|is not compatible with the current PyTorch installation"
            r"|TllmGenFmhaRunner|device kernel image is invalid",
            "the engine was built without kernels for this GPU (no kernel image)",
        ),
        (
            r"(?P<what>driver version is insufficient for CUDA|unsupported display driver / cuda driver)",
            "the engine's CUDA needs another driver ({what}): install the driver it wants, or an engine for this one",
        ),
        (
            r"No CUDA GPUs are available|CUDA unknown error|Failed to infer device type|no CUDA-capable device",
            "the engine sees no GPU: the unit's DeviceAllow= or CUDA_VISIBLE_DEVICES hides them, or the driver is "
            "not usable (`nvidia-smi`)",
        ),
        (
            r"(?P<what>uncorrectable \w+ error|GPU is lost|fallen off the bus|unspecified launch failure)",
            "a GPU failed ({what}): `journalctl --dmesg --grep=Xid` tells which",
        ),
        (
            r"peer access is not supported|peer mapping resources exhausted|p2p.*(?:failed|not supported)",
            "GPU peer-to-peer transfers do not work on this host: try NCCL_P2P_DISABLE=1",
        ),
        (
            r"Watchdog caught collective operation timeout.*?OpType=(?P<what>\w+)",
            "NCCL timed out: the GPUs waited for each other in {what}; a worker is stuck, or peer-to-peer transfers "
            "do not work (try NCCL_P2P_DISABLE=1)",
        ),
        (
            r"Some NCCL operations have failed or timed out|DistStoreError: Timed out",
            "NCCL timed out: a worker did not come to the meeting of the GPUs, or died there",
        ),
        # Before NCCL's own words: it says both.
        (r"/dev/shm.*No space left|No space left on device.*/dev/shm", "/dev/shm is full"),
        (
            r"(?:NCCL error|ncclUnhandledCudaError|ncclSystemError)(?: in)?:?\s*(?P<why>.*)",
            "NCCL failed: {why}; NCCL_DEBUG=INFO in the unit's environment tells more",
        ),
        # the host
        (
            r"Insufficient space in /dev/shm.*?: (?P<need>.*? required), (?P<free>.*? free)",
            "/dev/shm is full: {need}, {free}; leftovers of killed engines fill it",
        ),
        (
            rf"Bus error|{_CHILD_ENDED}-7\b|unable to (?:write to|mmap .* from) file </torch_",
            "/dev/shm is full (a bus error): leftovers of killed engines fill it",
        ),
        (r"No space left on device", "a file system is full"),
        (
            rf"{_CHILD_ENDED}-9\b",
            "a worker was killed (SIGKILL): by the kernel if the host's memory was used up "
            "(`journalctl --dmesg --grep=oom`), else by somebody",
        ),
        (
            r"DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|^MemoryError|: MemoryError",
            "the host's memory is used up",
        ),
        (
            r"[Ww]atchdog timeout \((?P<what>[^)]*)\)",
            "the engine's own watchdog ended it, a step took too long ({what})",
        ),
        (
            r"Timed out waiting for engines? ",
            "the engine's own limit for its start passed: raise VLLM_ENGINE_READY_TIMEOUT_S",
        ),
        # the command line and what it names
        (
            r": error: (?P<what>(?:unrecognized|ambiguous|invalid|unknown|argument|the following|one of) .*)",
            "the engine refuses its command line: {what}",
        ),
        (r"^\s*Value error, (?P<what>.*?)(?: \[type=.*)?$", "the engine refuses a value: {what}"),
        (
            r"(?:No such file or directory: |any model weights with )[`'\"]?(?P<what>[^`'\"]*\.safetensors)",
            "the model is incomplete, a file is missing: {what}",
        ),
        (
            r"(?P<what>Cannot find any model weights.*|\w+ weights were not initialized.*|SafetensorError: .*)",
            "the model is incomplete or damaged: {what}",
        ),
        (
            r"(?:ImportError|OSError): (?P<what>\S+: cannot open shared object file.*)",
            "the engine is not installed whole: {what}",
        ),
        (r"ModuleNotFoundError: (?P<what>.*)", "the engine is not installed whole: {what}"),
        (r"FileNotFoundError: (?P<what>.*)", "a file is missing: {what}"),
        # Not its user: what a device policy leaves out is refused to root as well.
        (
            r"\[Errno 1\] Operation not permitted: [b'\"]*(?P<what>/dev/[^'\"]+)",
            "the unit does not allow itself {what}: its DeviceAllow= lacks it (`devices` of the layout)",
        ),
        (
            r"\[Errno 13\] Permission denied: [b'\"]*(?P<what>/dev/[^'\"]+)",
            "the mode of {what} shuts the unit's user out: `ls -l` shows it, nvidia-modprobe or a udev rule sets it",
        ),
        (r"PermissionError: (?P<what>.*)", "the unit's user may not do it: {what}"),
        (r"(?P<what>Can't load the (?:configuration|model|tokenizer) .*)", "the model cannot be read: {what}"),
        (
            r"(?P<what>.*(?:HFValidationError|is not a local folder and is not a valid model).*)",
            "no such model: {what}",
        ),
    ),
    *_causes((rf"{_CHILD_ENDED}(?P<what>-?\d+)", "a worker ended (exit code {what})"), vague=True),
)
"""Causes in the words of systemd, Python, torch and CUDA, whatever the engine."""


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
    command_module: str
    """So does `python -m MODULE serve`; its other commands are clients."""
    model_flags: tuple[str, ...]
    default_port: int
    profiler_flags: tuple[str, ...]
    """Arguments and environment variables that make it a profiling run."""
    shutdown_flag: Optional[str]
    """Seconds the engine gives its requests after SIGTERM; whoever stops it must wait longer."""
    key_variables: tuple[str, ...]
    """Environment variables that hold the key its clients must show."""
    running_metric: str
    waiting_metric: str
    served_metric: str
    """Gauges of requests running and waiting, and the counter of requests answered; sum over labels."""
    milestones: tuple[Milestone, ...]
    causes: tuple[Cause, ...]
    """Tried in this order, before CAUSES."""
    changes: tuple[Change, ...]
    health_path: str = "/health"
    models_path: str = "/v1/models"
    completion_path: str = "/v1/completions"
    metrics_path: str = "/metrics"


ENGINES: dict[str, Engine] = {
    "vllm": Engine(
        name="vllm",
        # Read in v1/engine/core.py and v1/executor/multiproc_executor.py of 0.15 to 0.33: names grow
        # suffixes in the order DP, PP, PCP, TP, DCP, EP. APIServer appears with several API servers.
        title=re.compile(r"^VLLM::(EngineCore|Worker|APIServer|DPCoordinator)(_[A-Z]*\d+)*$"),
        comm=re.compile(r"^VLLM::(EngineCor|Worker|APIServer|DPCoordina)"),
        modules=("vllm.entrypoints.openai.api_server",),
        command_module="vllm.entrypoints.cli.main",
        console_script="vllm",
        model_flags=("--model",),
        default_port=8000,
        profiler_flags=("--profiler-config", "VLLM_TORCH_PROFILER_DIR"),
        shutdown_flag="shutdown-timeout",
        key_variables=("VLLM_API_KEY",),
        running_metric="vllm:num_requests_running",
        waiting_metric="vllm:num_requests_waiting",
        served_metric="vllm:request_success_total",
        milestones=_milestones(
            (r"vLLM is using nccl==", JOINING),
            (r"Starting to load model ", LOADING),
            (r"Loading weights took ", "preparing the model"),
            (r"Model loading took ", "profiling memory"),
            (r"KV cache size: ", "warming up"),
            (r"init engine \(.*\) took ", "starting the API server"),
            (r"Application startup complete", ANSWERING),
        ),
        causes=(
            *_causes(
                (
                    r"Free memory on device (?P<gpu>\S+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less",
                    "somebody holds GPU memory: {free} of {total} GiB are free on {gpu}; the GPUs were not drained",
                ),
                (
                    r"No available memory for the cache blocks",
                    "no GPU memory is left for the KV cache: somebody holds some, or gpu-memory-utilization is too low",
                ),
                who=_GPU,
            ),
            *_causes(
                (
                    r"To serve at least one request with the model's max seq len",
                    "the KV cache does not hold one request of the full length: lower max-model-len",
                ),
            ),
            *_causes((r"\[Errno 98\]", "its port is taken"), who=_PORT),
            *_causes(
                (r"EngineCore failed to start", "the engine core failed to start"),
                (r"Engine core initialization failed", "the engine core failed to start"),
                (r"WorkerProc (?:failed to start|initialization failed)", "a worker failed to start"),
                final=True,
                vague=True,
            ),
        ),
        changes=(
            Change("shutdown-timeout", since="0.18.0", instead="null leaves it out: it drains for 5 s at most"),
            Change("swap-space", until="0.18.0", instead="null leaves it out: there is no swap space any more"),
            Change("VLLM_ATTENTION_BACKEND", until="0.15.0", instead="the flag attention-backend says it"),
            Change(
                "VLLM_TORCH_PROFILER_DIR",
                until="0.16.0",
                instead="the flag profiler-config says it: {profiler: torch, torch_profiler_dir: DIRECTORY}",
            ),
            Change("VLLM_SLEEP_WHEN_IDLE", until="0.18.0", instead="null leaves it out"),
            Change("VLLM_RPC_TIMEOUT", until="0.24.0", instead="null leaves it out"),
            Change("VLLM_TEST_FORCE_FP8_MARLIN", until="0.32.0", instead="null leaves it out"),
        ),
    ),
    "sglang": Engine(
        name="sglang",
        title=re.compile(
            r"^sglang::(scheduler|detokenizer|data_parallel_controller|tokenizer_worker|router)((_[A-Z]+\d+)*|:\d+)$"
        ),
        comm=re.compile(r"^sglang::"),
        modules=("sglang.launch_server",),
        command_module="sglang.cli.main",
        console_script="sglang",
        model_flags=("--model-path", "--model"),
        default_port=30000,
        profiler_flags=("SGLANG_TORCH_PROFILER_DIR",),
        shutdown_flag=None,
        # It reads none: its key comes from --api-key, or from the file that --config names.
        key_variables=(),
        running_metric="sglang:num_running_reqs",
        waiting_metric="sglang:num_queue_reqs",
        served_metric="sglang:num_requests_total",
        milestones=_milestones(
            (r"Init (?:parallel|torch distributed) begin", JOINING),
            (r"Load weight begin", LOADING),
            (r"Load weight end", "allocating the KV cache"),
            (r"KV Cache is allocated", "warming up"),
            (r"Capture .*graph.* begin", "capturing graphs"),
            (r"Uvicorn running on", "warming up"),
            (r"The server is fired up and ready to roll", ANSWERING),
        ),
        causes=(
            *_causes(
                (
                    r"The memory capacity is unbalanced",
                    "somebody holds memory on some of the GPUs: the GPUs were not drained",
                ),
                (
                    r"Not enough memory\. Please try to increase --mem-fraction-static",
                    "no GPU memory is left for the KV cache: somebody holds some, or mem-fraction-static is too low",
                ),
                who=_GPU,
            ),
            # It notices only after the whole load, and then hangs with its memory held.
            *_causes((r"\[Errno 98\]", "its port is taken"), final=True, who=_PORT),
            *_causes(
                (r"Scheduler hit an exception", "a scheduler failed"),
                (r"Received sigquit from a child process", "a child process failed"),
                final=True,
                vague=True,
            ),
        ),
        changes=(
            Change("cuda-graph-max-bs", until="0.5.20", other="cuda-graph-max-bs-decode"),
            Change("cuda-graph-max-bs-decode", since="0.5.14", other="cuda-graph-max-bs"),
            Change("decode-context-parallel-size", since="0.5.15", instead="null leaves it out"),
            # On by default since 0.5.12.
            Change("SGLANG_ENABLE_SPEC_V2", until="0.5.21"),
        ),
    ),
}


def version_numbers(version: str) -> tuple[int, ...]:
    """`0.33.0+cpu` as numbers that can be compared; () for what is no version."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(number) for number in found[1].split(".")) if found else ()


def unknown_to(engine: str, version: str, name: str) -> Optional[Change]:
    """What became of a flag (without dashes) or a variable that this version does not know; None if it does."""
    asked = version_numbers(version)
    for change in ENGINES[engine].changes:
        if change.name == name and asked:
            too_old = bool(change.since) and asked < version_numbers(change.since)
            too_new = bool(change.until) and asked >= version_numbers(change.until)
            return change if too_old or too_new else None
    return None


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
    if not argv or not is_python(executable):
        return None
    for engine in ENGINES.values():
        if engine.title.match(argv[0]):
            return Recognition(engine.name, "worker")
    return recognise_command(argv)


def recognise_command(argv: Sequence[str]) -> Optional[Recognition]:
    """Tell which engine a command line starts, be it a running process's or a unit's ExecStart."""
    words = list(argv)
    if words and is_python(words[0]):
        words = _after_interpreter_options(words)
        if words[:1] == ["-m"]:
            for engine in ENGINES.values():
                if words[1:2] and words[1] in engine.modules:
                    return Recognition(engine.name, "main")
                if words[1:3] == [engine.command_module, "serve"]:
                    return Recognition(engine.name, "main")
            return None
    if len(words) >= 2 and words[1] == "serve":
        for engine in ENGINES.values():
            if _base(words[0]) == engine.console_script:
                return Recognition(engine.name, "main")
    return None


def is_python(path: str) -> bool:
    """Whether a program is a Python interpreter, as every process of both engines is."""
    return PYTHON_NAME.match(_base(path)) is not None


def recognise_comm(comm: str) -> Optional[Recognition]:
    """The same from the kernel's short name alone, where the command line could not be read."""
    for engine in ENGINES.values():
        if engine.comm.match(comm):
            return Recognition(engine.name, "worker")
    return None


def is_multiprocessing_child(argv: Sequence[str]) -> bool:
    """Whether this is one of CPython's helper processes, which engines leave behind without a title."""
    return any(
        flag == "-c" and MULTIPROCESSING_CHILD.match(program) is not None for flag, program in zip(argv[1:6], argv[2:7])
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
        port=int(port) if re.fullmatch("[0-9]{1,5}", port) else engine.default_port,
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
