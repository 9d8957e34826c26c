# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Who answers for a process, or would bring it back: read from its cgroup path alone."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.inference.plugins.module_utils._masking import printable

SYSTEM_UNIT = "unit"
USER_UNIT = "user unit"
CONTAINER = "container"
POD = "pod"
JOB = "batch job"
SESSION = "login session"
NOBODY = "nobody"

DOCKER = "docker"
PODMAN = "podman"
NERDCTL = "nerdctl"


SSH_UNITS = ("ssh.service", "sshd.service")
"""Without libpam-systemd every SSH session is in one of these."""


@dataclass(frozen=True)
class Owner:
    """`kind` is one of the constants above, `name` what an operator would type to address it."""

    kind: str
    name: str
    identifier: str = ""
    """What its manager calls it: a container's whole id, a pod's uid, a job's number, a user's unit, a session."""
    runtime: str = ""
    """The program that runs a container."""
    uid: Optional[int] = None
    """Whose manager it is, where that is not the system's."""
    cgroup: str = ""
    """The cgroup that holds all of a container, or all of a user's unit."""
    namespace: str = ""
    """containerd's, or a pod's."""
    label: str = ""
    """What people call a container or a pod."""

    def __str__(self) -> str:
        # Users may call their cgroups and their containers anything.
        return printable(f"{self.kind} {self.name}".rstrip() + (f" ({self.label})" if self.label else ""))

    def as_dict(self) -> dict[str, str]:
        shown = {"kind": self.kind, "name": self.name, "label": self.label, "instead": self.instead}
        return {key: printable(value) for key, value in shown.items()}

    @property
    def instead(self) -> str:
        """The command with which an operator ends what it answers for; '' where there is none."""
        build = _INSTEAD.get(self.kind)
        return printable(build(self)) if build else ""


OWNED_BY_NOBODY = Owner(NOBODY, "")


def _stop_container(owner: Owner) -> str:
    short = owner.identifier[:12]
    if owner.runtime in (DOCKER, PODMAN) and owner.uid is not None:
        home = f"/run/user/{owner.uid}"
        host = f" DOCKER_HOST=unix://{home}/docker.sock" if owner.runtime == DOCKER else ""
        return f"sudo -u '#{owner.uid}' XDG_RUNTIME_DIR={home}{host} {owner.runtime} stop {short}"
    namespace, name = shlex.quote(owner.namespace or "default"), shlex.quote(owner.identifier)
    commands = {
        DOCKER: f"docker stop {short}",
        PODMAN: f"podman stop {short}",
        NERDCTL: f"nerdctl --namespace {namespace} stop {short}",
        "swarm": f"docker service scale {shlex.quote(owner.label)}=0",
        "containerd": f"ctr --namespace {namespace} task kill {name}",
        "lxc": f"lxc-stop --name {name}",
        "machine": f"machinectl poweroff {name}",
    }
    return commands.get(owner.runtime, f"crictl stop {short}")


def _delete_pod(owner: Owner) -> str:
    # A node agent starts again what is merely ended.
    if owner.label:
        return f"kubectl delete pod --namespace {owner.namespace} {owner.label}"
    return f"kubectl drain NODE (pod uid {owner.identifier})"


def _stop_user_unit(owner: Owner) -> str:
    return f"systemctl --user -M {owner.uid}@ stop {shlex.quote(owner.identifier)}"


def _end_session(owner: Owner) -> str:
    if owner.identifier.endswith(".scope"):
        return _stop_user_unit(owner)
    return f"loginctl terminate-session {shlex.quote(owner.identifier)}"


_INSTEAD = {
    # Never of the SSH server's: most of what is in it is somebody's session.
    SYSTEM_UNIT: lambda owner: "" if owner.name in SSH_UNITS else f"systemctl stop {shlex.quote(owner.name)}",
    USER_UNIT: _stop_user_unit,
    CONTAINER: _stop_container,
    POD: _delete_pod,
    JOB: lambda owner: f"scancel {owner.identifier}",
    SESSION: _end_session,
}

