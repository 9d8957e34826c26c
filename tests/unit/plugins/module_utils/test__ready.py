# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.gpuops.inference.plugins.module_utils._ready import (
    Answer,
    Asking,
    Look,
    NoAnswer,
    Question,
    _exchange,
    asker,
    look,
)

VLLM = ENGINES["vllm"]
MODELS = Answer(200, '{"data": [{"id": "kimi-k2.5"}, {"id": "kimi"}]}')
COMPLETION = Answer(200, '{"choices": [{"text": "2"}]}')


class Server:
    """An engine's answers by path, and the questions it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {"health": Answer(200, ""), "models": MODELS, "completions": COMPLETION, **answers}
        self.asked: list[Question] = []

    def __call__(self, question: Question) -> Answer:
        self.asked.append(question)
        answer = self.answers[question.path.rpartition("/")[2]]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Answer)
        return answer

    def look(self, served: Optional[str] = "kimi-k2.5", stranger: str = "") -> Look:
        ticks = iter(range(1, 9))
        return look(self, VLLM, served, lambda: float(next(ticks)), lambda: stranger)


def test_ready_is_health_then_the_model_then_a_completion() -> None:
    server = Server()
    found = server.look()
    assert found == Look({"health": 1.0, "models": 2.0, "completion": 3.0}, model="kimi-k2.5")
    assert found.ready
    assert [question.path for question in server.asked] == ["/health", "/v1/models", "/v1/completions"]
    assert server.asked[-1].body == {"model": "kimi-k2.5", "prompt": "1", "max_tokens": 1, "temperature": 0}


def test_without_a_name_the_first_model_is_asked() -> None:
    assert Server().look(served=None).model == "kimi-k2.5"
    assert Server().look(served="kimi").ready


@pytest.mark.parametrize(
    "answers, passed, problem, hopeless, wrong",
    [
        ({"health": NoAnswer("refused")}, [], "refused", False, False),
        ({"health": Answer(503, "")}, [], "/health says 503", False, False),
        ({"models": Answer(401, "no\nkey")}, ["health"], "/v1/models says 401 no key", True, False),
        ({"models": Answer(200, "[]")}, ["health"], "it serves no model, not kimi-k2.5", True, False),
        ({"models": Answer(200, '{"data": [{"id": "x"}, 7]}')}, ["health"], "it serves x, not kimi", True, False),
        ({"completions": Answer(500, "boom")}, ["health", "models"], "says 500 boom", False, True),
        ({"completions": Answer(429, "")}, ["health", "models"], "says 429", False, True),
        ({"completions": Answer(404, "")}, ["health", "models"], "says 404", True, True),
        ({"completions": Answer(200, "<html>")}, ["health", "models"], "without a completion", False, True),
        ({"completions": NoAnswer("timed out")}, ["health", "models"], "timed out", False, False),
    ],
)
def test_how_far_it_got(answers: dict[str, Any], passed: list[str], problem: str, hopeless: bool, wrong: bool) -> None:
    found = Server(**answers).look()
    assert list(found.passed) == passed
    assert problem in found.problem
    assert (found.hopeless, found.wrong, found.ready) == (hopeless, wrong, False)


def test_a_stranger_on_the_port_is_named_and_asked_nothing_more() -> None:
    server = Server()
    found = server.look(stranger="nginx (pid 7, nginx.service)")
    assert found.hopeless and found.problem == "its port is answered by nginx (pid 7, nginx.service)"
    assert len(server.asked) == 1


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer({"key": self.headers.get("Authorization"), "path": self.path})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, what: object) -> None:
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *unused: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("key", ["sword\nfish", "sword\u2026fish"])
def test_a_key_that_no_header_can_carry_is_said_without_showing_it(port: int, key: str) -> None:
    with pytest.raises(NoAnswer, match="cannot be sent") as caught:
        asker("127.0.0.1", port, key)(Question("/health", 5))
    assert "fish" not in str(caught.value)


def test_the_key_goes_into_the_header_only_if_there_is_one(port: int) -> None:
    with_key = asker("127.0.0.1", port, "swordfish")(Question("/health", 5))
    assert json.loads(with_key.text) == {"key": "Bearer swordfish", "path": "/health"}
    without = asker("127.0.0.1", port, None)(Question("/health", 5))
    assert json.loads(without.text)["key"] is None


def test_a_body_is_posted_as_json(port: int) -> None:
    assert json.loads(asker("127.0.0.1", port, None)(Question("/x", 5, {"a": 1})).text) == {"a": 1}


def test_a_closed_port_is_no_answer(port: int) -> None:
    with pytest.raises(NoAnswer, match="nobody listens"):
        asker("127.0.0.2", port, None)(Question("/health", 5))


def test_looks_come_one_by_one_and_ring_when_they_are_there() -> None:
    may_end = threading.Event()
    made: list[Look] = []

    def once() -> Look:
        may_end.wait(10)
        made.append(Look(problem=f"look {len(made)}"))
        return made[-1]

    with Asking(once) as asking:
        assert asking.take() is None
        asking.ask()
        asking.ask()
        assert asking.take() is None
        may_end.set()
        assert select.select([asking], [], [], 10)[0] == [asking]
        assert asking.take() == Look(problem="look 0")
        assert asking.take() is None
        asking.ask()
        select.select([asking], [], [], 10)
        assert asking.take() == Look(problem="look 1")
    assert len(made) == 2


def test_a_look_that_hangs_holds_nobody_up() -> None:
    may_end = threading.Event()

    def once() -> Look:
        may_end.wait(10)
        return Look()

    with Asking(once) as asking:
        asking.ask()
        (thread,) = (thread for thread in threading.enumerate() if thread.daemon and "_run" in thread.name)
    may_end.set()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Y: "])
def test_an_answer_that_never_ends_is_cut(begin: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            line, _address = listener.accept()
            with line, suppress(OSError):
                line.sendall(begin)
                while True:
                    line.sendall(b"a")
                    time.sleep(0.02)

        server = threading.Thread(target=drip, daemon=True)
        server.start()
        with pytest.raises(NoAnswer, match="timed out"):
            asker("127.0.0.1", listener.getsockname()[1], None)(Question("/metrics", 0.3))
        server.join(10)
        assert not server.is_alive()


def test_a_line_that_falls_silent_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = HTTPConnection(*listener.getsockname(), timeout=0.1)
        connection.connect()
        line, _address = listener.accept()
        with line:
            line.settimeout(10)
            line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            with pytest.raises(TimeoutError) as caught:
                _exchange(connection, Question("/metrics", 10), {})
            connection.close()
            assert line.recv(1000).startswith(b"GET /metrics ")
            assert line.recv(1000) == b"", caught
