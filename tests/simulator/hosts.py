# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulated GPU hosts: podman containers with a real systemd and sshd, and eight GPUs that only a library knows.

Needs root (it calls sudo by itself). GPUOPS_SIM_PREFIX names a set of hosts, so that several live side by side.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import io
import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SIMULATOR = Path(__file__).resolve().parent
CHECKOUT = SIMULATOR.parent.parent
PREFIX = os.environ.get("GPUOPS_SIM_PREFIX") or ""
DEFAULT_PREFIX = "gpuops-" + hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:8]
NAME = PREFIX or DEFAULT_PREFIX

CACHE = Path("/var/cache/gpuops-sim")  # images and libraries, named by the content of what they are made from
STATE = Path("/var/lib/gpuops-sim") / NAME  # all that podman knows of this set of hosts: removed as a whole
CONTROL = CHECKOUT / ".cache" / "sim" / NAME  # what the controller needs: key, known hosts, inventory
WHEELS = CHECKOUT / ".cache" / "wheels"
INVENTORY = (CONTROL if PREFIX else CHECKOUT / "inventories" / "sim") / "hosts.yml"
GUEST = "/usr/local/lib/gpusim"
BUILT = ("libnvidia-ml.so.1", "nvidia-smi", "client")
BOOT_SECONDS = 120

PACKAGES = (
    "systemd systemd-sysv dbus openssh-server sudo ca-certificates procps psmisc iproute2 util-linux e2fsprogs"
    " python3 python3-venv python3-setproctitle curl tmux less vim-tiny"
).split()


@dataclass(frozen=True)
class Host:
    """One simulated host: its Debian, and the minor number of each GPU in index order."""

    suite: str
    packages: tuple[str, ...]
    minors: tuple[int, ...]


# With libpam-systemd an SSH login is a session of its own; without it every SSH job lives in ssh.service.
HOSTS = {
    "sim-debian12": Host("bookworm", ("libpam-systemd",), (0, 1, 2, 3, 4, 5, 6, 7)),
    "sim-debian13": Host("trixie", (), (3, 2, 1, 0, 7, 6, 5, 4)),
}


class SimError(Exception):
    """What went wrong and what to do about it, for a person."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(command: Sequence[str | Path], timeout: float = 600, data: bytes | None = None, name: str = "") -> str:
    """Standard output of a command; SimError with its name and the end of its output when it fails."""
    argv = [str(word) for word in command]
    name = name or " ".join(argv)[:300]
    # Files, not pipes: what podman leaves running keeps them open, and a pipe would be waited for.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as into:
        into.write(data or b"")
        into.seek(0)
        try:
            code = subprocess.run(argv, stdin=into, stdout=out, stderr=err, timeout=timeout, check=False).returncode
        except subprocess.TimeoutExpired:
            raise SimError(f"no answer in {timeout:g} s: {name}") from None
        except FileNotFoundError:
            raise SimError(f"not installed: {argv[0]}") from None
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    if code:
        raise SimError(f"exit status {code}: {name}\n{''.join(texts).strip()[-2000:]}")
    return texts[0]


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def need(**packages: str) -> None:
    """Install the packages whose command is missing (command=package; _ stands for -)."""
    missing = [word for command, names in packages.items() if not shutil.which(command.replace("_", "-"))
               for word in names.split()]  # fmt: skip
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise SimError(f"install these first: {' '.join(missing)}")
    say(f"installing {' '.join(missing)}")
    env = ["env", "DEBIAN_FRONTEND=noninteractive"]
    run(["apt-get", "update", "-q"])
    run([*env, "apt-get", "install", "-q", "-y", "--no-install-recommends", *missing])


# ---------------------------------------------------------------------------------------------------------------
# What the hosts are made from


def image(host: Host) -> Path:
    """The root file system of a host's Debian; made once for each content of its inputs."""
    customize = SIMULATOR / "image" / "customize"
    packages = [*PACKAGES, *host.packages]
    path = CACHE / f"{host.suite}-{digest(packages, customize.read_bytes(), platform.machine())}"
    if path.is_dir():
        return path
    with lock(path.with_suffix(".lock")):
        if path.is_dir():
            return path
        say(f"making the image {path.name} (about half a minute)")
        unfinished = path.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        run(
            [
                "mmdebstrap",
                "--variant=minbase",
                "--format=directory",
                f"--include={','.join(packages)}",
                "--aptopt=Acquire::Retries 3",
                '--aptopt=Acquire::Check-Valid-Until "false"',
                "--dpkgopt=path-exclude=/usr/share/man/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
                f'--customize-hook={customize} "$1"',
                host.suite,
                unfinished,
            ]
        )
        unfinished.rename(path)
    return path


