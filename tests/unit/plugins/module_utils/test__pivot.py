# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _pivot
from ansible_collections.gpuops.inference.plugins.module_utils._backup import look
from ansible_collections.gpuops.inference.plugins.module_utils._hold import Hold, Holds
from ansible_collections.gpuops.inference.plugins.module_utils._pivot import (
    PivotRecord,
    active_dependents,
    make_scene,
    record_path,
)
from ansible_collections.gpuops.inference.plugins.module_utils._record import Lock, LockedError, read_json
from ansible_collections.gpuops.inference.plugins.module_utils._transaction import (
    Loose,
    Scene,
    TransactionError,
    UnitState,
)
from ansible_collections.gpuops.inference.plugins.module_utils._units import Completed, Units

sys.path.insert(0, str(Path(__file__).parent))

import hosts as simulated


class Host:
    """A directory with unit files, and a systemctl that keeps enablement and activity."""

    def __init__(self, root: Path) -> None:
        self.system = root / "system"
        self.system.mkdir()
        self.states: dict[str, str] = {}
        self.active: dict[str, str] = {}
        self.requires: dict[str, list[str]] = {}
        self.loose: tuple[Loose, ...] = ()
        self.calls: list[str] = []
        self.holds = Holds(*(root / name for name in ("hold", "run", "kept", "etc", "owed", "kept-owed")))

    def path(self, unit: str) -> Path:
        return self.system / unit

    def deploy(self, unit: str, text: str) -> None:
        self.path(unit).write_text(text)
        self.states.setdefault(unit, "disabled")

    def systemctl(self, argv: Sequence[str], _timeout: float) -> Completed:
        words = [word for word in argv[1:] if not word.startswith("--")]
        verb, names = words[0], words[1:]
        if verb == "show":
            return Completed(0, "\n".join(self._show(name) for name in names), "")
        self.calls.append(" ".join(words))
        if verb in ("enable", "disable"):
            if not self.path(names[0]).exists():
                return Completed(1, "", f"Unit file {names[0]} does not exist.")
            self.states[names[0]] = f"{verb}d"
        if verb == "start":
            self.active[names[0]] = "again"
        return Completed(0, "", "")

    def _show(self, name: str) -> str:
        exists = self.path(name).exists() or name in self.requires
        return (
            f"Id={name}\nLoadState={'loaded' if exists else 'not-found'}\n"
            f"ActiveState={self.active.get(name) and 'active' or 'inactive'}\nSubState=running\n"
            f"UnitFileState={self.states.get(name, '') if self.path(name).exists() else ''}\n"
            f"RequiredBy={' '.join(self.requires.get(name, []))}\n"
        )

    def scene(self, _units: Units, named: Sequence[str], gpus: Sequence[str]) -> Scene:
        found = {}
        for name in named:
            exists = self.path(name).exists()
            found[name] = UnitState(
                name,
                exists=exists,
                unit_file_state=self.states.get(name, "") if exists else "",
                active=name in self.active,
                invocation_id=self.active.get(name, ""),
                files=look([str(self.path(name))]),
                dependents=tuple(self.requires.get(name, [])) if name in self.active else (),
            )
        return Scene(found, self.loose, None if "all" in gpus else frozenset(map(int, gpus)))

    def pivot(
        self,
        check: bool = False,
        gpus: Sequence[str] = ("all",),
        units: Sequence[str] = ("vllm.service", "sglang.service"),
    ) -> PivotRecord:
        return PivotRecord(Units(runner=self.systemctl), units, 0, check, gpus, observer=self.scene, holds=self.holds)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    for name, path in {
        "PIVOT": "lib/pivot.json",
        "RECORDS": "lib/records",
        "BACKUPS": "lib/backups",
        "LOCK": "run/lock",
    }.items():
        monkeypatch.setattr(_pivot, name, tmp_path / path)
    made = Host(tmp_path)
    made.deploy("vllm.service", "vllm as it was\n")
    made.states["vllm.service"] = "enabled"
    made.active["vllm.service"] = "first"
    made.requires["vllm.service"] = ["gateway.service"]
    return made


