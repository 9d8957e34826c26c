# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Start, stop and restart an engine unit, and stay with it until it is ready or the cause of its failure is known."""

from __future__ import annotations

import hashlib
import select
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Protocol

from ansible_collections.gpuops.inference.plugins.module_utils._drift import (
    Difference,
    Running,
    differences,
    fingerprint,
)
from ansible_collections.gpuops.inference.plugins.module_utils._engines import (
    ENGINES,
    Serving,
    argument,
    recognise_command,
    serving,
)
from ansible_collections.gpuops.inference.plugins.module_utils._environment import (
    configured_key,
    parse_assignments,
    read_environment,
    secrets_of,
)
from ansible_collections.gpuops.inference.plugins.module_utils._hold import UNIT_NAME, HoldError, Holds
from ansible_collections.gpuops.inference.plugins.module_utils._holders import (
    cgroup,
    find_nodes,
    process_table,
    scan_descriptors,
)
from ansible_collections.gpuops.inference.plugins.module_utils._log import Log, journalctl
from ansible_collections.gpuops.inference.plugins.module_utils._masking import (
    mask_argv,
    mask_command,
    mask_text,
    printable,
)
from ansible_collections.gpuops.inference.plugins.module_utils._options import service_name
from ansible_collections.gpuops.inference.plugins.module_utils._paths import STARTS
from ansible_collections.gpuops.inference.plugins.module_utils._ports import Listener, listeners
from ansible_collections.gpuops.inference.plugins.module_utils._ready import (
    Ask,
    Asking,
    Look,
    NoAnswer,
    Pace,
    asker,
    complete,
    look,
)
from ansible_collections.gpuops.inference.plugins.module_utils._record import RecordError, now, read_start, write_json
from ansible_collections.gpuops.inference.plugins.module_utils._starting import Start, Verdict
from ansible_collections.gpuops.inference.plugins.module_utils._units import (
    Runner,
    Unit,
    Units,
    UnitsError,
    cgroup_io_bytes,
    cgroup_pids,
    require_cgroup_v2,
    run_command,
)

# Between two looks at the unit and its answers, in seconds. A line of its log wakes us earlier.
_PACE = 0.25
# An engine that was ready all the time says so in its first answer, or it is slow to answer; only then its log is read.
_FIRST_ANSWER = 5.0
# A counter that moves is told this often; a new phase at once.
_TELL = 5.0

# What is completed where a pace is asked for and no prompts are given.
_PROMPT = "Count from one to one thousand, in words:"

# Command lines whose last good start is remembered.
_KEPT = 8

_DEFAULT_STOP = 120.0
# After TimeoutStopSec systemd kills: what the kernel needs for that.
_KILLING = 15.0
# A stop that only cleans up behind a failure is ordered and not waited for much.
_CLEANING = 10.0


class ServiceError(Exception):
    """What was asked for was refused or did not come about; the text is the reason in words."""


class Readable(Protocol):
    """Something that select(2) can wait for."""

    def fileno(self) -> int: ...


class Looks(Readable, Protocol):
    """Looks at an engine, made while we do something else; see _ready.Asking."""

    def ask(self) -> None: ...

    def take(self) -> Optional[Look]: ...


class Lines(Readable, Protocol):
    """A log that is followed; see _log.Log."""

    ended: bool

    def lines(self) -> list[str]: ...


def gpu_users() -> list[Listener]:
    """Processes that have a GPU and its unified memory open, as all do that compute and no monitor does."""
    processes = process_table()
    scan = scan_descriptors(processes.values(), find_nodes())
    users = sorted(pid for pid, opened in scan.by_pid.items() if opened.minors and opened.uvm)
    return [Listener(pid, processes[pid].comm, cgroup(pid)) for pid in users]


def _wait(sources: Sequence[Readable], seconds: float) -> None:
    select.select(sources, [], [], seconds)


