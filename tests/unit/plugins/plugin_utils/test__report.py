# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import sys
import time
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.plugin_utils._fleet import LOST
from ansible_collections.gpuops.inference.plugins.plugin_utils._report import (
    FINISHED,
    INTERRUPTED,
    OUTCOMES,
    RUNNING,
    Run,
    clean,
    secret_values,
    shown_values,
    summary_lines,
)
from ansible_collections.gpuops.inference.plugins.plugin_utils._report_page import page

sys.path.insert(0, str(Path(__file__).parent))

import report_cases as cases

SCHEMA = json.loads((Path(__file__).parents[4] / "docs/report.schema.json").read_text())
# jsonschema.validate would check the schema anew for every document.
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def document(run: Run, end: float = cases.BEGAN + 60, state: str = FINISHED) -> dict[str, Any]:
    """As it is read back: what JSON cannot hold fails here."""
    told: dict[str, Any] = json.loads(json.dumps(run.as_dict(end, state), allow_nan=False))
    VALIDATOR.validate(told)
    return told


def outcomes(told: dict[str, Any]) -> dict[str, str]:
    return {host["host"]: host["outcome"] for host in told["hosts"]}


def one(tell: Any) -> dict[str, Any]:
    run = Run("pivot_to_sglang", cases.BEGAN, cases.FACTS)
    tell(run, "gpu-1")
    run.see_end(set() if tell is cases.went_well else {"gpu-1"}, set())
    return dict(document(run)["hosts"][0])


# --- the document -------------------------------------------------------------------------------------------------


def test_every_outcome_is_told_and_counted() -> None:
    told = document(*cases.fleet(6, "gpu-{}"))
    assert outcomes(told) == {
        "gpu-0": "done",
        "gpu-1": "failed",
        "gpu-2": "rolled_back",
        "gpu-3": "unreachable",
        "gpu-4": "failed",
        "gpu-5": "not_begun",
    }
    assert told["counts"] == {"done": 1, "not_begun": 1, "rolled_back": 1, "unreachable": 1, "failed": 2}


def test_the_schema_names_exactly_what_is_written() -> None:
    VALIDATOR.check_schema(SCHEMA)
    told = document(*cases.fleet())
    properties = SCHEMA["properties"]
    assert set(told) == set(properties)
    assert set(told["run"]) == set(properties["run"]["properties"])
    for host in told["hosts"]:
        assert set(host) == set(properties["hosts"]["items"]["properties"])
    assert properties["hosts"]["items"]["properties"]["outcome"]["enum"] == list(OUTCOMES)


def test_stages_follow_each_other_on_the_hosts_own_clock() -> None:
    stages = one(cases.went_well)["stages"]
    assert [stage["name"] for stage in stages][:3] == ["preflight", "plan", "hold"]
    assert [stage["name"] for stage in stages][-3:] == ["starting", "loading weights", "answering"]
    ends = [stage["began"] + stage["seconds"] for stage in stages]
    assert all(end <= stage["began"] + 0.01 for end, stage in zip(ends, stages[1:]))


def test_the_way_back_is_told_apart_and_its_drain_counts_last() -> None:
    host = one(cases.came_back)
    assert host["outcome"] == "rolled_back"
    names = [stage["name"] for stage in host["stages"] if stage["back"]]
    assert "release" in names and "answering" in names
    assert len(host["records"]) == 2
    assert len(host["ended"]) == 16
    assert host["log"][1] == cases.LOADING
    assert [sample["seconds"] for sample in host["memory_samples"]] == sorted(
        sample["seconds"] for sample in host["memory_samples"]
    )


def test_who_was_ended_comes_with_what_the_plan_knew_of_it() -> None:
    ended = one(cases.went_well)["ended"][3]
    assert ended["signal"] == "SIGTERM"
    assert (ended["why"], ended["gpus_used"]) == ("an engine's worker, its launcher is gone", [3])


def test_a_gpu_that_is_not_free_keeps_its_verdict() -> None:
    host = one(cases.stuck)
    assert host["released"] is False
    assert {gpu["index"]: (gpu["after_mib"], gpu["verdict"]) for gpu in host["gpus"]}["3"] == (41000, "unkillable")
    assert host["survivors"][0]["waits_in"] == "uvm_spin"


