# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.gpuops.inference.plugins.module_utils._ready import Look
from ansible_collections.gpuops.inference.plugins.module_utils._starting import Start, Verdict
from ansible_collections.gpuops.inference.plugins.module_utils._units import Unit, parse_show

(RUNNING,) = parse_show(
    """\
MainPID=412
Result=success
NRestarts=0
ExecMainCode=0
Id=vllm.service
LoadState=loaded
ActiveState=active
SubState=running
ConditionResult=yes
AssertResult=yes
InvocationID=new
"""
)
OLD = replace(RUNNING, invocation_id="old", active_state="inactive", sub_state="dead", main_pid=0)
CRASHED = replace(
    RUNNING, active_state="failed", sub_state="failed", result="exit-code", exec_main_code=1, exec_main_status=1
)
SHARD = "\rLoading safetensors checkpoint shards:  25% Completed | {}/64 [08:12<24:10, 30.2s/it]"
OOM = "(Worker_TP3 pid=9) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has"
REFUSED = Look(problem="nobody listens on its port yet")
READY = Look({"health": 20.0, "models": 20.1, "completion": 20.2})


class Watched:
    """A start and the time that passes over it."""

    def __init__(self, engine: str = "vllm", before: Optional[str] = "old", ready: float = 3600, stall: float = 600):
        self.now = 0.0
        self.start = Start(ENGINES[engine], 0.0, ready, stall, before)

    def unit(self, unit: Unit = RUNNING, io_bytes: int = 0) -> Watched:
        self.start.see_unit(self.now, unit, io_bytes)
        return self

    def says(self, *lines: str) -> Watched:
        for line in lines:
            self.start.see_line(self.now, line)
        return self

    def answers(self, look: Look) -> Watched:
        self.start.see_look(self.now, look)
        return self

    def after(self, seconds: float) -> Optional[Verdict]:
        self.now += seconds
        return self.start.verdict(self.now)

    def reason(self, seconds: float) -> str:
        verdict = self.after(seconds)
        assert verdict is not None and not verdict.ready
        return verdict.reason


def test_phases_follow_the_log() -> None:
    watched = Watched().unit()
    seen = []
    for line in (
        "INFO vLLM is using nccl==2.28.3",
        "INFO Starting to load model /models/Kimi-K2.5...",
        SHARD.format(16),
        "INFO Loading weights took 812.03 seconds",
        "INFO Model loading took 71.2 GiB memory and 830.1 seconds",
        "INFO GPU KV cache size: 190,000 tokens",
        "INFO init engine (profile, create kv cache, warmup model) took 30.1 s",
        "INFO:     Application startup complete.",
    ):
        watched.says(line)
        seen.append(watched.start.status)
        assert watched.after(1) is None
    assert seen == [
        "joining the GPUs",
        "loading weights",
        "loading weights, shard 16 of 64",
        "preparing the model",
        "profiling memory",
        "warming up",
        "starting the API server",
        "answering",
    ]
    assert [stage.phase for stage in watched.start.stages][:3] == ["starting", "joining the GPUs", "loading weights"]


def test_workers_that_are_not_in_step_do_not_turn_it_back() -> None:
    watched = Watched("sglang").unit()
    watched.says("TP0] Load weight begin. avail", "TP0] Load weight end. elapsed", "TP0] KV Cache is allocated.")
    watched.says("TP3] Load weight end. elapsed", SHARD.format(64), "TP3] KV Cache is allocated.")
    phases = [stage.phase for stage in watched.start.stages]
    assert phases == ["starting", "loading weights", "allocating the KV cache", "warming up"]


def test_a_worker_that_fails_while_another_goes_on_is_still_the_cause() -> None:
    watched = Watched("sglang").unit().says(OOM, "TP0] Load weight end. elapsed", "Scheduler hit an exception: Trace")
    assert watched.unit(CRASHED).reason(3).startswith("a GPU ran out of memory")


def test_the_core_says_less_than_the_worker_that_failed_before_another_went_on() -> None:
    watched = Watched().unit()
    watched.says("(Worker_TP3 pid=9) ERROR WorkerProc failed to start.", OOM, "INFO vLLM is using nccl==2.29.2")
    watched.says("(EngineCore pid=7) ERROR Exception: WorkerProc initialization failed due to an exception in a")
    assert watched.unit(CRASHED).reason(3).startswith("a GPU ran out of memory")


def test_the_other_engine_has_other_words() -> None:
    watched = Watched("sglang").unit()
    watched.says("[2026-11-30 07:10:07 TP0] Load weight begin. avail mem=94.1 GB", SHARD.format(3))
    assert watched.start.status == "loading weights, shard 3 of 64"
    watched.says("The server is fired up and ready to roll!")
    assert watched.start.phase == "answering"