def left() -> Optional[dict[str, Any]]:
    return read_json(_pivot.PIVOT)


def drain(host: Host) -> None:
    host.active.clear()


def go(host: Host) -> str:
    """A pivot that has come as far as a loading engine."""
    run = host.pivot().begin("sglang.service", False)["run"]
    drain(host)
    host.pivot().phase(run, "drained", "")
    host.deploy("sglang.service", "sglang\n")
    host.pivot().phase(run, "started", "")
    host.active["sglang.service"] = "new"
    return str(run)


def owe(host: Host, unit: str) -> None:
    """It ran before a drain, and was not started after it."""
    systemd = Units(runner=host.systemctl)
    host.holds.place([Hold(unit, "driver update", "ops", ran=True)], systemd)
    host.holds.lift([unit], systemd)


def test_a_start_that_is_owed_is_moot_once_another_engine_serves(host: Host) -> None:
    drain(host)
    owe(host, "vllm.service")
    owe(host, "unknown.service")
    run = go(host)
    assert len(host.holds.owed()) == 2, "it may have to come back"
    host.pivot().finish(run, "sglang.service", [], [])
    assert host.holds.owed() == []


def test_a_pivot_that_failed_leaves_owed_what_it_found_so(host: Host) -> None:
    drain(host)
    owe(host, "vllm.service")
    run = go(host)
    host.pivot().phase(run, "rolling_back", "it crashed")
    drain(host)
    host.pivot().restore(run)
    host.pivot().finish(run, "", [], [])
    assert [hold.unit for hold in host.holds.owed()] == ["vllm.service"]


def take(host: Host, *units: str) -> None:
    """What the drain of a pivot does about holds."""
    systemd = Units(runner=host.systemctl)
    host.holds.place([Hold(unit, "pivot", "ops", purpose="pivot") for unit in units], systemd)


def test_a_pivot_that_failed_gives_a_drains_hold_back_and_holds_nothing_itself(host: Host) -> None:
    drain(host)
    systemd = Units(runner=host.systemctl)
    drained = Hold("vllm.service", "driver update", "ops", until=9e9, ran=True)
    host.holds.place([drained], systemd)
    run = go(host)
    take(host, "vllm.service", "sglang.service")
    assert {hold.purpose for hold in host.holds.all()} == {"pivot"}
    host.holds.lift(["sglang.service"], systemd)
    host.pivot().phase(run, "rolling_back", "it crashed")
    drain(host)
    take(host, "sglang.service")
    host.pivot().restore(run)
    host.pivot().finish(run, "", [], [])
    assert host.holds.all() == [drained]


def test_a_pivot_that_touched_nothing_gives_a_drains_hold_back(host: Host) -> None:
    drained = Hold("sglang.service", "driver update", "ops")
    host.holds.place([drained], Units(runner=host.systemctl))
    run = host.pivot().begin("sglang.service", False)["run"]
    take(host, "sglang.service")
    assert not host.pivot().phase(run, "rolling_back", "vllm.service is not idle")["touched"]
    assert host.holds.all() == [drained]


def test_what_serves_again_is_not_held_again_and_a_pivot_that_arrived_keeps_what_it_holds(host: Host) -> None:
    systemd = Units(runner=host.systemctl)
    host.holds.place([Hold("sglang.service", "driver update", "ops")], systemd)
    run = go(host)
    take(host, "vllm.service", "sglang.service")
    host.holds.lift(["sglang.service"], systemd)
    host.pivot().finish(run, "sglang.service", [], [])
    assert [(hold.unit, hold.purpose) for hold in host.holds.all()] == [("vllm.service", "pivot")]


