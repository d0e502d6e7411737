"""A headless Chromium, driven over pipes by the DevTools protocol: pages, keys, scripts and pictures."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# These options start a separate browser, which connects to the pages of the test only.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
)
REPLY_SECONDS = 120.0


def program() -> str | None:
    """The program of the browser, if one is installed."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """A browser with one page.

    Attributes:
        complaints: the errors that the page has written to the console, including violations of its CSP.
        requests: the addresses that the page has requested.
    """

    def __init__(self, folder: Path) -> None:
        path = program()
        assert path is not None, "no browser is installed"
        in_read, self._write = os.pipe()
        self._read, out_write = os.pipe()
        # the DevTools protocol uses the descriptors 3 and 4
        self._process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$@" 3<&{in_read} 4>&{out_write}', "browser"),
                *(path, *FLAGS, f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"),
            ],
            pass_fds=(in_read, out_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(in_read)
        os.close(out_write)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser with its processes."""
        os.close(self._write)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            received = self._receive()
            if received.get("id") == self._number:
                assert "error" not in received, f"{method}: {received['error']}"
                return received["result"]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + REPLY_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            entry = parameters["entry"]
            self.complaints.append(f"{entry['text']} {entry.get('url', '')}".strip())

    def size(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Set the page's size and colour scheme, and whether the browser emulates a phone."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Open an address and wait until the page is loaded."""
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """Return the value of an expression on the page; await a promise."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, f"{script}: {done['exceptionDetails']}"
        return done["result"].get("value")

    def wait(self, script: str, seconds: float = 90.0) -> None:
        """Wait until an expression on the page is true."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self.run(f"Boolean({script})"):
                    return
            except AssertionError:
                pass  # the page is being replaced
            assert time.monotonic() < deadline, f"not true on the page: {script}; {self.complaints}"
            time.sleep(0.05)

    def click(self, script: str) -> None:
        """Click the middle of the element that an expression gives, as a mouse does."""
        where = (
            f"(() => {{ const node = {script}; node.scrollIntoView({{ block: 'center' }});"
            " const box = node.getBoundingClientRect();"
            " return [box.left + box.width / 2, box.top + box.height / 2]; })()"
        )
        x, y = self.run(where)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Enter text where the focus is."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, control: bool = False, shift: bool = False) -> None:
        """Press and release a key."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38, "ArrowDown": 40}
        event: dict[str, Any] = {
            "key": key,
            "code": key if len(key) > 1 else {"/": "Slash"}.get(key, f"Key{key.upper()}"),
            "windowsVirtualKeyCode": codes.get(key, ord(key.upper()[0])),
            "modifiers": (2 if control else 0) | (8 if shift else 0),
        }
        if key == "Enter":
            event["text"] = "\r"
        elif len(key) == 1 and not control:
            event["text"] = key
        self.call("Input.dispatchKeyEvent", type="keyDown", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **{name: event[name] for name in event if name != "text"})

    def picture(self, path: Path) -> None:
        """Save a picture of what the page shows."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a new profile, which runs during the block."""
    with tempfile.TemporaryDirectory(prefix="qa-browser-", ignore_cleanup_errors=True) as folder:
        found = Browser(Path(folder))
        try:
            yield found
        finally:
            found.close()