def pip(*arguments: str | Path) -> None:
    """pip of the project's environment, of this Python, or (Debian's has none) of a small one of our own."""
    own = CHECKOUT / ".cache" / "pip" / "bin" / "python"
    for python in (CHECKOUT / ".venv/bin/python", Path(sys.executable), own):
        with contextlib.suppress(SimError):
            run([python, "-m", "pip", "--version"])
            break
    else:
        python = own
        run([sys.executable, "-m", "venv", own.parent.parent])
    run([python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments])


def wheels() -> None:
    """Wheels for the managed hosts, which reach no package index: .cache/wheels."""
    requirements = SIMULATOR / "requirements-hosts.txt"
    done = WHEELS / f".{digest(requirements.read_bytes())}"
    if done.exists():
        return
    WHEELS.mkdir(parents=True, exist_ok=True)
    pip("download", "--no-deps", "--only-binary=:all:", "--dest", WHEELS, "--requirement", requirements)
    done.touch()
    give_back(WHEELS.parent)


def libraries() -> Path:
    """libnvidia-ml.so.1 and nvidia-smi, compiled against NVIDIA's own header; and the monitors' program."""
    source = SIMULATOR / "nvml"
    sources = [source / "nvml.c", source / "nvidia-smi.c", SIMULATOR / "engines" / "client.c"]
    header = (source / "header.txt").read_text().split()[0]
    path = CACHE / f"nvml-{digest(header, [file.read_bytes() for file in sources], platform.machine())}"
    if path.is_dir():
        return path
    with lock(path.with_suffix(".lock")):
        if path.is_dir():
            return path
        need(cc="gcc libc6-dev", make="make")
        say(f"compiling {path.name}")
        unfinished = path.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        pip("download", "--no-deps", "--only-binary=:all:", "--dest", unfinished, header)
        (wheel,) = unfinished.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [m for m in archive.namelist() if m.endswith("/nvml.h")]
            (unfinished / "nvml.h").write_bytes(archive.read(member))
        wheel.unlink()
        run(["make", "-s", "-C", source, f"OUT={unfinished}"])
        unfinished.rename(path)
    return path


# ---------------------------------------------------------------------------------------------------------------
# podman, in a mount namespace of its own where the machine's cgroups are not pure v2


