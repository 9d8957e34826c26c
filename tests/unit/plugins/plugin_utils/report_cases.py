# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs as Ansible would tell them: pivots that went well, were refused, came back, got stuck, or reached nobody."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.inference.plugins.plugin_utils._report import Doing, Run

BEGAN = 1_780_000_000.0
FACTS = {
    "check": False, "limit": "", "by": "operator@controller", "ansible_core": "2.21.5", "python": "3.13.0",
    "collection": "0.1.0",
}  # fmt: skip

CHECK = Doing("Check everything", "inference_preflight", "preflight")
DRAIN = Doing("Drain the GPUs", "gpu_drain", "drain")
DEPLOY = Doing("Write the unit", "ansible.builtin.copy", "engine")
START = Doing("Start the engine and wait until it answers", "inference_service", "pivot")
TURN = Doing("Turn back", "pivot_record", "pivot", {"phase": "rolling_back"})
FINISH = Doing("Close the record", "pivot_record", "pivot", {"state": "finish"})
TELL = Doing("Tell both stories", "ansible.builtin.fail", "pivot")

LOADING = "[gpu-07] RuntimeError: NCCL error: unhandled system error"


def gpus(used: list[int]) -> list[dict[str, Any]]:
    return [
        {
            "index": index,
            "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "uuid": f"GPU-{index:08x}",
            "memory": {"total": 97887, "used": mib, "free": 97250 - mib, "reserved": 637, "version": 2},
            "error": None,
        }
        for index, mib in enumerate(used)
    ]


def drained(verdict: str = "free", after: int = 0) -> dict[str, Any]:
    """What gpu_drain returns."""
    free = verdict == "free"
    names = [f"VLLM::Worker_TP{index}" for index in range(8)]
    return {
        "changed": True,
        "msg": "8 of 8 GPUs are free" if free else f"7 of 8 GPUs are free\nGPU 3 is {verdict}: 41000 MiB in use",
        "failed": not free,
        "released": free,
        "gpus_before": gpus([91034] * 8),
        "gpus_after": gpus([0, 0, 0, after, 0, 0, 0, 0]),
        "verdicts": {
            str(index): {"verdict": verdict if index == 3 else "free", "why": "no holder, 0 MiB in use"}
            for index in range(8)
        },
        "memory_samples": [
            {"seconds": second, "used_mib": {str(index): 91034 - 9000 * second for index in range(8)}}
            for second in range(11)
        ],
        "stages": [
            {"name": "plan", "seconds": 0.4, "actions": ["hold vllm.service", "stop vllm.service"]},
            {"name": "hold", "seconds": 0.3, "actions": ["hold vllm.service"]},
            {"name": "quiesce", "seconds": 2.1, "actions": ["vllm.service: no request for 2 s"]},
            {"name": "end processes", "seconds": 1.5, "actions": [f"{name} gone after 0.1 s" for name in names]},
            {"name": "release", "seconds": 7.0, "actions": [f"GPU {index}: free" for index in range(8)]},
        ],
        "stopped_units": [{"unit": "vllm.service", "seconds": 0.5, "killed": False}],
        "ended": [
            {"pid": 1100 + index, "start": 5000 + index, "name": name[:15], "signal": "SIGTERM", "seconds": 0.1}
            for index, name in enumerate(names)
        ],
        "processes": [
            {
                "pid": 1100 + index, "start": 5000 + index, "command": name, "class": "orphan", "gpus_used": [index],
                "owner": {"kind": "nobody", "name": ""}, "why": "an engine's worker, its launcher is gone",
            }
            for index, name in enumerate(names)
        ],
        "left_alone": [
            {"pid": 292, "command": "/usr/bin/nvidia-persistenced --verbose", "class": "observer",
             "owner": {"kind": "unit", "name": "nvidia-persistenced.service"}, "why": "watches, computes nothing"},
        ],
        "survivors": []
        if free
        else [{"pid": 1103, "start": 5003, "name": names[3], "state": "D", "waits_in": "uvm_spin", "why": "stuck"}],
        "refusals": [],
        "held_units": ["vllm.service"],
        "record": "/var/lib/gpuops/records/20261130T115540-drain-1455.json",
        "driver_version": "580.126.09",
        "nvml_version": "13.580.126.09",
        "problems": [],
    }  # fmt: skip


