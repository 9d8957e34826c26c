# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was seen on the real engines, and the faults on top of it: all data of the stand-ins, in one place.

Evidence. vLLM: 0.32.0 (CPU build, TP=1 and 2, tiny model) was run and its log, tree, titles, endpoints, signals
and exit statuses were noted; texts and line numbers are those of 0.33.0's source. SGLang: 0.5.23 was run on CPU
with a stubbed kernel library. Lines that only a GPU prints are from the source. The command lines are in
../flags/, recorded from the parsers of vLLM 0.33.0 and SGLang 0.5.23 (../record_flags.py).
"""

from __future__ import annotations

from typing import Any

LOAD_SECONDS = 2.0
"""From start to ready unless the fault ENGINE.load-seconds says otherwise. Recorded: 45 to 55 s, 25 min on disk."""

PACE = 20.0
"""Stopping is played this many times faster than recorded."""

TOKENS_PER_SECOND = 1000.0
"""A request for N tokens runs N / this: ask for many to have one in flight."""

WEIGHTS_SHARE = 0.8
"""The part of an engine's memory that is weights; the rest is taken at once, with the KV cache."""

# Each is switched on by a file ENGINE.NAME under faults/, its content the parameter in brackets.
FAULTS = {
    "load-seconds": "[seconds] from start to ready",
    "ignore-term": "workers ignore SIGTERM; [all]: so do all of the engine's processes",
    "late-contexts": "[seconds] after the worker before it, each worker makes its context",
    "hang-loading": "loading stops for ever where NCCL connects the GPUs: no line, no memory",
    "crash-loading": "a worker dies half-way through the weights; [a key of FATAL, or the line itself]",
    "crash-loop": "every start fails within a fraction of a second",
    "wrong-model": "[name] it serves under another name than the one asked for",
    "slow-shutdown": "[seconds] it needs to stop",
    "fail-completion": "it says that it is healthy, and every completion fails",
    "unhealthy": "/health answers 503 although the model is loaded",
}

FATAL = {
    "memory-held": "ValueError: Free memory on device cuda:{rank} ({free:.2f}/{total:.2f} GiB) on startup is less"
    " than desired GPU memory utilization ({fraction}, {wanted:.2f} GiB). Decrease GPU memory utilization or reduce"
    " GPU memory used by other processes.",
    "oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.17 GiB. GPU {rank} has a total capacity"
    " of {total:.2f} GiB of which {free:.2f} GiB is free.",
    "kv": "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when"
    " initializing the engine.",
    "kv-length": "ValueError: To serve at least one request with the model's max seq len ({max_model_len}), 12.1 GiB"
    " KV cache is needed, which is larger than the available KV cache memory (8.3 GiB).",
    "shm": "RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 62 MiB free.",
    "arch": "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
    "nccl": "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    "unbalanced": "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
    "static": "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value:"
    " mem_fraction_static={fraction}",
    "shard": "FileNotFoundError: No such file or directory: {missing}",
    "too few": "ValueError: World size ({tp}) is larger than the number of available GPUs ({gpus}) in this node.",
    "library": "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
}

BAR = "{desc}: {percent:3.0f}% Completed | {n}/{total} [{elapsed}<{remaining}, {rate:.2f}{unit}]"

