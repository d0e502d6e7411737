"""`make picture`: docs/page.png, the page of the REST service as Chromium shows it, with one question of the demo.

The demo runs as a user runs it; the browser opens the page with the question in its address, waits for the answer and
takes the picture. Chromium has to be installed.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

from tests.harness.browser import FLAGS, PROGRAMS, program

from .blocks import ROOT

PICTURE = ROOT / "docs" / "page.png"
QUESTION = "Which exception does division by zero raise?"
WIDTH, HEIGHT = 900, 640
MOST_BYTES = 150_000
# Chromium's virtual time stops during requests, so `SETTLE_MS` is enough for any answer.
SETTLE_MS, BROWSER_SECONDS = 3000, 120.0


def shoot(address: str, to: Path, *, width: int = WIDTH, height: int = HEIGHT) -> None:
    """Take a picture of the page at an address."""
    chromium = program()
    if chromium is None:
        raise SystemExit(f"no browser found: install one of {', '.join(PROGRAMS)}")
    with tempfile.TemporaryDirectory(prefix="qa-picture-") as folder:
        command = [
            chromium,
            *FLAGS,
            f"--user-data-dir={folder}",
            f"--window-size={width},{height}",
            f"--virtual-time-budget={SETTLE_MS}",
            f"--screenshot={to}",
            address,
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=BROWSER_SECONDS)


def main() -> None:
    """Start the demo, take the picture, stop the demo."""
    command = [sys.executable, "-m", "qa_cluster.cluster.cli", "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        try:
            address = next(
                (found[1] for line in demo.stdout if (found := re.search(r"Ask more at (\S+/)", line))), None
            )
            if address is None:
                raise SystemExit("the demo ended before it was ready")
            shoot(f"{address}?question={quote(QUESTION)}", PICTURE)
        finally:
            demo.send_signal(signal.SIGINT)
    size = PICTURE.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{PICTURE} has {size} bytes, the limit is {MOST_BYTES}")
    print(f"{PICTURE.relative_to(ROOT)}: {size} bytes")


if __name__ == "__main__":
    main()