@dataclass(frozen=True)
class Host:
    """Everything outside this module: the real host, or a scripted one."""

    units: Units = field(default_factory=Units)
    holds: Holds = field(default_factory=Holds)
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    wait: Callable[[Sequence[Readable], float], None] = _wait
    follow: Callable[[str], AbstractContextManager[Lines]] = lambda invocation: Log(journalctl(invocation))
    asker: Callable[[str, int, Optional[str]], Ask] = asker
    asking: Callable[[Callable[[], Look]], AbstractContextManager[Looks]] = Asking
    runner: Runner = run_command
    listeners: Callable[[int, str], list[Listener]] = listeners
    gpu_users: Callable[[], list[Listener]] = gpu_users
    pids: Callable[[str], set[int]] = cgroup_pids
    io_bytes: Callable[[str], int] = cgroup_io_bytes
    require_cgroups: Callable[[], None] = require_cgroup_v2
    starts: Path = STARTS
    tell: Callable[[Mapping[str, Any]], None] = lambda progress: None
    """Hears of every change while something is waited for: unit, phase, status, seconds since the beginning, and how
    long the rest may take, in words."""


@dataclass(frozen=True)
class Order:
    """What is wanted. Times in seconds; None means: as the unit says."""

    name: str
    state: str
    engine: Optional[str] = None
    host: Optional[str] = None
    port: Optional[int] = None
    served_model: Optional[str] = None
    enabled: Optional[bool] = None
    lift_hold: bool = False
    ready_timeout: float = 3600.0
    stall_timeout: float = 600.0
    stop_timeout: Optional[float] = None
    restart_on_drift: bool = False
    log_lines: int = 20
    warmup_prompts: Sequence[str] = ()
    warmup_tokens: int = 128
    warmup_concurrency: int = 1
    min_tokens_per_second: float = 0.0
    check_mode: bool = False


