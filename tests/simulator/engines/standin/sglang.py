# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang's process tree: the launcher (tokenizer and HTTP server), one scheduler for each GPU, a detokenizer."""

from __future__ import annotations

import argparse
import os
import signal
import time
from functools import partial
from typing import Any

from . import flags, process, recorded
from .engine import Card, Faults, Model, Trouble, visible

DATA = recorded.SGLANG


def style(who: str, level: str, where: str, text: str) -> str:
    return f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{who}] {text}"


class Engine:
    """One `python -m sglang.launch_server`, in whichever of its processes this is."""

    def __init__(self, args: argparse.Namespace, given: dict[str, Any]) -> None:
        self.args = args
        self.faults = Faults("sglang")
        self.path = args.model_path
        self.served = args.served_model_name or self.path
        self.tp = args.tp_size
        self.fraction = args.mem_fraction_static or 0.88
        self.stubborn = self.faults("ignore-term")
        self.clock = process.Clock(self.faults.seconds("load-seconds", recorded.LOAD_SECONDS), DATA["phases"])
        self.log = process.Log(
            DATA, style, tp=self.tp, host=args.host, port=args.port,
            non_default=given,
        )  # fmt: skip

    # The launcher

    def main(self) -> int:
        from multiprocessing import resource_tracker

        self.log.say("start")
        if self.faults("crash-loop") is not None:
            self.log.traceback(recorded.FATAL["library"])
            return 1
        try:
            self.model = Model(self.path)
        except Trouble:
            self.log.traceback(DATA["traceback"]["model"].format(model=self.path))
            return 1
        if self.stubborn == "all":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.clock.until("children")
        resource_tracker.ensure_running()
        # Not cleaned up by anybody, whichever way it ends.
        with open(f"/dev/shm/{DATA['shared memory']}{os.getpid():08x}.shm", "w") as segment:
            os.truncate(segment.fileno(), 1 << 16)
        self.launcher = os.getpid()
        report, tell = os.pipe()
        # SIGTERM keeps its default action until the server runs: a launcher that loads just dies.
        signals = process.Signals(signal.SIGQUIT, signal.SIGCHLD)
        names = {process.fork(partial(self.scheduler, rank, report, tell)): f"scheduler_{rank}"
                 for rank in range(self.tp)}  # fmt: skip
        names[process.fork(partial(self.detokenizer, report, tell))] = "detokenizer"
        os.close(tell)
        self.names = names
        loaded = 0
        while loaded < self.tp:
            came, readable = signals.wait([report])
            loaded += len(os.read(report, self.tp)) if readable else 0
            if signal.SIGQUIT in came:
                self.log.say("sigquit")
                self.kill_tree()
            if signal.SIGCHLD in came:
                self.look_after(0)
        return self.serve(signals)

    def serve(self, signals: process.Signals) -> int:
        from .http import Sglang

        api = Sglang(self.path, self.served, [self.args.api_key] if self.args.api_key else [],
                     self.args.max_running_requests or 64, self.faults)  # fmt: skip
        api.metrics = self.args.enable_metrics
        api.access_log = lambda path, line: self.log.line("", "", "", f"INFO:     {line}")
        self.clock.until("listening")
        try:
            listener = process.bound(self.args.host, self.args.port)
        except OSError:
            # Only now it learns that the port is taken, and then it neither serves nor ends.
            self.log.say("port")
            while True:
                signal.pause()
        api.serve(listener)
        self.log.say("listening")
        if not self.args.skip_server_warmup:
            self.clock.until("ready")
        self.log.say("ready")
        api.state = "ready"
        if self.stubborn != "all":
            signals.catch(signal.SIGTERM)
        while True:
            came, dummy = signals.wait()
            if signal.SIGTERM in came:
                return self.shut_down(api)
            if signal.SIGQUIT in came:
                self.kill_tree()
            if signal.SIGCHLD in came:
                self.look_after(process.recorded_seconds(DATA, "child died"))

    def shut_down(self, api: Any) -> int:
        api.state = "draining"
        self.log.say("stopping")
        time.sleep(self.faults.seconds("slow-shutdown", 0))
        while True:  # it waits for its requests without any limit
            self.log.say("draining", running=api.running + api.waiting)
            if not api.running + api.waiting:
                break
            time.sleep(process.recorded_seconds(DATA, "drain poll"))
        left = set(self.names)
        if self.stubborn is None:
            process.kill(left, signal.SIGTERM)  # in place of the request to shut down that schedulers get
        left -= set(process.reap(left, process.recorded_seconds(DATA, "scheduler timeout")))
        if left:
            self.log.say("stragglers", left=sorted(left))
            process.kill(left)
            process.reap(left, 5)
        time.sleep(process.recorded_seconds(DATA, "main ends"))
        return 0

    def look_after(self, seconds: float) -> None:
        """A child ended: say so and, after a while, end everything."""
        for pid, status in process.reap(set(self.names), 0).items():
            self.log.say("child died", name=self.names.pop(pid), child=pid, status=status)
            time.sleep(seconds)
            self.kill_tree()

    def kill_tree(self) -> None:
        """SIGKILL for all of them, and for itself at last."""
        process.kill(self.names)
        process.kill([os.getpid()])

    # Children

    def born(self, report: int) -> None:
        os.close(report)
        process.look_spawned()
        if self.stubborn is not None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.clock.until("tied")
        process.die_with_parent()

    def detokenizer(self, report: int, tell: int) -> int:
        os.close(tell)
        self.born(report)
        process.title(DATA["title"]["detokenizer"])
        while True:
            signal.pause()

    def scheduler(self, rank: int, report: int, tell: int) -> int:
        self.born(report)
        process.title(DATA["title"]["ranked" if self.tp > 1 else "scheduler"].format(rank=rank))
        self.log.values["rank"] = rank
        try:
            self.load(rank)
        except Trouble as trouble:
            self.log.say("worker failed", fatal=trouble)
            self.alarm()
            return 1
        try:
            os.write(tell, b"1")
        except BrokenPipeError:
            # The launcher is gone since before this process asked to die with it: only now it is missed.
            self.log.say("launcher gone")
            self.alarm()
            return 1
        while True:
            signal.pause()

    def alarm(self) -> None:
        # The real one signals whoever is its parent by now, which may be pid 1. Nobody has seen what that does: not
        # played.
        if os.getppid() == self.launcher:
            process.kill([self.launcher], signal.SIGQUIT)

    def load(self, rank: int) -> None:
        gpus = visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
        position = (self.args.base_gpu_id or 0) + rank * (self.args.gpu_id_step or 1)
        if position >= len(gpus):
            raise Trouble(recorded.FATAL["too few"].format(tp=self.tp, gpus=len(gpus)))
        self.log.say("connect")
        card = Card(gpus[position], self.fraction, rank, self.faults.seconds("late-contexts", 0))
        if self.faults("hang-loading") is not None:
            while True:
                signal.pause()
        self.log.say("connected")
        card.check("unbalanced")
        self.clock.until("weights")
        self.log.say("weights", **card.values())
        began = self.clock.elapsed()
        total = len(self.model.shards)
        crash = self.faults("crash-loading") if rank == self.tp - 1 else None
        begin, end = DATA["phases"]["weights"], DATA["phases"]["loaded"]
        for n in range(total):
            self.model.shard(n)
            if rank == 0:
                self.log.progress(n, total, self.clock.elapsed() - began)
            self.clock.until(begin + (end - begin) * (n + 1) / total)
            card.memory.resize(512 + (card.weights - 512) * (n + 1) // total)
            if crash is not None and n >= total // 2:
                card.crash(crash)
        seconds = self.clock.elapsed() - began
        if rank == 0:
            self.log.progress(total, total, seconds)
            process.write(2, "\n")
        card.memory.resize(card.wanted)
        self.log.say("loaded", weights_seconds=seconds, architecture=self.model.architecture, **card.values())
        if rank == 0:
            self.log.say("graphs")


def serve(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    return Engine(args, flags.given(parser, args)).main()
