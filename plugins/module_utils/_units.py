# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""systemd units as frozen data, a handful of verbs, and the cgroup v2 files of a unit.

Everything is asked of `systemctl` in as few calls as possible, each with a deadline: a manager that hangs
becomes a UnitsError that names the call, never a module that hangs with it.
"""

from __future__ import annotations

import errno
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


class UnitsError(Exception):
    """systemd or the cgroup file system could not be asked, or refused; the text is for the operator."""


@dataclass(frozen=True)
class Completed:
    """A command that ended: its exit status and what it printed."""

    rc: int
    out: str
    err: str


Runner = Callable[[Sequence[str], float], Completed]
"""Runs argv with a deadline in seconds; raises UnitsError when it passes or the program is missing."""


def run_command(argv: Sequence[str], timeout: float) -> Completed:
    """Run argv and return what it printed; UnitsError after timeout seconds or for a missing program."""
    try:
        # AnsibleModule.run_command has no deadline.
        child = subprocess.Popen(  # pylint: disable=ansible-bad-function
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise UnitsError(f"cannot run {argv[0]}: {error.strerror}") from error
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        # Waited for only briefly: a client of a stuck manager may be stuck as well.
        child.kill()
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=1)
        who = "the service manager" if "systemctl" in argv else argv[0]
        raise UnitsError(f"`{shlex.join(argv)[:256]}` did not answer within {timeout:g} s: {who} hangs") from None
    return Completed(child.returncode, out, err)


# --- units ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """One unit as `systemctl show` tells it. Durations in seconds; '' and () where systemd says nothing."""

    name: str
    load_state: str
    active_state: str
    sub_state: str
    unit_file_state: str
    fragment_path: str
    drop_in_paths: tuple[str, ...]
    main_pid: int
    control_group: str
    """Path below the cgroup root, '' when the unit has none (never ran, or is gone)."""
    exec_start: tuple[str, ...]
    """The command line split on spaces: systemd prints it without its quotes."""
    environment_files: tuple[str, ...]
    environment: tuple[str, ...]
    """`NAME=value` of Environment=, which may hold secrets: never shown."""
    stop_timeout: float
    """TimeoutStopSec; math.inf for `infinity`."""
    kill_mode: str
    send_sigkill: bool
    restart: str
    result: str
    n_restarts: int
    invocation_id: str
    need_daemon_reload: bool
    triggered_by: tuple[str, ...]
    upheld_by: tuple[str, ...]
    required_by: tuple[str, ...]
    bound_by: tuple[str, ...]
    on_failure: tuple[str, ...]
    user: str
    job: int
    """Number of the queued or running job, 0 for none."""
    condition_result: bool
    assert_result: bool
    exec_main_code: int
    """How the last main process ended, as in waitid(2): 0 not yet, 1 exited, 2 killed, 3 dumped core."""
    exec_main_status: int
    """Its exit status, or the number of the signal that killed it."""
    started: float
    """When its present or last activation began, on CLOCK_MONOTONIC; 0 for never."""
    active_since: float = 0.0
    """When it became active the last time, also by an automatic restart, on the same clock; 0 for never."""
    on_failure_of: tuple[str, ...] = ()
    on_success: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    """What a socket, timer or path starts."""
    since_boot: bool = False
    """A timer that counts from the boot or from its own start: once stopped it would begin to count anew."""

    @property
    def exists(self) -> bool:
        """A unit file was found; it may still be masked or broken, which load_state says."""
        return self.load_state not in ("not-found", "")

    @property
    def running(self) -> bool:
        """Processes of the unit may exist: it is neither at rest nor waiting for an automatic restart."""
        return self.active_state not in ("inactive", "failed") and not self.restarting

    @property
    def restarting(self) -> bool:
        """It failed and waits for its automatic restart."""
        # systemd 254 split this state: auto-restart and auto-restart-queued.
        return self.sub_state.startswith("auto-restart")


_PROPERTIES = (
    "Id", "LoadState", "ActiveState", "SubState", "UnitFileState", "FragmentPath", "DropInPaths", "MainPID",
    "ControlGroup", "ExecStart", "EnvironmentFiles", "Environment", "TimeoutStopUSec", "KillMode", "SendSIGKILL",
    "Restart", "Result", "NRestarts", "InvocationID", "NeedDaemonReload", "TriggeredBy", "UpheldBy",
    "RequiredBy", "BoundBy", "OnFailure", "User", "Job", "ConditionResult", "AssertResult", "ExecMainCode",
    "ExecMainStatus",
    "InactiveExitTimestampMonotonic", "OnFailureOf", "OnSuccess", "Triggers", "TimersMonotonic",
    "ActiveEnterTimestampMonotonic",
)  # fmt: skip

_SINCE_BOOT = ("OnBootUSec", "OnStartupUSec", "OnActiveUSec")
_PROPERTY_LINE = re.compile("(" + "|".join(_PROPERTIES) + ")=")
_EXEC_ARGV = re.compile(r"argv\[\]=(.*?) ; ignore_errors=", re.DOTALL)
_IGNORE_ERRORS = re.compile(r" \(ignore_errors=(?:yes|no)\)$")

_Block = dict[str, list[str]]


def parse_show(text: str) -> list[Unit]:
    """Units from the output of `systemctl show --all` limited to our properties, in its order."""
    return [_unit(block) for block in _blocks(text)]


def _blocks(text: str) -> Iterator[_Block]:
    # A command line may contain newlines, even empty lines. A unit's Id comes after all that is free text, so
    # a block ends at the first blank line that has an Id before it and a property after it.
    block: _Block = {}
    last: list[str] = []
    lines = text.split("\n")
    for number, line in enumerate(lines):
        known = _PROPERTY_LINE.match(line)
        if known:
            last = block.setdefault(known.group(1), [])
            last.append(line[known.end() :])
        elif not line and "Id" in block and (number + 1 == len(lines) or _PROPERTY_LINE.match(lines[number + 1])):
            yield block
            block = {}
        elif last:
            last[-1] += "\n" + line
    if block:
        yield block


def _unit(block: _Block) -> Unit:
    def text(name: str) -> str:
        return block.get(name, [""])[0]

    def words(name: str) -> tuple[str, ...]:
        return tuple(word for value in block.get(name, []) for word in _split(value))

    def number(name: str) -> int:
        value = text(name)
        return int(value) if re.fullmatch("[0-9]{1,20}", value) else 0

    commands = _EXEC_ARGV.search(text("ExecStart"))
    return Unit(
        name=text("Id"),
        load_state=text("LoadState"),
        active_state=text("ActiveState"),
        sub_state=text("SubState"),
        unit_file_state=text("UnitFileState"),
        fragment_path=text("FragmentPath"),
        drop_in_paths=words("DropInPaths"),
        main_pid=number("MainPID"),
        control_group=text("ControlGroup"),
        exec_start=tuple(commands.group(1).split()) if commands else (),
        environment_files=tuple(_IGNORE_ERRORS.sub("", value) for value in block.get("EnvironmentFiles", []) if value),
        environment=words("Environment"),
        stop_timeout=parse_duration(text("TimeoutStopUSec")),
        kill_mode=text("KillMode"),
        send_sigkill=text("SendSIGKILL") != "no",
        restart=text("Restart"),
        result=text("Result"),
        n_restarts=number("NRestarts"),
        invocation_id=text("InvocationID"),
        need_daemon_reload=text("NeedDaemonReload") == "yes",
        triggered_by=words("TriggeredBy"),
        upheld_by=words("UpheldBy"),
        required_by=words("RequiredBy"),
        bound_by=words("BoundBy"),
        on_failure=words("OnFailure"),
        user=text("User"),
        job=number("Job"),
        condition_result=text("ConditionResult") == "yes",
        assert_result=text("AssertResult") == "yes",
        exec_main_code=number("ExecMainCode"),
        exec_main_status=number("ExecMainStatus"),
        started=number("InactiveExitTimestampMonotonic") / 1e6,
        active_since=number("ActiveEnterTimestampMonotonic") / 1e6,
        on_failure_of=words("OnFailureOf"),
        on_success=words("OnSuccess"),
        triggers=words("Triggers"),
        since_boot=any(base in timer for timer in block.get("TimersMonotonic", []) for base in _SINCE_BOOT),
    )


def _split(value: str) -> list[str]:
    # Lists are printed quoted for a shell where an element needs it (systemd-escaped unit names do).
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()


_SECONDS = {
    "y": 31557600.0, "month": 2629800.0, "w": 604800.0, "d": 86400.0,
    "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6,
}  # fmt: skip


def parse_duration(text: str) -> float:
    """Seconds from a time span as systemd prints it (`1min 30s`, `infinity`); 0 for ''.

    UnitsError if it is none.
    """
    if text == "infinity":
        return float("inf")
    total = 0.0
    for word in text.split():
        match = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?)([a-z]*)", word)
        if not match or (match.group(2) or "us") not in _SECONDS:
            raise UnitsError(f"systemd printed a time span we cannot read: {text[:64]!r}")
        total += float(match.group(1)) * _SECONDS[match.group(2) or "us"]
    return total


class Units:
    """The system service manager. Each call is one `systemctl` with a deadline; failures are UnitsError."""

    def __init__(self, runner: Runner = run_command, timeout: float = 20.0) -> None:
        self._runner = runner
        self._timeout = timeout

    def show(self, names: Sequence[str]) -> dict[str, Unit]:
        """The named units, keyed by the name they were asked by; a missing one has load_state `not-found`."""
        if not names:
            return {}
        units = self._show(names)
        if len(units) != len(names):
            raise UnitsError(f"asked systemd for {len(names)} units and read {len(units)} from its answer")
        return dict(zip(names, units))

    def all_services(self) -> dict[str, Unit]:
        """Every service that systemd has in memory, keyed by its name."""
        return {unit.name: unit for unit in self._show(["*.service"])}

    def start(self, name: str) -> None:
        """Queue a start and return at once."""
        self._systemctl("start", "--no-block", "--", name)

    def stop(self, names: Sequence[str]) -> None:
        """Queue the stop of all names in one transaction and return at once."""
        if names:
            self._systemctl("stop", "--no-block", "--", *names)

    def restart(self, name: str) -> None:
        """Queue a restart (a start, if it is not running) and return at once."""
        self._systemctl("restart", "--no-block", "--", name)

    def daemon_reload(self) -> None:
        """Read all unit files again."""
        self._systemctl("daemon-reload")

    def reset_failed(self, name: str) -> None:
        """Forget that the unit failed, and its counts of starts and restarts. What systemd has not loaded has none."""
        try:
            self._systemctl("reset-failed", "--", name)
        except UnitsError as error:
            if "not loaded" not in str(error):
                raise

    def enable(self, name: str) -> None:
        """Start the unit at boot."""
        self._systemctl("enable", "--quiet", "--", name)

    def disable(self, name: str) -> None:
        """Do not start the unit at boot."""
        self._systemctl("disable", "--quiet", "--", name)

    def _show(self, patterns: Sequence[str]) -> list[Unit]:
        return parse_show(self._systemctl("show", "--all", "--property=" + ",".join(_PROPERTIES), "--", *patterns))

    def _systemctl(self, *arguments: str) -> str:
        argv = ["systemctl", "--no-pager", "--no-ask-password", *arguments]
        done = self._runner(argv, self._timeout)
        if done.rc != 0:
            said = " ".join((done.err or done.out).split())[:256] or f"exit status {done.rc}"
            raise UnitsError(f"`systemctl {shlex.join(arguments)[:200]}` failed: {said}")
        return done.out


def systemd_runs(directory: Path = Path("/run/systemd/system")) -> bool:
    """Whether systemd is this host's service manager, as sd_booted(3) tells."""
    return directory.is_dir()


