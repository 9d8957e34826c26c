# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP side of the stand-ins: the endpoints that both engines have, with their answers' shapes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Optional, Union

from . import recorded

ANSWER = "GPUs are processors that do many small calculations at once."
Reply = tuple[int, Union[dict[str, Any], str, None]]


class Server(ThreadingHTTPServer):
    request_queue_size = 2048


class Api:
    """One engine's answers. Subclasses say what differs."""

    PUBLIC: tuple[str, ...] = ()
    OWNER = ""

    def __init__(self, model: str, served: str, api_keys: list[str], slots: int, faults: Callable[[str], Any]) -> None:
        self.model = model
        self.served = faults("wrong-model") or served
        self.api_keys = api_keys
        self.faults = faults
        self.born = int(time.time())
        self.lock = threading.Lock()
        self.slots = threading.Semaphore(slots)
        self.running = 0
        self.waiting = 0
        self.finished = 0
        self.state = "starting"  # starting, ready, draining, dead
        self.access_log: Callable[[str, str], None] = lambda path, line: None

    def allowed(self, path: str, authorization: str) -> bool:
        return not self.api_keys or not self.guarded(path) or authorization in [f"Bearer {k}" for k in self.api_keys]

    def guarded(self, path: str) -> bool:
        raise NotImplementedError

    def get(self, path: str) -> Reply:
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": self.served, "object": "model", "created": self.born,
                                                     "owned_by": self.OWNER, "root": self.model, "parent": None,
                                                     "max_model_len": 131072}]}  # fmt: skip
        return 404, {"detail": "Not Found"}

    def post(self, path: str, body: dict[str, Any]) -> Reply:
        if path not in ("/v1/completions", "/v1/chat/completions"):
            return 404, {"detail": "Not Found"}
        if body.get("model", self.served) != self.served:
            return self.no_such_model(str(body["model"]))
        tokens = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        if not self.generate(tokens):
            return self.failed()
        chat = path.endswith("chat/completions")
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
        choice.update({"message": {"role": "assistant", "content": ANSWER}} if chat else {"text": " " + ANSWER})
        return 200, {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{time.monotonic_ns():016x}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()), "model": self.served, "choices": [choice],
            "usage": {"prompt_tokens": 8, "total_tokens": 8 + tokens, "completion_tokens": tokens},
        }  # fmt: skip

    def generate(self, tokens: int) -> bool:
        """Be busy for so many tokens; False where the engine behind is dead or plays the fault."""
        with self.lock:
            self.waiting += 1
        with self.slots:
            with self.lock:
                self.waiting -= 1
                self.running += 1
            try:
                time.sleep(tokens / recorded.TOKENS_PER_SECOND)
                return self.state != "dead" and self.faults("fail-completion") is None
            finally:
                with self.lock:
                    self.running -= 1
                    self.finished += 1

    def no_such_model(self, name: str) -> Reply:
        raise NotImplementedError

    def failed(self) -> Reply:
        raise NotImplementedError

    def serve(self, sock: socket.socket) -> None:
        """Answer on this bound socket, in threads, until the process ends."""
        server = Server(sock.getsockname()[:2], _handler(self), bind_and_activate=False)
        server.socket.close()
        server.socket = sock
        server.server_activate()
        threading.Thread(target=server.serve_forever, args=(3600,), daemon=True).start()


class Vllm(Api):
    """Endpoints of vLLM's API server."""

    OWNER = "vllm"
    profiling = False

    def guarded(self, path: str) -> bool:
        return path.startswith(("/v1", "/v2", "/inference"))

    def get(self, path: str) -> Reply:
        if path in ("/health", "/ping"):
            return 503 if self.state == "dead" or self.faults("unhealthy") is not None else 200, None
        if path == "/version":
            return 200, {"version": recorded.VLLM["version"]}
        if path == "/load":
            return 200, {"server_load": 0}
        if path == "/metrics":
            labels = f'{{engine="0",model_name="{self.served}"'
            return 200, "\n".join([
                "# HELP vllm:num_requests_running Number of requests in model execution batches.",
                "# TYPE vllm:num_requests_running gauge",
                f"vllm:num_requests_running{labels}}} {self.running:.1f}",
                "# HELP vllm:num_requests_waiting Number of requests waiting to be processed.",
                "# TYPE vllm:num_requests_waiting gauge",
                f"vllm:num_requests_waiting{labels}}} {self.waiting:.1f}",
                "# TYPE vllm:num_requests_waiting_by_reason gauge",
                f'vllm:num_requests_waiting_by_reason{labels},reason="capacity"}} {self.waiting:.1f}',
                f'vllm:num_requests_waiting_by_reason{labels},reason="deferred"}} 0.0',
                "# TYPE vllm:kv_cache_usage_perc gauge",
                f"vllm:kv_cache_usage_perc{labels}}} {min(1.0, self.running / 100):.4f}",
                "# TYPE vllm:request_success_total counter",
                f'vllm:request_success_total{labels},finished_reason="stop"}} 0.0',
                f'vllm:request_success_total{labels},finished_reason="length"}} {self.finished:.1f}',
                f'vllm:request_success_total{labels},finished_reason="abort"}} 0.0',
                "# TYPE vllm:request_success_created gauge",
                f'vllm:request_success_created{labels},finished_reason="length"}} {self.born:.1f}',
                "",
            ])  # fmt: skip
        return super().get(path)

    def post(self, path: str, body: dict[str, Any]) -> Reply:
        if path == "/ping":
            return self.get(path)
        if self.profiling and path in ("/start_profile", "/stop_profile"):
            return 200, None
        return super().post(path, body)

    def no_such_model(self, name: str) -> Reply:
        return 404, {"error": {"message": f"The model `{name}` does not exist. Valid aliases: {self.served}.",
                               "type": "NotFoundError", "param": "model", "code": 404}}  # fmt: skip

    def failed(self) -> Reply:
        return 500, {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root"
                               " cause.", "type": "InternalServerError", "param": None, "code": 500}}  # fmt: skip


