"""Runs Schemathesis on a running service: requests from the description, and checks of the responses against it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SETTINGS = Path(__file__).with_name("schemathesis.toml")
# The headers of conditional requests are optional. `/documents/count` is also the path of the document `count`, which
# has other methods.
NOT_CHECKED = ("missing_required_header", "allow_header_conformance")
ALL_PHASES = ("examples", "coverage", "fuzzing", "stateful")


def command(
    port: int, *, key: str = "", phases: Sequence[str] = ALL_PHASES, examples: int, seed: int, workers: int = 1
) -> list[str]:
    """The command that tests all operations of the service on a local port."""
    found = [
        *(str(Path(sys.executable).with_name("st")), "--config-file", str(SETTINGS)),
        *("run", f"http://127.0.0.1:{port}/openapi.json", "--checks", "all"),
        *("--exclude-checks", ",".join(NOT_CHECKED)),
        *("--phases", ",".join(phases), "--max-examples", str(examples), "--seed", str(seed)),
        *("--workers", str(workers), "--continue-on-failure", "--suppress-health-check", "all"),
        *("--request-timeout", "120"),
    ]
    return [*found, "--header", f"Authorization: Bearer {key}"] if key else found


def walk(port: int, folder: Path, *, key: str = "", examples: int, seed: int) -> tuple[bool, str]:
    """Run Schemathesis in `folder`; return whether every response fits the description, and the output."""
    done = subprocess.run(
        command(port, key=key, examples=examples, seed=seed), capture_output=True, text=True, cwd=folder, check=False
    )
    return done.returncode == 0, done.stdout + done.stderr
