# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put processes of one kind on this simulated host, as root. Prints a JSON list of {name, pid}.

What a scene starts outlives it, in the session and cgroup of the caller: over SSH it is somebody's shell job.
`hosts reset` ends it all.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Optional
from urllib.request import urlopen

HERE = Path(__file__).resolve().parent
ENGINE_PORTS = {"vllm": 8000, "sglang": 30000}
VLLM = (
    "/opt/vllm/bin/vllm serve /models/Kimi-K2.5 --served-model-name kimi-k2.5 --tensor-parallel-size {tp}"
    " --trust-remote-code --gpu-memory-utilization 0.93 --port {port}"
)
SGLANG = (
    "/opt/sglang/bin/python -m sglang.launch_server --model-path /models/Kimi-K2.5 --served-model-name kimi-k2.5"
    " --tp-size {tp} --trust-remote-code --mem-fraction-static 0.93 --port {port}"
)
PROFILER = ["--profiler-config", '{"profiler": "torch", "torch_profiler_dir": "/tmp/profile"}']

Found = Iterator[tuple[str, int]]


def command(args: argparse.Namespace) -> list[str]:
    text = {"vllm": VLLM, "sglang": SGLANG}[args.engine]
    return text.format(tp=args.tp, port=ENGINE_PORTS[args.engine]).split()


def start(*argv: str, user: Optional[str] = None, log: str = "/dev/null", **environment: str) -> int:
    """Start a program that outlives this one; its pid."""
    who = pwd.getpwnam(user) if user else None
    with open(log, "ab") as output:
        if who:
            os.fchown(output.fileno(), who.pw_uid, who.pw_gid)
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, **environment}, cwd=who.pw_dir if who else "/",
            user=who.pw_uid if who else None, group=who.pw_gid if who else None, extra_groups=[] if who else None,
        ).pid  # fmt: skip


def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"scene: {what} within {seconds:g} s")
        time.sleep(0.02)


def answers(engine: str) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{ENGINE_PORTS[engine]}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def until_ready(args: argparse.Namespace) -> None:
    if not args.no_wait:
        until(lambda: answers(args.engine), f"{args.engine} did not become ready")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def family(pid: int) -> Found:
    """A process and all that descend from it, by what their command lines show."""
    shown = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    yield shown[:60], pid
    for child in children(pid):
        yield from family(child)


def production(args: argparse.Namespace) -> Found:
    """the operator's own unit of an engine: installed, enabled, started and ready"""
    unit = f"{args.engine}.service"
    shutil.copy(HERE / "units" / unit, "/etc/systemd/system")
    for words in (["daemon-reload"], ["enable", "--quiet", "--now", unit]):
        subprocess.run(["systemctl", *words], check=True, timeout=60)
    until_ready(args)
    shown = subprocess.run(["systemctl", "show", "--property=MainPID", "--value", unit], stdout=subprocess.PIPE,
                           check=True, text=True, timeout=20).stdout  # fmt: skip
    yield from family(int(shown))


def by_hand(args: argparse.Namespace) -> Found:
    """an engine started from a shell, without any unit: --via says how, --profiler as a profiling run"""
    words = command(args) + (PROFILER if args.profiler else [])
    log = f"/var/log/{args.engine}-by-hand.log"
    if args.via == "tmux":
        quoted = " ".join(f"'{word}'" for word in words)
        start("tmux", "new-session", "-d", "-s", "work", f"exec {quoted} >{log} 2>&1")
        until(lambda: tmux_pid() is not None, "tmux did not start")
        pid = tmux_pid() or 0
    elif args.via == "nohup":
        pid = start("nohup", *words, log=log)
    else:
        # The shell that was typed into lives on, as its parent.
        shell = start("/bin/bash", "-c", '"$@" & wait', "bash", *words, log=log)
        until(lambda: children(shell), "the shell started nothing")
        (pid,) = children(shell)
    until_ready(args)
    yield from family(pid)


def tmux_pid() -> Optional[int]:
    shown = subprocess.run(["tmux", "list-panes", "-t", "work", "-F", "#{pane_pid}"], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, check=False, text=True, timeout=20)  # fmt: skip
    return int(shown.stdout) if shown.stdout.strip() else None


def orphans(args: argparse.Namespace) -> Found:
    """what SIGKILL of vLLM's API server leaves: EngineCore, workers and tracker, each worker with its memory"""
    everyone = list(by_hand(argparse.Namespace(**{**vars(args), "via": "nohup", "profiler": False})))
    os.kill(everyone[0][1], 9)
    until(lambda: not Path(f"/proc/{everyone[0][1]}/exe").exists(), "the API server did not end")
    yield from everyone[1:]