# Sources of the shapes: systemd.resource-control(5); runc and crun cgroup drivers; kubelet's
# kubepods[.slice] tree with both drivers; slurmstepd of Slurm 23+ (cgroup/v2).
_ID = r"[0-9a-f]{64}"
_JOB = re.compile(r"slurmstepd\.scope/job_(\d+)(?:/|$)|/slurm[^/]*/uid_\d+/job_(\d+)(?:/|$)")
_POD = re.compile(r"/(?:[^/]*-)?kubepods(?:\.slice)?/(?:.*[/-])?pod([0-9a-f][0-9a-f_-]{31,35})(?:\.slice)?(?:/|$)")
_CONTAINER = re.compile(
    # In a scope of its own (systemd), in a directory of its own (cgroupfs), and where systemd's name was given to the
    # other driver. A container's monitor counts as the container's.
    rf"/(?:(?P<scope>docker|libpod|cri-containerd|crio|nerdctl)-(?:conmon-|payload-)?(?P<a>{_ID})(?:\.scope)?"
    rf"|[^/]*\.slice:(?P<colon>docker|libpod|cri-containerd|crio|nerdctl):(?P<b>[0-9a-f]{{12,64}})"
    rf"|(?P<parent>[^/]+)/(?P<c>{_ID}))(?=/|$)"
)
_MACHINE = re.compile(
    r"/(?:lxc\.payload\.|lxc/)(?P<lxc>[^/]+)|/machine\.slice/machine-(?P<machine>[^/]+)\.scope(?=/|$)"
)
_SLICES = r"^(?:/[^/]+\.slice)*"
_USER_MANAGER = re.compile(r"/user@(\d+)\.service(?:/|$)")
_USER_UNIT = re.compile(r"/user@(\d+)\.service(?:/[^/]+\.slice)*/([^/]+\.(?:service|scope))(?=/|$)")
_SESSION = re.compile(r"/user-(\d+)\.slice/session-([^/]+)\.scope(?=/|$)")
_SYSTEM_UNIT = re.compile(rf"{_SLICES}/([^/]+\.(?:service|scope))(?=/|$)")
_RUNTIMES = {"libpod": PODMAN, "cri-containerd": "cri", "crio": "cri"}
_DAEMONS = ("containerd.service", "docker.service", "crio.service", "podman.service")


def owner_of(cgroup: str) -> Owner:
    """The owner that a unified cgroup path tells: the outermost one that can end the process and all beside it."""
    if match := _JOB.search(cgroup):
        job = match.group(1) or match.group(2)
        return Owner(JOB, f"slurm {job}", job)
    if match := _POD.search(cgroup):
        pod = match.group(1).replace("_", "-")
        return Owner(POD, pod, pod)
    return _container(cgroup) or _user_unit(cgroup) or _session(cgroup) or _system_unit(cgroup)


def _container(cgroup: str) -> Optional[Owner]:
    manager = _USER_MANAGER.search(cgroup)
    uid = int(manager.group(1)) if manager else None
    if match := _CONTAINER.search(cgroup):
        before = cgroup[: match.start()]
        unit = _USER_UNIT.search(before) if manager else _SYSTEM_UNIT.search(before)
        if unit and unit.group(unit.lastindex or 1) not in _DAEMONS and unit.group(0).endswith(".service"):
            # Quadlet's split cgroups: the container is a part of the unit that runs it.
            return None
        prefix = match.group("scope") or match.group("colon") or ("docker" if match.group("parent") == "docker" else "")
        identifier = match.group("a") or match.group("b") or match.group("c")
        runtime = _RUNTIMES.get(prefix, prefix or "containerd")
        namespace = match.group("parent") if runtime == "containerd" else ""
        return Owner(
            CONTAINER, f"{runtime} {identifier[:12]}", identifier, runtime, uid, cgroup[: match.end()], namespace
        )
    if match := _MACHINE.search(cgroup):
        runtime = "lxc" if match.group("lxc") else "machine"
        name = match.group(runtime)
        return Owner(CONTAINER, f"{runtime} {name}", name, runtime, uid, cgroup[: match.end()])
    return None


def _user_unit(cgroup: str) -> Optional[Owner]:
    match = _USER_UNIT.search(cgroup)
    if match is None:
        return None
    uid, unit = match.groups()
    # A scope (a terminal, a tmux server) starts nothing again; a user's service may.
    kind = SESSION if unit.endswith(".scope") else USER_UNIT
    return Owner(kind, f"{unit} of uid {uid}", unit, uid=int(uid), cgroup=cgroup[: match.end()])


def _session(cgroup: str) -> Optional[Owner]:
    match = _SESSION.search(cgroup)
    if match is None:
        return None
    uid, session = match.groups()
    return Owner(SESSION, f"{session} of uid {uid}", session, uid=int(uid))


def _system_unit(cgroup: str) -> Owner:
    match = _SYSTEM_UNIT.search(cgroup)
    if match is None or match.group(1) == "init.scope":
        return OWNED_BY_NOBODY
    return Owner(SYSTEM_UNIT, match.group(1))


def restarts(owner: Owner) -> bool:
    """Whether it is a service of the system that may bring a process back; sessions in ssh.service are none of its."""
    return (
        owner.kind == SYSTEM_UNIT
        and owner.name.endswith(".service")
        and owner.name not in SSH_UNITS
        and owner.name not in _DAEMONS
    )