VLLM: dict[str, Any] = {
    "version": "0.33.0",
    "title": {"core": "VLLM::EngineCore", "worker": "VLLM::Worker", "ranked": "VLLM::Worker_TP{rank}"},
    # When, in parts of the load; and what is said then: (process, level, file:line, text).
    "phases": {"core": 0.20, "workers": 0.30, "ranked": 0.36, "weights": 0.40, "loaded": 0.80, "ready": 1.0},
    "log": {
        "start": [
            ("APIServer", "INFO", "api_utils.py:347", ""),
            ("APIServer", "INFO", "api_utils.py:347", "       █     █     █▄   ▄█"),
            ("APIServer", "INFO", "api_utils.py:347", " ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}"),
            ("APIServer", "INFO", "api_utils.py:347", "  █▄█▀ █     █     █     █  model   {model}"),
            ("APIServer", "INFO", "api_utils.py:347", "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀"),
            ("APIServer", "INFO", "api_utils.py:347", ""),
            ("APIServer", "INFO", "startup.py:96", "non-default args: {non_default}"),
        ],
        "configured": [
            ("APIServer", "INFO", "model.py:744", "Resolved architecture: {architecture}"),
            ("APIServer", "INFO", "model.py:2152", "Using max model len {max_model_len}"),
        ],
        "core": [
            (
                "EngineCore",
                "INFO",
                "core.py:140",
                "Initializing a V1 LLM engine (v{version}) with config:"
                " model='{model}', speculative_config=None, tokenizer='{model}', skip_tokenizer_init=False,"
                " tokenizer_mode=auto, revision=None, tokenizer_revision=None",
            ),
        ],
        "worker": [
            (
                "Worker",
                "INFO",
                "parallel_state.py:1929",
                "world_size={tp} rank={rank} local_rank={rank}"
                " distributed_init_method=file:///tmp/vllm_dist_869c9f8ce1824c949e1a2285fa1e8f04 backend=nccl",
            ),
        ],
        "connect": [("Worker", "INFO", "pynccl.py:148", "vLLM is using nccl==2.29.2")],
        "connected": [
            (
                "Worker",
                "INFO",
                "parallel_state.py:2385",
                "rank 0 in world size {tp} is assigned as DP rank 0, PP rank"
                " 0, PCP rank 0, TP rank 0, ETP rank 0, EP rank N/A, EPLB rank N/A",
            ),
        ],
        "weights": [("Worker_TP{rank}", "INFO", "gpu_model_runner.py:4979", "Starting to load model {model}...")],
        "loaded": [
            ("Worker_TP0", "INFO", "default_loader.py:507", "Loading weights took {weights_seconds:.2f} seconds"),
            (
                "Worker_TP0",
                "INFO",
                "gpu_model_runner.py:5089",
                "Model loading took {weights_gib:.2f} GiB memory and {weights_seconds:.6f} seconds",
            ),
            ("Worker_TP0", "INFO", "gpu_worker.py:773", "Available KV cache memory: {kv_gib:.2f} GiB"),
        ],
        "kv": [
            (
                "EngineCore",
                "INFO",
                "kv_cache_utils.py:1148",
                "GPU KV cache size: 189,440 tokens, Maximum concurrency for 131,072 tokens per request: 1.45x",
            ),
        ],
        "graphs": [
            ("Worker_TP0", "INFO", "gpu_model_runner.py:6517", "Graph capturing finished in 6 secs, took 0.53 GiB")
        ],
        "engine": [
            (
                "EngineCore",
                "INFO",
                "core.py:413",
                "init engine (profile, create kv cache, warmup model) took {init_seconds:.2f} s",
            )
        ],
        "ready": [
            ("APIServer", "INFO", "entry.py:136", "Supported tasks: ['generate']"),
            ("APIServer", "INFO", "entry.py:139", "Starting vLLM server on http://{host}:{port}"),
            ("APIServer", "INFO", "launcher.py:186", "Available routes are:"),
            ("APIServer", "INFO", "launcher.py:195", "Route: /health, Methods: GET"),
            ("APIServer", "INFO", "launcher.py:195", "Route: /metrics, Methods: GET"),
            ("APIServer", "INFO", "launcher.py:195", "Route: /v1/models, Methods: GET"),
            ("APIServer", "INFO", "launcher.py:195", "Route: /v1/chat/completions, Methods: POST"),
            ("APIServer", "INFO", "launcher.py:195", "Route: /v1/completions, Methods: POST"),
            ("", "INFO", "", "Started server process [{pid}]"),
            ("", "INFO", "", "Waiting for application startup."),
            ("", "INFO", "", "Application startup complete."),
        ],
        "stopping": [
            ("APIServer", "INFO", "launcher.py:256", "[shutdown] API server: shutdown triggered"),
            (
                "APIServer",
                "INFO",
                "launcher.py:273",
                "[shutdown] API server: stopping engine client mode={mode} timeout={timeout}s",
            ),
            ("APIServer", "INFO", "core_client.py:792", "[shutdown] MPClient: start timeout={timeout}s"),
            ("APIServer", "INFO", "utils.py:629", "[shutdown] Process manager: send sigterm to process EngineCore"),
        ],
        "killing": [
            (
                "APIServer",
                "WARNING",
                "utils.py:649",
                "[shutdown] Process manager: force killing remaining processes count=1",
            ),
            (
                "APIServer",
                "WARNING",
                "utils.py:654",
                "[shutdown] Process manager: force killing remaining process EngineCore pid {core}",
            ),
        ],
        "stopped": [
            ("APIServer", "INFO", "launcher.py:281", "[shutdown] API server: engine client stopped"),
            ("APIServer", "INFO", "launcher.py:306", "[shutdown] API server: shutting down FastAPI HTTP server"),
            ("", "INFO", "", "Shutting down"),
            ("", "INFO", "", "Waiting for application shutdown."),
            ("", "INFO", "", "Application shutdown complete."),
        ],
        "core stopping": [
            ("EngineCore", "INFO", "core.py:1526", "[shutdown] EngineCore: trigger received signal=SIGTERM"),
            (
                "EngineCore",
                "INFO",
                "multiproc_executor.py:581",
                "[shutdown] Executor: waiting for worker exit count={tp}",
            ),
        ],
        "core insists": [
            (
                "EngineCore",
                "WARNING",
                "multiproc_executor.py:593",
                "[shutdown] Executor: workers still running after grace period; sending SIGTERM count={left}",
            ),
        ],
        "core kills": [
            (
                "EngineCore",
                "WARNING",
                "multiproc_executor.py:603",
                "[shutdown] Executor: workers still running after SIGTERM; sending SIGKILL count={left}",
            ),
        ],
        "core stopped": [
            ("EngineCore", "INFO", "multiproc_executor.py:587", "[shutdown] Executor: all workers exited gracefully"),
        ],
        "worker died": [
            (
                "EngineCore",
                "ERROR",
                "multiproc_executor.py:381",
                "Worker proc VllmWorker-{rank} died unexpectedly (exit code: {status}), shutting down executor.",
            ),
        ],
        "core died": [
            (
                "APIServer",
                "ERROR",
                "core_client.py:840",
                "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
            ),
            (
                "APIServer",
                "ERROR",
                "async_llm.py:906",
                "vllm.v1.engine.exceptions.EngineDeadError: EngineCore"
                " encountered an issue. See stack trace (above) for the root cause.",
            ),
        ],
        "worker failed": [
            ("Worker_TP{rank}", "ERROR", "multiproc_executor.py:1057", "WorkerProc failed to start."),
            ("Worker_TP{rank}", "ERROR", "multiproc_executor.py:1057", "Traceback (most recent call last):"),
            ("Worker_TP{rank}", "ERROR", "multiproc_executor.py:1057", "{fatal}"),
        ],
        "core failed": [
            ("EngineCore", "ERROR", "core.py:1584", "EngineCore failed to start."),
            ("EngineCore", "ERROR", "core.py:1584", "Traceback (most recent call last):"),
            (
                "EngineCore",
                "ERROR",
                "core.py:1584",
                "Exception: WorkerProc initialization failed due to an exception"
                " in a background process. See stack trace for root cause.",
            ),
        ],
    },
    "traceback": {
        "port": "OSError: [Errno 98] Address already in use",
        "engine": "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s):"
        " {{'EngineCore': 1}}",
        "model": "OSError: Can't load the configuration of '{model}'. If you were trying to load it from"
        " 'https://huggingface.co/models', make sure you don't have a local directory with the same name.",
    },
    "bar": {"desc": "Loading safetensors checkpoint shards", "unit": "s/it", "end": "\n"},
    # Recorded seconds after the event, divided by PACE when played.
    "seconds": {
        "workers end": 2.2,
        "core ends": 2.0,
        "main ends": 0.3,  # a drain: 2.2, 4.2, 4.5
        "worker misses core": 2.3,
        "main misses core": 2.4,  # EngineCore killed: 2.3, 4.7
        "second term": 7.0,
        "grace": 5.0,
        "term": 4.0,  # EngineCore with workers that do not end
        "ready timeout": 600.0,  # VLLM_ENGINE_READY_TIMEOUT_S: not played faster
    },
    "shared memory": ("psm_", 4),  # a segment and semaphores that SIGKILL leaves in /dev/shm
    "owner": "vllm",
}