def test_ready_is_what_answers_and_not_what_the_log_says() -> None:
    watched = Watched().unit().says("Application startup complete.").answers(REFUSED)
    assert watched.after(1) is None
    assert watched.answers(READY).after(0) == Verdict(True)
    assert watched.start.passed == READY.passed


def test_a_crash_is_explained_once_its_last_words_are_in() -> None:
    watched = Watched().unit().says(SHARD.format(17)).unit(CRASHED)
    assert watched.after(0.3) is None
    watched.says(OOM, "RuntimeError: Engine core initialization failed. See root cause above.")
    assert watched.after(0.3) is None
    assert watched.reason(0.3) == (
        "a GPU ran out of memory (tried to allocate 2.00 GiB): the model does not fit, or somebody holds memory "
        "(it ended with exit status 1)"
    )


def test_the_journal_is_not_waited_for_without_end() -> None:
    watched = Watched().unit().unit(CRASHED)
    verdict = None
    while verdict is None:
        watched.says("still talking")
        verdict = watched.after(0.25)
    assert watched.now == 2


def test_a_crash_loop_is_stopped() -> None:
    waiting = replace(CRASHED, active_state="activating", sub_state="auto-restart")
    verdict = Watched().unit().unit(waiting).after(3)
    assert verdict is not None and verdict.stop
    assert "again and again" in verdict.reason


def test_a_crash_loop_that_already_runs_again_is_one_too() -> None:
    verdict = Watched().unit(replace(RUNNING, n_restarts=1)).after(3)
    assert verdict is not None and verdict.stop


def test_restarts_before_we_came_are_the_past() -> None:
    watched = Watched(before=None).unit(replace(RUNNING, n_restarts=4))
    assert watched.after(3) is None
    assert watched.unit(replace(RUNNING, n_restarts=5)).after(3) is not None


def test_a_hang_after_final_words_is_not_waited_out() -> None:
    watched = Watched("sglang").unit().says("ERROR:    [Errno 98] error while attempting to bind on address")
    assert watched.after(4) is None
    verdict = watched.after(1)
    assert verdict == Verdict(False, "its port is taken (it hangs instead of ending)", stop=True, who="port")


def test_trouble_that_was_overcome_is_no_cause() -> None:
    watched = Watched("sglang").unit().says("PermissionError: no usage stats", "Scheduler hit an exception: Traceback")
    watched.says("Load weight begin. avail mem=94.1 GB")
    assert watched.after(60) is None
    assert watched.unit(CRASHED).reason(3) == "it ended with exit status 1"


def test_an_exception_beats_the_lines_that_only_say_that_something_failed() -> None:
    watched = (
        Watched()
        .unit()
        .says(
            "(EngineCore pid=7) ERROR [core.py:1] EngineCore failed to start.",
            "(EngineCore pid=7) ERROR [core.py:1] ValueError: rope_scaling must be a dict",
            "RuntimeError: Engine core initialization failed. See root cause above.",
        )
    )
    assert watched.unit(CRASHED).reason(3).startswith("ValueError: rope_scaling must be a dict (")


def test_without_any_cause_the_last_words_of_the_engine_stand() -> None:
    watched = Watched().unit().says("segments do not add up", "vllm.service: Main process exited, code=exited")
    assert watched.unit(CRASHED).reason(3) == "segments do not add up (it ended with exit status 1)"