class Podman:
    """podman with all its state under STATE, so that any leftover of a set can be removed as a whole."""

    def __init__(self) -> None:
        self.wrapped = not Path("/sys/fs/cgroup/cgroup.controllers").exists()
        self.namespace = STATE / "ns" / "mnt"
        # cgroup v2 as seen from outside the namespace
        self.cgroups = (STATE / "ns" / "cgroup" if self.wrapped else Path("/sys/fs/cgroup")) / NAME

    def __call__(self, *arguments: str | Path, timeout: float = 60, data: bytes | None = None) -> str:
        return run([*self.command(), *arguments], timeout, data, f"podman {' '.join(map(str, arguments))}"[:300])

    def command(self) -> list[str]:
        enter = ["nsenter", f"--mount={self.namespace}"] if self.wrapped else []
        return [
            "env",
            f"CONTAINERS_CONF={STATE}/containers.conf",
            *enter,
            "podman",
            f"--root={STATE}/root",
            f"--runroot={STATE}/run",
            f"--tmpdir={STATE}/tmp",
            "--cgroup-manager=cgroupfs",
            f"--runtime-flag=root={STATE}/crun",
        ]

    def prepare(self) -> None:
        """Make STATE usable from any leftover, one of an earlier boot included."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        stamp = STATE / "boot-id"
        if STATE.exists() and not (stamp.exists() and stamp.read_text() == boot and self._namespace_lives()):
            self.wipe()
        if STATE.exists():
            return
        STATE.mkdir(parents=True, mode=0o700)
        # Locks in files of our own: the ones in shared memory are common to all of the machine's podmans.
        (STATE / "containers.conf").write_text('[engine]\nlock_type = "file"\nevents_logger = "none"\n')
        if self.wrapped:
            # A namespace file needs a mount that does not propagate; slave, so that later mounts are seen inside.
            private = self.namespace.parent
            private.mkdir()
            run(["mount", "--bind", private, private])
            run(["mount", "--make-private", private])
            self.cgroups.parent.mkdir()
            run(["mount", "-t", "cgroup2", "none", self.cgroups.parent])
            self.namespace.touch()
            run(
                [
                    "unshare",
                    f"--mount={self.namespace}",
                    "--propagation=slave",
                    "sh",
                    "-ec",
                    "umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup",
                ]
            )
        stamp.write_text(boot)

    def _namespace_lives(self) -> bool:
        return not self.wrapped or os.path.ismount(self.namespace)

    def end(self, group: Path) -> None:
        """End every process in a control group and below, and remove it."""

        def pids() -> list[int]:
            found = []
            for procs in group.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):  # a group that went away, or a threaded one
                    found += [int(pid) for pid in procs.read_text().split()]
            return found

        if not group.is_dir():
            return
        for pid in pids():
            thaw(pid)
        (group / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + 20
        while group.is_dir():
            for directory in [*sorted(group.rglob("*/"), reverse=True), group]:
                with contextlib.suppress(OSError):  # busy: a process in it still dies
                    if directory.is_dir():
                        directory.rmdir()
            if time.monotonic() > deadline:
                raise SimError(f"these processes of {NAME} do not end: {pids()[:20]}")
            time.sleep(0.02)

    def wipe(self) -> None:
        """Remove every process, mount, cgroup and file of this set of hosts, whatever state they are in."""
        if os.path.ismount(self.cgroups.parent):
            self.end(self.cgroups)
        if self._namespace_lives() and (STATE / "root").exists():
            with contextlib.suppress(SimError):  # a broken database is what the rest of this method is for
                self("rm", "--force", "--all", "--time=0", timeout=30)
        for netns in STATE.glob("netns/*"):
            leftover = Path("/run/netns") / netns.name
            if os.path.ismount(leftover):
                run(["umount", leftover])
            leftover.unlink(missing_ok=True)
        for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
            target = line.split()[4]
            if Path(target).is_relative_to(STATE):
                run(["umount", target])
        shutil.rmtree(STATE)


FITHAW = 0xC0045878


def thaw(pid: int) -> None:
    """Thaw the frozen file system of a host by way of one of its processes, else they never end."""
    with contextlib.suppress(OSError):  # none there, not frozen, or the process is gone
        fd = os.open(f"/proc/{pid}/root/run/gpusim/frozen", os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, FITHAW, 0)
        finally:
            os.close(fd)


podman = Podman()


# ---------------------------------------------------------------------------------------------------------------
# One host


@dataclass(frozen=True)
class Running:
    """A host that is up: its container's first process, its sshd's loopback port, and whether `up` would keep it."""

    pid: int
    port: int
    current: bool


def container(name: str) -> str:
    return f"{NAME}-{name}"


def options(name: str) -> list[str]:
    """How the container of a host is run."""
    hard = [resource.getrlimit(which)[1] for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)]
    files, tasks = (limit if 0 <= limit < top else top for limit, top in zip(hard, (524288, 32768)))
    return [
        f"--hostname={name}", "--systemd=always", "--privileged", "--pids-limit=0", "--cgroupns=private",
        f"--cgroup-parent=/{NAME}/{name}", f"--ulimit=nofile=1024:{files}", f"--ulimit=nproc={tasks}:{tasks}",
        "--shm-size=4g", "--log-driver=none",
        # In user space: no packet filter rule is ever left behind.
        "--network=slirp4netns", "--publish=127.0.0.1::22",
        "--rootfs", f"{image(HOSTS[name])}:O",
    ]  # fmt: skip


def recipe(name: str) -> str:
    """Changes when a host must be made anew: by another way to run it, or a key that it does not know."""
    key = CONTROL / "id_ed25519.pub"
    return digest(options(name), key.read_bytes() if key.exists() else b"")


def inspect(name: str) -> Running | None:
    """The host if it is up."""
    if not (STATE / "root").exists():
        return None
    try:
        (found,) = json.loads(podman("inspect", "--type=container", container(name)))
    except SimError:
        return None
    pid = found["State"]["Pid"]
    with contextlib.suppress(OSError):
        # The process is asked itself: podman goes on believing in one that somebody else killed.
        if found["Id"] in Path(f"/proc/{pid}/cgroup").read_text():
            port = int(found["NetworkSettings"]["Ports"]["22/tcp"][0]["HostPort"])
            return Running(pid, port, found["Config"]["Labels"]["recipe"] == recipe(name))
    return None


def create(name: str) -> Running:
    """A new host, booted."""
    label = f"--label=recipe={recipe(name)}"
    podman("run", "--detach", f"--name={container(name)}", label, *options(name), "/sbin/init")
    return booted(name)


def booted(name: str) -> Running:
    """The host whose container was just started, once systemd has started everything."""
    (found,) = json.loads(podman("inspect", container(name)))
    # podman makes these outside of STATE; remembered for wipe()
    (STATE / "netns").mkdir(exist_ok=True)
    (STATE / "netns" / Path(found["NetworkSettings"]["SandboxKey"]).name).touch()
    deadline = time.monotonic() + BOOT_SECONDS
    while True:
        try:
            execute(name, "systemctl", "is-system-running", "--wait", timeout=BOOT_SECONDS)
            break
        except SimError as error:
            if "degraded" in str(error):
                failed = execute(name, "systemctl", "--failed", "--no-legend")
                raise SimError(f"{name} is degraded:\n{failed}") from None
            if time.monotonic() > deadline:
                raise SimError(f"{name} did not boot in {BOOT_SECONDS} s: {error}") from None
            time.sleep(0.1)  # the bus is not there yet
    host = inspect(name)
    if not host:
        raise SimError(f"{name} ended while it booted")
    return host


def remove(name: str) -> None:
    podman.end(podman.cgroups / name)
    with contextlib.suppress(SimError):  # it is mostly not there
        podman("rm", "--force", "--time=0", container(name))


def execute(name: str, *command: str, timeout: float = 60, data: bytes | None = None) -> str:
    return podman(
        "exec", *(["--interactive"] if data is not None else []), container(name), *command, timeout=timeout, data=data
    )


def give_back(path: Path) -> None:
    """What the controller needs belongs to whoever owns the checkout, not to root."""
    owner = CHECKOUT.stat()
    for part in (path, *path.rglob("*")):
        os.chown(part, owner.st_uid, owner.st_gid, follow_symlinks=False)


def parcel() -> bytes:
    """The simulator's own files as a tar archive for a host: readable by all there, whatever the umask here."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if "__pycache__" in member.name:
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for part in ("guest", "gpusim", "engines"):
            if (SIMULATOR / part).exists():
                archive.add(SIMULATOR / part, part, filter=plain)
        for built in BUILT:
            archive.add(libraries() / built, f"lib/{built}", filter=plain)
        archive.add(CONTROL / "id_ed25519.pub", "authorized_keys", filter=plain)
    return buffer.getvalue()


