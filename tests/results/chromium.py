"""A page in a real Chromium without a screen, over its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ("--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions")


def found() -> str | None:
    """The browser's program, or None."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A browser with one page. What its console says and what it requests is kept."""

    def __init__(self, profile: Path):
        root = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
        flags = [*FLAGS, *root, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [str(found()), *flags], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if address := re.search(r"ws://\S+", line):
                break
        else:
            raise RuntimeError(f"Chromium did not start: {''.join(said)[-2000:]}")
        self._socket = connect(address[0], max_size=None, proxy=None)
        self._numbers = itertools.count(1)
        self._session = None
        self.console: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def call(self, method: str, **parameters: Any) -> Any:
        """Calls a command of the protocol and returns its result."""
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters, **session}))
        while True:
            message = self._next()
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                return message["result"]

    def _next(self) -> dict[str, Any]:
        message = json.loads(self._socket.recv(timeout=60))
        values = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.console.append(json.dumps(values))
        return message

    def open(self, page: Path, width: int = 1280, *, dark: bool = False) -> None:
        """Opens a file and waits until it is loaded."""
        self.console, self.requests = [], []
        self.size(width)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def size(self, width: int, height: int = 900) -> None:
        """Sets the size of the window, in CSS pixels; below 600 it is a phone's."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """Presses and releases a key that types nothing."""
        code = {"Tab": 9, "Escape": 27, "Enter": 13}[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def move(self, x: float, y: float) -> None:
        """Moves the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self) -> bytes:
        """The whole page, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])