class Sglang(Api):
    """Endpoints of SGLang's HTTP server."""

    OWNER = "sglang"
    metrics = False

    def guarded(self, path: str) -> bool:
        return not path.startswith(("/health", "/ready", "/metrics"))

    def get(self, path: str) -> Reply:
        if path in ("/health", "/health_generate", "/ready"):
            if self.state != "ready" or self.faults("unhealthy") is not None:
                return 503, None
            if path != "/ready":
                time.sleep(recorded.SGLANG["seconds"]["health"])
            return 200, None
        if path in ("/model_info", "/get_model_info"):
            return 200, {"model_path": self.model, "tokenizer_path": self.model, "is_generation": True}
        if path in ("/server_info", "/get_server_info"):
            return 200, {"model_path": self.model, "served_model_name": self.served, "status": self.state,
                         "version": recorded.SGLANG["version"]}  # fmt: skip
        if path == "/v1/loads":
            return 200, {"version": recorded.SGLANG["version"],
                         "loads": [{"dp_rank": 0, "num_running_reqs": self.running,
                                    "num_waiting_reqs": self.waiting}]}  # fmt: skip
        if path == "/ping":
            return 200, None
        if path == "/metrics" and self.metrics:
            labels = f'{{engine_type="unified",model_name="{self.served}"'
            return 200, "\n".join([
                "# HELP sglang:num_running_reqs The number of running requests.",
                "# TYPE sglang:num_running_reqs gauge",
                f'sglang:num_running_reqs{labels},tp_rank="0"}} {self.running:.1f}',
                "# HELP sglang:num_queue_reqs The number of requests in the waiting queue.",
                "# TYPE sglang:num_queue_reqs gauge",
                f'sglang:num_queue_reqs{labels},tp_rank="0"}} {self.waiting:.1f}',
                "# TYPE sglang:token_usage gauge",
                f'sglang:token_usage{labels},tp_rank="0"}} {min(1.0, self.running / 100):.4f}',
                "# TYPE sglang:gen_throughput gauge",
                f'sglang:gen_throughput{labels},tp_rank="0"}} 0.0',
                "# TYPE sglang:num_requests_total counter",
                f'sglang:num_requests_total{labels},is_streaming="False"}} {self.finished:.1f}',
                "",
            ])  # fmt: skip
        return super().get(path)

    def post(self, path: str, body: dict[str, Any]) -> Reply:
        if path == "/generate":
            tokens = int(body.get("sampling_params", {}).get("max_new_tokens", 16))
            return (200, {"text": ANSWER, "meta_info": {"completion_tokens": tokens}}) if self.generate(tokens) \
                else self.failed()  # fmt: skip
        return super().post(path, body)

    def no_such_model(self, name: str) -> Reply:
        return 400, {"object": "error", "message": f"The model '{name}' does not exist.", "type": "BadRequestError",
                     "param": None, "code": 400}  # fmt: skip

    def failed(self) -> Reply:
        return 500, {"object": "error", "message": "Internal server error", "type": "InternalServerError",
                     "param": None, "code": 500}  # fmt: skip


def _handler(api: Api) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def version_string(self) -> str:
            return "uvicorn"

        def answer(self, reply: Callable[[], Reply]) -> None:
            if api.allowed(self.path, self.headers.get("Authorization", "")):
                status, content = reply()
            else:
                status, content = 401, {"error": "Unauthorized"}
            text = content if isinstance(content, str) else "" if content is None else json.dumps(content)
            kind = None if content is None else "text/plain; charset=utf-8" if isinstance(content, str) else \
                "application/json"  # fmt: skip
            self.respond(status, kind, text.encode())

        def respond(self, status: int, kind: Optional[str], body: bytes) -> None:
            self.send_response(status)
            if kind:
                self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.answer(lambda: api.get(self.path.partition("?")[0]))

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers.get("content-length") or 0))
            try:
                body = json.loads(text or b"{}")
            except ValueError:
                self.respond(400, "application/json", b'{"detail":"JSON decode error"}')
                return
            self.answer(lambda: api.post(self.path.partition("?")[0], body))

        def log_request(self, code: Union[int, str] = "-", size: Union[int, str] = "-") -> None:
            status = int(code)
            client = f"{self.client_address[0]}:{self.client_address[1]}"
            api.access_log(self.path, f'{client} - "{self.requestline}" {status} {self.responses[status][0]}')

    return Handler
