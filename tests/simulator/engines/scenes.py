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


SCENES = {
    function.__name__.replace("_", "-"): function
    for function in (production, by_hand, orphans, supervisor, job, newcomer, stuck, zombie, plain_zombie, monitors,
                     unlisted, bystanders)
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="scene", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    scenes = parser.add_subparsers(required=True, metavar="SCENE")
    for name, function in SCENES.items():
        scene = scenes.add_parser(name, help=function.__doc__)
        scene.set_defaults(play=function)
        if function in (production, by_hand, orphans, supervisor):
            scene.add_argument("engine", nargs="?", choices=tuple(ENGINE_PORTS), default="vllm")
            scene.add_argument("--no-wait", action="store_true", help="do not wait until it is ready")
            scene.add_argument("--tp", type=int, default=8)
        if function is by_hand:
            scene.add_argument("--via", choices=("shell", "nohup", "tmux"), default="nohup")
            scene.add_argument("--profiler", action="store_true")
        if function in (job, newcomer, stuck, zombie):
            scene.add_argument("--gpu", type=int, default=3)
        if function is newcomer:
            scene.add_argument("--after", type=float, default=1)
    args = parser.parse_args()
    print(json.dumps([{"name": name, "pid": pid} for name, pid in args.play(args)]))


if __name__ == "__main__":
    main()