@pytest.mark.parametrize(
    "line, reason",
    [
        (
            "ValueError: Free memory on device cuda:0 (8.88/95.0 GiB) on startup is less than desired GPU memory "
            "utilization (0.92, 87.4 GiB). Decrease GPU memory utilization or reduce GPU memory used",
            "somebody holds GPU memory: 8.88 of 95.0 GiB are free on cuda:0; the GPUs were not drained",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
            "94.97 GiB of which 1.2 GiB is free. Process 999 has 90.00 GiB memory in use.",
            "a GPU ran out of memory and process 999 holds 90.00 GiB of it: the GPUs were not drained",
        ),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "the engine was built without kernels for this GPU (no kernel image)",
        ),
        (
            "RuntimeError: NCCL error: unhandled system error",
            "NCCL failed: unhandled system error; NCCL_DEBUG=INFO in the unit's environment tells more",
        ),
        (
            "RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 62 MiB free.",
            "/dev/shm is full: 160 MiB required, 62 MiB free; leftovers of killed engines fill it",
        ),
        ("OSError: [Errno 98] Address already in use", "its port is taken"),
        (
            "vllm: error: unrecognized arguments: --swap-space 4",
            "the engine refuses its command line: unrecognized arguments: --swap-space 4",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/models/x'",
            "a file is missing: [Errno 2] No such file or directory: '/models/x'",
        ),
        ("ModuleNotFoundError: No module named 'x'", "the engine is not installed whole: No module named 'x'"),
        (
            "refused: GPUs are still held by 77 (python3, job.service); drain the host before this unit starts",
            "the unit's guard refused the start: GPUs are still held by 77 (python3, job.service); drain the host "
            "before this unit starts",
        ),
        (
            "vllm.service: A process of this unit has been killed by the OOM killer.",
            "the kernel killed it: the host's memory, or the unit's MemoryMax=, was used up",
        ),
        (
            "(Worker_TP0 pid=7) ERROR torch.AcceleratorError: CUDA error: out of memory",
            "a GPU ran out of memory: the model does not fit, or somebody holds memory",
        ),
        (
            "RuntimeError: NCCL error: Failed to CUDA calloc 10485760 bytes",
            "NCCL found no GPU memory left: lower gpu-memory-utilization or mem-fraction-static",
        ),
        (
            "UserWarning: NVIDIA RTX PRO 6000 Blackwell with CUDA capability sm_120 is not compatible with the current "
            "PyTorch installation.",
            "the engine was built without kernels for this GPU (no kernel image)",
        ),
        (
            "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
            "the engine's CUDA needs another driver (driver version is insufficient for CUDA): install the driver it "
            "wants, or an engine for this one",
        ),
        (
            "RuntimeError: No CUDA GPUs are available",
            "the engine sees no GPU: the unit's DeviceAllow= or CUDA_VISIBLE_DEVICES hides them, or the driver is not "
            "usable (`nvidia-smi`)",
        ),
        (
            "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
            "a GPU failed (uncorrectable ECC error): `journalctl --dmesg --grep=Xid` tells which",
        ),
        (
            "[rank0] NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'",
            "GPU peer-to-peer transfers do not work on this host: try NCCL_P2P_DISABLE=1",
        ),
        (
            "[rank3]:[E1130 07:10:07.1 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000) ran for 600009 milliseconds",
            "NCCL timed out: the GPUs waited for each other in ALLREDUCE; a worker is stuck, or peer-to-peer transfers "
            "do not work (try NCCL_P2P_DISABLE=1)",
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 7/8 clients joined.",
            "NCCL timed out: a worker did not come to the meeting of the GPUs, or died there",
        ),
        (
            "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888), error: No space left "
            "on device (28)",
            "/dev/shm is full",
        ),
        (
            "Subprocess scheduler_0 (pid=9) crashed with exit code -7. Triggering SIGQUIT for cleanup...",
            "/dev/shm is full (a bus error): leftovers of killed engines fill it",
        ),
        (
            "ERROR Worker proc VllmWorker-3 died unexpectedly (exit code: -9), shutting down executor.",
            "a worker was killed (SIGKILL): by the kernel if the host's memory was used up "
            "(`journalctl --dmesg --grep=oom`), else by somebody",
        ),
        (
            "Subprocess scheduler_0 (pid=9) crashed with exit code -11. Triggering SIGQUIT for cleanup...",
            "a worker ended (exit code -11)",
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 9437184 bytes. Error code 12 (Cannot allocate memory)",
            "the host's memory is used up",
        ),
        (
            "[2026-11-30 07:10:07 TP0] Watchdog timeout (self.watchdog_timeout=300)",
            "the engine's own watchdog ended it, a step took too long (self.watchdog_timeout=300)",
        ),
        (
            "TimeoutError: Timed out waiting for engines to send initial message on input socket.",
            "the engine's own limit for its start passed: raise VLLM_ENGINE_READY_TIMEOUT_S",
        ),
        (
            "  Value error, User-specified max_model_len (999999) is greater than the derived max_model_len "
            "[type=value_error, input_value=ArgsKwargs(()), input_type=ArgsKwargs]",
            "the engine refuses a value: User-specified max_model_len (999999) is greater than the derived "
            "max_model_len",
        ),
        (
            'FileNotFoundError: No such file or directory: "/models/K/model-00007-of-00064.safetensors"',
            "the model is incomplete, a file is missing: /models/K/model-00007-of-00064.safetensors",
        ),
        (
            "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not covered",
            "the model is incomplete or damaged: SafetensorError: Error while deserializing header: incomplete "
            "metadata, file not covered",
        ),
        (
            "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
            "the engine is not installed whole: libcudart.so.13: cannot open shared object file: No such file or "
            "directory",
        ),
        (
            "PermissionError: [Errno 1] Operation not permitted: '/dev/nvidia0'",
            "the unit does not allow itself /dev/nvidia0: its DeviceAllow= lacks it (`devices` of the layout)",
        ),
        (
            "PermissionError: [Errno 13] Permission denied: '/dev/nvidia-uvm'",
            "the mode of /dev/nvidia-uvm shuts the unit's user out: `ls -l` shows it, nvidia-modprobe or a udev rule "
            "sets it",
        ),
        ("vllm.service: Failed to locate executable /nope: No such file", "the unit's program /nope does not exist"),
    ],
)
def test_causes_in_words(line: str, reason: str) -> None:
    assert Watched().unit().says(line).unit(CRASHED).reason(3) == f"{reason} (it ended with exit status 1)"


