"""A page in a real browser: headless Chromium, spoken to over a pipe in its own protocol (DevTools).

Chromium is asked to reach no host at all. What it logs, throws, refuses and requests is kept.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)
PATIENCE_S = 60
"""Until a browser that does not answer counts as stuck; nothing is measured with it."""


def find() -> str | None:
    """Where Chromium is; None if it is not installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@dataclass
class Tab:
    """One page.

    Attributes:
        complaints: errors and warnings of the console, exceptions that nobody caught, and what was refused.
        requests: every address that was asked for.
    """

    _read: int
    _write: int
    _session: str = ""
    _number: int = 0
    _buffer: bytes = b""
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def call(self, method: str, **parameters: Any) -> Any:
        """Sends a command; the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _next(self) -> Any:
        while b"\0" not in self._buffer:
            answers, _, _ = select.select([self._read], [], [], PATIENCE_S)
            assert answers, f"the browser said nothing for {PATIENCE_S} s"
            chunk = os.read(self._read, 2**20)
            assert chunk, "the browser closed the pipe"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: Any) -> None:
        about = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = about["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.complaints.append(" ".join(str(part.get("value", part)) for part in about["args"]))
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.complaints.append(about["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])
            case _:
                pass

    def open(self, path: Path) -> None:
        """Loads a file, and waits until its scripts have run and its plots, if any, are drawn."""
        self.complaints.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + PATIENCE_S
        while self.js("document.readyState") != "complete" and time.monotonic() < deadline:
            time.sleep(0.02)
        self.js("window.drawn?.then(() => new Promise((done) => setTimeout(done, 100)))")

    def js(self, expression: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def resize(self, width: int, height: int = 1000) -> None:
        """Sets the size of the window, in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def dark(self, wanted: bool) -> None:
        """Prefers dark pages, or light ones."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Writes a PNG of the whole page, or of what the window shows."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))


_LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads commands from descriptor 3 and answers on 4."""


@contextmanager
def browser(chromium: str, profile: Path) -> Iterator[Tab]:
    """Starts Chromium with an empty profile, and ends it."""
    down_read, down_write = os.pipe()
    up_read, up_write = os.pipe()
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCH, str(down_read), str(up_write), *command],
        pass_fds=(down_read, up_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(down_read)
    os.close(up_write)
    tab = Tab(up_read, down_write)
    try:
        found = tab.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in found if target["type"] == "page")
        tab._session = tab.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        yield tab
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        os.close(up_read)
        os.close(down_write)