def reset(name: str, serving: str | None = None) -> None:
    """Back to the pristine host, with the simulator's files as they are in the checkout now."""
    minors = ",".join(map(str, HOSTS[name].minors))
    unpack = f'rm -rf {GUEST}; mkdir {GUEST}; tar -xC {GUEST}; exec python3 {GUEST}/guest/reset.py "$@"'
    engine = [serving] if serving else []
    execute(name, "sh", "-ec", unpack, "reset", minors, *engine, timeout=180, data=parcel())


def answers(host: Running, patience: float) -> bool:
    """Whether sshd greets behind its published port, within some seconds."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", host.port), timeout=5) as connection:
                if connection.recv(4) == b"SSH-":
                    return True
        except ConnectionRefusedError:
            return False  # what forwards the port is gone for good
        except OSError:
            pass  # forwarded, but sshd is not there yet
        time.sleep(0.05)
    return False


def write_inventory() -> None:
    """The inventory of all hosts that are up; none where none is."""
    up = {name: host for name in HOSTS if (host := inspect(name))}
    known_hosts = CONTROL / "known_hosts"
    arguments = f"-o UserKnownHostsFile={known_hosts} -o StrictHostKeyChecking=yes"
    inventory = {"gpu_hosts": {
        "vars": {
            "ansible_host": "127.0.0.1",
            "ansible_user": "operator",
            "ansible_ssh_private_key_file": str(CONTROL / "id_ed25519"),
            "ansible_ssh_common_args": arguments,
            "ansible_python_interpreter": "/usr/bin/python3",
            "gpuops_wheels": str(WHEELS),
        },
        "hosts": {name: {"ansible_port": host.port} for name, host in up.items()},
    }}  # fmt: skip
    keys = (f"[127.0.0.1]:{host.port} {execute(name, 'cat', '/etc/ssh/ssh_host_ed25519_key.pub')}"
            for name, host in up.items())  # fmt: skip
    known_hosts.write_text("".join(keys))
    INVENTORY.write_text(f"# written by tests/simulator/hosts\n{json.dumps(inventory, indent=2)}\n")
    group_vars = CONTROL / "group_vars"
    if PREFIX and not group_vars.is_symlink():
        group_vars.symlink_to(CHECKOUT / "inventories" / "sim" / "group_vars")
    give_back(CONTROL.parent)
    give_back(INVENTORY)


# ---------------------------------------------------------------------------------------------------------------
# Commands


def command_up(args: argparse.Namespace) -> None:
    need(
        podman="podman netavark",
        mmdebstrap="mmdebstrap",
        slirp4netns="slirp4netns",
        crun="crun",
        ssh_keygen="openssh-client",
    )
    CONTROL.mkdir(parents=True, exist_ok=True)
    if not (CONTROL / "id_ed25519").exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", NAME, "-f", CONTROL / "id_ed25519"])
    with ThreadPoolExecutor() as pool:
        made = pool.map(image, (HOSTS[name] for name in args.names))
        rest = pool.submit(libraries), pool.submit(wheels)
        list(made), rest[0].result(), rest[1].result()
    podman.prepare()

    def bring_up(name: str) -> None:
        remove(name)
        host = create(name)
        reset(name)
        if not answers(host, 30):
            raise SimError(f"{name} is up, but no SSH server answers on 127.0.0.1:{host.port}")
        say(f"{name}: up, sshd on 127.0.0.1:{host.port}")

    def is_well(name: str) -> bool:
        host = inspect(name)
        if host and not host.current:
            say(f"{name}: made anew, for the image, the key or the way to run it changed")
        # A host whose helper processes were killed still runs, but cannot be reached any more.
        return bool(host and host.current and answers(host, 5))

    missing = [name for name in args.names if not is_well(name)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(bring_up, missing))
    write_inventory()
    print(INVENTORY)


def command_down(args: argparse.Namespace) -> None:
    if STATE.exists():
        podman.wipe()
    shutil.rmtree(CONTROL, ignore_errors=True)
    INVENTORY.unlink(missing_ok=True)


def command_clean(args: argparse.Namespace) -> None:
    others = [path.name for path in STATE.parent.glob("*/") if path.is_dir()]
    if others:
        raise SimError(f"hosts are still there: {', '.join(others)} ('down' with each as GPUOPS_SIM_PREFIX first)")
    shutil.rmtree(CACHE, ignore_errors=True)


def command_image(args: argparse.Namespace) -> None:
    need(mmdebstrap="mmdebstrap")
    for name in args.names:
        print(image(HOSTS[name]))


def command_libraries(args: argparse.Namespace) -> None:
    wheels()
    print(libraries())


def command_reset(args: argparse.Namespace) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: reset(must_run(name), args.serving), args.names))


def command_reboot(args: argparse.Namespace) -> None:
    """As after a power cut: files stay, all processes and whatever is in memory are gone."""
    for name in args.names:
        podman("stop", "--time=0", container(must_run(name)))
        deadline = time.monotonic() + BOOT_SECONDS
        while True:
            try:
                podman("start", container(name))
                break
            except SimError as error:
                # What cleans up after the stop runs on its own.
                if "already exists" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        if not answers(booted(name), 30):
            raise SimError(f"{name} is up again, but no SSH server answers")
    write_inventory()


def command_exec(args: argparse.Namespace) -> None:
    terminal = ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    argv = [*podman.command(), "exec", "--interactive", *terminal, container(must_run(args.name)), *args.command]
    os.execvp(argv[0], argv)


def command_fault(args: argparse.Namespace) -> None:
    must_run(args.name)
    if args.action == "set":
        if not args.fault:
            raise SimError("which fault? hosts fault NAME set FAULT [VALUE]")
        path = f"/var/lib/gpusim/faults/{args.fault}"
        # renamed into place: a reader sees the whole value or none
        replace = 'cat > "$1.new"; mv "$1.new" "$1"'
        execute(args.name, "sh", "-ec", replace, "sh", path, data=(args.value + "\n").encode())
    elif args.fault:
        execute(args.name, "rm", "-f", f"/var/lib/gpusim/faults/{args.fault}")
    else:
        execute(args.name, "sh", "-c", "rm -f /var/lib/gpusim/faults/*")


def command_status(args: argparse.Namespace) -> None:
    for name in HOSTS:
        host = inspect(name)
        print(f"{name}\t{f'127.0.0.1:{host.port} pid {host.pid}' if host else 'down'}")


def command_inventory(args: argparse.Namespace) -> None:
    if not INVENTORY.exists():
        raise SimError("no host is up: 'hosts up' first")
    print(INVENTORY)


def must_run(name: str) -> str:
    if not inspect(name):
        raise SimError(f"{name} is not up: 'hosts up {name}' first")
    return name


def main() -> None:
    parser = argparse.ArgumentParser(prog="hosts", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, action: Callable[[argparse.Namespace], None], text: str, alone: bool = True
    ) -> argparse.ArgumentParser:
        """A subcommand; those that run alone wait for each other, in one set of hosts."""
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=action, alone=alone)
        return sub

    def names(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("names", nargs="*", metavar="NAME", default=list(HOSTS), help=f"of {', '.join(HOSTS)}")

    names(command("up", command_up, "bring hosts up and write their inventory, whose path is printed"))
    command("down", command_down, "remove the hosts and all that they left on this machine")
    command("clean", command_clean, "remove the cached images, once no hosts are left")
    names(command("image", command_image, "make the images without starting anything"))
    command("libraries", command_libraries, "make libnvidia-ml.so.1 and nvidia-smi without starting anything")
    sub = command("reset", command_reset, "bring running hosts back to the pristine state")
    names(sub)
    sub.add_argument("--serving", choices=("vllm", "sglang"), help="the production engine, enabled and ready")
    names(command("reboot", command_reboot, "cut the hosts' power and boot them again"))
    sub = command("exec", command_exec, "run a command in a host as root", alone=False)
    sub.add_argument("name", choices=HOSTS)
    sub.add_argument("command", nargs="+")
    sub = command("fault", command_fault, "switch a fault on or off (README.md lists them)", alone=False)
    sub.add_argument("name", choices=HOSTS)
    sub.add_argument("action", choices=("set", "clear"))
    sub.add_argument("fault", nargs="?")
    sub.add_argument("value", nargs="?", default="")
    command("status", command_status, "the hosts and where they listen", alone=False)
    command("inventory", command_inventory, "print the path of the inventory", alone=False)
    args = parser.parse_args()

    if unknown := [name for name in getattr(args, "names", []) if name not in HOSTS]:
        parser.error(f"no such host: {', '.join(unknown)} (there are {', '.join(HOSTS)})")
    if not re.fullmatch("[a-z0-9][a-z0-9-]*", NAME):
        parser.error(f"GPUOPS_SIM_PREFIX must be made of a-z, 0-9 and -, not {PREFIX!r}")
    if os.geteuid():
        os.execvp("sudo", ["sudo", f"GPUOPS_SIM_PREFIX={PREFIX}", sys.executable, __file__, *sys.argv[1:]])
    with lock(Path(f"/run/lock/gpuops-sim-{NAME}.lock")) if args.alone else contextlib.nullcontext():
        args.run(args)


if __name__ == "__main__":
    try:
        main()
    except SimError as problem:
        sys.exit(f"hosts: {problem}")
