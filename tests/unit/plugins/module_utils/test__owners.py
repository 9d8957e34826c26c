# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._owners import owner_of

LONG = "4f1c" * 16


@pytest.mark.parametrize(
    "path, kind, name",
    [
        ("/system.slice/vllm.service", "unit", "vllm.service"),
        ("/system.slice/system-vllm.slice/vllm@a.service", "unit", "vllm@a.service"),
        ("/system.slice/run-r12.scope", "unit", "run-r12.scope"),
        ("/user.slice/user-1000.slice/session-3.scope", "login session", "3 of uid 1000"),
        ("/user.slice/user-0.slice/session-c1.scope", "login session", "c1 of uid 0"),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service",
            "user unit",
            "llm.service of uid 1000",
        ),
        (
            "/user.slice/user-1000.slice/user@1000.service/tmux-spawn-a-b.scope",
            "login session",
            "tmux-spawn-a-b.scope of uid 1000",
        ),
        (f"/system.slice/docker-{LONG}.scope", "container", f"docker {LONG[:12]}"),
        (f"/docker/{LONG}", "container", f"docker {LONG[:12]}"),
        (f"/machine.slice/libpod-{LONG}.scope/container", "container", f"podman {LONG[:12]}"),
        (
            f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{LONG}.scope",
            "container",
            f"podman {LONG[:12]}",
        ),
        (f"/system.slice/containerd.service/system.slice:nerdctl:{LONG}", "container", f"nerdctl {LONG[:12]}"),
        (
            (
                "/kubepods.slice/kubepods-burstable.slice/"
                f"kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-{LONG}.scope"
            ),
            "pod",
            "0a1b2c3d-1111-2222-3333-444455556666",
        ),
        (
            f"/kubepods/besteffort/pod0a1b2c3d-1111-2222-3333-444455556666/{LONG}",
            "pod",
            "0a1b2c3d-1111-2222-3333-444455556666",
        ),
        ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", "batch job", "slurm 42"),
        ("/slurm/uid_1000/job_77/step_batch", "batch job", "slurm 77"),
        ("/init.scope", "nobody", ""),
        ("/", "nobody", ""),
        ("", "nobody", ""),
    ],
)
def test_the_owner_is_read_from_the_path(path: str, kind: str, name: str) -> None:
    owner = owner_of(path)
    assert (owner.kind, owner.name) == (kind, name)


@given(st.text(alphabet="/abc.-_:@0123456789servicope", max_size=120))
def test_any_path_has_an_owner(path: str) -> None:
    assert str(owner_of(path))