# --- cgroup v2 --------------------------------------------------------------------------------------

CGROUP_ROOT = Path("/sys/fs/cgroup")

# What reading a cgroup file gives when the cgroup is removed between the look and the read.
_GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR)


def cgroup_version(root: Path = CGROUP_ROOT) -> str:
    """`v2`, `hybrid`, `v1` or `none`: how cgroups are mounted at root."""
    if (root / "cgroup.controllers").exists():
        return "v2"
    if (root / "unified" / "cgroup.controllers").exists():
        return "hybrid"
    return "v1" if (root / "systemd").is_dir() or (root / "cpu").is_dir() else "none"


def require_cgroup_v2(root: Path = CGROUP_ROOT) -> None:
    """UnitsError unless the host has the unified hierarchy, which alone tells a unit's processes for sure."""
    version = cgroup_version(root)
    if version != "v2":
        raise UnitsError(
            f"cgroup v2 is needed at {root}, found: {version}; boot the host with systemd.unified_cgroup_hierarchy=1"
        )


def cgroup_dir(control_group: str, root: Path = CGROUP_ROOT) -> Path:
    """Directory of a unit's cgroup; UnitsError for '', '/' and whatever is not strictly below the root."""
    parts = [part for part in control_group.split("/") if part]
    if not parts or ".." in parts:
        raise UnitsError(f"not the cgroup of a unit: {control_group!r}")
    return root.joinpath(*parts)