def supervisor(args: argparse.Namespace) -> Found:
    """a shell loop, no unit, that starts the engine again whenever it ends"""
    loop = 'while true; do "$@"; sleep 0.5; done'
    pid = start("/bin/bash", "-c", loop, "keep-serving", *command(args), log="/var/log/keep-serving.log")
    until_ready(args)
    yield from family(pid)


def job(args: argparse.Namespace) -> Found:
    """somebody else's training job: python3 train.py of alice, with a context on one GPU"""
    home = Path(pwd.getpwnam("alice").pw_dir)
    shutil.copy(HERE / "processes" / "train.py", home)
    pid = start("/usr/bin/python3", "train.py", str(args.gpu), "41000", user="alice")
    until(lambda: holds(pid, args.gpu), "the job took no memory")
    yield "python3 train.py", pid


def holds(pid: int, gpu: int) -> bool:
    return any(name.split(".")[0] == str(pid) for name in os.listdir(f"/var/lib/gpusim/alloc/{gpu}"))


def newcomer(args: argparse.Namespace) -> Found:
    """the same job, which comes --after so many seconds"""
    home = Path(pwd.getpwnam("alice").pw_dir)
    shutil.copy(HERE / "processes" / "train.py", home)
    wait = 'sleep "$1"; shift; exec "$@"'
    pid = start("/bin/sh", "-c", wait, "sh", str(args.after), "/usr/bin/python3", "train.py", str(args.gpu), "9000",
                user="alice")  # fmt: skip
    yield "python3 train.py", pid


def zombie(args: argparse.Namespace) -> Found:
    """a job whose first thread has ended: a zombie to look at, with a living thread that holds a GPU"""
    pid = start("/usr/bin/python3", str(HERE / "processes" / "zombie.py"), str(args.gpu), "30000")
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", "no zombie")
    yield "zombie.py", pid


def plain_zombie(args: argparse.Namespace) -> Found:
    """a real zombie with the title of a worker's command, whose parent does not care"""
    program = "import subprocess, signal; subprocess.Popen(['true']); signal.pause()"
    parent = start("/usr/bin/python3", "-c", program)
    until(lambda: children(parent), "no zombie")
    yield "true", children(parent)[0]


def stuck(args: argparse.Namespace) -> Found:
    """an orphaned worker in uninterruptible sleep: SIGKILL does not end it before a reset thaws it"""
    subprocess.run(["python3", HERE.parent / "guest" / "frozen.py"], check=True, timeout=60)
    pid = start(
        "/usr/bin/python3", str(HERE / "processes" / "stuck.py"), str(args.gpu), "91000", "/run/gpusim/frozen/x"
    )
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D", "it does not hang")
    yield f"VLLM::Worker_TP{args.gpu}", pid


def monitors(args: argparse.Namespace) -> Found:
    """nvitop, nvtop and a loop of nvidia-smi"""
    yield "nvitop", start("/usr/bin/python3", "/usr/local/bin/nvitop")
    yield "nvtop", start("/usr/bin/nvtop")
    loop = "while :; do nvidia-smi --query-gpu=memory.used --format=csv; sleep 0.2; done"
    yield "nvidia-smi loop", start("/bin/sh", "-c", loop)


def unlisted(args: argparse.Namespace) -> Found:
    """a monitor that nobody has heard of: every node open, no uvm, no context"""
    pid = start("/usr/local/bin/gpuwatchd", "--interval", "5")
    until(lambda: len(os.listdir(f"/proc/{pid}/fd")) > 8, "it opened no node")
    yield "gpuwatchd", pid


def bystanders(args: argparse.Namespace) -> Found:
    """processes that only look like an engine to a pattern: unrelated Python, a pager, an editor, a web server"""
    Path("/var/log/vllm.log").touch()
    Path("/tmp/vllm serve notes.txt").touch()
    yield "tail", start("tail", "-f", "/var/log/vllm.log")
    sleep = "import time; time.sleep(1e6)"
    yield "python3 service", start("/usr/bin/python3", "-c", sleep)
    yield "report", start("/usr/bin/python3", "-c", sleep, "vllm", "serve", "/models/Kimi-K2.5")
    yield "http.server", start("/usr/bin/python3", "-m", "http.server", "--bind", "127.0.0.1", "8099")
    # An editor is no Python and waits for a terminal: script(1) gives it one.
    yield "editor", start("/bin/sh", "-c", "sleep 1000000; :", "vim", "/opt/vllm/bin/vllm", "serve")
    yield "fork of a name", start("/bin/bash", "-c", "exec -a VLLM::Worker_TP0 sleep 1000000")


