# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Containers and users' units: what a manager of its own stops as a whole, who watches over it, and how it is stopped.

What can be read from /proc and the runtimes' own files is; a runtime is called only to stop something, with a deadline.
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._masking import printable
from ansible_collections.gpuops.inference.plugins.module_utils._owners import (
    CONTAINER,
    DOCKER,
    NERDCTL,
    POD,
    PODMAN,
    USER_UNIT,
    Owner,
)
from ansible_collections.gpuops.inference.plugins.module_utils._units import Completed, Runner, UnitsError, run_command

CLIENTS = (DOCKER, PODMAN, NERDCTL)
"""Programs that stay while the container runs, if they were told to run it in the foreground."""
MONITORS = ("conmon", "containerd-shim")
"""Beginnings of the names of the programs that watch one container each, as the kernel cuts them."""
ANSWER = 15.0
"""Seconds beyond a container's own time to stop, for its runtime to say that it is done."""
INSPECT = 10.0
"""Seconds for a runtime to say how it restarts a container: only for the report."""
VAR = Path("/var")
"""Where the runtimes and kubelet keep, by default, what they know."""


@dataclass(frozen=True)
class Managed:
    """A container or a user's unit that runs an engine or holds a GPU, with everybody in it."""

    owner: Owner
    pids: frozenset[int] = frozenset()
    engine: str = ""
    """The engine that runs in it; '' where none does."""
    alive: bool = True
    """Whether its monitor lives: without one no runtime stops it, and none would start it again."""
    alone: bool = True
    """Of a user's unit: that nobody is in it but the engine and what waits for it."""
    unit: str = ""
    """The system's unit that runs the container, and would run it again."""
    doubtful_unit: str = ""
    """The same, where that cannot be told for sure."""


@dataclass(frozen=True)
class Monitor:
    """The process that watches over one container."""

    pid: int
    namespace: str = ""
    name: str = ""


def find_monitors(argvs: Mapping[int, Sequence[str]]) -> dict[str, Monitor]:
    """By container id, its living monitor: podman's and cri-o's conmon, or containerd's (and docker's) shim."""
    monitors = {}
    for pid, argv in argvs.items():
        program = argv[0].rpartition("/")[2] if argv else ""
        if program == "conmon" and (identifier := _value(argv, "-c", "--cid")):
            monitors[identifier] = Monitor(pid, name=_value(argv, "-n", "--name"))
        elif program.startswith("containerd-shim") and (identifier := _value(argv, "-id")):
            monitors[identifier] = Monitor(pid, _value(argv, "-namespace"))
    return monitors


def _value(argv: Sequence[str], *flags: str) -> str:
    """The value of the first of these flags: what follows the container's image is the container's own affair."""
    for position, word in enumerate(argv):
        name, equals, attached = word.partition("=")
        if name in flags:
            return attached if equals else (argv[position + 1] if position + 1 < len(argv) else "")
    return ""


def identified(owner: Owner, monitors: Mapping[str, Monitor], var: Path = VAR) -> Owner:
    """The owner with what people call it, and with its runtime where the path could not tell it."""
    if owner.kind == POD:
        namespace, name = _pod_name(owner.identifier, var)
        return replace(owner, namespace=namespace, label=name)
    if owner.kind != CONTAINER:
        return owner
    monitor = monitors.get(owner.identifier)
    if monitor is not None and monitor.namespace:
        # Of containerd's namespaces two belong to other programs.
        runtime = {"moby": DOCKER, "k8s.io": "cri"}.get(monitor.namespace, owner.runtime)
        owner = replace(owner, namespace=monitor.namespace, runtime=runtime, name=f"{runtime} {owner.identifier[:12]}")
    if owner.runtime == DOCKER:
        config = _docker_config(owner.identifier, var)
        label = str(config.get("Name", "")).lstrip("/")
        if service := ((config.get("Config") or {}).get("Labels") or {}).get("com.docker.swarm.service.name"):
            # Its manager puts another in the place of one that was stopped.
            return replace(owner, runtime="swarm", label=printable(str(service)))
    elif owner.runtime == NERDCTL:
        label = _nerdctl_name(owner.identifier, var)
    else:
        label = monitor.name if monitor else _podman_name(owner.identifier, var)
    return replace(owner, label=printable(label))


def _docker_config(identifier: str, var: Path) -> dict[str, Any]:
    try:
        config = json.loads((var / "lib/docker/containers" / identifier / "config.v2.json").read_bytes())
    except (OSError, ValueError):
        # Another data root, or a daemon of another time: it then goes by its number.
        return {}
    return config if isinstance(config, dict) else {}


def _podman_name(identifier: str, var: Path) -> str:
    for file in var.glob("lib/containers/storage/*-containers/containers.json"):
        try:
            names = [item["names"][0] for item in json.loads(file.read_bytes()) if item["id"] == identifier]
        except (OSError, ValueError, TypeError, KeyError, IndexError):
            continue
        if names:
            return str(names[0])
    return ""


