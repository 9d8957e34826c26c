# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run over hosts that are only names: who is begun, when, and what is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest
import yaml

from ansible_collections.gpuops.inference.plugins.plugin_utils import _fleet
from ansible_collections.gpuops.inference.plugins.plugin_utils._fleet import FleetError, Host, Plan, hosts_of
from ansible_collections.gpuops.inference.plugins.plugin_utils._ledger import Ledger

NAMES = [f"gpu{number}" for number in range(1, 9)]
BEGAN = 1000.0


def serving(*names: str) -> list[Host]:
    return [Host(name, serving=True) for name in names or NAMES]


def plan(hosts: Optional[list[Host]] = None, **settings: Any) -> Plan:
    defaults: dict[str, Any] = {
        "serial": 1, "max_failed": 1, "max_unavailable": None, "canary": [], "canary_hosts": [], "soak": 0,
        "deadline": None, "began": BEGAN,
    }  # fmt: skip
    return _fleet.make_plan(serving() if hosts is None else hosts, **{**defaults, **settings})


def test_variables_that_nothing_reads_are_named_with_what_was_meant() -> None:
    mapping = 'fleet_soak: "{{ gpuops_soak | default(0) }}"\n# gpuops_hosts, gpuops_fleet.'
    names = [
        "gpuops_soak",
        "gpuops_hosts",
        "gpuops_soka",
        "gpuosp_soak",
        "ggpuops_x",
        "gpu_count",
        "gpuops",
        "mine",
        "gpuops_",
    ]
    assert _fleet.unread(names, mapping) == [
        "gpuops_", "gpuops_soka (did you mean gpuops_soak?)", "ggpuops_x (did you mean gpuops_x?)",
        "gpuosp_soak (did you mean gpuops_soak?)",
    ]  # fmt: skip
    assert _fleet.unread(["gpuops_soak", "gpu_ops", "gpups"], mapping) == []


def test_variables_of_a_role_are_what_its_specification_says() -> None:
    roles = Path(__file__).parents[4] / "roles"
    texts = {role: (roles / role / "meta/argument_specs.yml").read_text() for role in ("preflight", "engine")}
    options = {name for text in texts.values() for name in yaml.safe_load(text)["argument_specs"]["main"]["options"]}
    assert _fleet.unread_by_roles([*options, "preflight_result", "preflights", "layout_x"], texts) == []
    assert _fleet.unread_by_roles(["engine_secret"], texts) == ["engine_secret (did you mean engine_secrets?)"]
    assert _fleet.unread_by_roles(["engine_secret"], {}) == []


class Run:
    """What a run's books hold, one entry after the other."""

    def __init__(self, hosts: list[Host], **settings: Any) -> None:
        self.entries: list[dict[str, Any]] = [
            {"state": "look", "host": host.name, "outcome": host.outcome, "serving": host.serving,
             "cause": host.cause}
            for host in hosts
        ]  # fmt: skip
        self.names = [host.name for host in hosts]
        self.alive = set(self.names)
        self.plan = plan(hosts, **settings)

    @property
    def hosts(self) -> list[Host]:
        return hosts_of(self.names, self.entries, self.alive)

    def why(self, name: str, *mates: str, now: float = BEGAN) -> str:
        return _fleet.refusal(self.plan, self.hosts, name, [*mates, name], now)

    def begin(self, name: str) -> Run:
        self.entries.append({"state": "gate", "host": name, "go": True, "cause": ""})
        return self

    def end(self, name: str, outcome: str, serving: bool) -> Run:
        self.begin(name)
        self.entries.append({"state": "end", "host": name, "outcome": outcome, "serving": serving, "cause": "no"})
        return self

    def told(self) -> dict[str, Any]:
        return _fleet.tell(self.plan, self.hosts, BEGAN)


@pytest.mark.parametrize(
    "serial, batches",
    [
        (1, (1,)),
        ("2", (2,)),
        ("100%", (8,)),
        ("30%", (2,)),
        ("1%", (1,)),
        ([1, "25%", 4], (1, 2, 4)),
        ("1,25%,4", (1, 2, 4)),
    ],
)
def test_so_many_at_a_time(serial: Any, batches: tuple[int, ...]) -> None:
    assert plan(serial=serial).serial == batches


