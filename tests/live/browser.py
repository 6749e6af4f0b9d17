"""A headless Chromium driven over the DevTools protocol: what the tests of live pages look through."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--ignore-gpu-blocklist",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


class Browser:
    """One browser; `open` makes tabs."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._profile = tempfile.mkdtemp()
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        file = Path(self._profile) / "DevToolsActivePort"
        wait_for(file.is_file, 60)
        wait_for(lambda: "\n" in file.read_text(), 10)
        self._port = int(file.read_text().split()[0])

    def open(self, url: str, width: int = 1440, height: int = 900) -> Tab:
        """A new tab of this size, in a window of its own: one that is behind another draws nothing."""
        address = f"127.0.0.1:{self._port}"
        with urllib.request.urlopen(f"http://{address}/json/version", timeout=30) as answer:
            whole = Tab(json.load(answer)["webSocketDebuggerUrl"])
        made = whole.call("Target.createTarget", url="about:blank", newWindow=True, width=width, height=height)
        whole.leave()
        tab = Tab(f"ws://{address}/devtools/page/{made['targetId']}")
        tab.size(width, height)
        tab.call("Page.enable")
        tab.call("Page.navigate", url=url)
        return tab

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.wait(20)
        shutil.rmtree(self._profile, ignore_errors=True)


class Tab:
    """A page that is open."""

    def __init__(self, url: str) -> None:
        self._socket = connect(url, max_size=None, open_timeout=30)
        self._numbers = itertools.count(1)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=180))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def size(self, width: int, height: int) -> None:
        """Makes the page as large."""
        small = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=small)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self) -> str:
        """What can be read."""
        return self.evaluate("document.body ? document.body.innerText : ''")

    def press(self, x: float, y: float) -> None:
        """Clicks."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def box(self, selector: str, index: int = 0) -> dict[str, float]:
        """Where an element is."""
        script = f"(e => e && e.getBoundingClientRect().toJSON())(document.querySelectorAll({selector!r})[{index}])"
        return self.evaluate(script)

    def screenshot(self, path: Path) -> None:
        """Writes a PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """Closes the tab."""
        with contextlib.suppress(Exception):  # it answers, or it is gone already
            self.call("Page.close")
        self.leave()

    def leave(self) -> None:
        """Ends the connection."""
        self._socket.close()


def wait_for(condition: Any, seconds: float) -> Any:
    """What a condition gives once it holds."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"waited {seconds} s in vain"
        time.sleep(0.05)
    return found
