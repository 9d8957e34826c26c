# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Who answers for a process, or would bring it back: read from its cgroup path alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

SYSTEM_UNIT = "unit"
USER_UNIT = "user unit"
CONTAINER = "container"
POD = "pod"
JOB = "batch job"
SESSION = "login session"
NOBODY = "nobody"


@dataclass(frozen=True)
class Owner:
    """`kind` is one of the constants above, `name` what an operator would type to address it."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()

    def as_dict(self) -> dict[str, str]:
        return {"kind": self.kind, "name": self.name}


OWNED_BY_NOBODY = Owner(NOBODY, "")

# Sources of the shapes: systemd.resource-control(5); runc and crun cgroup drivers; kubelet's
# kubepods[.slice] tree with both drivers; slurmstepd of Slurm 23+ (cgroup/v2).
_JOB = re.compile(r"/slurmstepd\.scope/job_(\d+)|/slurm/uid_\d+/job_(\d+)")
_POD = re.compile(r"/kubepods(?:\.slice)?/.*?pod([0-9a-f][0-9a-f_-]{31,})")
_CONTAINER = re.compile(
    r"/(docker|libpod|cri-containerd|crio|nerdctl)-(?:conmon-)?([0-9a-f]{64})(?:\.scope)?(?:/|$)|/(docker|lxc)/([0-9a-f]{64})(?:/|$)"
)
_CONTAINERD = re.compile(r"/system\.slice:(docker|cri-containerd|nerdctl):([0-9a-f]{12,64})(?:/|$)")
_USER_UNIT = re.compile(r"/user@(\d+)\.service/(?:.*/)?([^/]+\.(?:service|scope))(?:/|$)")
_SESSION = re.compile(r"/user-(\d+)\.slice/session-([^/]+)\.scope(?:/|$)")
_SYSTEM_UNIT = re.compile(r"/([^/]+\.service)(?:/|$)")
_SCOPE = re.compile(r"/([^/]+\.scope)(?:/|$)")


def owner_of(cgroup: str) -> Owner:
    """The owner that a unified cgroup path tells; the innermost manager of processes wins."""
    if match := _JOB.search(cgroup):
        return Owner(JOB, f"slurm {match.group(1) or match.group(2)}")
    if match := _POD.search(cgroup):
        return Owner(POD, match.group(1).replace("_", "-"))
    if match := _CONTAINER.search(cgroup) or _CONTAINERD.search(cgroup):
        runtime, identifier = [group for group in match.groups() if group][:2]
        return Owner(CONTAINER, f"{'podman' if runtime == 'libpod' else runtime} {identifier[:12]}")
    if match := _USER_UNIT.search(cgroup):
        # A scope (a terminal, a tmux server) starts nothing again; a user's service may.
        kind = SESSION if match.group(2).endswith(".scope") else USER_UNIT
        return Owner(kind, f"{match.group(2)} of uid {match.group(1)}")
    if match := _SESSION.search(cgroup):
        return Owner(SESSION, f"{match.group(2)} of uid {match.group(1)}")
    if match := _SYSTEM_UNIT.search(cgroup):
        return Owner(SYSTEM_UNIT, match.group(1))
    if (match := _SCOPE.search(cgroup)) and match.group(1) != "init.scope":
        return Owner(SYSTEM_UNIT, match.group(1))
    return OWNED_BY_NOBODY
