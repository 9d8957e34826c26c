# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Whether an engine answers for its model: health, model list, a completion. Asked in the background."""

from __future__ import annotations

import http.client
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.gpuops.inference.plugins.module_utils._engines import Engine

# SGLang's health generates a token and gives itself 20 s; the first completion may compile kernels.
_HEALTH_TIMEOUT = 25.0
_MODELS_TIMEOUT = 10.0
_COMPLETION_TIMEOUT = 120.0
_WARMUP_TIMEOUT = 600.0

_LONGEST_ANSWER = 1 << 20


class NoAnswer(Exception):
    """Nobody answered, or not in HTTP; the text says how."""


@dataclass(frozen=True)
class Question:
    """One HTTP request; `body` is sent as JSON by POST, None asks by GET. Timeout in seconds."""

    path: str
    timeout: float
    body: Optional[Mapping[str, object]] = None


@dataclass(frozen=True)
class Answer:
    """Status and text of an HTTP response."""

    status: int
    text: str


Ask = Callable[[Question], Answer]
"""Asks an engine; raises NoAnswer."""


def asker(host: str, port: int, key: Optional[str]) -> Ask:
    """An Ask for one server. The key goes into the header and nowhere else."""

    def ask(question: Question) -> Answer:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connection = http.client.HTTPConnection(host, port, timeout=question.timeout)
        deadline = time.monotonic() + question.timeout
        try:
            connection.connect()
            # The socket's own timeout is for each piece of an answer: a byte now and then would never end.
            with _hung_up_at(deadline, connection.sock):
                return _exchange(connection, question, headers)
        except ConnectionRefusedError:
            raise NoAnswer("nobody listens on its port yet") from None
        except ValueError:
            # The error's own text would show the key.
            raise NoAnswer("its key cannot be sent in an HTTP header") from None
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(str(error) or type(error).__name__) from error
        finally:
            connection.close()

    return ask


@contextmanager
def _hung_up_at(deadline: float, line: socket.socket) -> Iterator[None]:
    """End the conversation at the deadline (time.monotonic); raises NoAnswer if that cut it short."""
    watchdog = threading.Timer(deadline - time.monotonic(), _hang_up, [line])
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        if time.monotonic() >= deadline:
            raise NoAnswer("timed out")


def _hang_up(line: socket.socket) -> None:
    # Closed already: then there is nothing to end.
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


def _exchange(connection: http.client.HTTPConnection, question: Question, headers: dict[str, str]) -> Answer:
    if question.body is None:
        connection.request("GET", question.path, headers=headers)
    else:
        headers["Content-Type"] = "application/json"
        connection.request("POST", question.path, json.dumps(question.body), headers)
    # An answer without a length holds the line itself, whatever becomes of the connection.
    with connection.getresponse() as response:
        return Answer(response.status, response.read(_LONGEST_ANSWER).decode("utf-8", "replace"))


@dataclass(frozen=True)
class Look:
    """How far towards ready one look got."""

    passed: Mapping[str, float] = field(default_factory=dict)
    """health, models, completion: when each was answered rightly, on the caller's clock."""
    problem: str = ""
    """Why it got no further; '' when all three were answered."""
    hopeless: bool = False
    """Waiting will not cure the problem."""
    wrong: bool = False
    """It answered a request, and not with a completion; more than a few seconds of that will not be cured either."""
    model: str = ""
    """The served model that answered."""

    @property
    def ready(self) -> bool:
        return not self.problem


