# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import getpass
import grp
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._deployment import (
    EMPTY,
    File,
    differing_secrets,
    files_of,
    read,
    shown_difference,
    useradd_arguments,
)

ENGINE: dict[str, Any] = {
    "unit_path": "/u", "unit_text": "[Service]\n", "environment_path": "/e", "environment_text": "A=1\n",
    "configuration_path": "/c", "configuration": {}, "user": "sglang",
}  # fmt: skip


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_unit_comes_last_and_what_nobody_asks_for_goes() -> None:
    files = files_of(ENGINE, "guard", {"/s": EMPTY, "/other": digest("A=secret")})
    assert [(file.path, file.text, file.mode) for file in files[1:]] == [
        ("/e", "A=1\n", 0o644), ("/s", "", 0o600), ("/c", None, 0o644), ("/u", "[Service]\n", 0o644)
    ]  # fmt: skip
    assert (files[0].text, files[0].mode) == ("guard", 0o755)


def test_a_file_that_keys_are_in_is_neither_written_nor_removed() -> None:
    engine = {**ENGINE, "configuration": {"api-key": "KEY"}}
    assert [file.path for file in files_of(engine, "guard", {"/s": digest("A=x"), "/c": digest("api-key: x")})][1:] == [
        "/e", "/u"
    ]  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="a file of root's is made")
@pytest.mark.parametrize("wrong", ["", "text", "mode", "owner", "link", "missing"])
def test_a_secret_file_is_as_it_should_be_or_named(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "unit.secrets"
    path.write_text("A=x\n" if wrong != "text" else "A=y\n")
    path.chmod(0o600 if wrong != "mode" else 0o640)
    os.chown(path, 65534 if wrong == "owner" else 0, 0)
    if wrong in ("link", "missing"):
        path.rename(tmp_path / "real")
    if wrong == "link":
        path.symlink_to(tmp_path / "real")
    assert differing_secrets(ENGINE, {str(path): digest("A=x\n")}) == ([str(path)] if wrong else [])


def test_keys_in_a_file_of_a_user_that_is_not_made_yet_are_to_be_written(tmp_path: Path) -> None:
    path = tmp_path / "unit.yaml"
    path.write_text("api-key: x\n")
    path.chmod(0o400)
    engine = {**ENGINE, "configuration_path": str(path), "user": "nobody-has-made-it"}
    assert differing_secrets(engine, {str(path): digest("api-key: x\n")}) == [str(path)]
    if os.getegid() == 0:
        assert not differing_secrets({**engine, "user": getpass.getuser()}, {str(path): digest("api-key: x\n")})


def test_a_link_holds_nothing_and_bytes_stay_what_they_are(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"A=\xff\r\n")
    link.symlink_to(real)
    assert read(str(link)) is None and read(str(tmp_path / "absent")) is None
    assert (read(str(real)) or "").encode("utf-8", "surrogateescape") == b"A=\xff\r\n"


def test_a_difference_shows_no_key_that_somebody_wrote_by_hand() -> None:
    file = File("/u", "[Service]\nExecStart=/new\n")
    assert shown_difference(file, "[Service]\nExecStart=/old\n")["before"] == "[Service]\nExecStart=/old\n"
    for line in ("Environment=VLLM_API_KEY=hunter2", "ExecStart=/x --api-key hunter2"):
        assert "hunter2" not in str(shown_difference(file, f"[Service]\n{line}\n"))


@pytest.mark.parametrize("file", [File("/c", None), File("/s", "", 0o600)])
def test_a_difference_shows_nothing_of_keys_that_are_not_asked_for_any_more(file: File) -> None:
    """Neither `api-key:` in YAML nor a variable of any name looks like a secret to who masks text."""
    for text in ('api-key: "hunter2"\n', 'LICENSE="hunter2"\n'):
        shown = shown_difference(file, text)
        assert "hunter2" not in str(shown) and shown["before"] and shown["after"] == ""
    assert shown_difference(file, None)["before"] == shown_difference(file, "")["before"] == ""


def test_a_group_that_is_there_gets_its_user() -> None:
    there = grp.getgrall()[0].gr_name
    assert useradd_arguments(there) == ["--system", "--no-create-home", "--gid", there, there]
    assert useradd_arguments("nobody-has-made-it") == ["--system", "--no-create-home", "nobody-has-made-it"]
