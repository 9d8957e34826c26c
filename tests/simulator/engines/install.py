# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lay out what runs on a GPU host besides the collection: see install."""

from __future__ import annotations

import pwd
import shutil
import subprocess
from pathlib import Path

import venvs

ENGINES = Path(__file__).resolve().parent
CLIENT = ENGINES.parent / "lib" / "client"
PROGRAMS = ("nvidia-persistenced", "nv-hostengine", "dcgm-exporter", "nv-fabricmanager", "nvtop")
OBSERVERS = ("nvidia-persistenced.service", "nvidia-dcgm.service", "dcgm-exporter.service",
             "nvidia-fabricmanager.service")  # fmt: skip
SYSTEM_USERS = ("vllm", "sglang")
PEOPLE = ("alice",)


def users() -> None:
    known = {user.pw_name for user in pwd.getpwall()}
    for name in SYSTEM_USERS:
        if name not in known:
            add(name, "--system", "--home-dir", f"/var/lib/{name}", "--shell", "/usr/sbin/nologin")
    for name in PEOPLE:
        if name not in known:
            add(name, "--shell", "/bin/bash")


def add(name: str, *options: str) -> None:
    subprocess.run(["useradd", "--create-home", *options, name], check=True, timeout=30)


def program(source: Path, target: Path, head: bytes = b"") -> None:
    content = head + source.read_bytes()
    if not target.exists() or target.read_bytes() != content:
        target.unlink(missing_ok=True)  # it may be running
        target.write_bytes(content)
    target.chmod(0o755)


def main() -> None:
    users()
    for engine in SYSTEM_USERS:
        venvs.make(engine, Path("/opt") / engine, "/usr/bin/python3")
    # Engines run as users who may not write here: else each of their starts compiles all of it.
    subprocess.run(["python3", "-m", "compileall", "-q", ENGINES.parent], check=True, timeout=60)
    for name in PROGRAMS:
        program(CLIENT, Path("/usr/bin") / name)
    program(CLIENT, Path("/usr/local/bin/gpuwatchd"))
    program(ENGINES / "processes" / "nvitop.py", Path("/usr/local/bin/nvitop"), b"#!/usr/bin/python3\n")
    program(ENGINES / "scene", Path("/usr/local/bin/scene"))
    for unit in OBSERVERS:
        shutil.copy(ENGINES / "units" / unit, "/etc/systemd/system")
    subprocess.run(["systemctl", "daemon-reload"], check=True, timeout=60)
    subprocess.run(["systemctl", "start", *OBSERVERS], check=True, timeout=60)


main()
