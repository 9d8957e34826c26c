# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A headless Chromium, driven over its debugging pipe: messages in JSON, a NUL after each. No library is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

_LIMIT = 120.0
"""Seconds for an answer: a busy machine is slow, not wrong."""


class Browser:
    """One browser with one page. `complaints` is what the console and the log said, `asked` what was loaded."""

    def __init__(self) -> None:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        if not program:
            raise FileNotFoundError("there is no Chromium: scripts/check installs Debian's package chromium")
        self._profile = tempfile.TemporaryDirectory(prefix="gpuops-chromium-", ignore_cleanup_errors=True)
        there, self._to = os.pipe()
        self._from, back = os.pipe()
        self._process = subprocess.Popen(
            # It reads from descriptor 3 and writes to 4. Root has no sandbox to offer, and the pages are our own.
            ["bash", "-c", f'exec "$@" 3<&{there} 4>&{back}', "bash", program, "--headless=new", "--no-sandbox",
             "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
             "--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(there, back), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(there)
        os.close(back)
        self._buffer = b""
        self._number = 0
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self._loaded = False
        self._session = ""
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.do(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + _LIMIT
        while b"\0" not in self._buffer:
            piece = os.read(self._from, 1 << 16)
            if not piece or time.monotonic() > deadline:
                raise RuntimeError("Chromium ended, or does not answer")
            self._buffer += piece
        text, dummy, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        told = message.get("params", {})
        if message.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(f"console: {told['args']}")
        elif message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(f"exception: {told['exceptionDetails']}")
        elif message.get("method") == "Log.entryAdded":
            self.complaints.append(f"{told['entry']['level']}: {told['entry']['text']}")
        elif message.get("method") == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
        elif message.get("method") == "Page.loadEventFired":
            self._loaded = True
        return message

    # --- what a person does

    def open(self, path: Path, width: int = 1200, dark: bool = False, media: str = "screen") -> None:
        """Show a file and wait until it is loaded and painted."""
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.complaints.clear()
        self.asked.clear()
        self._loaded = False
        self.do("Page.navigate", url=path.as_uri())
        while not self._loaded:
            self._read()
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.do("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def metric(self, name: str) -> float:
        """One of the browser's own counters."""
        return float(next(m["value"] for m in self.do("Performance.getMetrics")["metrics"] if m["name"] == name))

    def picture(self, path: Path) -> Path:
        """The whole page as a PNG, to be looked at."""
        size = self.do("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}
        shot = self.do("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def paper(self, path: Path) -> Path:
        """The page as a PDF, as it would be printed."""
        path.write_bytes(base64.b64decode(self.do("Page.printToPDF", printBackground=False)["data"]))
        return path