def cgroup_pids(control_group: str, root: Path = CGROUP_ROOT) -> set[int]:
    """Pids in the cgroup and all below it; empty when it is gone or the unit has none ('')."""
    if not control_group:
        return set()
    require_cgroup_v2(root)
    pids: set[int] = set()
    for directory in _tree(cgroup_dir(control_group, root)):
        # 0 stands for a process of another pid namespace.
        pids.update(pid for pid in map(int, _read(directory / "cgroup.procs").split()) if pid)
    return pids


def cgroup_populated(control_group: str, root: Path = CGROUP_ROOT) -> bool:
    """Whether a living process is in the cgroup or below it (zombies do not count); False when it is gone."""
    if not control_group:
        return False
    require_cgroup_v2(root)
    return "populated 1" in _read(cgroup_dir(control_group, root) / "cgroup.events").splitlines()


def cgroup_io_bytes(control_group: str, root: Path = CGROUP_ROOT) -> int:
    """Bytes that the cgroup's processes moved from and to block devices; 0 where nobody counts them."""
    if not control_group:
        return 0
    counts = re.findall(r"\b[rw]bytes=(\d+)", _read(cgroup_dir(control_group, root) / "io.stat"))
    return sum(map(int, counts))


def cgroup_kill(control_group: str, root: Path = CGROUP_ROOT) -> None:
    """SIGKILL all processes in the cgroup and below it at once; UnitsError where the kernel cannot (< 5.14)."""
    require_cgroup_v2(root)
    directory = cgroup_dir(control_group, root)
    try:
        # Opened without O_CREAT: on anything but a cgroup file system a file must not appear.
        with open(directory / "cgroup.kill", "r+", encoding="ascii") as kill:
            kill.write("1")
    except OSError as error:
        if error.errno not in _GONE:
            raise UnitsError(f"cannot kill the cgroup {control_group}: {error.strerror}") from error
        if directory.is_dir():
            raise UnitsError(
                f"cannot kill the cgroup {control_group} as a whole: no cgroup.kill here, needs kernel 5.14"
            ) from error


def _tree(directory: Path) -> Iterable[Path]:
    yield directory
    try:
        children = [child for child in directory.iterdir() if child.is_dir()]
    except OSError as error:
        if error.errno not in _GONE:
            raise UnitsError(f"cannot list {directory}: {error.strerror}") from error
        return
    for child in children:
        yield from _tree(child)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError as error:
        # EOPNOTSUPP: a threaded cgroup, whose processes its parent lists.
        if error.errno in _GONE or error.errno == errno.EOPNOTSUPP:
            return ""
        raise UnitsError(f"cannot read {path}: {error.strerror}") from error