def test_the_owed_start_of_another_part_of_the_host_is_not_forgotten(host: Host) -> None:
    owe(host, "other.service")
    half = host.pivot(gpus=["0"], units=["vllm.service"])
    half.finish("", "vllm.service", [], [])
    assert [hold.unit for hold in host.holds.owed()] == ["other.service"]


def test_there(host: Host) -> None:
    begun = host.pivot().begin("sglang.service", False)
    assert (begun["mode"], begun["drain"], begun["outgoing"]) == ("new", True, ["vllm.service"])
    assert begun["existing_units"] == ["vllm.service"]
    run = go(host)
    stages = [{"name": "drain", "seconds": 2.0}]
    done = host.pivot().finish(run, "sglang.service", stages, ["sglang answers"])
    assert host.calls == ["enable sglang.service", "disable vllm.service"], "a reboot always finds one enabled unit"
    assert done["changed"]
    assert done["story"] == [
        "vllm.service -> sglang.service",
        "took drain 2.0 s",
        "sglang answers",
        "enablement: enable sglang.service, disable vllm.service",
        "stopped with vllm.service: gateway.service",
    ]
    assert done["diff"]["before"] == "sglang.service: disabled\nvllm.service: enabled\n"
    assert done["diff"]["after"] == "sglang.service: enabled\nvllm.service: disabled\n"
    record = left()
    assert record is not None
    assert [phase["name"] for phase in record["phases"]] == ["begun", "drained", "started", "ready", "enabled", "done"]


def test_a_second_pivot_leaves_the_first_ones_record(host: Host) -> None:
    host.pivot().finish(go(host), "sglang.service", [], [])
    first = left()
    again = host.pivot().begin("sglang.service", False)
    assert (again["mode"], again["drain"]) == ("settled", False)
    assert left() != first
    finished = host.pivot().finish(again["run"], "sglang.service", [], ["ready"])
    assert not finished["changed"]
    assert finished["story"][0] == "sglang.service already runs and is the enabled engine unit: nothing to do"
    assert left() == first
    assert first is not None and [path.name for path in _pivot.BACKUPS.iterdir()] == [first["id"]]
    assert not list(_pivot.RECORDS.iterdir())


def test_back_to_what_was_observed(host: Host) -> None:
    run = go(host)
    host.path("vllm.service").write_text("changed by the pivot\n")
    host.states.update({"vllm.service": "disabled", "sglang.service": "enabled"})
    turned = host.pivot().phase(run, "rolling_back", "sglang crashed")
    assert turned["touched"]
    drain(host)
    host.calls.clear()
    restored = host.pivot().restore(run)
    assert restored["start"] == ["vllm.service"]
    assert host.calls == ["disable sglang.service", "daemon-reload", "enable vllm.service"]
    assert host.path("vllm.service").read_text() == "vllm as it was\n"
    assert not host.path("sglang.service").exists()
    assert not host.pivot().restore(run)["changed"], "twice is once"
    host.active["vllm.service"] = "second"
    host.calls.clear()
    done = host.pivot().finish(run, "", [], ["vllm answers"])
    assert host.calls == ["start gateway.service"]
    record = left()
    assert record is not None and record["phase"] == "rolled_back"
    story = "\n".join(done["story"])
    assert "why it failed: sglang crashed" in story
    assert "vllm answers" in story
    assert "asked to start again: gateway.service" in story
    assert record["backups"] in story


def test_what_was_stopped_stays_stopped(host: Host) -> None:
    drain(host)
    run = go(host)
    host.pivot().phase(run, "rolling_back", "x")
    drain(host)
    assert host.pivot().restore(run)["start"] == []
    assert "no engine runs" in host.pivot().finish(run, "", [], [])["story"][0]


def test_a_pivot_refused_before_it_touched_anything_leaves_no_record(host: Host) -> None:
    run = host.pivot().begin("sglang.service", False)["run"]
    assert not host.pivot().phase(run, "rolling_back", "a foreign job holds GPU 3")["touched"]
    assert left() is None
    assert not list(_pivot.BACKUPS.iterdir())