class Service:
    """One order on one host. run() never raises for what can go wrong on a host: it returns it."""

    def __init__(self, host: Host, order: Order) -> None:
        self._host = host
        self._order = order
        self._name = service_name(order.name)
        self._began = host.clock()
        self._stale = False
        self._key: Optional[str] = None
        self._secrets: list[str] = []
        self._variables: dict[str, str] = {}
        self._drift: list[Difference] = []
        self._told: tuple[str, float] = ("", 0.0)
        self._status = ""
        self._expected: Optional[float] = None
        self._result: dict[str, Any] = {
            "failed": False,
            "changed": False,
            "msg": "",
            "reason": "",
            "state": {"before": "", "after": ""},
            "ready": None,
            "up": None,
            "process": None,
            "drift": [],
            "log": [],
            "stages": [],
            "held": None,
            "warmup": None,
            "diff": {"before": {}, "after": {}},
        }

    def run(self) -> dict[str, Any]:
        """Do it. The same keys for success and failure; `failed` tells which."""
        result = self._result
        try:
            if not UNIT_NAME.match(self._name):
                raise ServiceError(f"{self._name!r} is no name of a service unit")
            self._host.require_cgroups()
            message = self._carry_out(self._read())
        except (ServiceError, UnitsError, HoldError, RecordError) as error:
            result["failed"] = True
            result["reason"] = self._shown(str(error), 1024)
            message = f"{self._name}: {error}"
        result["msg"] = self._shown(message, 1024)
        return result

    # --- the order

    def _read(self) -> Unit:
        unit = self._show()
        state = _state(unit)
        self._result["state"] = {"before": state, "after": state}
        self._result["diff"]["before"] = {"state": state, "enabled": unit.unit_file_state}
        self._result["diff"]["after"] = {"state": state, "enabled": unit.unit_file_state}
        return unit

    def _carry_out(self, unit: Unit) -> str:
        order = self._order
        if not unit.exists and not unit.running:
            # In check mode the role that deploys the unit has not done it either.
            if order.check_mode and order.state not in ("stopped", "ready"):
                return self._would("start", "ready", "once its unit is there")
            raise ServiceError("there is no such unit on this host; `systemctl list-units --all` shows what there is")
        if unit.load_state not in ("loaded", "not-found"):
            masked = f"; `systemctl unmask {self._name}` lets it start" if unit.load_state == "masked" else ""
            raise ServiceError(f"systemd cannot use the unit: it is {unit.load_state}{masked}")
        self._stale = unit.need_daemon_reload
        if self._stale and not order.check_mode and order.state != "ready":
            self._host.units.daemon_reload()
            unit = self._show()
        self._check_engine(unit)
        carry_out = {
            "started": self._started, "stopped": self._stopped, "restarted": self._restarted, "ready": self._ready
        }[order.state]  # fmt: skip
        message = carry_out(unit)
        self._enable(unit)
        return message

    def _started(self, unit: Unit) -> str:
        if not unit.running:
            return self._start(unit)
        if unit.active_state == "deactivating":
            if self._order.check_mode:
                return self._would("start", "ready", "once it has stopped")
            return self._restarted(unit)
        because = self._look_for_drift(unit)
        if because and self._order.restart_on_drift:
            return f"{self._restarted(unit)}; restarted because {'; '.join(because)}"
        if self._order.check_mode:
            return f"{self._name} runs"
        return self._accompany(unit, None)

    def _ready(self, unit: Unit) -> str:
        """Look once, and change nothing."""
        if not unit.running or unit.active_state == "deactivating":
            raise ServiceError(f"it does not serve, it is {_state(unit)}")
        if self._order.enabled not in (None, unit.unit_file_state == "enabled"):
            raise ServiceError(f"its unit file is {unit.unit_file_state}")
        because = self._look_for_drift(unit)
        if because:
            raise ServiceError(f"it is not what its files say: {'; '.join(because)}")
        argv = self._argv(unit.main_pid)
        where = self._serving(unit, argv)
        ask = self._host.asker(where.host, where.port, self._key)
        found = look(
            ask, ENGINES[where.engine], where.served_model, self._host.clock, lambda: self._stranger(unit, where)
        )  # fmt: skip
        self._result["process"] = self._process(unit.main_pid, argv, where.engine)
        if not found.ready:
            raise ServiceError(f"it is not ready: {found.problem}")
        self._result["state"] = {"before": "ready", "after": "ready"}
        # An engine may load for longer than it is to prove itself.
        loading = self._good_starts().get(_digest(unit), 0.0)
        self._result["up"] = round(max(self._host.clock() - unit.active_since - loading, 0.0), 1)
        return f"{self._name} answers for {where.served_model or 'its model'} on {where.host} port {where.port}"

    def _look_for_drift(self, unit: Unit) -> list[str]:
        """Note every difference, and return those that a restart cures."""
        self._drift = self._differences(unit)
        self._result["drift"] = [self._shown(str(difference), 512) for difference in self._drift]
        return [difference.text for difference in self._drift if difference.restart]

    def _restarted(self, unit: Unit) -> str:
        if not unit.running:
            return self._start(unit)
        if self._order.check_mode:
            self._read_hold()
            return self._would("restart", "ready")
        # Before anything is stopped: what is known to be refused afterwards is refused now.
        self._lift_hold()
        self._stop(unit)
        return self._start(self._show())

    def _stopped(self, unit: Unit) -> str:
        if unit.running or unit.restarting:
            if self._order.check_mode:
                return self._would("stop", "stopped")
            self._stop(unit)
            return f"{self._name} is stopped"
        self._check_leftovers(unit)
        return f"{self._name} is stopped already"

    def _start(self, unit: Unit) -> str:
        order, units = self._order, self._host.units
        if order.check_mode:
            self._read_hold()
            return self._would("start", "ready")
        self._lift_hold()
        unit = self._show()
        self._check_port(unit)
        if unit.restarting:
            self._stop(unit)
            unit = self._show()
        # The limit is for crash loops, and we are none: a few pivots to and fro would reach it as well, maybe on the
        # way back. systemd 252 also keeps the count of restarts of a unit that was stopped as it waited for the
        # next, and that would look like a loop of ours.
        units.reset_failed(self._name)
        files = fingerprint(unit)
        units.start(self._name)
        return self._accompany(unit, files)

    def _enable(self, unit: Unit) -> None:
        wanted = self._order.enabled
        if wanted is None or wanted == (unit.unit_file_state == "enabled"):
            return
        self._result["changed"] = True
        state = "enabled" if wanted else "disabled"
        if not self._order.check_mode:
            (self._host.units.enable if wanted else self._host.units.disable)(self._name)
            state = self._show().unit_file_state
            if wanted != (state == "enabled"):
                raise ServiceError(f"cannot be {'enabled' if wanted else 'disabled'}: its unit file is {state}")
        self._result["diff"]["after"]["enabled"] = state

    # --- before a start

    def _check_engine(self, unit: Unit) -> None:
        recognised = recognise_command(unit.exec_start)
        engine = self._order.engine or (recognised.engine if recognised else "")
        if not engine:
            raise ServiceError(
                f"this is no engine's unit, it runs `{mask_command(unit.exec_start)}`; if it is one, name its engine "
                "(`engine: vllm`)"
            )
        try:
            self._variables = read_environment(unit.environment_files)
            variables = {**parse_assignments(unit.environment), **self._variables}
            keys = [
                *(variables.get(name) for name in ENGINES[engine].key_variables),
                argument(unit.exec_start, "--api-key"),
                configured_key(argument(unit.exec_start, "--config")),
            ]
        except OSError as error:
            raise ServiceError(f"{error.filename}, which it reads, cannot be read: {error.strerror}") from error
        known = [key for key in keys if key]
        self._key = known[0] if known else None
        self._secrets = [*secrets_of(variables), *known]

    def _serving(self, unit: Unit, argv: Sequence[str]) -> Serving:
        """Where it answers: as the running process was told, else as the unit will tell it."""
        order = self._order
        command = argv if recognise_command(argv) else unit.exec_start
        recognised = recognise_command(command)
        found = serving(order.engine or (recognised.engine if recognised else ""), command)
        return Serving(
            engine=found.engine,
            host=order.host or found.host,
            port=order.port or found.port,
            served_model=order.served_model or found.served_model,
            model=found.model,
            profiling=found.profiling,
        )

    def _read_hold(self) -> None:
        hold = self._host.holds.read(self._name)
        if hold is not None and not self._order.lift_hold:
            self._result["held"] = {"reason": hold.reason, "who": hold.who, "since": hold.since, "until": hold.until}
            raise ServiceError(f"{hold}; lift_hold would start it all the same")

    def _lift_hold(self) -> None:
        self._read_hold()
        self._host.holds.lift([self._name], self._host.units)

    def _check_port(self, unit: Unit) -> None:
        where = self._serving(unit, ())
        bound = argument(unit.exec_start, "--host") or where.host
        own = self._host.pids(unit.control_group)
        others = [found for found in self._host.listeners(where.port, bound) if found.pid not in own]
        if others:
            raise ServiceError(f"port {where.port} is taken by {others[0]}; nothing was started")

    # --- a start that goes on

    def _accompany(self, unit: Unit, files: Optional[dict[str, str]]) -> str:
        """Stay with a start until its end; files is the fingerprint of one that is ours, None for one we found."""
        host, result, ours = self._host, self._result, files is not None
        argv = () if ours else self._argv(unit.main_pid)
        where = self._serving(unit, argv)
        began = host.clock()
        start = Start(
            ENGINES[where.engine],
            began,
            self._order.ready_timeout,
            self._order.stall_timeout,
            unit.invocation_id if ours else None,
        )
        since = "its start" if ours else "this task joined its start"
        took = self._good_starts().get(_digest(unit))
        self._expected = None if took is None else (began if ours else unit.started) + took
        verdict, at_once = self._watch(start, where, ours)
        ended = host.clock()
        if ours and start.invocation:
            result["changed"] = True
            self._record_start(unit, start.invocation, files, ended - began if verdict.ready else None)
        after = self._show()

        if not at_once:
            self._add_stages(start, ended, f"start {self._name}" if ours else "")
        result["log"] = [self._shown(line, 512) for line in list(start.tail)[-self._order.log_lines :]]
        result["process"] = self._process(after.main_pid, self._argv(after.main_pid), where.engine)
        result["ready"] = {
            "seconds": round(ended - began, 3) if verdict.ready else None,
            **{name: round(start.passed[name] - began, 3) if name in start.passed else None for name in _CHECKS},
        }
        if not verdict.ready:
            raise ServiceError(self._failure(start, verdict, where, after, f"{ended - began:.1f} s after {since}"))
        host.holds.forget_owed([self._name])
        if at_once:
            result["state"]["before"] = result["diff"]["before"]["state"] = "ready"
        self._becomes("ready")
        answers = f"{self._name} answers for {where.served_model or 'its model'} on {where.host} port {where.port}"
        if at_once:
            drift = "; ".join(difference.text for difference in self._drift)
            return f"{answers}, but {drift}" if drift else answers
        return f"{answers}, ready {ended - began:.1f} s after {since}{self._warm_up(where, start.model)}"

    def _warm_up(self, where: Serving, model: str) -> str:
        """Have the prompts completed and, where there is a floor, once more to see how fast that goes."""
        order, host = self._order, self._host
        floor = order.min_tokens_per_second
        prompts = list(order.warmup_prompts) or ([_PROMPT] * order.warmup_concurrency if floor else [])
        if not prompts:
            return ""
        began = host.clock()
        self._tell("warming up", f"warming up with {len(prompts)} prompts", began)
        ask = host.asker(where.host, where.port, self._key)

        def once() -> Pace:
            return complete(
                ask,
                ENGINES[where.engine],
                model,
                prompts,
                order.warmup_tokens,
                max(1, order.warmup_concurrency),
                host.clock,
            )

        try:
            pace = once()
            if floor:
                # The first round compiled what was left to compile.
                pace = once()
        except NoAnswer as error:
            raise ServiceError(f"it became ready and does not get through the warm-up: {error}") from error
        finally:
            self._add_stage("warm-up", host.clock() - began)
        self._result["warmup"] = {
            "prompts": pace.prompts,
            "concurrency": pace.concurrency,
            "tokens": pace.tokens,
            "seconds": round(pace.seconds, 3),
            "tokens_per_second": round(pace.tokens_per_second, 1),
        }
        if pace.tokens_per_second < floor:
            raise ServiceError(
                f"it is too slow: {pace}, at least {floor:g} are asked for (gpuops_min_tokens_per_second)"
            )
        return f", generates {pace}"

    def _watch(self, start: Start, where: Serving, ours: bool) -> tuple[Verdict, bool]:
        """The verdict, and whether it was ready before anything had to be waited for."""
        host = self._host
        began = host.clock()
        latest = self._show()
        log: Optional[Lines] = None

        def stranger() -> str:
            return self._stranger(latest, where)

        def once() -> Look:
            ask = host.asker(where.host, where.port, self._key)
            return look(ask, ENGINES[where.engine], where.served_model, host.clock, stranger)

        with ExitStack() as stack:
            asking = stack.enter_context(host.asking(once))
            asked_at = shown_at = began - _PACE
            while True:
                moment = host.clock()
                if moment - shown_at >= _PACE:
                    latest, shown_at = self._show(), moment
                    start.see_unit(moment, latest, host.io_bytes(latest.control_group))
                found = asking.take()
                if found is not None:
                    start.see_look(moment, found)
                    asked_at = moment
                waits = ours or (found is not None and not found.ready) or moment - began >= _FIRST_ANSWER
                if log is None and start.invocation and waits:
                    log = stack.enter_context(host.follow(start.invocation))
                for line in log.lines() if log is not None else ():
                    start.see_line(moment, mask_text(line, self._secrets))
                verdict = start.verdict(moment)
                if verdict is not None:
                    return verdict, verdict.ready and log is None
                self._tell(start.phase, start.status, moment)
                if latest.running and moment - asked_at >= _PACE:
                    asking.ask()
                sources: list[Readable] = [asking]
                if log is not None and not log.ended:
                    sources.append(log)
                host.wait(sources, _PACE)

    def _stranger(self, unit: Unit, where: Serving) -> str:
        # Where it cannot be told, the model list still tells a wrong engine.
        try:
            own = self._host.pids(unit.control_group)
            found = self._host.listeners(where.port, where.host)
        except (OSError, UnitsError):
            return ""
        others = [listener for listener in found if listener.pid and listener.pid not in own]
        return str(others[0]) if own and others and len(others) == len(found) else ""

    def _failure(self, start: Start, verdict: Verdict, where: Serving, unit: Unit, when: str) -> str:
        self._becomes(_state(unit))
        if not start.invocation:
            return verdict.reason
        text = f"not ready, failed {when} while {start.status}: {verdict.reason}{self._others(verdict, where, unit)}"
        if not verdict.stop:
            return text
        self._host.units.stop([self._name])
        unit = self._settle(self._host.clock() + _CLEANING)
        self._becomes(_state(unit))
        return f"{text}; it was stopped" if not unit.running else f"{text}; it was told to stop"

    def _others(self, verdict: Verdict, where: Serving, unit: Unit) -> str:
        """Who else has what the engine could not get. Its log does not say that."""
        if not verdict.who:
            return ""
        try:
            own = self._host.pids(unit.control_group)
            port = verdict.who == "port"
            found = self._host.listeners(where.port, where.host) if port else self._host.gpu_users()
        except (OSError, UnitsError):
            return ""
        names = [str(other) for other in found if other.pid not in own]
        what = f"port {where.port} is" if port else "GPUs are"
        if not names:
            return f"; nobody else has {'that port' if port else 'a GPU open'} now"
        return f"; {what} open in {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"

    def _good_starts(self) -> dict[str, float]:
        """How long starts took until ready, in seconds, by the digest of the command line; the newest last."""
        return dict((read_start(self._host.starts, self._name) or {}).get("good", {}))

    def _record_start(
        self, unit: Unit, invocation: str, files: Optional[dict[str, str]], seconds: Optional[float]
    ) -> None:
        good = self._good_starts()
        if seconds is not None:
            good.pop(_digest(unit), None)
            good[_digest(unit)] = round(seconds, 1)
        record = {"unit": self._name, "invocation_id": invocation, "at": now(), "files": files or {}}
        kept = dict(list(good.items())[-_KEPT:])
        write_json(self._host.starts / f"{self._name}.json", {"version": 1, **record, "good": kept})

    # --- what runs

    def _differences(self, unit: Unit) -> list[Difference]:
        host = self._host
        environment = dict(word.partition("=")[::2] for word in self._words(unit.main_pid, "environ"))
        started_at = host.wall() - (host.clock() - unit.started)
        running = Running(self._argv(unit.main_pid), environment, started_at, self._stale)
        return differences(unit, running, read_start(host.starts, self._name), self._variables, self._secrets)

    def _process(self, pid: int, argv: Sequence[str], engine: str) -> dict[str, Any]:
        return {
            "pid": pid,
            "argv": mask_argv(argv, self._secrets),
            "profiling": mask_argv(serving(engine, argv).profiling, self._secrets),
        }

    def _argv(self, pid: int) -> tuple[str, ...]:
        """Command line of a process, () where it cannot be read."""
        argv = self._words(pid, "cmdline")
        # systemd has forked it and it has not become its program yet: `(vllm)`.
        return () if len(argv) == 1 and argv[0].startswith("(") else argv

    def _words(self, pid: int, file: str) -> tuple[str, ...]:
        """What the kernel keeps of a process. Read by a child: it can block for ever."""
        if not pid:
            return ()
        try:
            done = self._host.runner(["head", "-c", "131072", f"/proc/{pid}/{file}"], 5.0)
        except UnitsError:
            return ()
        return tuple(done.out.rstrip("\0").split("\0")) if done.out else ()

    # --- stopping

    def _stop(self, unit: Unit) -> None:
        """Stop it and wait for the end, or raise ServiceError at the deadline."""
        host = self._host
        began = host.clock()
        self._result["changed"] = True
        self._tell("stopping", "stopping", began)
        host.units.stop([self._name])
        patience = self._order.stop_timeout
        if patience is None:
            patience = (unit.stop_timeout if unit.stop_timeout < float("inf") else _DEFAULT_STOP) + _KILLING
        unit = self._settle(began + patience)
        self._becomes(_state(unit))
        self._add_stage("stop", host.clock() - began, f"stop {self._name}")
        if unit.running or unit.job:
            raise ServiceError(
                f"did not stop within {patience:g} s{self._members(unit)}; gpu_drain ends what does not stop by itself"
            )
        self._check_leftovers(unit)

    def _settle(self, deadline: float) -> Unit:
        unit = self._show()
        while (unit.running or unit.restarting or unit.job) and self._host.clock() < deadline:
            self._host.wait((), _PACE)
            unit = self._show()
        return unit

    def _check_leftovers(self, unit: Unit) -> None:
        if self._host.pids(unit.control_group):
            raise ServiceError(f"it is stopped and processes of it live on{self._members(unit)}; gpu_drain ends them")

    def _members(self, unit: Unit) -> str:
        pids = sorted(self._host.pids(unit.control_group))
        return f": pid {', '.join(map(str, pids[:8]))}{' ...' if len(pids) > 8 else ''}" if pids else ""

    # --- telling

    def _show(self) -> Unit:
        return self._host.units.show([self._name])[self._name]

    def _would(self, verb: str, state: str, when: str = "") -> str:
        self._result["changed"] = True
        self._becomes(state)
        return f"would {verb} {self._name}{f' {when}' if when else ''}"

    def _becomes(self, state: str) -> None:
        self._result["state"]["after"] = self._result["diff"]["after"]["state"] = state

    def _add_stage(self, name: str, seconds: float, *actions: str) -> None:
        self._result["stages"].append({"name": name, "seconds": round(seconds, 3), "actions": list(actions)})

    def _add_stages(self, start: Start, ended: float, action: str) -> None:
        ends = [*(stage.began for stage in start.stages[1:]), ended]
        for stage, end in zip(start.stages, ends):
            self._add_stage(stage.phase, end - stage.began, *([action] if action else []))
            action = ""

    def _shown(self, text: str, limit: int) -> str:
        return printable(mask_text(text, self._secrets), limit)

    def _tell(self, phase: str, status: str, moment: float) -> None:
        """Tell whoever watches how far we are: a new phase at once, a counter now and then."""
        told, at = self._told
        if phase != told or (status != self._status and moment - at >= _TELL):
            self._told, self._status = (phase, moment), status
            self._host.tell(
                {
                    "unit": self._name,
                    "phase": phase,
                    "status": status,
                    "seconds": round(moment - self._began, 1),
                    "rest": "" if self._expected is None else _rest(self._expected - moment),
                }
            )


def _digest(unit: Unit) -> str:
    return hashlib.sha256(" ".join(unit.exec_start).encode()).hexdigest()[:16]


def _rest(seconds: float) -> str:
    """How long a start still takes if it is like the last one."""
    if seconds < 1:
        return "longer than the last start"
    return f"about {f'{seconds:.0f} s' if seconds < 120 else f'{seconds / 60:.0f} min'} to go"


_CHECKS = ("health", "models", "completion")


def _state(unit: Unit) -> str:
    if unit.restarting:
        return "restarting"
    if not unit.running:
        return "failed" if unit.active_state == "failed" else "stopped" if unit.exists else "missing"
    return "stopping" if unit.active_state == "deactivating" else "running"