@pytest.mark.parametrize(
    "ended, how",
    [
        ({"exec_main_code": 2, "exec_main_status": 9, "result": "signal"}, "it was killed by SIGKILL"),
        ({"exec_main_code": 2, "exec_main_status": 44, "result": "signal"}, "it was killed by signal 44"),
        ({"exec_main_code": 2, "exec_main_status": 9, "result": "oom-kill"}, "the kernel killed it: the host's memory"),
        ({"exec_main_code": 0, "result": "exit-code"}, "it failed before its engine ran (exit-code)"),
        ({"exec_main_code": 2, "result": "watchdog"}, "systemd ended it: it missed the unit's WatchdogSec="),
        ({"exec_main_code": 1, "result": "timeout"}, "systemd gave up on it"),
        ({"result": "success", "active_state": "inactive", "exec_main_code": 0}, "it ended without an error"),
        ({"active_state": "deactivating", "exec_main_code": 0, "result": "success"}, "somebody stops it"),
        ({"active_state": "active", "invocation_id": "newer"}, "somebody started it again"),
    ],
)
def test_ends_in_words(ended: dict[str, object], how: str) -> None:
    assert Watched().unit().unit(replace(CRASHED, **ended)).reason(3).startswith(how)


def test_a_start_that_systemd_refuses_is_known_at_once() -> None:
    assert "refused" in Watched().unit(replace(OLD, assert_result=False)).reason(0)
    assert "dropped" in Watched().unit(OLD).reason(0)


def test_a_start_that_is_queued_is_waited_for() -> None:
    watched = Watched().unit(replace(OLD, job=7))
    assert watched.after(60) is None
    assert watched.start.invocation == ""
    assert watched.unit().start.invocation == "new"


def test_silence_is_a_stall_and_requests_of_others_do_not_break_it() -> None:
    watched = Watched().unit().says("vLLM is using nccl==2.28.3")
    assert watched.after(400) is None
    watched.says('INFO:     127.0.0.1:5 - "GET /health HTTP/1.1" 503 Service Unavailable').unit()
    assert watched.after(199) is None
    assert watched.reason(1) == (
        "stalled, no new log line and no disk traffic for 600 s; "
        "GPU peer-to-peer transfers may not work on this host (IOMMU, ACS): try NCCL_P2P_DISABLE=1"
    )


def test_disk_traffic_is_progress() -> None:
    watched = Watched(ready=1e6).unit()
    for megabyte in range(1, 100):
        assert watched.unit(io_bytes=megabyte << 20).after(599) is None


def test_patience_ends() -> None:
    watched = Watched(ready=100).unit().says(SHARD.format(3)).answers(REFUSED)
    assert watched.after(99) is None
    assert watched.reason(1) == "that took longer than 100 s; nobody listens on its port yet"


def test_what_waiting_cannot_cure_is_not_waited_for() -> None:
    watched = Watched().unit().answers(Look(problem="it serves other, not kimi-k2.5", hopeless=True))
    assert watched.reason(0) == "it serves other, not kimi-k2.5"


def test_wrong_answers_get_seconds_and_no_answers_get_minutes() -> None:
    wrong = Look({"health": 0.0, "models": 0.0}, "/v1/completions says 500 boom", wrong=True)
    watched = Watched().unit().answers(wrong)
    assert watched.after(9) is None
    assert "does not complete a request; /v1/completions says 500 boom" in watched.answers(wrong).reason(1)
    mute = Look({"health": 0.0, "models": 0.0}, "timed out")
    watched = Watched().unit().answers(mute)
    assert watched.after(149) is None
    assert "does not complete a request; timed out" in watched.reason(1)


def test_a_bar_takes_one_line_of_the_tail() -> None:
    watched = Watched().unit().says("first", *(SHARD.format(number) for number in range(1, 65)), "last")
    assert list(watched.start.tail) == ["first", SHARD.format(64), "last"]
