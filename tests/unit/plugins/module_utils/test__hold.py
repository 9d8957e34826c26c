# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _hold
from ansible_collections.gpuops.inference.plugins.module_utils._hold import (
    Hold,
    HoldError,
    Holds,
    end_of_hold,
    is_stopped_for_a_hold,
    triggers_of,
)
from ansible_collections.gpuops.inference.plugins.module_utils._record import RecordError
from ansible_collections.gpuops.inference.plugins.module_utils._units import (
    Completed,
    Unit,
    Units,
    UnitsError,
    parse_show,
)


class Systemd:
    """The service manager as far as holds need it: what it read, what is active, what it was told, in order."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.said: list[str] = []
        self.killed_at = ""
        self.refuses: set[str] = set()

    def __call__(self, argv: Sequence[str], timeout: float) -> Completed:
        words = [word for word in argv[1:] if not word.startswith("--")]
        verb, names = words[0], words[1:]
        if verb == self.killed_at:
            raise KeyboardInterrupt
        if verb == "show":
            return Completed(0, "\n".join(f"Id={n}\nActiveState={self.states.get(n, 'inactive')}\n" for n in names), "")
        self.said.append(" ".join(words))
        if verb == "start" and not self.refuses & set(names):
            self.states.update(dict.fromkeys(names, "active"))
        return Completed(0, "", "")


@pytest.fixture
def holds(tmp_path: Path) -> Holds:
    return Holds(*(tmp_path / name for name in ("hold", "units", "kept", "etc", "owed", "kept-owed")))


@pytest.fixture
def systemd() -> Systemd:
    return Systemd()


def files(holds: Holds) -> set[str]:
    root = holds.directory.parent
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


def unit(name: str, **properties: object) -> Unit:
    text = "".join(f"{key}={value}\n" for key, value in {"Id": name, "LoadState": "loaded", **properties}.items())
    return parse_show(text)[0]


def test_a_hold_says_who_and_why_and_makes_systemd_look_for_it(holds: Holds, systemd: Systemd) -> None:
    assert holds.place([Hold("vllm.service", "driver update", "ops", controller="10.0.0.1")], Units(systemd)) == [
        "vllm.service"
    ]
    hold = holds.read("vllm.service")
    assert hold is not None
    assert "vllm.service is held since" in str(hold)
    assert "by ops from 10.0.0.1: driver update (until it is lifted or the host reboots)" in str(hold)
    drop_in = (holds.units / "vllm.service.d" / "90-gpuops-hold.conf").read_text()
    assert f"AssertPathExists=!{holds.directory}/vllm.service\n" in drop_in
    assert "Restart=no\n" in drop_in
    assert holds.all() == [hold]
    assert systemd.said == ["daemon-reload"]


@pytest.mark.parametrize("over_reboot, directory", [(False, "owed"), (True, "kept-owed")])
def test_what_ran_is_owed_when_its_hold_is_lifted_and_forgotten_when_it_is_paid(
    holds: Holds, systemd: Systemd, over_reboot: bool, directory: str
) -> None:
    ran = Hold("vllm.service", "driver update", "ops", ran=True, over_reboot=over_reboot)
    holds.place([ran, Hold("sglang.service", "driver update", "ops")], Units(systemd))
    assert holds.owed() == [], "it is held"
    holds.lift(["vllm.service", "sglang.service"], Units(systemd))
    assert files(holds) == {f"{directory}/vllm.service"}
    assert [(owed.unit, owed.reason) for owed in holds.owed()] == [("vllm.service", "driver update")]
    holds.forget_owed(["sglang.service"])
    assert len(holds.owed()) == 1
    holds.forget_owed(["vllm.service"])
    assert files(holds) == set()


def test_all_that_is_owed_can_be_forgotten_and_what_nobody_kept_is_not_owed(holds: Holds, systemd: Systemd) -> None:
    for name, over_reboot in (("vllm.service", False), ("sglang.service", True)):
        holds.place([Hold(name, "x", "y", ran=True, over_reboot=over_reboot)], Units(systemd))
        holds.lift([name], Units(systemd))
    assert [owed.unit for owed in holds.owed()] == ["sglang.service", "vllm.service"]
    holds.forget_owed()
    assert holds.owed() == []
    holds.place([Hold("vllm.service", "x", "y", ran=True)], Units(systemd))
    holds.lift(["vllm.service"], Units(systemd), owe=False)
    assert files(holds) == set()


def test_a_start_is_owed_before_its_hold_is_lifted(holds: Holds, systemd: Systemd) -> None:
    holds.place([Hold("vllm.service", "x", "y", ran=True)], Units(systemd))
    systemd.killed_at = "daemon-reload"
    with pytest.raises(KeyboardInterrupt):
        holds.lift(["vllm.service"], Units(systemd))
    assert [owed.unit for owed in holds.owed()] == ["vllm.service"]


def test_an_older_hold_keeps_its_own_words(holds: Holds, systemd: Systemd) -> None:
    holds.place([Hold("vllm.service", "first", "a")], Units(systemd))
    again = [Hold("vllm.service", "second", "b"), Hold("sglang.service", "second", "b")]
    assert holds.place(again, Units(systemd)) == ["sglang.service"]
    hold = holds.read("vllm.service")
    assert hold is not None
    assert hold.reason == "first"
    assert holds.place(again, Units(systemd)) == []
    assert systemd.said == ["daemon-reload"] * 2


def test_triggers_are_refused_too_and_started_again_when_they_were_active(holds: Holds, systemd: Systemd) -> None:
    triggers = {"vllm.socket": "active", "vllm.path": "inactive", "start.timer": "failed"}
    holds.place([Hold("vllm.service", "x", "y", triggers=triggers)], Units(systemd))
    for trigger in triggers:
        text = (holds.units / f"{trigger}.d" / "90-gpuops-hold.conf").read_text()
        assert text == f"[Unit]\nAssertPathExists=!{holds.directory}/vllm.service\n"
    systemd.said.clear()
    assert holds.lift(["vllm.service"], Units(systemd)) == ["vllm.service"]
    assert systemd.said == ["daemon-reload", "start vllm.socket"]
    assert files(holds) == set()
    assert holds.lift(["vllm.service"], Units(systemd)) == []


def test_what_was_first_seen_survives_later_drains(holds: Holds, systemd: Systemd) -> None:
    ours = Hold("vllm.service", "killed", "y", ran=True, triggers={"vllm.socket": "active"}, pid=1, start=1)
    holds.place([ours], Units(systemd))
    assert holds.read("vllm.service") is None, "that drain is gone"
    later = Hold("vllm.service", "next", "y", triggers={"vllm.socket": "inactive", "new.path": "active"})
    holds.place([later], Units(systemd))
    found = holds.read("vllm.service")
    assert found is not None
    assert (found.reason, found.ran) == ("next", True)
    assert found.triggers == {"vllm.socket": "active", "new.path": "active"}
    third = Hold("vllm.service", "third", "y", triggers={"vllm.socket": "inactive", "newer.timer": "active"})
    holds.place([third], Units(systemd))
    found = holds.read("vllm.service")
    assert found is not None
    assert found.reason == "next"
    assert found.triggers == {"vllm.socket": "active", "new.path": "active", "newer.timer": "active"}


def test_a_trigger_that_does_not_start_again_is_named_and_the_hold_is_gone(
    holds: Holds, systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_hold, "SETTLE", 0.1)
    holds.place([Hold("vllm.service", "x", "y", triggers={"vllm.socket": "active"})], Units(systemd))
    systemd.refuses = {"vllm.socket"}
    with pytest.raises(UnitsError, match=r"vllm\.socket, active before it"):
        holds.lift(["vllm.service"], Units(systemd))
    assert files(holds) == set()


def test_triggers_are_not_forgotten_where_systemd_does_not_answer(holds: Holds, systemd: Systemd) -> None:
    holds.place([Hold("vllm.service", "x", "y", triggers={"vllm.socket": "active"})], Units(systemd))

    def mute(argv: Sequence[str], timeout: float) -> Completed:
        if "show" in argv:
            raise UnitsError("systemd does not answer")
        return systemd(argv, timeout)

    with pytest.raises(UnitsError, match="does not answer"):
        holds.lift(["vllm.service"], Units(mute))
    systemd.said.clear()
    assert holds.lift(["vllm.service"], Units(systemd)) == ["vllm.service"]
    assert systemd.said == ["daemon-reload", "start vllm.socket"]
    assert files(holds) == set()


@pytest.mark.parametrize("killed_at", ["daemon-reload", "start"])
def test_a_lift_that_was_killed_is_still_a_hold_and_the_next_one_ends_it(
    holds: Holds, systemd: Systemd, killed_at: str
) -> None:
    holds.place([Hold("vllm.service", "x", "y", triggers={"vllm.socket": "active"})], Units(systemd))
    systemd.killed_at = killed_at
    if killed_at == "daemon-reload":
        with pytest.raises(KeyboardInterrupt):
            holds.lift(["vllm.service"], Units(systemd))
        assert holds.read("vllm.service") is not None, "systemd still refuses, and says so by the words that are left"
    else:
        # SIGKILL runs no `finally`.
        with pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patched:
            patched.setattr(Path, "unlink", lambda path, missing_ok=False: None)
            holds.lift(["vllm.service"], Units(systemd))
    systemd.killed_at = ""
    systemd.said.clear()
    assert holds.lift(["vllm.service"], Units(systemd)) == ["vllm.service"]
    assert systemd.said == ["daemon-reload", "start vllm.socket"]
    assert files(holds) == set()


def test_what_systemd_has_not_read_is_seen(holds: Holds, systemd: Systemd) -> None:
    path = holds.units / "vllm.service.d" / "90-gpuops-hold.conf"
    before, held = unit("vllm.service"), unit("vllm.service", DropInPaths=f"/etc/a.conf {path}")
    assert holds.unread({"vllm.service": before}) == []
    assert holds.unread({"vllm.service": held}) == ["vllm.service"], "lifted, and not read again"
    holds.place([Hold("vllm.service", "x", "y")], Units(systemd))
    assert holds.unread({"vllm.service": before}) == ["vllm.service"], "placed, and not read"
    assert holds.unread({"vllm.service": held}) == []


def test_a_hold_of_which_a_part_is_missing_is_made_whole(holds: Holds, systemd: Systemd) -> None:
    holds.place([Hold("vllm.service", "first", "y")], Units(systemd))
    drop_in = holds.units / "vllm.service.d" / "90-gpuops-hold.conf"
    drop_in.unlink()
    assert holds.place([Hold("vllm.service", "second", "y")], Units(systemd)) == ["vllm.service"]
    found = holds.read("vllm.service")
    assert found is not None
    assert found.reason == "first"
    assert drop_in.exists()


def test_a_hold_over_reboots_lives_in_var_and_etc(holds: Holds, systemd: Systemd) -> None:
    holds.place([Hold("vllm.service", "x", "y", triggers={"vllm.socket": "active"}, over_reboot=True)], Units(systemd))
    assert files(holds) == {
        "kept/vllm.service",
        "etc/vllm.service.d/90-gpuops-hold.conf",
        "etc/vllm.socket.d/90-gpuops-hold.conf",
    }
    assert "/kept/vllm.service\n" in (holds.directory.parent / "etc/vllm.service.d/90-gpuops-hold.conf").read_text()
    assert [hold.end for hold in holds.all()] == ["until it is lifted, over reboots"]
    assert holds.place([Hold("vllm.service", "x", "y")], Units(systemd)) == [], "it is stronger already"
    holds.lift(["vllm.service"], Units(systemd))
    assert files(holds) == set()


def test_a_hold_that_a_reboot_would_end_is_strengthened(holds: Holds, systemd: Systemd) -> None:
    holds.place([Hold("vllm.service", "first", "y")], Units(systemd))
    strong = Hold("vllm.service", "second", "y", over_reboot=True)
    assert holds.place([strong], Units(systemd)) == ["vllm.service"]
    assert files(holds) == {"kept/vllm.service", "etc/vllm.service.d/90-gpuops-hold.conf"}
    found = holds.read("vllm.service")
    assert found is not None
    assert (found.reason, found.over_reboot) == ("first", True)
    assert holds.place([strong], Units(systemd)) == []


def test_a_hold_with_an_end_brings_the_timer_that_lifts_it(holds: Holds, systemd: Systemd) -> None:
    until = time.time() + 3600
    held = Hold("vllm@a.service", "x", "y", until=until, triggers={"vllm@a.socket": "active"}, over_reboot=True)
    holds.place([held], Units(systemd))
    assert systemd.said == ["daemon-reload", "start gpuops-hold-vllm@a.timer"]
    etc = holds.directory.parent / "etc"
    service = (etc / "gpuops-hold-vllm@a.service").read_text()
    commands = [line.split("=", 1)[1] for line in service.splitlines() if line.startswith("ExecStart=")]
    assert commands[3] == '"/bin/systemctl" "daemon-reload"'
    assert commands[4] == '-"/bin/systemctl" "start" "--no-block" "vllm@a.socket"'
    removed = {word.strip('"') for line in (commands[1], commands[-1]) for word in line.split()[2:]}
    assert {str(Path(path).relative_to(etc.parent)) for path in removed} == files(holds)
    assert "OnBootSec" in (etc / "gpuops-hold-vllm@a.timer").read_text()
    assert (etc / "timers.target.wants" / "gpuops-hold-vllm@a.timer").resolve() == etc / "gpuops-hold-vllm@a.timer"
    systemd.said.clear()
    holds.lift(["vllm@a.service"], Units(systemd))
    assert systemd.said[:2] == ["stop gpuops-hold-vllm@a.timer", "daemon-reload"]
    assert files(holds) == set()


def test_a_timer_that_lifts_leaves_what_ran_as_owed(holds: Holds, systemd: Systemd) -> None:
    holds.place([Hold("vllm.service", "x", "y", until=time.time() + 3600, ran=True)], Units(systemd))
    text = (holds.units / "gpuops-hold-vllm.service").read_text()
    commands = [shlex.split(line.split("=", 1)[1]) for line in text.splitlines() if line.startswith("ExecStart=")]
    for command in commands:
        if "systemctl" not in command[0]:
            subprocess.run([command[0].lstrip("-"), *command[1:]], check=command[0][0] != "-")
    assert files(holds) == {"owed/vllm.service"}
    assert [owed.unit for owed in holds.owed()] == ["vllm.service"]


def test_a_pivot_takes_a_drains_hold_over_with_its_end(holds: Holds, systemd: Systemd) -> None:
    until = time.time() + 3600
    triggers = {"vllm.socket": "active"}
    holds.place([Hold("vllm.service", "update", "a", until=until, ran=True, triggers=triggers)], Units(systemd))
    drains = holds.read("vllm.service")
    systemd.said.clear()
    pivots = Hold("vllm.service", "pivot", "b", purpose="pivot", triggers={"vllm.socket": "inactive"})
    assert holds.place([pivots], Units(systemd)) == ["vllm.service"]
    assert systemd.said == ["stop gpuops-hold-vllm.timer", "daemon-reload"]
    found = holds.read("vllm.service")
    assert found is not None
    assert (found.purpose, found.reason, found.until, found.ran) == ("pivot", "pivot", 0.0, False)
    assert found.triggers == triggers
    assert files(holds) == {
        "hold/vllm.service",
        "owed/vllm.service",
        "units/vllm.service.d/90-gpuops-hold.conf",
        "units/vllm.socket.d/90-gpuops-hold.conf",
    }
    again = Hold("vllm.service", "drain", "a", until=until)
    assert holds.place([pivots, again], Units(systemd)) == [], "a drain leaves it to the pivot"
    assert drains is not None
    holds.put_back([drains], Units(systemd))
    assert holds.read("vllm.service") == drains
    assert "units/gpuops-hold-vllm.timer" in files(holds)


def test_a_hold_that_would_have_ended_meanwhile_is_not_put_back(holds: Holds, systemd: Systemd) -> None:
    over = Hold("vllm.service", "update", "a", until=time.time() - 1, ran=True, triggers={"vllm.socket": "active"})
    holds.place([Hold("vllm.service", "pivot", "b", purpose="pivot")], Units(systemd))
    holds.put_back([over], Units(systemd))
    assert files(holds) == {"owed/vllm.service"}
    assert systemd.states["vllm.socket"] == "active"


def test_an_end_that_has_begun_is_waited_for(holds: Holds, systemd: Systemd) -> None:
    holds.place([Hold("vllm.service", "update", "a", until=time.time() + 3600)], Units(systemd))
    states = iter(["activating", "activating", "inactive"])

    def ending(argv: Sequence[str], timeout: float) -> Completed:
        if argv[-1] == "gpuops-hold-vllm.service":
            systemd.states[argv[-1]] = next(states)
        return systemd(argv, timeout)

    holds.place([Hold("vllm.service", "pivot", "b", purpose="pivot")], Units(ending))
    assert list(states) == []


def test_a_weaker_hold_takes_the_place_of_one_that_is_over(holds: Holds, systemd: Systemd) -> None:
    over = Hold("vllm.service", "x", "y", until=time.time() - 1, over_reboot=True, triggers={"vllm.socket": "active"})
    holds.place([over], Units(systemd))
    systemd.said.clear()
    holds.place([Hold("vllm.service", "next", "y")], Units(systemd))
    assert files(holds) == {
        "hold/vllm.service",
        "units/vllm.service.d/90-gpuops-hold.conf",
        "units/vllm.socket.d/90-gpuops-hold.conf",
    }
    assert systemd.said == ["stop gpuops-hold-vllm.timer", "daemon-reload"]
    found = holds.read("vllm.service")
    assert found is not None
    assert (found.reason, found.triggers) == ("next", {"vllm.socket": "active"})


@pytest.mark.parametrize(
    "text, seconds",
    [("4h", 14400), ("90min", 5400), ("1d 12h", 129600), ("2027-01-31T06:00:00Z", None), ("2027-01-31 06:00", None)],
)
def test_the_end_of_a_hold_is_a_span_or_a_time(text: str, seconds: Optional[float]) -> None:
    now = 1_796_000_000.0
    moment = end_of_hold(text, now)
    assert moment == (now + seconds if seconds else pytest.approx(1_801_375_200, abs=86400))


@pytest.mark.parametrize("text", ["", "soon", "4", "-4h", "4 h", "2020-01-01T00:00:00Z", "0s", "2027-13-01", "6m"])
def test_what_can_be_no_end_of_a_hold_is_refused(text: str) -> None:
    with pytest.raises(HoldError):
        end_of_hold(text, 1_796_000_000.0)


def test_the_triggers_of_a_unit_are_found_also_where_systemd_has_not_loaded_them() -> None:
    shown = {
        "proxy.socket": "Triggers=vllm.service\nActiveState=active",
        "vllm.socket": "LoadState=not-found",
        "vllm.path": "Triggers=other.service\nActiveState=active",
        "vllm.timer": "Triggers=vllm.service\nActiveState=inactive\n"
        "TimersMonotonic={ OnBootUSec=10min ; next_elapse=0 }",
    }

    def systemctl(argv: Sequence[str], timeout: float) -> Completed:
        return Completed(
            0, "".join(f"Id={n}\nLoadState=loaded\n{shown[n]}\n\n" for n in argv[argv.index("--") + 1 :]), ""
        )

    loaded = {"vllm.service": unit("vllm.service", TriggeredBy="proxy.socket")}
    found = triggers_of(["vllm.service", "gone.service"], loaded, Units(systemctl))
    assert [trigger.name for trigger in found["vllm.service"]] == ["proxy.socket", "vllm.timer"]
    assert [is_stopped_for_a_hold(trigger) for trigger in found["vllm.service"]] == [True, False]
    assert not is_stopped_for_a_hold(replace(found["vllm.service"][1], active_state="active")), (
        "it counts from the boot"
    )


def test_lifting_leaves_nothing_behind_and_spares_other_drop_ins(holds: Holds, systemd: Systemd) -> None:
    holds.place([Hold("vllm.service", "x", "y"), Hold("sglang.service", "x", "y")], Units(systemd))
    other = holds.units / "sglang.service.d" / "50-other.conf"
    other.write_text("[Unit]\n")
    units = ["vllm.service", "sglang.service"]
    assert holds.lift([*units, "never.service"], Units(systemd)) == units
    assert holds.all() == []
    assert not (holds.units / "vllm.service.d").exists()
    assert list((holds.units / "sglang.service.d").iterdir()) == [other]
    assert holds.lift(["vllm.service"], Units(systemd)) == []


def test_a_directory_that_only_root_reads_says_so(holds: Holds, systemd: Systemd) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving up root takes root")
    holds.place([Hold("vllm.service", "x", "y")], Units(systemd))
    for directory in (holds.directory.parent, holds.directory):
        directory.chmod(0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(RecordError, match="become: true"):
            holds.all()
    finally:
        os.seteuid(0)


def test_an_expired_hold_is_none_and_can_be_taken_over(holds: Holds, systemd: Systemd) -> None:
    holds.place([Hold("vllm.service", "short", "a", until=time.time() - 1)], Units(systemd))
    assert holds.read("vllm.service") is None
    assert "its time was up" in holds.left_over(["vllm.service"])["vllm.service"]
    assert holds.place([Hold("vllm.service", "next", "b")], Units(systemd)) == ["vllm.service"]


def test_a_hold_for_one_drain_ends_with_its_process(tmp_path: Path, holds: Holds, systemd: Systemd) -> None:
    program = f"""