def test_a_failure_that_was_rescued_is_none() -> None:
    run = Run("drain", cases.BEGAN, cases.FACTS)
    cases.stuck(run, "gpu-1")
    run.see_end(set(), set())
    assert outcomes(document(run)) == {"gpu-1": "done"}


def test_who_was_at_work_when_the_run_was_interrupted_is_told_so() -> None:
    run = Run("pivot_to_sglang", cases.BEGAN, cases.FACTS)
    run.see_start("gpu-1", cases.DRAIN, cases.BEGAN + 1)
    run.host("gpu-2")
    told = document(run, state=INTERRUPTED)
    assert outcomes(told) == {"gpu-1": "unfinished", "gpu-2": "not_begun"}
    assert "run the same command again" in told["hosts"][0]["cause"]
    assert "Ctrl-C" in told["run"]["stopped"]
    assert told["hosts"][1]["cause"] == told["run"]["stopped"]
    assert told["run"]["resume"].startswith("to go on, run the same command again")
    for text in (told["run"]["stopped"], told["run"]["resume"]):
        assert text in page(told)
    told = document(run, state=RUNNING)
    assert [told["run"]["stopped"], told["run"]["resume"], *(host["cause"] for host in told["hosts"])] == [""] * 4


def test_what_the_fleet_told_is_kept_when_the_run_is_interrupted_after_it() -> None:
    run = Run("drain", cases.BEGAN, cases.FACTS)
    result = {"gpuops_outcomes": {"gpu-1": {"outcome": "done", "cause": ""}}, "stopped": "", "resume": ""}
    run.see_result("gpu-1", gate("tell"), "ok", result, cases.BEGAN + 200)
    told = document(run, state=INTERRUPTED)["run"]
    assert (told["stopped"], told["resume"]) == ("", "")


def test_a_host_that_begins_something_else_is_news() -> None:
    run = Run("drain", cases.BEGAN, cases.FACTS)
    wait = cases.Doing("Wait", "ansible.builtin.wait_for")
    assert [run.see_start("gpu-1", doing, cases.BEGAN) for doing in (wait, cases.CHECK, cases.CHECK, wait)] == [
        False, True, False, False,
    ]  # fmt: skip
    assert [run.see_start("gpu-1", doing, cases.BEGAN) for doing in (cases.DRAIN, wait, cases.DRAIN)] == [
        True, False, False,
    ]  # fmt: skip
    run.see_result("gpu-1", gate("gate"), "ok", {"go": True}, cases.BEGAN)
    assert run.see_start("gpu-1", cases.DRAIN, cases.BEGAN), "the look only planned it"


def gate(state: str) -> cases.Doing:
    return cases.Doing("Gate", "fleet", "fleet", {"state": state})


def test_what_the_gate_says_outranks_what_was_seen() -> None:
    run = Run("drain", cases.BEGAN, cases.FACTS)
    plan = {"hosts": ["gpu-1", "gpu-2"], "serial": [1], "max_failed": 1, "soak": 0}
    run.see_result("gpu-1", gate("plan"), "ok", plan, cases.BEGAN)
    run.see_result("gpu-1", gate("gate"), "ok", {"go": True}, cases.BEGAN)
    cases.stuck(run, "gpu-1")
    result = {
        "gpuops_outcomes": {
            "gpu-1": {"outcome": "unreachable", "cause": "lost"},
            "gpu-2": {"outcome": "not_begun", "cause": "max_failed"},
        },
        "stopped": "one host failed, and gpuops_max_failed is 1",
        "resume": "run the same command again",
    }
    run.see_result("gpu-1", gate("tell"), "ok", result, cases.BEGAN + 200)
    run.see_end({"gpu-1"}, set())
    told = document(run)
    assert outcomes(told) == {"gpu-1": "unreachable", "gpu-2": "not_begun"}
    assert told["run"]["stopped"].startswith("one host failed")
    assert told["run"]["settings"] == {"serial": [1], "max_failed": 1}
    assert told["hosts"][0]["gpus"] and told["hosts"][0]["task"] == "Drain the GPUs", "what was seen is still there"