BOX = Path("/srv/box")
BOUND = ("/usr", "/etc", "/opt", "/models", "/var", "/dev", "/home")
# Of the host all but the network, its own files included: no image to fetch, and pids as the driver knows them.
# No limits, for a simulated host has few of the cgroup controllers, and no more rights than it can give away.
BOXED = ["--pids-limit=0", "--network=none", "--pid=host", *(f"--volume={top}:{top}" for top in BOUND)]
RIGHTS = {"podman": "--privileged", "docker": "--device-cgroup-rule=c *:* rwm"}
NOTIFY = "Type=notify\nNotifyAccess=all\n"
UNITS: dict[str, tuple[str, list[str]]] = {
    "client": ("", []),
    # As `podman generate systemd` and as quadlet write them.
    "monitor": (NOTIFY, ["--detach", "--cgroups=no-conmon", "--sdnotify=conmon"]),
    "quadlet": (f"{NOTIFY}Delegate=yes\nKillMode=mixed\n", ["--detach", "--cgroups=split", "--sdnotify=conmon"]),
}
"""What a unit says of its service, and to podman."""
DOCKERD = """[Service]
Type=notify
ExecStart=/usr/sbin/dockerd -H unix:///run/docker.sock --bridge=none --iptables=false --storage-driver=vfs
Delegate=yes
KillMode=process
OOMScoreAdjust=-500
"""


def runtime(*words: str, check: bool = True) -> str:
    return subprocess.run(words, stdout=subprocess.PIPE, check=check, text=True, timeout=120).stdout.strip()


def prepare_runtime(name: str) -> list[str]:
    """What to write between `run` and the command."""
    for top in (*BOUND, "/proc", "/sys", "/run", "/tmp"):
        (BOX / top[1:]).mkdir(parents=True, exist_ok=True)
    for link in ("bin", "sbin", "lib", "lib64"):
        if not (BOX / link).is_symlink():
            (BOX / link).symlink_to(f"usr/{link}")
    # What a reset left of the runtime's memory is of containers that it ended.
    if name == "podman":
        for state in ("/var/lib/containers/storage", "/run/containers/storage", "/run/libpod"):
            shutil.rmtree(state, ignore_errors=True)
        roots = 'runroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers/storage"\n'
        Path("/etc/containers/storage.conf").write_text(f'[storage]\ndriver = "vfs"\n{roots}')
        return [RIGHTS[name], *BOXED, "--rootfs", str(BOX)]
    shutil.rmtree("/var/lib/docker", ignore_errors=True)
    Path("/run/systemd/system/docker.service").write_text(DOCKERD)
    runtime("systemctl", "daemon-reload")
    runtime("systemctl", "start", "docker.service")
    archive = subprocess.run(["tar", "-cC", str(BOX), "."], stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["docker", "import", "-", "box"], input=archive, check=True, stdout=subprocess.DEVNULL)
    return [RIGHTS[name], *BOXED, "box"]


def container(args: argparse.Namespace) -> Found:
    """an engine (or --job) in a container of podman or docker, by itself or run by a unit; --dead kills its monitor"""
    how = prepare_runtime(args.runtime)
    words = command(args)
    if args.job:
        words = ["/usr/bin/python3", str(HERE / "processes" / "train.py"), "3", "41000"]
    run = [f"/usr/bin/{args.runtime}", "run", f"--name={args.name}"]
    if args.unit == "":
        runtime(*run, "--detach", f"--restart={args.restart}", *how, *words)
    else:
        kind, how_run = UNITS[args.unit]
        line = shlex.join([*run, "--rm", *how_run, *how, *words])
        Path(f"/etc/systemd/system/{args.name}.service").write_text(
            f"[Service]\n{kind}ExecStartPre=-/usr/bin/{args.runtime} rm --force {args.name}\nExecStart={line}\n"
            "Restart=always\nRestartSec=1\n"
        )
        runtime("systemctl", "daemon-reload")
        runtime("systemctl", "start", f"{args.name}.service")
    shown = [args.runtime, "inspect", "--format", "{{.State.Pid}}", args.name]
    until(lambda: runtime(*shown, check=False) not in ("", "0"), "the container did not start")
    pid = int(runtime(*shown))
    inside = ["nsenter", f"--net=/proc/{pid}/ns/net", "curl", "--silent", "--fail", "--output", "/dev/null",
              f"http://127.0.0.1:{ENGINE_PORTS[args.engine]}/health"]  # fmt: skip
    if args.job:
        until(lambda: any(holds(member, 3) for _name, member in family(pid)), "the job took no memory")
    else:
        until(
            lambda: subprocess.run(inside, check=False, timeout=20).returncode == 0, "the engine did not become ready"
        )
    found = list(family(pid))
    if args.dead:
        os.kill(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]), 9)
    yield from found