def look(
    ask: Ask, engine: Engine, served_model: Optional[str], clock: Callable[[], float], stranger: Callable[[], str]
) -> Look:
    """Ask for health, the model list and a completion of one token, in this order, until one is not right.

    stranger names who answers in the engine's place, '' when nobody does; it is asked once something answers.
    """
    passed: dict[str, float] = {}
    try:
        health = ask(Question(engine.health_path, _HEALTH_TIMEOUT))
        impostor = stranger()
        if impostor:
            return Look(passed, f"its port is answered by {impostor}", hopeless=True)
        if health.status != 200:
            return Look(passed, f"{engine.health_path} says {_said(health)}")
        passed["health"] = clock()

        models = ask(Question(engine.models_path, _MODELS_TIMEOUT))
        if models.status != 200:
            return Look(passed, f"{engine.models_path} says {_said(models)}", _refused(models))
        names = _model_names(models.text)
        model = served_model if served_model is not None else next(iter(names), "")
        if model not in names:
            return Look(passed, f"it serves {', '.join(names) or 'no model'}, not {model or 'any'}", hopeless=True)
        passed["models"] = clock()

        body = {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}
        completion = ask(Question(engine.completion_path, _COMPLETION_TIMEOUT, body))
        if completion.status != 200:
            return Look(passed, f"{engine.completion_path} says {_said(completion)}", _refused(completion), True)
        if not _has_choices(completion.text):
            return Look(
                passed, f"{engine.completion_path} answers without a completion: {_said(completion)}", wrong=True
            )
        passed["completion"] = clock()
        return Look(passed, model=model)
    except NoAnswer as error:
        return Look(passed, str(error))


@dataclass(frozen=True)
class Pace:
    """What an engine generated, and in how many seconds."""

    prompts: int
    concurrency: int
    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"{self.tokens_per_second:.1f} tokens per second ({self.tokens} tokens for {self.prompts} prompts, "
            f"{self.concurrency} at a time)"
        )


def complete(
    ask: Ask,
    engine: Engine,
    model: str,
    prompts: Sequence[str],
    tokens: int,
    concurrency: int,
    clock: Callable[[], float],
) -> Pace:
    """Have all prompts completed, with so many tokens each. NoAnswer says which could not be."""

    def one(prompt: str) -> int:
        # Else a model that has said enough after three tokens would look slow.
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        answer = ask(Question(engine.completion_path, _WARMUP_TIMEOUT, body))
        if answer.status != 200:
            raise NoAnswer(f"{engine.completion_path} says {_said(answer)}")
        usage = _json(answer.text).get("usage")
        generated = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if not isinstance(generated, int):
            raise NoAnswer(f"{engine.completion_path} does not say how many tokens it generated")
        return generated

    began = clock()
    with ThreadPoolExecutor(max_workers=concurrency) as pool:
        generated = sum(pool.map(one, prompts))
    return Pace(len(prompts), min(concurrency, len(prompts)), generated, clock() - began)


def _refused(answer: Answer) -> bool:
    # 408 and 429 ask for patience; any other 4xx is about what we asked, which will not change.
    return 400 <= answer.status < 500 and answer.status not in (408, 429)


def _said(answer: Answer) -> str:
    return f"{answer.status} {' '.join(answer.text.split())[:160]}".rstrip()


def _json(text: str) -> Mapping[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _model_names(text: str) -> list[str]:
    data = _json(text).get("data")
    entries = data if isinstance(data, list) else []
    return [str(entry["id"]) for entry in entries if isinstance(entry, dict) and "id" in entry]


def _has_choices(text: str) -> bool:
    return bool(_json(text).get("choices"))


class Asking:
    """Looks in the background, one look at a time, so that a server that does not answer blocks nobody.

    A context manager. `fileno` becomes readable when a look is finished. A look that hangs is left behind in a
    daemon thread: its requests have deadlines of their own.
    """

    def __init__(self, look_once: Callable[[], Look]) -> None:
        self._look_once = look_once
        self._looks: queue.SimpleQueue[Look] = queue.SimpleQueue()
        self._bell, self._ringer = os.pipe()
        self._thread: Optional[threading.Thread] = None

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *unused: object) -> None:
        # A thread still at it keeps the writing end: closing it under its feet could ring a stranger's bell.
        os.close(self._bell)
        if self._thread is None:
            os.close(self._ringer)

    def fileno(self) -> int:
        """Readable when take() has something to give."""
        return self._bell

    def ask(self) -> None:
        """Begin a look, unless one is on its way."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def take(self) -> Optional[Look]:
        """The finished look, once; None while there is none."""
        try:
            found = self._looks.get_nowait()
        except queue.Empty:
            return None
        os.read(self._bell, 1)
        self._thread = None
        return found

    def _run(self) -> None:
        self._looks.put(self._look_once())
        try:
            os.write(self._ringer, b"!")
        except BrokenPipeError:
            # Nobody waits for it any more.
            os.close(self._ringer)