import sys
from pathlib import Path
sys.path[:0] = {sys.path!r}
from ansible_collections.gpuops.inference.plugins.module_utils._hold import Hold, Holds
from ansible_collections.gpuops.inference.plugins.module_utils._units import Completed, Units
tmp = Path({str(tmp_path)!r})
holds = Holds(tmp / "hold", tmp / "units", tmp / "kept", tmp / "etc")
holds.place([Hold("vllm.service", "drain", "x").while_we_live()], Units(lambda argv, timeout: Completed(0, "", "")))
print(holds.read("vllm.service"), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as drain:
        assert drain.stdout is not None
        assert b"is held" in drain.stdout.readline()
        assert holds.read("vllm.service") is not None
        drain.communicate()
    assert holds.read("vllm.service") is None
    assert holds.left_over(["vllm.service"]) == {"vllm.service": "the drain that placed it was killed"}
    assert holds.lift(["vllm.service"], Units(systemd)) == ["vllm.service"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "vllm", "a/b.service", "", "x" * 300 + ".service", "a\n.service"])
def test_a_name_that_is_no_unit_leads_nowhere(holds: Holds, name: str) -> None:
    with pytest.raises(HoldError):
        holds.read(name)


def test_a_percent_sign_in_the_path_is_no_specifier(tmp_path: Path, systemd: Systemd) -> None:
    holds = Holds(*(tmp_path / name for name in ("a%b", "units", "kept", "etc", "owed", "kept-owed")))
    holds.place([Hold("vllm.service", "x", "y")], Units(systemd))
    assert "a%%b/vllm.service" in (tmp_path / "units" / "vllm.service.d" / "90-gpuops-hold.conf").read_text()


@pytest.mark.parametrize(
    "text",
    [
        '{"unit": "vllm.service", "reason": "x", "who": "y", "colour": "red"}',
        '{"unit": "vllm.service", "reason": "x", "who": "y", "triggers": {"../../etc/x.socket": "active"}}',
        '{"unit": "vllm.service", "reason": "x", "who": "y", "triggers": {"x.service": "active"}}',
        "{broken",
        "",
    ],
)
def test_a_hold_that_cannot_be_read_is_named_and_lifted_once_it_is_moved_away(
    holds: Holds, systemd: Systemd, text: str
) -> None:
    holds.place([Hold("vllm.service", "x", "y")], Units(systemd))
    words = holds.directory / "vllm.service"
    words.write_text(text)
    for reads in (lambda: holds.read("vllm.service"), holds.all, lambda: holds.lift(["vllm.service"], Units(systemd))):
        with pytest.raises(RecordError, match=r"hold/vllm\.service .*; look at it, then move it away"):
            reads()
    words.rename(words.with_name("vllm.service.broken"))
    assert [str(hold).partition(" since")[0] for hold in holds.all()] == ["vllm.service is held"]
    assert holds.lift(["vllm.service"], Units(systemd)) == ["vllm.service"]
    assert holds.all() == []