def test_the_next_run_keeps_the_first_observation(host: Host) -> None:
    go(host)
    begun = left()
    again = host.pivot().begin("sglang.service", False)
    assert (again["mode"], again["drain"], again["outgoing"]) == ("resume", False, ["vllm.service"])
    drain(host)
    other = host.pivot().begin("vllm.service", False)
    assert (other["mode"], other["drain"]) == ("go back", True)
    record = left()
    assert begun is not None and record is not None
    assert record["observed"] == begun["observed"]
    assert record["target"] == "vllm.service"
    host.active["vllm.service"] = "second"
    host.pivot().finish(other["run"], "vllm.service", [], [])
    assert host.states == {"vllm.service": "enabled", "sglang.service": "disabled"}


def test_a_run_that_was_overtaken_does_no_more(host: Host) -> None:
    run = go(host)
    host.pivot().begin("vllm.service", False)
    for step in (
        lambda: host.pivot().phase(run, "rolling_back", "my engine was stopped"),
        lambda: host.pivot().restore(run),
        lambda: host.pivot().finish(run, "sglang.service", [], []),
    ):
        with pytest.raises(TransactionError, match="another pivot .to vllm.service.* took over"):
            step()


def test_a_record_that_is_gone_stops_the_pivot(host: Host) -> None:
    run = go(host)
    _pivot.PIVOT.unlink()
    with pytest.raises(TransactionError, match="gone"):
        host.pivot().phase(run, "drained", "")


def test_a_record_that_somebody_cut_is_named_with_what_it_lacks(host: Host) -> None:
    go(host)
    _pivot.PIVOT.write_text('{"version": 1, "phase": "done", "gpus": null, "target": "vllm.service"}')
    for ask in (
        lambda: host.pivot().show(""),
        lambda: host.pivot(check=True).begin("sglang.service", False),
        lambda: host.pivot(check=True).begin_back(False, False),
    ):
        with pytest.raises(TransactionError, match=r"pivot\.json lacks id, run, by, .*; look at it, then"):
            ask()


def test_a_masked_target_is_refused_with_the_cure(host: Host) -> None:
    host.deploy("sglang.service", "masked by somebody")
    host.states["sglang.service"] = "masked"
    with pytest.raises(TransactionError, match="systemctl unmask sglang.service"):
        host.pivot().begin("sglang.service", False)
    assert left() is None
    assert host.pivot().begin("vllm.service", False)["mode"] == "settled"


def test_an_engine_without_a_unit_needs_a_word(host: Host) -> None:
    host.active.clear()
    host.loose = (Loose(77, "sglang", True, "login session 3", "python -m sglang.launch_server"),)
    with pytest.raises(TransactionError, match="pid 77 .login session 3.*gpuops_allow_no_rollback"):
        host.pivot().begin("sglang.service", False)
    assert left() is None
    assert host.pivot().begin("sglang.service", True)["drain"]