def _nerdctl_name(identifier: str, var: Path) -> str:
    for file in var.glob("lib/nerdctl/*/names/*/*"):
        try:
            if file.read_text(encoding="utf-8", errors="replace").strip() == identifier:
                return file.name
        except OSError:
            continue
    return ""


def _pod_name(uid: str, var: Path) -> tuple[str, str]:
    """Namespace and name, from the directory that kubelet keeps the pod's logs in: NAMESPACE_NAME_UID."""
    try:
        found = [name for name in os.listdir(var / "log/pods") if name.endswith(f"_{uid}")]
    except OSError:
        return "", ""
    parts = found[0].split("_") if found else []
    return (printable(parts[0]), printable(parts[1])) if len(parts) == 3 else ("", "")


_VERBS = ("run", "start", "compose", "exec", "logs", "attach", "wait", "stop", "rm", "pull", "build", "events", "stats")
"""The commands of a runtime's client, to find the one it was given between its options."""


def runs(argv: Sequence[str], owner: Owner, var: Path = VAR) -> Optional[bool]:
    """Whether this command line of a runtime's client is what runs the container; None where it names none."""
    words = list(argv[1:])
    verb = next((word for word in words if word in _VERBS), "")
    config = _docker_config(owner.identifier, var).get("Config") or {} if owner.runtime == DOCKER else {}
    if verb == "compose":
        return None if "com.docker.compose.project" in (config.get("Labels") or {}) else False
    if verb not in ("run", "start"):
        return False
    if name := _value(words, "--name"):
        return name == owner.label if owner.label else None
    if verb == "start":
        return any(word == owner.label or (len(word) >= 12 and owner.identifier.startswith(word)) for word in words)
    if image := config.get("Image"):
        # What was typed after the image is the command, unless that came with the image.
        typed = [image, *(config.get("Cmd") or [])]
        return words[-1:] == [image] or words[-len(typed) :] == typed
    return None


@dataclass(frozen=True)
class Stopped:
    """What came of stopping one container or user's unit."""

    owner: Owner
    seconds: float
    error: str = ""
    restart: str = ""
    """A container's restart policy, where it has one."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "owner": str(self.owner), "seconds": round(self.seconds, 3), "error": self.error, "restart": self.restart
        }  # fmt: skip


def stop(managed: Managed, patience: float, limit: Optional[float], runner: Runner = run_command) -> str:
    """Have it stopped by its own manager, and return a container's restart policy. Raises UnitsError.

    patience is how long it may take; limit, where given, is what a container gets before its runtime kills it.
    """
    owner = managed.owner
    if owner.kind == USER_UNIT:
        _stop_user_unit(owner, patience, runner)
        return ""
    prefix = [owner.runtime, *(["--namespace", owner.namespace] if owner.runtime == NERDCTL else [])]
    time_option = [] if limit is None else ["-t", str(max(1, round(limit)))]
    _checked(runner, [*prefix, "stop", *time_option, owner.identifier], patience + ANSWER, owner.runtime)
    return _restart_policy(prefix, owner.identifier, runner)


def _restart_policy(prefix: Sequence[str], identifier: str, runner: Runner) -> str:
    try:
        done = runner([*prefix, "inspect", "--format", "{{.HostConfig.RestartPolicy.Name}}", identifier], INSPECT)
    except UnitsError:
        return ""
    policy = done.out.strip()
    # Removed as it stopped (--rm), or a runtime that does not tell.
    return policy if done.rc == 0 and policy in ("always", "unless-stopped", "on-failure") else ""


def _stop_user_unit(owner: Owner, patience: float, runner: Runner) -> None:
    uid = owner.uid or 0
    try:
        group = pwd.getpwuid(uid).pw_gid
    except KeyError:
        raise UnitsError(f"uid {uid} has no account here: `{owner.instead}`") from None
    # As that user, by way of the manager's own socket: neither a bus nor systemd-container is needed.
    systemctl = [
        "setpriv", f"--reuid={uid}", f"--regid={group}", "--init-groups",
        "env", f"XDG_RUNTIME_DIR=/run/user/{uid}", "systemctl", "--user", "--no-pager",
    ]  # fmt: skip
    who = f"the service manager of uid {uid}"
    try:
        _checked(runner, [*systemctl, "stop", "--", owner.identifier], patience, who)
    except UnitsError:
        # Still on its way to stop, so that its end is no reason to start it again.
        _checked(runner, [*systemctl, "kill", "--signal=KILL", "--", owner.identifier], ANSWER, who)
        _checked(runner, [*systemctl, "stop", "--", owner.identifier], ANSWER, who)


def _checked(runner: Runner, argv: Sequence[str], timeout: float, who: str) -> Completed:
    done = runner(argv, timeout)
    if done.rc != 0:
        said = " ".join((done.err or done.out).split())[:256] or f"exit status {done.rc}"
        raise UnitsError(f"{who} refuses: {printable(said)}")
    return done
