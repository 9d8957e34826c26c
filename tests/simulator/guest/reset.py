# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring this simulated host back to its pristine state. Run inside it, as root, by `hosts reset`.

usage: reset.py MINORS [ENGINE]

MINORS: the minor number of each GPU in index order, as in 0,1,2. ENGINE: its production unit is to serve.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

import frozen

HERE = Path("/usr/local/lib/gpusim")
STATE = Path("/var/lib/gpusim")
ALLOCATIONS = Path("/dev/gpusim")  # no file system to the driver: engine units may write to little else
BASELINE = Path("/var/lib/gpusim-baseline.json")
UNIT_DIRECTORIES = ("/etc/systemd/system", "/run/systemd/system")
JUNK = ("/run/gpuops", "/run/gpusim", "/var/lib/gpuops", "/etc/gpuops")
# Programs of the host itself. sshd stays, so that a controller's open connection outlives a reset.
KEPT = ("/usr/lib/systemd/", "/usr/bin/dbus-daemon", "/usr/sbin/sshd", "/usr/lib/openssh/")
BUSES = (0x01, 0x21, 0x41, 0x61, 0x81, 0xA1, 0xC1, 0xE1)
TOTAL_MIB, RESERVED_MIB, GPU_NAME = 97887, 637, "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def systemctl(*arguments: str) -> str:
    return subprocess.run(["systemctl", *arguments], stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout


def unit_files() -> set[str]:
    """Everything in the administrator's unit directories, drop-ins and links included."""
    found: set[str] = set()
    for top in UNIT_DIRECTORIES:
        for directory, folders, files in os.walk(top):
            found.update(os.path.join(directory, name) for name in (*folders, *files))
    return found


def foreign_units() -> dict[str, str]:
    """Loaded units that are not the pristine host's, each with its control group."""
    baseline = set(json.loads(BASELINE.read_text()))
    shown = systemctl("show", "--property=Id,FragmentPath,ControlGroup",
                      "*.service", "*.socket", "*.timer", "*.path", "*.scope")  # fmt: skip
    units = {}
    for block in shown.split("\n\n"):
        unit = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        path = unit.get("FragmentPath", "")
        own = path in baseline or unit["Id"].startswith(("session-", "init.scope"))
        if path.startswith(("/etc/", "/run/")) and not own:
            units[unit["Id"]] = unit.get("ControlGroup", "")
    return units


def end_units() -> None:
    units = foreign_units()
    # A scope is gone with the last process in it, at any moment.
    lasting = [unit for unit in units if not unit.endswith(".scope")]
    # First the jobs, so that nothing is restarted; then the processes, so that no job waits for a stubborn one.
    if lasting:
        systemctl("stop", "--no-block", *lasting)
    for group in filter(None, units.values()):
        # Empty and gone at any moment, ENODEV while it goes.
        with contextlib.suppress(OSError):
            Path(f"/sys/fs/cgroup{group}/cgroup.kill").write_text("1")
    if lasting:
        systemctl("stop", *lasting)


def kept_program(pid: str) -> bool:
    return os.readlink(f"/proc/{pid}/exe").startswith(KEPT)


def strangers() -> list[int]:
    kept, pid = {1}, os.getpid()
    while pid > 1:
        kept.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in kept:
            try:
                # A zombie leader has no program to show, but its threads may live on.
                zombie = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
                stranger = len(os.listdir(f"/proc/{entry}/task")) > 1 if zombie else not kept_program(entry)
            except OSError:  # gone, or a kernel thread
                continue
            if stranger:
                found.append(int(entry))
    return found


def end_strangers() -> None:
    deadline = time.monotonic() + 10
    while pids := strangers():
        if time.monotonic() > deadline:
            sys.exit(f"reset: these processes do not end: {pids}")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def clear() -> None:
    frozen.remove()
    # A case may show the host a kernel log of its own (the real one is the machine's), and the driver's files in /proc.
    for place in ("/dev/kmsg", "/proc/driver"):
        subprocess.run(["umount", "--quiet", place], check=False)
    for node in Path("/dev").glob("nvidia-nvswitch*"):
        node.unlink()
    for path in JUNK:
        shutil.rmtree(path, ignore_errors=True)
    for top in ("/dev/shm", "/tmp"):
        for entry in os.scandir(top):
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith("systemd-private-"):
                    shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
    for path in sorted(unit_files() - set(json.loads(BASELINE.read_text())), reverse=True):
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)
        else:
            os.unlink(path)
    systemctl("daemon-reload")
    systemctl("reset-failed")


def gpus(minors: list[int]) -> None:
    host = platform.node()
    shutil.rmtree(STATE, ignore_errors=True)
    shutil.rmtree(ALLOCATIONS, ignore_errors=True)
    (STATE / "faults").mkdir(parents=True)
    (STATE / "alloc").symlink_to(ALLOCATIONS)
    lines = []
    for index, minor in enumerate(minors):
        directory = ALLOCATIONS / str(index)
        directory.mkdir(parents=True)
        directory.chmod(0o1777)  # engines run as users of their own
        name = f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{host}.{index}')}"
        lines.append(f"{index} {name} 00000000:{BUSES[index]:02X}:00.0 {minor} {TOTAL_MIB} {RESERVED_MIB} {GPU_NAME}\n")
    (STATE / "gpus").write_text("".join(lines))
    # /dev is empty after a reboot
    nodes = "".join(f"d {ALLOCATIONS}/{index} 1777\n" for index in range(len(minors)))
    Path("/etc/tmpfiles.d/gpusim.conf").write_text(nodes)


def install() -> None:
    library = Path(f"/usr/lib/{platform.machine()}-linux-gnu")
    for source, target in (("libnvidia-ml.so.1", library), ("nvidia-smi", Path("/usr/bin"))):
        shutil.copy(HERE / "lib" / source, target / f".{source}")
        os.rename(target / f".{source}", target / source)
    keys = Path("/home/operator/.ssh/authorized_keys")
    shutil.copy(HERE / "authorized_keys", keys)
    shutil.chown(keys, "operator", "operator")
    subprocess.run([sys.executable, HERE / "guest" / "model.py"], check=True)
    subprocess.run([HERE / "engines" / "install"], check=True)


def serve(engine: str) -> None:
    """The operator's own unit of an engine: installed, enabled, started and ready."""
    shutil.copy(HERE / "engines" / "units" / f"{engine}.service", "/etc/systemd/system")
    systemctl("daemon-reload")
    subprocess.run(["systemctl", "enable", "--quiet", "--now", f"{engine}.service"], check=True)
    port = {"vllm": 8000, "sglang": 30000}[engine]
    deadline = time.monotonic() + 120
    for path in ("health", "v1/models"):
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5):
                    break
            except OSError:
                if time.monotonic() > deadline:
                    sys.exit(f"{engine}.service is not ready: see journalctl -u {engine}")
                time.sleep(0.1)


def main() -> None:
    minors = [int(minor) for minor in sys.argv[1].split(",")]
    if not BASELINE.exists():
        BASELINE.write_text(json.dumps(sorted(unit_files())))
    os.chmod("/run", 0o755)  # a machine's; a container's belongs to everybody
    frozen.thaw()
    shutil.rmtree(STATE / "faults", ignore_errors=True)
    end_units()
    end_strangers()
    clear()
    gpus(minors)
    install()
    if sys.argv[2:]:
        serve(sys.argv[2])


try:
    main()
except subprocess.CalledProcessError as problem:
    sys.exit(f"reset: {problem}")
