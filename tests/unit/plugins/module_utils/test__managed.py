# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._managed import (
    Managed,
    Monitor,
    find_monitors,
    identified,
    runs,
    stop,
)
from ansible_collections.gpuops.inference.plugins.module_utils._owners import Owner, owner_of
from ansible_collections.gpuops.inference.plugins.module_utils._units import Completed, UnitsError

ID = "4f1c" * 16
POD = "0a1b2c3d-1111-2222-3333-444455556666"
DOCKER = owner_of(f"/system.slice/docker-{ID}.scope")
PODMAN = owner_of(f"/machine.slice/libpod-{ID}.scope")


def named(owner: Owner, label: str = "llm") -> Owner:
    return replace(owner, label=label)


def test_monitors_are_found_by_what_they_were_told_to_watch() -> None:
    argvs = {
        10: ("/usr/bin/conmon", "--api-version", "1", "-c", ID, "-u", ID, "-r", "/usr/bin/crun", "-n", "llm"),
        11: ("/usr/bin/containerd-shim-runc-v2", "-namespace", "moby", "-id", "b" * 64, "-address", "/run/x.sock"),
        12: ("podman", "run", "-c", "c" * 64),
        13: (),
    }
    assert find_monitors(argvs) == {ID: Monitor(10, name="llm"), "b" * 64: Monitor(11, "moby")}


@pytest.mark.parametrize(
    "cgroup, monitors, files, name, label",
    [
        (
            f"/system.slice/docker-{ID}.scope",
            {},
            {f"lib/docker/containers/{ID}/config.v2.json": json.dumps({"Name": "/llm"})},
            "docker 4f1c4f1c4f1c",
            "llm",
        ),
        (f"/system.slice/docker-{ID}.scope", {}, {f"lib/docker/containers/{ID}/config.v2.json": "[]"},
         "docker 4f1c4f1c4f1c", ""),
        (f"/system.slice/docker-{ID}.scope", {}, {}, "docker 4f1c4f1c4f1c", ""),
        (f"/mine/{ID}", {ID: Monitor(1, "moby")}, {}, "docker 4f1c4f1c4f1c", ""),
        (f"/mine/{ID}", {ID: Monitor(1, "k8s.io")}, {}, "cri 4f1c4f1c4f1c", ""),
        (f"/machine.slice/libpod-{ID}.scope", {ID: Monitor(1, name="l\nm")}, {}, "podman 4f1c4f1c4f1c", "l\\nm"),
        (
            f"/machine.slice/libpod-{ID}.scope",
            {},
            {"lib/containers/storage/vfs-containers/containers.json": json.dumps([{"id": ID, "names": ["llm"]}])},
            "podman 4f1c4f1c4f1c",
            "llm",
        ),
        (f"/machine.slice/libpod-{ID}.scope", {}, {"lib/containers/storage/vfs-containers/containers.json": "{"},
         "podman 4f1c4f1c4f1c", ""),
        (f"/system.slice/nerdctl-{ID}.scope", {ID: Monitor(1, "ml")}, {"lib/nerdctl/1f/names/ml/llm": ID},
         "nerdctl 4f1c4f1c4f1c", "llm"),
        (f"/kubepods/pod{POD}/{ID}", {}, {f"log/pods/ml_train-0_{POD}/x": ""}, POD, "train-0"),
        (f"/kubepods/pod{POD}/{ID}", {}, {}, POD, ""),
    ],
)  # fmt: skip
def test_the_name_people_use_is_read_where_the_runtime_left_it(
    tmp_path: Path, cgroup: str, monitors: dict[str, Monitor], files: dict[str, str], name: str, label: str
) -> None:
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    owner = identified(owner_of(cgroup), monitors, tmp_path)
    assert (owner.name, owner.label) == (name, label)


@pytest.mark.parametrize(
    "line, owner, verdict",
    [
        ("podman run --rm --name llm image vllm serve", named(PODMAN), True),
        ("podman run --rm --name=other image --name llm", named(PODMAN), False),
        ("podman --log-level debug run image vllm serve", named(PODMAN), None),
        ("podman logs --follow llm", named(PODMAN), False),
        ("podman exec llm run", named(PODMAN), False),
        ("podman start --attach llm", named(PODMAN), True),
        (f"podman start --attach {ID[:12]}", named(PODMAN), True),
        ("podman start --attach other", named(PODMAN), False),
        ("docker run --gpus all vllm/vllm-openai:v1 --model x", named(DOCKER), True),
        ("docker run --gpus all vllm/vllm-openai:v1 --model y", named(DOCKER), False),
        ("docker compose up", named(DOCKER), False),
    ],
)
def test_the_client_that_runs_a_container_is_told_by_its_command_line(
    tmp_path: Path, line: str, owner: Owner, verdict: bool | None
) -> None:
    docker_knows(tmp_path, {"Image": "vllm/vllm-openai:v1", "Cmd": ["--model", "x"]})
    assert runs(line.split(), owner, tmp_path) is verdict