def user_unit(args: argparse.Namespace) -> Found:
    """alice's own service that runs an engine, under her service manager; --beside runs something else in it, too"""
    alice = pwd.getpwnam("alice")
    manager = Path(f"/run/systemd/system/user@{alice.pw_uid}.service")
    # A copy, so that a reset knows it for one of ours. Without libpam-systemd nobody else says where it is to live.
    manager.write_text(
        Path("/usr/lib/systemd/system/user@.service").read_text()
        + f"Environment=XDG_RUNTIME_DIR=/run/user/{alice.pw_uid}\n"
    )
    unit = Path(alice.pw_dir) / ".config/systemd/user/llm.service"
    unit.parent.mkdir(parents=True, exist_ok=True)
    line = " ".join(command(args))
    if args.beside:
        line = f"/bin/sh -c 'tail -f /dev/null & {line}'"
    unit.write_text(f"[Service]\nExecStart={line}\nRestart=always\nRestartSec=1\n")
    runtime("chown", "-R", "alice:", str(Path(alice.pw_dir) / ".config"))
    runtime("systemctl", "daemon-reload")
    runtime("systemctl", "start", manager.name)
    hers = ["setpriv", f"--reuid={alice.pw_uid}", f"--regid={alice.pw_gid}", "--init-groups", "env",
            f"XDG_RUNTIME_DIR=/run/user/{alice.pw_uid}", "systemctl", "--user"]  # fmt: skip
    runtime(*hers, "daemon-reload")
    runtime(*hers, "start", "llm.service")
    until_ready(args)
    yield from family(int(runtime(*hers, "show", "--property=MainPID", "--value", "llm.service")))


def settle(found: list[tuple[str, int]], cgroup: str) -> None:
    """Put processes into a cgroup that is called as another program would call it."""
    directory = Path("/sys/fs/cgroup" + cgroup)
    directory.mkdir(parents=True, exist_ok=True)
    for _name, pid in found:
        (directory / "cgroup.procs").write_text(str(pid))


SCENES = {
    function.__name__.replace("_", "-"): function
    for function in (production, by_hand, orphans, supervisor, job, newcomer, stuck, zombie, plain_zombie, monitors,
                     unlisted, bystanders, container, user_unit)
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="scene", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    scenes = parser.add_subparsers(required=True, metavar="SCENE")
    for name, function in SCENES.items():
        scene = scenes.add_parser(name, help=function.__doc__)
        scene.set_defaults(play=function)
        if function in (production, by_hand, orphans, supervisor, container, user_unit):
            scene.add_argument("engine", nargs="?", choices=tuple(ENGINE_PORTS), default="vllm")
            scene.add_argument("--no-wait", action="store_true", help="do not wait until it is ready")
            scene.add_argument("--tp", type=int, default=8)
        if function is by_hand:
            scene.add_argument("--via", choices=("shell", "nohup", "tmux"), default="nohup")
            scene.add_argument("--profiler", action="store_true")
        if function in (job, newcomer, stuck, zombie):
            scene.add_argument("--gpu", type=int, default=3)
        if function is container:
            scene.add_argument("--runtime", choices=("podman", "docker"), default="podman")
            scene.add_argument("--name", default="llm")
            scene.add_argument("--restart", default="always")
            scene.add_argument(
                "--unit",
                nargs="?",
                choices=tuple(UNITS),
                const="client",
                default="",
                help="run by a unit, whose main process is the runtime's client, or podman's monitor",
            )
            scene.add_argument("--job", action="store_true", help="somebody's training instead of an engine")
            scene.add_argument("--dead", action="store_true", help="kill what watches over it")
        if function is user_unit:
            scene.add_argument("--beside", action="store_true", help="it runs something else as well")
        if function in (by_hand, job):
            scene.add_argument("--cgroup", default="", help="put it there: PATH as in /proc/PID/cgroup")
        if function is newcomer:
            scene.add_argument("--after", type=float, default=1)
    args = parser.parse_args()
    found = list(args.play(args))
    if getattr(args, "cgroup", ""):
        settle(found, args.cgroup)
    print(json.dumps([{"name": name, "pid": pid} for name, pid in found]))


if __name__ == "__main__":
    main()