SGLANG: dict[str, Any] = {
    "version": "0.5.23",
    "title": {
        "scheduler": "sglang::scheduler",
        "ranked": "sglang::scheduler_TP{rank}",
        "detokenizer": "sglang::detokenizer",
    },
    # Children are born untitled and imports take them a while; only then they ask to die with the launcher
    # (PR_SET_PDEATHSIG). Whoever kills the launcher before that leaves orphans which go on to load the model.
    "phases": {"children": 0.45, "tied": 0.60, "weights": 0.62, "loaded": 0.88, "listening": 0.95, "ready": 1.0},
    "log": {
        "start": [("", "", "", "server_args={non_default}")],
        "connect": [(" TP{rank}", "", "", "Init parallel begin.")],
        "connected": [(" TP{rank}", "", "", "Init parallel ends. elapsed=1.92 s")],
        "weights": [(" TP{rank}", "", "", "Load weight begin. avail mem={free_gib:.2f} GB")],
        "loaded": [
            (
                " TP{rank}",
                "",
                "",
                "Load weight end. elapsed={weights_seconds:.2f} s, type={architecture},"
                " quant=compressed-tensors, avail mem={left_gib:.2f} GB, mem usage={weights_gib:.2f} GB.",
            ),
            (
                " TP{rank}",
                "",
                "",
                "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 190464, KV size: {kv_gib:.2f} GB",
            ),
        ],
        "graphs": [
            (
                " TP0",
                "",
                "",
                "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, avail mem=5.42 GB",
            ),
            (
                " TP0",
                "",
                "",
                "Capture target decode CUDA graph end. bs=[1, 2, 4, 8, 16], elapsed=4.11 s,"
                " mem usage=0.62 GB, avail mem=4.80 GB.",
            ),
            (
                " TP0",
                "",
                "",
                "max_total_num_tokens=190464, chunked_prefill_size=8192, max_prefill_tokens=16384,"
                " max_running_requests=64, context_len=262144, available_gpu_mem=4.80 GB",
            ),
        ],
        "listening": [
            ("", "", "", "INFO:     Started server process [{pid}]"),
            ("", "", "", "INFO:     Waiting for application startup."),
            ("", "", "", "INFO:     Application startup complete."),
            ("", "", "", "INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)"),
            ("", "", "", 'INFO:     127.0.0.1:42044 - "GET /model_info HTTP/1.1" 200 OK'),
        ],
        "port": [
            ("", "", "", "INFO:     Started server process [{pid}]"),
            ("", "", "", "INFO:     Waiting for application startup."),
            ("", "", "", "INFO:     Application startup complete."),
            (
                "",
                "",
                "",
                "ERROR:    [Errno 98] error while attempting to bind on address ('{host}', {port}):"
                " address already in use",
            ),
            ("", "", "", "INFO:     Waiting for application shutdown."),
            ("", "", "", "INFO:     Application shutdown complete."),
        ],
        "ready": [("", "", "", "The server is fired up and ready to roll!")],
        "stopping": [
            ("", "", "", "SIGTERM received. signum=None frame=None. Draining requests and shutting down..."),
        ],
        "draining": [
            (
                "",
                "",
                "",
                "Gracefully exiting... Remaining number of requests {running}. Remaining requests remaining_rids=[].",
            ),
        ],
        "stragglers": [
            ("", "", "", "Schedulers still alive 15s after ShutdownReq, killing them before they released: {left}"),
        ],
        "child died": [
            (
                "",
                "",
                "",
                "Subprocess {name} (pid={child}) crashed with exit code {status}. Triggering SIGQUIT for cleanup...",
            ),
        ],
        "worker failed": [
            (" TP{rank}", "", "", "Scheduler hit an exception: Traceback (most recent call last):"),
            (" TP{rank}", "", "", "{fatal}"),
        ],
        "launcher gone": [
            (" TP{rank}", "", "", "Scheduler hit an exception: Traceback (most recent call last):"),
            (" TP{rank}", "", "", "BrokenPipeError: [Errno 32] Broken pipe"),
        ],
        "sigquit": [
            ("", "", "", "Received sigquit from a child process. It usually means the child failed."),
        ],
    },
    "traceback": {
        "model": "OSError: Can't load the configuration of '{model}'. If you were trying to load it from"
        " 'https://huggingface.co/models', make sure you don't have a local directory with the same name.",
    },
    "bar": {"desc": "Multi-thread loading shards", "unit": "s/it", "end": ""},
    "seconds": {
        "main ends": 2.5,
        "scheduler timeout": 15.0,
        "child died": 5.0,
        "drain poll": 5.0,
        "health": 1.0,  # one token, asked for once a second: not played faster
    },
    "shared memory": "sglang_loads_",  # stays in /dev/shm, whichever way it ends
    "owner": "sglang",
}
