# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.gpuops.inference.plugins.module_utils._quiesce import (
    TIMED_OUT,
    Load,
    Outcome,
    quiesce,
    read_load,
)
from ansible_collections.gpuops.inference.plugins.module_utils._ready import Answer, NoAnswer, Question


def metrics(running: float, waiting: float, served: float) -> str:
    return f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="kimi-k2.5"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="kimi-k2.5"}} {waiting}
vllm:num_requests_waiting_by_reason{{engine="0",model_name="kimi-k2.5",reason="capacity"}} 99
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="kimi-k2.5"}} {served}
vllm:request_success_total{{engine="0",finished_reason="length",model_name="kimi-k2.5"}} 1.0
"""


def test_gauges_are_summed_over_their_labels_and_names_count_whole() -> None:
    assert read_load(ENGINES["vllm"], metrics(2.0, 3, 4)) == Load(2.0, 3.0, 5.0)
    assert read_load(ENGINES["sglang"], metrics(2, 3, 4)) is None


@given(st.text())
def test_any_text_can_be_metrics(text: str) -> None:
    read_load(ENGINES["vllm"], text)


class Script:
    def __init__(self, load: Callable[[float], str]) -> None:
        self.now = 0.0
        self.load = load

    def ask(self, question: Question) -> Answer:
        assert question.path == "/metrics"
        return Answer(200, self.load(self.now))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, timeout: float = 60) -> Outcome:
        asks = {"vllm.service": ("vllm", self.ask)}
        return quiesce(asks, timeout, lambda: self.now, self.sleep)["vllm.service"]


def test_an_idle_engine_is_quiet_after_two_seconds() -> None:
    script = Script(lambda now: metrics(0, 0, 7))
    assert script.run().quiet
    assert 2 <= script.now < 3


def test_running_requests_are_waited_for() -> None:
    script = Script(lambda now: metrics(1 if now < 5 else 0, 0, 7 if now < 5 else 8))
    assert script.run().quiet
    assert 7 <= script.now < 8


def test_requests_that_come_and_go_between_two_looks_are_told_by_the_counter() -> None:
    script = Script(lambda now: metrics(0, 0, int(now)))
    outcome = script.run(timeout=10)
    assert not outcome.quiet
    assert "load balancer" in outcome.why
    assert 10 <= script.now < 11


def test_one_long_request_is_no_load_balancer() -> None:
    outcome = Script(lambda now: metrics(1, 2, 7)).run(timeout=5)
    assert outcome == Outcome(False, "1 requests run, 2 wait after 5 s")


def test_an_engine_that_shows_no_load_is_not_waited_for_and_it_is_said() -> None:
    def nobody(question: Question) -> Answer:
        raise NoAnswer("connection refused")

    asks = {
        "a": ("sglang", lambda question: Answer(404, "")),
        "b": ("vllm", nobody),
        "c": ("vllm", lambda question: Answer(200, "nothing_of_use 1\n")),
    }
    outcomes = quiesce(asks, 60, lambda: 0.0, lambda seconds: None)
    assert all(outcome.quiet for outcome in outcomes.values())
    assert "/metrics says 404" in outcomes["a"].why
    assert "connection refused" in outcomes["b"].why
    assert "has no vllm:num_requests_running" in outcomes["c"].why


class Slow:
    """Answers at first, and then accepts without ever answering."""

    def __init__(self, answers: list[str]) -> None:
        self.now = 0.0
        self.answers = answers

    def ask(self, question: Question) -> Answer:
        if self.answers:
            return Answer(200, self.answers.pop(0))
        self.now += question.timeout
        raise NoAnswer(TIMED_OUT)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_server_that_never_answers_costs_no_more_than_was_given() -> None:
    slow, other = Slow([]), Slow([])
    asks = {"a": ("vllm", slow.ask), "b": ("vllm", other.ask)}
    outcomes = quiesce(asks, 2, lambda: slow.now + other.now, slow.sleep)
    assert 2 <= slow.now + other.now < 3
    assert all(outcome.quiet and TIMED_OUT in outcome.why for outcome in outcomes.values())


def test_one_that_was_seen_at_work_and_falls_silent_is_not_quiet() -> None:
    slow = Slow([metrics(3, 0, 7)])
    outcome = quiesce({"a": ("vllm", slow.ask)}, 2, lambda: slow.now, slow.sleep)["a"]
    assert outcome == Outcome(False, "3 requests run, 0 wait after 2 s")
    assert 2 <= slow.now < 3