def test_of_a_host_that_was_given_up_in_the_middle_it_is_said_why() -> None:
    run = Run("drain", cases.BEGAN, cases.FACTS)
    run.see_result("gpu-1", gate("gate"), "ok", {"go": True}, cases.BEGAN)
    hook = cases.Doing("Take it out", "ansible.builtin.uri", "fleet")
    run.see_result("gpu-1", hook, "unreachable", {"msg": "no route to jump01"}, cases.BEGAN + 1)
    told = {"gpuops_outcomes": {"gpu-1": {"outcome": "unreachable", "cause": LOST}}}
    run.see_result("gpu-2", gate("tell"), "ok", told, cases.BEGAN + 2)
    run.see_end(set(), {"gpu-1"})
    assert document(run)["hosts"][0]["cause"] == f"{LOST}: no route to jump01"


def test_a_host_that_was_given_up_in_a_hook_after_it_is_not_told_as_done() -> None:
    run = Run("pivot_to_vllm", cases.BEGAN, cases.FACTS)
    hook = cases.Doing("Announce it", "ansible.builtin.uri", "fleet")
    for host in ("gpu-1", "gpu-2"):
        run.see_result(host, gate("gate"), "ok", {"go": True}, cases.BEGAN)
        run.see_result(host, gate("end"), "ok", {"gpuops_outcome": {"outcome": "done", "cause": ""}}, cases.BEGAN + 9)
        run.see_result(host, hook, "unreachable", {"msg": "no route to jump01"}, cases.BEGAN + 10)
    # The second's hook says itself that this is no matter.
    run.see_end(set(), {"gpu-1"})
    told = document(run)
    assert outcomes(told) == {"gpu-1": "unreachable", "gpu-2": "done"}
    assert told["hosts"][0]["cause"].startswith("Announce it: no route to jump01 (the rest is done")


def test_a_host_whose_soak_or_hook_was_interrupted_is_not_told_as_done() -> None:
    run = Run("pivot_to_vllm", cases.BEGAN, cases.FACTS)
    done = {"gpuops_outcome": {"outcome": "done", "cause": ""}}
    for host in ("gpu-1", "gpu-2"):
        run.see_result(host, gate("gate"), "ok", {"go": True}, cases.BEGAN)
        run.see_result(host, gate("end"), "ok", done, cases.BEGAN + 9)
    run.see_start("gpu-1", gate("wait"), cases.BEGAN + 10)
    assert outcomes(document(run, cases.BEGAN + 20, INTERRUPTED)) == {"gpu-1": "unfinished", "gpu-2": "done"}
    assert "yours to repeat" in document(run, cases.BEGAN + 20, INTERRUPTED)["hosts"][0]["cause"]
    run.see_result("gpu-1", gate("wait"), "ok", {}, cases.BEGAN + 30)
    run.see_start("gpu-1", gate("tell"), cases.BEGAN + 31)
    assert outcomes(document(run, cases.BEGAN + 32, INTERRUPTED)) == {"gpu-1": "done", "gpu-2": "done"}


def test_a_host_that_was_only_looked_at_was_not_begun_when_the_run_was_interrupted() -> None:
    run = Run("drain", cases.BEGAN, cases.FACTS)
    for host in ("gpu-1", "gpu-2", "gpu-3"):
        cases.went_well(run, host)
    run.see_result("gpu-2", gate("gate"), "ok", {"go": True}, cases.BEGAN + 300)
    run.see_result("gpu-3", gate("gate"), "ok", {"go": True}, cases.BEGAN + 300)
    end = {"gpuops_outcome": {"outcome": "done", "cause": ""}}
    run.see_result("gpu-3", gate("end"), "ok", end, cases.BEGAN + 320)
    told = document(run, cases.BEGAN + 330, INTERRUPTED)
    assert outcomes(told) == {"gpu-1": "not_begun", "gpu-2": "unfinished", "gpu-3": "done"}
    assert [host["seconds"] for host in told["hosts"]][1:] == [30, 20], "since the gate let them through"


def test_of_two_playbooks_in_a_run_the_first_does_not_speak_for_the_second() -> None:
    run = Run("drain", cases.BEGAN, cases.FACTS)
    done = {"outcome": "done", "cause": ""}
    for at in (100, 200):
        run.see_result("gpu-1", gate("plan"), "ok", {"hosts": ["gpu-1"]}, cases.BEGAN + at)
        run.see_result("gpu-1", gate("gate"), "ok", {"go": True}, cases.BEGAN + at)
        told = document(run, cases.BEGAN + at + 30, INTERRUPTED)
        assert outcomes(told) == {"gpu-1": "unfinished"}
        assert "Ctrl-C" in told["run"]["stopped"]
        run.see_result("gpu-1", gate("end"), "ok", {"gpuops_outcome": done}, cases.BEGAN + at + 40)
        end = {"gpuops_outcomes": {"gpu-1": done}, "stopped": "", "resume": ""}
        run.see_result("gpu-1", gate("tell"), "ok", end, cases.BEGAN + at + 50)
        assert outcomes(document(run)) == {"gpu-1": "done"}