STARTED = {
    "changed": True,
    "msg": "sglang.service answers for kimi-k2.5",
    "stages": [
        {"name": "starting", "seconds": 12.0, "actions": ["start sglang.service"]},
        {"name": "loading weights", "seconds": 85.0, "actions": []},
        {"name": "answering", "seconds": 4.0, "actions": []},
    ],
}
BROKEN = {
    "changed": True,
    "failed": True,
    "msg": f"sglang.service did not come up: {LOADING} (it ended with exit status 1)",
    "stages": [{"name": "starting", "seconds": 9.0, "actions": ["start sglang.service"]}],
    "log": ["Load weight begin. avail mem=94.10 GB", LOADING, "Killing the process group"],
}


class Teller:
    """Tells a run what happens on one host, one thing after the other."""

    def __init__(self, run: Run, host: str) -> None:
        self.run, self.host, self.now = run, host, BEGAN + 5

    def __call__(self, doing: Doing, result: dict[str, Any], seconds: float, kind: str = "ok") -> None:
        self.run.see_start(self.host, doing, self.now)
        self.now += seconds
        self.run.see_result(self.host, doing, kind, result, self.now)


def went_well(run: Run, host: str) -> float:
    tell = Teller(run, host)
    tell(CHECK, {"engine_version": "0.5.12", "driver_version": "580.126.09", "problems": []}, 4)
    tell(DRAIN, drained(), 12)
    tell(DEPLOY, {"changed": True}, 9)
    tell(START, STARTED, 102)
    tell(FINISH, {"changed": True, "story": ["vllm.service -> sglang.service"], "record": {"phase": "done"}}, 1)
    return tell.now


def was_refused(run: Run, host: str) -> float:
    tell = Teller(run, host)
    tell(CHECK, {"problems": []}, 4)
    refusal = "GPU 3 is held by pid 1141 (train.py, uid 1001), no engine's process: pass `foreign: end`"
    result = {
        **drained(), "changed": False, "failed": True, "released": False, "refusals": [refusal], "ended": [],
        "msg": f"refused, nothing was touched:\n- {refusal}", "gpus_after": gpus([91034] * 8), "verdicts": {},
        "stages": drained()["stages"][:1], "stopped_units": [], "memory_samples": [], "held_units": [],
    }  # fmt: skip
    tell(DRAIN, result, 2, "failed")
    return tell.now


def came_back(run: Run, host: str) -> float:
    tell = Teller(run, host)
    tell(CHECK, {"engine_version": "0.5.12", "problems": []}, 4)
    tell(DRAIN, drained(), 12)
    tell(DEPLOY, {"changed": True}, 9)
    tell(START, BROKEN, 10, "failed")
    tell(TURN, {"touched": True}, 1)
    tell(DRAIN, drained(), 6)
    tell(START, {**STARTED, "msg": "vllm.service answers for kimi-k2.5"}, 101)
    tell(FINISH, {"story": [f"it failed: {LOADING}"], "record": {"phase": "rolled_back"}}, 1)
    tell(TELL, {"failed": True, "msg": f"The pivot failed.\n{LOADING}\nvllm.service answers again"}, 0, "failed")
    return tell.now


def stuck(run: Run, host: str) -> float:
    tell = Teller(run, host)
    tell(CHECK, {"problems": []}, 4)
    tell(DRAIN, drained("unkillable", 41000), 80, "failed")
    return tell.now


def out_of_reach(run: Run, host: str) -> float:
    tell = Teller(run, host)
    tell(CHECK, {"unreachable": True, "msg": "Failed to connect to the host via ssh"}, 10, "unreachable")
    return tell.now


def fleet(size: int = 6, name: str = "gpu-{:03d}.rack7.example.com") -> tuple[Run, float]:
    """A run over so many hosts, and its end; the last host never got its turn."""
    run = Run("pivot_to_sglang", BEGAN, FACTS)
    stories = {1: was_refused, 2: came_back, 3: out_of_reach, 4: stuck}
    names = [name.format(number) for number in range(size)]
    ends = [stories.get(number % 20, went_well)(run, host) for number, host in enumerate(names[:-1])]
    run.host(names[-1])
    for story in run.hosts.values():
        story.values = {"gpuops_layout": "kimi_k25_int4_tp8", "gpuops_ready_timeout": 3600}
    bad = {host for number, host in enumerate(names) if number % 20 in (1, 2, 4)}
    run.see_end(bad, {host for number, host in enumerate(names) if number % 20 == 3})
    return run, max(ends, default=BEGAN)
