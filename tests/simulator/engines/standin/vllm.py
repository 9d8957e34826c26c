# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM's process tree: API server, EngineCore, one worker for each GPU, and multiprocessing's tracker."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import time
from functools import partial
from typing import Any, Optional

from . import flags, process, recorded
from .engine import Card, Faults, Model, Trouble, visible

DATA = recorded.VLLM


def style(who: str, level: str, where: str, text: str) -> str:
    if not who:
        return f"{level}:     {text}"
    return f"({who} pid={os.getpid()}) {level} {time.strftime('%m-%d %H:%M:%S')} [{where}] {text}"


class Engine:
    """One `vllm serve`, in whichever of its processes this is."""

    def __init__(self, args: argparse.Namespace, given: dict[str, Any]) -> None:
        self.args = args
        self.faults = Faults("vllm")
        self.path = args.model_tag or args.model
        self.served = (args.served_model_name or [self.path])[0]
        self.tp = args.tensor_parallel_size
        self.stubborn = self.faults("ignore-term")
        self.clock = process.Clock(self.faults.seconds("load-seconds", recorded.LOAD_SECONDS), DATA["phases"])
        self.log = process.Log(
            DATA, style, version=DATA["version"], model=self.path, served=self.served, tp=self.tp,
            non_default=given, host=args.host or "0.0.0.0", port=args.port, max_model_len=args.max_model_len or 262144,
        )  # fmt: skip

    # The API server

    def main(self) -> int:
        from multiprocessing import resource_tracker

        self.log.say("start")
        if self.faults("crash-loop") is not None:
            self.log.traceback(recorded.FATAL["library"])
            return 1
        try:
            listener = process.bound(self.args.host or "0.0.0.0", self.args.port)
        except OSError:
            self.log.traceback(DATA["traceback"]["port"])
            return 1
        self.clock.until("core")  # imports: SIGTERM still has its default action
        try:
            self.model = Model(self.path)
        except Trouble:
            self.log.traceback(DATA["traceback"]["model"].format(model=self.path))
            return 1
        self.log.say("configured", architecture=self.model.architecture)
        resource_tracker.ensure_running()
        ours, theirs = socket.socketpair()
        signals = process.Signals(signal.SIGTERM, signal.SIGINT)
        self.core = process.fork(lambda: self.engine_core(listener, ours, theirs))
        theirs.close()
        status = self.await_core(signals, ours)
        if status is not None:
            return status

        from .http import Vllm

        api = Vllm(self.path, self.served, self.api_keys(), self.args.max_num_seqs or 256, self.faults)
        api.state = "ready"
        api.profiling = bool((self.args.profiler_config or {}).get("profiler"))
        quiet = (self.args.disable_access_log_for_endpoints or "").split(",")
        if not self.args.disable_uvicorn_access_log:
            api.access_log = lambda path, line: None if path in quiet else self.log.line("", "INFO", "", line)
        self.log.say("ready")
        api.serve(listener)
        while True:
            came, readable = signals.wait([ours.fileno()])
            if readable:
                api.state = "dead"
                self.log.say("core died")
                time.sleep(process.recorded_seconds(DATA, "main misses core"))
                return 0
            if came and self.stubborn != "all":
                return self.shut_down(api)

    def await_core(self, signals: process.Signals, core: socket.socket) -> Optional[int]:
        """Wait for the engine core. None when it is ready, else the exit status.

        The first SIGTERM is lost: it raises KeyboardInterrupt in a block that swallows that. Should EngineCore end
        afterwards, nobody notices and the wait goes on to its own timeout.
        """
        lost = 0
        watched = [core.fileno()]
        deadline = time.monotonic() + DATA["seconds"]["ready timeout"]
        while time.monotonic() < deadline:
            came, readable = signals.wait(watched, deadline - time.monotonic())
            lost += len(came)
            if lost > 1 and self.stubborn != "all":
                self.kill_tree()
                time.sleep(process.recorded_seconds(DATA, "second term"))
                return 130
            if readable and core.recv(16) == b"ready":
                return None
            if readable and not lost:
                break
            if readable:
                watched = []
        self.kill_tree()
        self.log.traceback(DATA["traceback"]["engine"].format())
        return 1

    def shut_down(self, api: Any) -> int:
        timeout = self.args.shutdown_timeout
        self.log.say("stopping", mode="drain" if timeout else "abort", timeout=timeout)
        time.sleep(self.faults.seconds("slow-shutdown", 0))
        if timeout:
            deadline = time.monotonic() + timeout
            while api.running + api.waiting and time.monotonic() < deadline:
                time.sleep(0.01)
            process.kill([self.core], signal.SIGTERM)
            ended = process.reap({self.core}, timeout)
        else:
            # 0 means at once: EngineCore hears of it and is dead before it can do anything.
            process.kill([self.core], signal.SIGTERM)
            ended = {}
        if not ended:
            self.log.say("killing", core=self.core)
            self.kill_tree()
        time.sleep(process.recorded_seconds(DATA, "main ends"))
        self.log.say("stopped")
        return 0

    def kill_tree(self) -> None:
        workers = process.children(self.core)
        process.kill([self.core, *workers])
        process.reap({self.core}, 5)

    def api_keys(self) -> list[str]:
        return [key for key in self.args.api_key or [os.environ.get("VLLM_API_KEY")] if key]

    # EngineCore

    def engine_core(self, listener: socket.socket, parent: socket.socket, core: socket.socket) -> int:
        from multiprocessing import get_context, shared_memory

        listener.close()
        parent.close()
        process.look_spawned()
        self.clock.until("workers")
        process.title(DATA["title"]["core"])
        self.log.say("core")
        if self.stubborn == "all":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Whoever is killed leaves these behind: the tracker, which would clean them up, is killed as well.
        prefix, count = DATA["shared memory"]
        names = [f"{prefix}{secrets.token_hex(4)}" for dummy in range(count)]
        segments = [shared_memory.SharedMemory(name, True, 1 << 20) for name in names]
        semaphores = [get_context("spawn").Semaphore() for dummy in range(2)]
        tie, self.lifeline = os.pipe()
        report, tell = os.pipe()
        signals = process.Signals(signal.SIGCHLD)
        self.workers = {
            process.fork(partial(self.worker, rank, tie, tell, (self.lifeline, report), core)): rank
            for rank in range(self.tp)
        }
        os.close(tell)
        loaded = 0
        while loaded < self.tp:
            came, readable = signals.wait([report])
            if readable:
                loaded += len(os.read(report, self.tp))
            if came and process.reap(set(self.workers), 0):
                self.log.say("core failed")
                process.kill(self.workers)
                return 1
        self.log.say("kv")
        self.clock.until(0.9)
        self.log.say("engine", init_seconds=self.clock.elapsed())
        self.clock.until("ready")
        # With workers that do not listen it dies half-way through a teardown, and they are on their own.
        if self.stubborn is None:
            signals.catch(signal.SIGTERM)
        core.send(b"ready")
        # Nobody watches the API server: when that is killed, EngineCore and its workers live on.
        while True:
            came, dummy = signals.wait()
            if signal.SIGTERM in came:
                self.log.say("core stopping")
                self.end_workers(set(self.workers))
                time.sleep(process.recorded_seconds(DATA, "core ends"))
                return 0
            died = process.reap(set(self.workers), 0)
            if died:
                pid, status = next(iter(died.items()))
                self.log.say("worker died", rank=self.workers[pid], status=status)
                self.end_workers(set(self.workers) - set(died))
                del segments, semaphores
                return 1

    def end_workers(self, left: set[int]) -> None:
        os.close(self.lifeline)
        left -= set(process.reap(left, process.recorded_seconds(DATA, "grace")))
        if left:
            self.log.say("core insists", left=len(left))
            process.kill(left, signal.SIGTERM)
            left -= set(process.reap(left, process.recorded_seconds(DATA, "term")))
        if left:
            self.log.say("core kills", left=len(left))
            process.kill(left)
            process.reap(left, 5)
        self.log.say("core stopped")

    # Workers

    def worker(self, rank: int, tie: int, tell: int, not_ours: tuple[int, ...], core: socket.socket) -> int:
        for descriptor in not_ours:
            os.close(descriptor)
        core.close()
        process.look_spawned()
        if self.stubborn is not None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        process.title(DATA["title"]["worker"])
        self.log.values["rank"] = rank
        self.log.say("worker")
        try:
            self.load(rank, tie)
        except Trouble as trouble:
            self.log.say("worker failed", fatal=trouble)
            return 1
        os.write(tell, b"1")
        process.wait([tie], None)
        if self.stubborn is not None:
            while True:
                signal.pause()
        time.sleep(process.recorded_seconds(DATA, "workers end"))
        return 0

    def load(self, rank: int, tie: int) -> None:
        first = rank == 0
        self.clock.until("ranked", tie)
        gpus = visible(self.args.device_ids or os.environ.get("CUDA_VISIBLE_DEVICES"))
        if rank >= len(gpus):
            raise Trouble(recorded.FATAL["too few"].format(tp=self.tp, gpus=len(gpus)))
        card = Card(gpus[rank], self.args.gpu_memory_utilization, rank, self.faults.seconds("late-contexts", 0))
        if first:
            self.log.say("connect")
        if self.faults("hang-loading") is not None:
            process.wait([tie], None)
            raise process.Gone
        process.title(DATA["title"]["ranked"].format(rank=rank) if self.tp > 1 else DATA["title"]["worker"])
        if first:
            self.log.say("connected")
        card.check("memory-held")
        self.clock.until("weights", tie)
        self.log.say("weights")
        began = self.clock.elapsed()
        total = len(self.model.shards)
        crash = self.faults("crash-loading") if rank == self.tp - 1 else None
        begin, end = DATA["phases"]["weights"], DATA["phases"]["loaded"]
        for n in range(total):
            self.model.shard(n)
            if first:
                self.log.progress(n, total, self.clock.elapsed() - began)
            self.clock.until(begin + (end - begin) * (n + 1) / total, tie)
            card.memory.resize(512 + (card.weights - 512) * (n + 1) // total)
            if crash is not None and n >= total // 2:
                card.crash(crash, max_model_len=self.args.max_model_len)
        if first:
            self.log.progress(total, total, self.clock.elapsed() - began)
            self.log.say("loaded", weights_seconds=self.clock.elapsed() - began, **card.values())
        card.memory.resize(card.wanted)
        if first:
            self.clock.until(0.88, tie)
            self.log.say("graphs")


def serve(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    return Engine(args, flags.given(parser, args)).main()