def test_check_mode_writes_nothing(host: Host, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    begun = host.pivot(check=True).begin("sglang.service", False)
    assert begun["drain"]
    assert not host.pivot(check=True).phase(begun["run"], "drained", "")["changed"]
    would = host.pivot(check=True).finish("", "sglang.service", [], [])
    assert would["moves"] == ["enable sglang.service", "disable vllm.service"]
    assert would["diff"]["before"] == "sglang.service: absent\nvllm.service: enabled\n"
    assert sorted(tmp_path.rglob("*")) == before
    assert host.calls == []


def test_another_call_on_the_host_is_named(host: Host) -> None:
    with Lock(_pivot.LOCK, who="gpu_drain"), pytest.raises(LockedError, match="gpu_drain"):
        host.pivot().begin("sglang.service", False)
    assert left() is None


def test_records_are_not_kept_for_ever(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(f"2026-11-30T08:{minute:02d}:00+00:00" for minute in range(60))
    monkeypatch.setattr(_pivot, "now", lambda: next(times))
    for number in range(4):
        for target, other in (("sglang.service", "vllm.service"), ("vllm.service", "sglang.service")):
            run = host.pivot().begin(target, False)["run"]
            host.deploy(target, f"{target} {number}\n")
            host.active = {target: f"{target}-{number}"}
            host.pivot().finish(run, target, [], [])
            assert host.states[other] == "disabled"
    assert len(list(_pivot.RECORDS.iterdir())) == _pivot.KEPT
    assert len(list(_pivot.BACKUPS.iterdir())) == _pivot.KEPT + 1


def test_a_busy_half_leaves_the_records_of_the_other(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(f"2026-11-30T{minute // 60 + 8:02d}:{minute % 60:02d}:00+00:00" for minute in range(99))
    monkeypatch.setattr(_pivot, "now", lambda: next(times))

    def there(gpus: list[str], name: str) -> str:
        run = host.pivot(gpus=gpus, units=[]).begin(name, False)["run"]
        host.deploy(name, f"{next(times)}\n")
        host.active = {name: next(times)}
        host.pivot(gpus=gpus, units=[]).finish(run, name, [], [])
        return str(run)

    calm = [there(["0"], "a.service"), there(["0"], "b.service")]
    for number in range(2 * _pivot.KEPT):
        there(["1"], f"{'cd'[number % 2]}.service")
    assert len(list(_pivot.RECORDS.glob(f"*-{calm[0]}.json"))) == 1
    assert len(list(_pivot.RECORDS.iterdir())) == _pivot.KEPT + 1


def test_show(host: Host) -> None:
    shown = host.pivot().show("")
    assert shown["production"]["unit"] == "vllm.service"
    assert shown["record"] is None
    host.states["vllm.service"] = "disabled"
    shown = host.pivot().show("")
    assert shown["production"] is None
    assert "pass gpuops_production_unit" in shown["msg"]
    host.states["vllm.service"] = "enabled"
    go(host)
    shown = host.pivot().show("")
    assert shown["unfinished"] and shown["production"]["undo"]
    assert shown["production"]["others"] == ["sglang.service"]
    assert "observed" not in shown["record"], "digests of secrets stay on the host"


def test_dependents_are_followed_and_circles_end(host: Host) -> None:
    host.requires = {"a.service": ["b.service"], "b.service": ["a.service", "c.service", "d.service"], "c.service": []}
    host.active.update({"b.service": "x", "c.service": "x", "a.service": "x"})
    units = Units(runner=host.systemctl)
    unit = replace(units.show(["a.service"])["a.service"], name="a.service")
    assert active_dependents(units, unit) == ("b.service", "c.service")


# --- parts of a host ---

LOW, HIGH = ["0", "1", "2", "3"], ["4", "5", "6", "7"]


def test_halves_have_records_of_their_own(host: Host) -> None:
    low = host.pivot(gpus=LOW).begin("sglang.service", False)["run"]
    host.deploy("chat.service", "chat\n")
    high = host.pivot(gpus=HIGH, units=["chat.service"]).begin("chat.service", False)["run"]
    drain(host)
    for gpus, run, unit in ((HIGH, high, "chat.service"), (LOW[::-1], low, "sglang.service")):
        host.deploy(unit, "new\n")
        host.active[unit] = "new"
        host.pivot(gpus=gpus).phase(run, "started", "")
        host.pivot(gpus=gpus, units=[]).finish(run, unit, [], [])
    assert left() is None
    shown = host.pivot(gpus=["3", "2", "1", "0"]).show("")["record"]
    assert (shown["target"], shown["phase"]) == ("sglang.service", "done")
    assert shown["path"].endswith("/pivot-0-1-2-3.json")
    assert host.states["chat.service"] == "enabled", "the other half is none of the last pivot's business"


def test_a_pivot_that_shares_a_gpu_with_an_unfinished_one_is_refused(host: Host) -> None:
    host.pivot(gpus=LOW).begin("sglang.service", False)
    for gpus in (["all"], ["3", "4"]):
        with pytest.raises(TransactionError, match="of the GPUs 0, 1, 2, 3 to sglang.service was left in phase begun"):
            host.pivot(gpus=gpus).begin("sglang.service", False)
        shown = host.pivot(gpus=gpus).show("")
        assert shown["production"] is None
        assert "gpuops_instance or gpuops_gpus" in shown["msg"]
    host.pivot(gpus=HIGH).begin("sglang.service", False)


def test_names_of_records_stay_short() -> None:
    uuids = [f"GPU-{number:036d}" for number in range(8)]
    assert len(record_path(uuids).name) < 30
    assert record_path(uuids) == record_path(uuids[::-1]) != record_path(uuids[1:])
    assert record_path(["../../etc/passwd"]).parent == record_path(["all"]).parent


# --- what a snapshot means ---


def no_units(argv: Sequence[str], _timeout: float) -> Completed:
    return Completed(0, "\n".join(f"Id={word}\nLoadState=not-found\n" for word in argv if word.endswith("service")), "")


def scene(seen: simulated.Host, named: Sequence[str] = (), gpus: Sequence[str] = ("all",)) -> Scene:
    return make_scene(Units(runner=no_units), seen.snapshot(), named, gpus)


def test_a_unit_its_arguments_and_a_unit_that_is_not_there() -> None:
    found = scene(simulated.Host().vllm(), ["vllm.service", "sglang.service"])
    assert found.active == found.enabled == {"vllm.service"}
    assert found.units["vllm.service"].engine == "vllm"
    assert found.loose == ()
    absent = found.units["sglang.service"]
    assert (absent.exists, set(absent.files.values())) == (False, {None})
    assert len(absent.files) == 4, "what a deployment would put there has to go again"


def test_a_mask_is_no_unit_that_a_drain_could_hold() -> None:
    masked = "Id=sglang.service\nLoadState=masked\nUnitFileState=masked\n"
    found = make_scene(
        Units(runner=lambda argv, _timeout: Completed(0, masked, "")),
        simulated.Host().vllm().snapshot(), ["vllm.service", "sglang.service"], ("all",)
    )  # fmt: skip
    assert (found.units["sglang.service"].exists, found.units["sglang.service"].unit_file_state) == (False, "masked")


def test_an_engine_in_a_shell_is_loose() -> None:
    found = scene(simulated.Host().vllm(name=""))
    assert [loose.pid for loose in found.servers] == [100]
    assert len(found.loose) == 10
    assert "ssh.service" in str(found.servers[0])


def test_neighbours_on_other_gpus_are_none_of_our_business() -> None:
    low, high = frozenset(range(4)), frozenset(range(4, 8))
    host = simulated.Host().vllm(100, low, "embed.service").vllm(200, high, "chat.service").vllm(300, low, "")
    assert set(scene(host).units) == {"embed.service", "chat.service"}
    found = scene(host, gpus=["4", "5", "6", "7"])
    assert set(found.units) == {"chat.service"}
    assert found.loose == ()
    assert set(scene(host, ["embed.service"], ["7"]).units) == {"embed.service", "chat.service"}
    assert [loose.pid for loose in scene(host, gpus=["0"]).servers] == [300]


def test_a_unit_at_rest_belongs_to_the_gpus_that_its_environment_names(tmp_path: Path) -> None:
    (tmp_path / "chat.env").write_text("CUDA_VISIBLE_DEVICES=4,5,6,7\n")
    host = simulated.Host()
    stopped = simulated.unit("embed.service", active="inactive", sub="dead")
    host.unit(replace(stopped, environment=("CUDA_VISIBLE_DEVICES=0,1,2,3",)), [])
    chat = {"environment": ("CUDA_VISIBLE_DEVICES=0",), "environment_files": (str(tmp_path / "chat.env"),)}
    host.unit(replace(stopped, name="chat.service", **chat), [])
    host.unit(replace(stopped, name="disabled.service", unit_file_state="disabled"), [])
    assert set(scene(host, gpus=["0"]).units) == {"embed.service"}
    assert set(scene(host, gpus=["7"]).units) == {"chat.service"}
    host.unit(replace(stopped, name="whole.service"), [])
    assert set(scene(host, gpus=["7"]).units) == {"chat.service", "whole.service"}, "it names none: it takes all"
    assert scene(host, gpus=["7"]).gpus == {7}


def settle(host: Host) -> str:
    """A pivot that was finished; vLLM's unit was rewritten on the way."""
    run = go(host)
    host.path("vllm.service").write_text("vllm as the pivot left it\n")
    host.pivot().finish(run, "sglang.service", [], [])
    host.calls.clear()
    return run


def back(host: Host, **knobs: bool) -> dict[str, Any]:
    return host.pivot().begin_back(knobs.get("allow", False), knobs.get("discard", False))


def test_back_at_any_later_time(host: Host) -> None:
    settle(host)
    begun = back(host)
    assert (begun["mode"], begun["drain"], begun["start"]) == ("return", True, ["vllm.service"])
    drain(host)
    put = host.pivot().put_back(begun["run"])
    assert put["changed"] and put["files"] == [str(host.path("vllm.service"))]
    assert host.path("vllm.service").read_text() == "vllm as it was\n"
    assert host.path("sglang.service").exists(), "what runs now can come back until the other answers"
    assert not host.pivot().put_back(begun["run"])["changed"]
    host.active["vllm.service"] = "third"
    host.calls.clear()
    done = host.pivot().finish(begun["run"], "vllm.service", [], ["vllm answers"])
    assert host.calls == ["enable vllm.service", "disable sglang.service", "daemon-reload", "start gateway.service"]
    assert not host.path("sglang.service").exists()
    assert done["story"][0] == "sglang.service -> vllm.service, as before the pivot to sglang.service"
    again = back(host)
    assert (again["mode"], again["drain"], again["start"]) == ("settled", False, ["vllm.service"])
    assert again["msg"].startswith("already back: the pivot to sglang.service was taken back, ")


def test_back_stays_where_the_old_engine_does_not_come_up(host: Host) -> None:
    settle(host)
    run = back(host)["run"]
    drain(host)
    host.pivot().put_back(run)
    host.pivot().phase(run, "started", "")
    host.pivot().phase(run, "rolling_back", "vllm crashed")
    restored = host.pivot().restore(run)
    assert restored["start"] == ["sglang.service"]
    assert host.path("vllm.service").read_text() == "vllm as the pivot left it\n"
    host.active["sglang.service"] = "fourth"
    assert "vllm crashed" in "\n".join(host.pivot().finish(run, "", [], [])["story"])
    assert host.states == {"vllm.service": "disabled", "sglang.service": "enabled"}
    again = back(host)
    assert again["mode"] == "return" and "was to be taken back, and was not" in again["msg"]


def test_back_is_refused_where_the_pivot_itself_came_back(host: Host) -> None:
    run = go(host)
    host.pivot().phase(run, "rolling_back", "x")
    drain(host)
    host.pivot().restore(run)
    host.active["vllm.service"] = "second"
    host.pivot().finish(run, "", [], [])
    assert back(host)["mode"] == "settled"
    host.deploy("vllm.service", "by hand\n")
    with pytest.raises(TransactionError, match="use restore_production.yml"):
        back(host)


def test_back_is_refused_where_files_were_changed_since_unless_told_so(host: Host) -> None:
    settle(host)
    host.path("sglang.service").write_text("by hand\n")
    with pytest.raises(TransactionError, match=r"sglang.service has changed since that pivot: gpuops_discard_changes"):
        back(host)
    record = left()
    assert record is not None and record["phase"] == "done"
    run = back(host, discard=True)["run"]
    drain(host)
    host.pivot().phase(run, "rolling_back", "x")
    host.path("sglang.service").unlink()
    host.pivot().restore(run)
    assert host.path("sglang.service").read_text() == "by hand\n", "it was kept"


def test_back_is_refused_without_the_copies(host: Host) -> None:
    settle(host)
    record = left()
    assert record is not None
    for copy in Path(record["backups"]).iterdir():
        copy.write_text("damaged")
    with pytest.raises(TransactionError, match="are gone or damaged"):
        back(host)


def test_back_begins_nothing_where_no_pivot_was_made(host: Host) -> None:
    begun = back(host)
    assert (begun["mode"], begun["drain"], begun["start"], left()) == ("never", False, [], None)
    assert [each["unit"] for each in begun["engines"] if each["active"]] == ["vllm.service"]
    assert begun["msg"] == "no pivot was made on this host, so there is none to take back"


def test_back_is_refused_over_an_unfinished_pivot(host: Host) -> None:
    go(host)
    with pytest.raises(TransactionError, match="run it again to finish it"):
        back(host)


def test_back_is_refused_where_no_engine_ran_before(host: Host) -> None:
    drain(host)
    settle(host)
    with pytest.raises(TransactionError, match="no engine ran before it: drain.yml"):
        back(host)


def test_back_that_was_cut_short_goes_on_and_a_pivot_takes_it_over(host: Host) -> None:
    settle(host)
    first = back(host)["run"]
    drain(host)
    again = back(host)
    assert again["run"] != first and again["mode"] == "return" and again["drain"]
    over = host.pivot().begin("vllm.service", False)
    assert over["mode"] == "resume"
    host.deploy("vllm.service", "vllm as in a layout\n")
    host.active["vllm.service"] = "third"
    host.pivot().finish(over["run"], "vllm.service", [], [])
    assert host.path("vllm.service").read_text() == "vllm as in a layout\n"
    assert host.path("sglang.service").exists()


def test_back_in_check_mode_shows_the_files_and_touches_none(host: Host) -> None:
    settle(host)
    before = left()
    begun = host.pivot(check=True).begin_back(False, False)
    put = host.pivot(check=True).put_back(begun["run"])
    assert put["changed"]
    assert (put["diff"][0]["before"], put["diff"][0]["after"]) == ("vllm as the pivot left it\n", "vllm as it was\n")
    assert host.path("vllm.service").read_text() == "vllm as the pivot left it\n"
    assert left() == before


def test_what_only_its_owner_may_read_is_not_shown(host: Host) -> None:
    host.path("vllm.service").chmod(0o600)
    settle(host)
    (diff,) = host.pivot(check=True).put_back("")["diff"]
    assert diff["after"] == "(as it was)\n"


def test_what_an_engine_needs_to_serve_again_is_looked_at(tmp_path: Path) -> None:
    script = tmp_path / "vllm"
    unit = UnitState("vllm.service", "vllm", command=(str(script), "serve", "/models/gone", "--port", "1"))
    nothing = Scene({})
    assert list(_pivot.start_faults(unit, nothing)) == [
        f"its program {script} is gone",
        "its model /models/gone is gone",
    ]
    script.write_text("#!/opt/gone/python -I\n")
    assert next(_pivot.start_faults(unit, nothing)) == f"/opt/gone/python, which runs {script}, is gone"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        unit = UnitState("vllm.service", "vllm", command=("vllm", "serve", "x", "--port", str(port)))
        (fault,) = _pivot.start_faults(unit, nothing)
    assert fault.startswith(f"its port {port} is taken by ")