def test_the_summary_ends_with_who_needs_somebody_and_why() -> None:
    lines = summary_lines(document(*cases.fleet(6, "gpu-{}")))
    assert len(lines) == 6
    assert lines[0].startswith("gpu-0  done")
    assert [line.split()[0] for line in lines[-2:]] == ["gpu-1", "gpu-4"]
    assert "GPU 3 is held by pid 1141" in lines[-2]


def test_the_summary_says_that_it_was_a_check_and_why_a_pivot_was_undone() -> None:
    told = document(*cases.fleet(1, "gpu-{}"))
    told["run"]["check"] = True
    told["hosts"][0]["cause"] = "it failed and was undone\nwhy it failed: out of memory\n    | a line of its log"
    lines = summary_lines(told)
    assert lines[0].endswith("it failed and was undone; why it failed: out of memory")
    assert lines[-1] == "check mode: nothing was changed"


def test_the_summary_of_a_drain_names_what_stays_held_and_when_that_ends() -> None:
    hold = {"unit": "vllm.service", "purpose": "drain", "until": cases.BEGAN + 3600, "over_reboot": True}

    def lines(hold_for: str) -> list[str]:
        run = Run("drain", cases.BEGAN, cases.FACTS)
        called = {"invocation": {"module_args": {"hold_for": hold_for}}}
        cases.Teller(run, "gpu-1")(cases.DRAIN, {**cases.drained(), "holds": [hold], **called}, 5)
        return summary_lines(document(run))

    end = time.strftime("%F %R", time.localtime(cases.BEGAN + 3600))
    assert lines("drain")[0].endswith(f"8/8 GPUs released  vllm.service held until {end}, over reboots")
    assert "gpuops.inference.undrain" in lines("drain")[-1]
    assert lines("pivot")[0].endswith("GPUs released"), "a pivot ends its own holds"
    assert len(lines("pivot")) == 1


@given(JSON)
def test_whatever_a_host_answers_makes_a_valid_document_and_a_page(answer: Any) -> None:
    keys = [*cases.drained(), "holds", "log", "story", "record", "ansible_facts", "invocation", "results", "msg"]
    result = {**dict.fromkeys(keys, answer), "failed": True}
    run = Run("drain", cases.BEGAN, cases.FACTS)
    tell = cases.Teller(run, "gpu-1")
    for doing in (cases.DRAIN, cases.START, cases.TURN, cases.FINISH):
        tell(doing, result, 1, "failed")
    assert page(document(run)) and summary_lines(document(run))


# --- what is not told ---------------------------------------------------------------------------------------------


def test_secrets_are_in_neither_file() -> None:
    variables = {
        "gpuops_vllm_secrets": {"VLLM_API_KEY": "correct-horse"},
        "gpuops_layout_overrides": {"environment": {"HF_TOKEN": "hf_abcdefghijklmnopqrst"}},
        "gpuops_reason": "the key is correct-horse",
        "ansible_password": "never",
    }
    run = Run("drain", cases.BEGAN, cases.FACTS)
    run.secrets = secret_values(variables)
    run.host("gpu-1").values = shown_values(variables)
    tell = cases.Teller(run, "gpu-1")
    said = "started with --api-key correct-horse and sk-abcdefghijklmnopqr"
    tell(cases.START, {**cases.BROKEN, "msg": said}, 1, "failed")
    told = document(run)
    both = json.dumps(told) + page(told)
    assert not [text for text in ("correct-horse", "hf_abc", "sk-abc", "never") if text in both]
    assert told["hosts"][0]["values"]["gpuops_vllm_secrets"] == ["VLLM_API_KEY"]


@given(st.text(max_size=200))
def test_what_a_terminal_would_obey_is_escaped(text: str) -> None:
    assert all(line.isprintable() for line in clean(text).split("\n"))


# --- the page -----------------------------------------------------------------------------------------------------

