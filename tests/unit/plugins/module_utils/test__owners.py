# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import string
from dataclasses import replace

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
        ("/system.slice/gpu01_slurmstepd.scope/job_42/step_batch", "batch job", "slurm 42"),
        ("/slurm/uid_1000/job_77/step_batch", "batch job", "slurm 77"),
        (f"/docker/{LONG}/system.slice/vllm.service", "container", f"docker {LONG[:12]}"),
        (f"/libpod_parent/libpod-{LONG}", "container", f"podman {LONG[:12]}"),
        (f"/default/{LONG}", "container", f"containerd {LONG[:12]}"),
        ("/lxc.payload.web/system.slice/vllm.service", "container", "lxc web"),
        ("/machine.slice/machine-web.scope/payload/system.slice/vllm.service", "container", "machine web"),
        (f"/system.slice/llm.service/libpod-payload-{LONG}", "unit", "llm.service"),
        (
            f"/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service/libpod-payload-{LONG}",
            "user unit",
            "llm.service of uid 1000",
        ),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome.slice/vte-spawn-1.scope",
            "login session",
            "vte-spawn-1.scope of uid 1000",
        ),
        ("/system.slice/llm.service/inner.scope", "unit", "llm.service"),
        (
            (
                f"/system.slice/docker-{LONG}.scope/kubelet.slice/kubelet-kubepods.slice/"
                f"kubelet-kubepods-pod{'0' * 32}.slice/cri-containerd-{LONG}.scope"
            ),
            "pod",
            "0" * 32,
        ),
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


UIDS = st.integers(0, 65535)
HEX = st.text("0123456789abcdef", min_size=64, max_size=64)
PODS = st.uuids().map(str)
WORDS = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)


@given(HEX, st.sampled_from(["docker", "podman", "nerdctl"]), st.sampled_from(["", "/container", "/a/b"]), st.data())
def test_a_container_is_known_by_its_whole_id_however_its_cgroup_is_named(
    identifier: str, runtime: str, below: str, data: st.DataObject
) -> None:
    prefix = "libpod" if runtime == "podman" else runtime
    scope = data.draw(
        st.sampled_from(
            [
                f"/system.slice/{prefix}-{identifier}.scope",
                f"/machine.slice/machine-x.slice/{prefix}-{identifier}.scope",
                f"/anywhere/{prefix}-{identifier}",
                f"/system.slice/containerd.service/system.slice:{prefix}:{identifier}",
            ]
        )
    )
    owner = owner_of(scope + below)
    assert (owner.kind, owner.runtime, owner.identifier, owner.cgroup) == ("container", runtime, identifier, scope)
    assert owner.instead.startswith(runtime)
    assert owner.instead.endswith(f"stop {identifier[:12]}")


@given(UIDS, HEX)
def test_a_users_own_podman_is_asked_as_that_user(uid: int, identifier: str) -> None:
    owner = owner_of(f"/user.slice/user-{uid}.slice/user@{uid}.service/user.slice/libpod-{identifier}.scope/container")
    assert owner.uid == uid
    assert owner.instead.startswith(f"sudo -u '#{uid}' XDG_RUNTIME_DIR=/run/user/{uid} podman stop ")


@given(PODS, HEX, st.sampled_from(["", "burstable", "besteffort"]))
def test_a_pod_is_known_by_its_uid_with_either_driver_and_in_every_class(pod: str, container: str, qos: str) -> None:
    dashed = f"-{qos}" if qos else ""
    name = pod.replace("-", "_")
    by_systemd = (
        "/kubepods.slice"
        + (f"/kubepods{dashed}.slice" if qos else "")
        + f"/kubepods{dashed}-pod{name}.slice/crio-{container}.scope"
    )
    by_files = "/kubepods" + (f"/{qos}" if qos else "") + f"/pod{pod}/{container}"
    for path in (by_systemd, by_files):
        owner = owner_of(path)
        assert (owner.kind, owner.identifier) == ("pod", pod)
        assert "kubectl drain" in owner.instead
        named = replace(owner, namespace="ml", label="train-0")
        assert named.instead == "kubectl delete pod --namespace ml train-0"


@given(st.integers(1, 10**9), st.sampled_from(["step_0/user/task_3", "step_batch", "step_extern/user"]))
def test_a_job_is_known_by_its_number(job: int, step: str) -> None:
    owner = owner_of(f"/system.slice/slurmstepd.scope/job_{job}/{step}")
    assert (owner.kind, owner.instead) == ("batch job", f"scancel {job}")


@given(UIDS, WORDS, st.lists(WORDS, max_size=2), st.sampled_from(["", "/x", "/x.service"]))
def test_a_users_unit_is_known_however_deep_it_is_and_whatever_is_below(
    uid: int, name: str, slices: list[str], below: str
) -> None:
    inside = "".join(f"/{word}.slice" for word in slices)
    path = f"/user.slice/user-{uid}.slice/user@{uid}.service{inside}/{name}.service"
    owner = owner_of(path + below)
    assert (owner.kind, owner.uid, owner.cgroup) == ("user unit", uid, path)
    assert owner.instead == f"systemctl --user -M {uid}@ stop {name}.service"


@given(WORDS, st.lists(WORDS, max_size=2), st.sampled_from(["", "/x", "/x.service", "/init.scope"]))
def test_a_unit_is_the_outermost_one(name: str, slices: list[str], below: str) -> None:
    owner = owner_of("".join(f"/{word}.slice" for word in slices) + f"/{name}.service" + below)
    assert (owner.kind, owner.name, owner.instead) == ("unit", f"{name}.service", f"systemctl stop {name}.service")


def test_a_session_and_a_terminal_have_their_command() -> None:
    session = owner_of("/user.slice/user-1000.slice/session-3.scope")
    assert session.instead == "loginctl terminate-session 3"
    terminal = owner_of("/user.slice/user-1000.slice/user@1000.service/tmux-spawn-a-b.scope")
    assert terminal.instead == "systemctl --user -M 1000@ stop tmux-spawn-a-b.scope"
    assert owner_of("/").instead == owner_of("/system.slice/ssh.service").instead == ""


@given(st.text(alphabet="/.-_:@" + string.ascii_lowercase + string.digits, max_size=200))
def test_no_path_makes_a_command_that_a_shell_would_read_as_two(path: str) -> None:
    owner = owner_of(path)
    assert not set(owner.instead) & set(";|&\n")