def test_a_client_that_names_a_container_tells_nothing_of_one_whose_name_cannot_be_read() -> None:
    assert runs("docker run --name llm image".split(), DOCKER, Path("/nonexistent")) is None


def test_what_a_swarm_runs_is_the_swarms(tmp_path: Path) -> None:
    docker_knows(tmp_path, {"Labels": {"com.docker.swarm.service.name": "llm"}})
    assert identified(DOCKER, {}, tmp_path).instead == "docker service scale llm=0"


def docker_knows(var: Path, config: dict[str, object]) -> None:
    directory = var / "lib/docker/containers" / ID
    directory.mkdir(parents=True)
    (directory / "config.v2.json").write_text(json.dumps({"Name": "/llm", "Config": config}))


def test_what_compose_brought_up_may_be_what_a_compose_in_the_foreground_runs(tmp_path: Path) -> None:
    docker_knows(tmp_path, {"Image": "x", "Labels": {"com.docker.compose.project": "llm"}})
    assert runs("docker compose up".split(), named(DOCKER), tmp_path) is None
    assert runs("docker run x".split(), named(DOCKER), tmp_path) is True


@given(st.lists(st.sampled_from(["docker", "run", "--name", "--name=llm", "llm", "start", "-a", "", "compose"])))
def test_any_command_line_of_a_client_has_an_answer(argv: list[str]) -> None:
    assert runs(argv, named(PODMAN)) in (True, False, None)


class Recorder:
    """A runner that keeps what it was told, and answers from a table by the verb."""

    def __init__(self, **answers: Completed | UnitsError) -> None:
        self.answers = answers
        self.said: list[list[str]] = []
        self.given: list[float] = []

    def __call__(self, argv: Sequence[str], timeout: float) -> Completed:
        self.said.append(list(argv))
        self.given.append(timeout)
        verb = next((word for word in argv if word in self.answers), "")
        answer = self.answers.get(verb, Completed(0, "", ""))
        if isinstance(answer, UnitsError):
            raise answer
        return answer


@pytest.mark.parametrize(
    "owner, limit, said",
    [
        (DOCKER, 30.0, ["docker", "stop", "-t", "30", ID]),
        (PODMAN, None, ["podman", "stop", ID]),
        (
            replace(DOCKER, runtime="nerdctl", namespace="ml"),
            0.2,
            ["nerdctl", "--namespace", "ml", "stop", "-t", "1", ID],
        ),
    ],
)
def test_a_container_is_stopped_by_its_own_runtime_in_its_time(
    owner: Owner, limit: float | None, said: list[str]
) -> None:
    runner = Recorder(inspect=Completed(0, "always\n", ""))
    assert stop(Managed(owner), 30.0, limit, runner) == "always"
    assert runner.said[0] == said
    assert 30.0 < runner.given[0] < 60.0


def test_a_runtime_that_refuses_is_told_in_its_own_words_and_one_that_forgets_is_no_failure() -> None:
    with pytest.raises(UnitsError, match="docker refuses: Cannot connect to the Docker daemon"):
        stop(Managed(DOCKER), 30.0, None, Recorder(stop=Completed(1, "", "Cannot connect to the Docker daemon\n")))
    assert stop(Managed(PODMAN), 30.0, None, Recorder(inspect=Completed(125, "", "no such container"))) == ""
    assert stop(Managed(PODMAN), 30.0, None, Recorder(inspect=UnitsError("late"))) == ""


def test_a_users_unit_is_stopped_by_its_own_manager_and_killed_by_it_where_it_does_not_stop() -> None:
    uid = os.getuid()
    managed = Managed(owner_of(f"/user.slice/user-{uid}.slice/user@{uid}.service/app.slice/llm.service"))
    runner = Recorder()
    assert stop(managed, 10.0, None, runner) == ""
    assert runner.said[0][-4:] == ["--no-pager", "stop", "--", "llm.service"]
    assert f"XDG_RUNTIME_DIR=/run/user/{uid}" in runner.said[0]
    slow = Recorder(stop=UnitsError("late"))
    with pytest.raises(UnitsError):
        stop(managed, 10.0, None, slow)
    assert [word for words in slow.said for word in words if word in ("stop", "kill")] == ["stop", "kill", "stop"]