HOSTILE = st.text(min_size=1, max_size=40) | st.sampled_from(
    [
        "<script>alert(1)</script>", "' onmouseover='alert(1)", '" style="x', "</pre></details>", "<!--",
        "]]>", "&lt;b&gt;", "</style><img src=x>", "\x1b[31m\u202e{{ 7*7 }}", "javascript:alert(1)", "\ud800", "\x00",
    ]
)  # fmt: skip


class Skeleton(HTMLParser):
    """The elements of a page and their attributes' names, and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, dummy in attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment", data))


def hostile_page(text: str) -> str:
    result: dict[str, Any] = cases.drained("leaked", 500)
    result.update(msg=text, refusals=[text], problems=[text], held_units=[text], driver_version=text, record=text)
    for item in (*result["ended"], *result["left_alone"], *result["survivors"], *result["processes"]):
        item.update({key: text for key in ("name", "command", "why", "signal", "class", "waits_in") if key in item})
    for gpu in result["gpus_before"]:
        gpu["name"] = text
    for verdict in result["verdicts"].values():
        verdict.update(verdict=text, why=text)
    result["stages"] = [{"name": text, "seconds": 1.0, "actions": [text]}]
    run = Run(text, cases.BEGAN, {**cases.FACTS, "by": text, "limit": text})
    tell = cases.Teller(run, text)
    tell(cases.DRAIN, result, 9, "failed")
    tell(cases.START, {**cases.BROKEN, "log": [text]}, 9, "failed")
    tell(cases.FINISH, {"story": [text]}, 1)
    run.hosts[text].values = {"gpuops_reason": text}
    return page(document(run))


def elements_of(text: str) -> list[tuple[str, ...]]:
    # A blank is still text, but some of the page leaves out what is empty.
    return [item for item in Skeleton(hostile_page(f"a{text}")).found if item[0] not in ("dt", "dd")]


PLAIN = cache(lambda: elements_of(""))


@given(HOSTILE)
def test_hostile_text_is_text(text: str) -> None:
    assert elements_of(text) == PLAIN()


def test_a_hostile_name_is_shown_as_it_is() -> None:
    assert "a<script>alert(1)</script>" in Skeleton(hostile_page("a<script>alert(1)</script>")).texts


def test_the_page_fetches_nothing_and_runs_nothing() -> None:
    told = Skeleton(page(document(*cases.fleet())))
    names = {name for item in told.found for name in item[1:]}
    assert not names & {"src", "srcset", "action", "background", "poster"}
    assert not [name for name in names if name.startswith("on")]
    assert not {item[0] for item in told.found} & {"script", "link", "img", "iframe", "object", "form"}


def test_no_verdict_is_told_by_its_colour_alone() -> None:
    texts = Skeleton(page(document(*cases.fleet(6, "gpu-{}")))).texts
    assert {"free", "unkillable", "✓ done", "✕ failed", "↩ rolled back", "○ not begun"} <= set(texts)


def test_gpus_of_a_host_that_was_only_looked_at_are_not_told_as_drained() -> None:
    run = Run("drain", cases.BEGAN, cases.FACTS)
    seen = cases.drained()
    seen.update(gpus_after=seen["gpus_before"], verdicts={}, record=None, stopped_units=[], ended=[])
    cases.Teller(run, "gpu-1")(cases.DRAIN, seen, 2)
    text = page(document(run, state=INTERRUPTED))
    assert text.count("as seen in the look, not drained") == 8
    assert "not judged" not in text
    cases.went_well(run, "gpu-2")
    assert page(document(run)).count("as seen in the look, not drained") == 8


def test_containers_and_users_units_that_were_stopped_are_told() -> None:
    owners = [
        {"owner": "container docker 1f2e (chat)", "seconds": 2.5, "error": "", "restart": "always"},
        {"owner": "user unit vllm.service of uid 1001", "seconds": 9.0, "error": "no account", "restart": ""},
    ]
    run = Run("drain", cases.BEGAN, cases.FACTS)
    cases.Teller(run, "gpu-1")(cases.DRAIN, {**cases.drained(), "stopped_owners": owners}, 12)
    run.see_end(set(), set())
    told = document(run)
    assert told["hosts"][0]["stopped_owners"] == owners
    text = page(told)
    assert "container docker 1f2e (chat) stopped in 2.5 s" in text
    assert "user unit vllm.service of uid 1001 was not stopped: no account" in text
