"""The command of a user in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.reading.bundled import bundled_reader
from qa_cluster.reading.manifest import MODEL_FILE
from qa_cluster.security.local_password import PASSWORD_FILE
from tests.harness.commands import run_here
from tests.harness.system import UNHURRIED, WORDS_ONLY

READER = Path(os.environ.get("QA_TEST_READER") or bundled_reader())
needs_reader = pytest.mark.skipif(not (READER / MODEL_FILE).is_file(), reason=f"there is no reader in {READER}")
QA = [sys.executable, "-m", "qa_cluster.cluster.cli"]
TEXT = "Ada Lovelace wrote the first program in 1843. Charles Babbage designed the engine. Zürich lies on a lake."


def environment(server: str, settings: Mapping[str, str] = UNHURRIED) -> dict[str, str]:
    chosen = {"QA_READER": str(READER), "QA_SERVER": server, **settings}
    return {**os.environ, **chosen, "NO_COLOR": "1", "TERM": "dumb"}


class Qa:
    """The command in a folder: a call runs it in this process, and `start` runs it in a new process."""

    usual: Mapping[str, str] = UNHURRIED

    def __init__(self, folder: Path, server: str = "") -> None:
        self.folder = folder
        self.server = server

    def start(self, *arguments: str, **pipes: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*QA, *arguments], cwd=self.folder, env=environment(self.server, self.usual), text=True, **pipes
        )

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = run_here(arguments, self.folder, environment(self.server, self.usual))
        assert done.returncode == code, done.stdout + done.stderr
        return done

    @property
    def password(self) -> str:
        """The password of the folder's cluster, for stock clients."""
        return (self.folder / ".qa-cluster" / PASSWORD_FILE).read_text().strip()

    def status(self, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", "--json", code=code).stdout)
        return found


class WithoutEncoder(Qa):
    """The command in a folder, with clusters without an encoder. `tests/docs` runs the demo with the encoder."""

    usual = WORDS_ONLY