@pytest.mark.parametrize(
    "settings, name",
    [
        ({"serial": "two"}, "gpuops_serial"),
        ({"serial": 0}, "gpuops_serial"),
        ({"serial": []}, "gpuops_serial"),
        ({"serial": True}, "gpuops_serial"),
        ({"max_failed": -1}, "gpuops_max_failed"),
        ({"max_failed": 0}, "gpuops_max_failed"),
        ({"max_unavailable": "1.5"}, "gpuops_max_unavailable"),
        ({"soak": "an hour"}, "gpuops_soak"),
        ({"deadline": -1}, "gpuops_deadline"),
        ({"deadline": "nan"}, "gpuops_deadline"),
        ({"canary": "gpu9", "canary_hosts": []}, "gpuops_canary"),
    ],
)
def test_what_cannot_be_meant_names_the_users_variable(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(FleetError, match=name):
        plan(**settings)


def test_what_has_nothing_to_do_is_not_begun() -> None:
    hosts = [Host("gpu1", "skipped", serving=True), *serving("gpu2"), Host("gpu3", "unreachable")]
    made = plan(hosts, max_failed=2)
    assert made.pending == ("gpu2",) and set(made.hosts) == {"gpu1", "gpu2", "gpu3"}


def test_a_budget_that_is_spent_before_begins_nobody() -> None:
    made = Run([*serving("gpu1"), Host("gpu2", "unreachable")])
    assert made.plan.pending == ()
    told = made.told()
    assert told["gpuops_outcomes"]["gpu1"] == {"outcome": "not_begun", "cause": told["stopped"]}
    assert told["stopped"].startswith("1 of 2 hosts failed (gpu2), and gpuops_max_failed=1 begins no further one")


@pytest.mark.parametrize(
    "canary, names, serial",
    [
        (1, [], (1, 4)),
        ("2", [], (2, 4)),
        (["gpu7", "gpu3"], ["gpu3", "gpu7"], (2, 4)),
    ],
)
def test_canaries_go_first_in_a_batch_of_their_own(canary: Any, names: list[str], serial: tuple[int, ...]) -> None:
    made = plan(serial=4, canary=canary, canary_hosts=names)
    assert made.canaries == made.pending[: len(made.canaries)] == tuple(names or NAMES[: int(canary)])
    assert made.serial == serial and sorted(made.pending) == NAMES


def test_canaries_that_are_done_are_not_replaced_by_others() -> None:
    made = plan([Host("gpu1", "skipped", serving=True), *serving(*NAMES[1:])], canary=1, serial=3)
    assert made.canaries == () and made.serial == (3,)


@pytest.mark.parametrize("canary, names", [(1, []), ("gpu1", ["gpu1"])])
@pytest.mark.parametrize(
    "up, soak, soaks", [(2.0, 300, True), (299.9, 300, True), (300.0, 300, False), (2.0, 0, False), (None, 300, False)]
)
def test_a_canary_is_proved_once_it_has_served_for_the_soak(
    canary: Any, names: list[str], up: Optional[float], soak: float, soaks: bool
) -> None:
    # Of the others nobody asks how long they have served.
    hosts = [Host("gpu1", "skipped", True, up=up), Host("gpu2", "skipped", True, up=2.0), *serving(*NAMES[2:])]
    made = plan(hosts, canary=canary, canary_hosts=names, soak=soak, serial="100%")
    others = tuple(NAMES[2:])
    assert made.pending == (("gpu1", *others) if soaks else others)
    assert made.canaries == (("gpu1",) if soaks else ()) and made.serial == ((1, 8) if soaks else (8,))


def test_a_spent_budget_begins_no_canary_to_soak() -> None:
    hosts = [Host("gpu1", "skipped", True, up=2.0), *serving("gpu2"), Host("gpu3", "unreachable")]
    assert plan(hosts, canary=1, soak=300).pending == ()


def test_a_wrong_serial_is_told_the_form_of_a_list_too() -> None:
    with pytest.raises(FleetError, match="a percentage like 25%, or a list of them like 1,5,20%"):
        plan(serial="[1,100%]")


def test_a_canary_that_failed_before_it_was_begun_stops_the_others_too() -> None:
    run = Run([*serving("gpu1", "gpu2", "gpu3"), Host("gpu4", "unreachable")], max_failed=3, canary=["gpu1", "gpu4"],
              canary_hosts=["gpu1", "gpu4"])  # fmt: skip
    assert run.plan.pending == ("gpu1", "gpu2", "gpu3") and run.plan.serial == (1, 1)
    assert run.why("gpu1") == ""
    assert run.why("gpu2") == "the canary gpu4 failed"


def test_a_batch_is_never_larger_than_what_may_be_out() -> None:
    hosts = [Host("gpu1"), *serving(*NAMES[1:])]
    assert plan(hosts, serial="100%", max_unavailable=3).serial == (2,)
    assert plan(hosts, serial="100%", max_unavailable="50%", canary=5).serial == (3, 2, 3)


def test_what_fails_on_one_host_ends_the_run() -> None:
    run = Run(serving()).end("gpu1", "rolled_back", True)
    assert run.why("gpu2") == (
        "1 of 8 hosts failed (gpu1), and gpuops_max_failed=1 begins no further one (raise it to go on with the others)"
    )


def test_failed_and_lost_hosts_count_alike_over_the_whole_fleet() -> None:
    run = Run([*serving(*NAMES[:-1]), Host("gpu8", "unreachable")], max_failed=3)
    run.end("gpu1", "failed", False)
    assert run.why("gpu3") == ""
    run.begin("gpu2").alive.remove("gpu2")
    assert "3 of 8 hosts failed (gpu1, gpu2, gpu8)" in run.why("gpu3")


def test_a_canary_that_failed_ends_the_run_whatever_else_may_fail() -> None:
    run = Run(serving(), max_failed=5, canary=2, serial=2).end("gpu1", "failed", False)
    assert run.why("gpu2") == ""
    assert run.why("gpu3") == "the canary gpu1 failed"


def test_no_host_is_begun_after_the_deadline() -> None:
    run = Run(serving(), deadline=60)
    assert run.why("gpu1", now=BEGAN + 59) == ""
    assert "gpuops_deadline is 60 s" in run.why("gpu1", now=BEGAN + 60)


def test_who_is_out_already_counts() -> None:
    run = Run([Host("gpu1"), *serving("gpu2", "gpu3", "gpu4")], max_unavailable=2, max_failed=4)
    assert run.why("gpu2") == ""
    assert "when its turn came, gpu1, gpu2 did not serve or were about to stop" in run.why("gpu3", "gpu2")
    run.end("gpu2", "done", True)
    assert run.why("gpu3") == ""
    run.end("gpu2", "failed", False)
    assert "gpuops_max_unavailable lets 2 of 4 be out" in run.why("gpu3")


def test_a_host_whose_turn_went_by_is_told_to_run_again() -> None:
    run = Run(serving("gpu1", "gpu2", "gpu3"), max_unavailable=1, max_failed=2)
    run.end("gpu1", "failed", False)
    run.entries.append({"state": "gate", "host": "gpu2", "go": False, "cause": run.why("gpu2")})
    # Whatever comes back later, the run does not come to it again.
    run.end("gpu1", "done", True).end("gpu3", "done", True)
    told = run.told()
    assert told["gpuops_outcomes"]["gpu2"]["outcome"] == "not_begun"
    assert told["stopped"].startswith("when its turn came, gpu1 did not serve or was about to stop")
    assert told["resume"].startswith("to go on, run the same command again")


def test_who_is_out_already_may_be_begun_at_any_time() -> None:
    run = Run([Host("gpu1"), *serving("gpu2")], max_unavailable=0)
    assert run.why("gpu1") == ""
    assert "gpu1 did not serve" in run.why("gpu2")


TARGET = {"class": "target", "action": "stop with its unit"}


@pytest.mark.parametrize(
    "seen, serves",
    [
        ({"serving": ["vllm.service"]}, True),
        ({"engines": [{"active": False}, {"active": True}]}, True),
        ({"engines": [{"active": False}]}, False),
        ({"processes": [TARGET], "refusals": ["a job is in the way"]}, True),
        ({"processes": [{"class": "foreign", "action": "refuse"}, {**TARGET, "action": "leave"}]}, False),
        ({"processes": [{"more": 12}], "plan": ["hold vllm.service", "stop vllm.timer until the hold ends"]}, False),
        ({}, False),
    ],
)
def test_who_serves_is_known_from_the_look(seen: dict[str, Any], serves: bool) -> None:
    assert _fleet.serves(seen) == serves


def test_a_host_that_was_refused_before_the_look_is_a_failed_one() -> None:
    assert hosts_of(["gpu1"], [], set())[0].outcome == "failed"


DONE = Host("gpu1", "done", True, True)
PIVOTED: dict[str, Any] = {"drain": {"stopped_units": [{"unit": "vllm.service"}]}}


@pytest.mark.parametrize(
    "failure, results, outcome, serves",
    [
        ({}, {**PIVOTED, "finished": {"record": {"phase": "done"}}}, "done", True),
        ({"msg": "no"}, {}, "failed", True),
        ({"msg": "no"}, PIVOTED, "failed", False),
        ({"msg": "no", "lost": True}, PIVOTED, "unreachable", False),
        (
            {"msg": "no"},
            {**PIVOTED, "turned": {"touched": True}, "restored": {"start": ["vllm.service"]},
             "finished": {"record": {"phase": "rolled_back"}}},
            "rolled_back",
            True,
        ),
        ({"msg": "no"}, {"turned": {"touched": True}}, "failed", False),
        ({"msg": "no"}, {"drain": {"stopped_owners": [{"owner": "container docker 1"}]}}, "failed", False),
        ({"msg": "no", "state": {"before": "running", "after": "failed"}}, {}, "failed", False),
        (
            {"msg": "no", "results": [{"failed": False, "state": {}}, {"failed": True, "state": {}}]},
            {},
            "failed",
            False,
        ),
    ],
)  # fmt: skip
def test_how_a_host_ended(failure: dict[str, Any], results: dict[str, Any], outcome: str, serves: bool) -> None:
    told = {"task": "Pivot", "result": failure} if failure else {}
    end = _fleet.ended(True, False, told, results)
    assert (end.outcome, end.serving, end.cause) == (outcome, serves, "no" if failure else "")


@pytest.mark.parametrize("lost, outcome", [(False, "failed"), (True, "unreachable")])
def test_of_a_loop_each_item_says_why_it_failed(lost: bool, outcome: str) -> None:
    items = [{"failed": False}, {"failed": True, "msg": "Module failed: port taken", "lost": lost}]
    loop = {"task": "Start", "result": {"msg": "One or more items failed", "results": items}}
    end = _fleet.ended(True, False, loop, {})
    assert (end.outcome, end.cause) == (outcome, "port taken")


def test_what_fails_after_the_act_is_told_beside_it() -> None:
    after = {"task": "Tell HAProxy", "result": {"msg": "Task failed: Module failed: no socket"}}
    end = _fleet.failed_afterwards(DONE, after, soaked=True)
    assert (end.outcome, end.serving) == ("failed", True)
    assert end.cause == f"Tell HAProxy: no socket{_fleet.HOOK_FAILED}"
    back = Host("gpu1", "rolled_back", True, True, "no")
    both = _fleet.failed_afterwards(back, after, soaked=True)
    assert (both.outcome, both.serving) == ("rolled_back", True)
    assert both.cause == "no\nafterwards, Tell HAProxy: no socket"


@pytest.mark.parametrize("lost, outcome", [(False, "failed"), (True, "unreachable")])
def test_a_canary_whose_soak_failed_does_not_serve(lost: bool, outcome: str) -> None:
    after = {"task": "Look whether it still serves", "result": {"msg": "it does not", "lost": lost}}
    end = _fleet.failed_afterwards(DONE, after, soaked=False)
    assert (end.outcome, end.serving) == (outcome, False)
    # It ends twice in the books: as its pivot went, and as its soak did.
    run = Run(serving("gpu1", "gpu2", "gpu3"), max_unavailable=1, max_failed=3, canary=1).end("gpu1", "done", True)
    assert run.why("gpu2") == ""
    run.end("gpu1", end.outcome, end.serving)
    assert run.why("gpu2") == "the canary gpu1 failed"
    anyway = Run(serving("gpu1", "gpu2", "gpu3"), max_unavailable=1, max_failed=3).end("gpu1", end.outcome, end.serving)
    assert "gpu1 did not serve" in anyway.why("gpu2")


def test_a_drained_host_does_not_serve() -> None:
    assert not _fleet.ended(True, True, {}, {"drain": {"changed": True}}).serving


def test_each_host_is_told_with_its_cause_and_how_to_go_on() -> None:
    run = Run([*serving("gpu1", "gpu2"), Host("gpu3", "skipped", serving=True, cause="drained already")])
    run.end("gpu1", "failed", False).alive.remove("gpu3")
    told = run.told()
    assert {name: one["outcome"] for name, one in told["gpuops_outcomes"].items()} == {
        "gpu1": "failed", "gpu2": "not_begun", "gpu3": "skipped"
    }  # fmt: skip
    assert [one["cause"] for one in told["gpuops_outcomes"].values()] == ["no", told["stopped"], "drained already"]
    assert told["resume"].startswith("to go on, remove the cause, then run the same command again")


def test_a_run_that_went_well_asks_for_nothing() -> None:
    told = Run(serving("gpu1")).end("gpu1", "done", True).told()
    assert (told["stopped"], told["resume"]) == ("", "")


def test_a_plan_survives_the_books(tmp_path: Path) -> None:
    books = Ledger(tmp_path / "books")
    books.begin()
    made = plan(canary=1, serial=[1, 2])
    books.add({"plan": made.as_dict()})
    assert Plan.from_dict(books.entries()[0]["plan"]) == made
    books.begin()
    assert books.entries() == []


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        ("announce.yml", ""),
        ("gone.yml", "the hook gone.yml cannot be read: no such file"),
        ("vars.yml", "the hook vars.yml is no list of tasks"),
        (["http"], ""),
        (["haproxy"], ""),
        (["htpp"], "a hook is a file of tasks, or haproxy or http with settings, and not htpp"),
        ([], "a hook is a file of tasks, or haproxy or http with settings, and not "),
    ],
)
def test_a_hook_that_cannot_be_is_known_before_any_host_is_touched(hook: Any, told: str) -> None:
    def read(path: str) -> Any:
        if path == "gone.yml":
            raise OSError("no such file\nand more")
        return {"announce.yml": [{"name": "Announce it"}], "vars.yml": {"a": 1}}[path]

    assert _fleet.hook_problem(hook, read) == told
