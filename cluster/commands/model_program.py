"""The programs of `qa_cluster.models`, each in a process of its own: they measure, and may need torch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

from qa_cluster.errors import ModelError

from ..servers.processes import tethered

_END_SECONDS = 5.0


def run(*arguments: str) -> dict[str, Any]:
    """Run `python -m qa_cluster.models` and return the JSON it prints; ModelError when it fails.

    Its progress and errors go to standard error. It ends with this call, also when that is interrupted, and with this
    process, however it ends.
    """
    command = tethered([sys.executable, "-m", "qa_cluster.models", *arguments], signal.SIGTERM)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        try:
            output, _ = program.communicate()
        except BaseException:
            program.terminate()
            try:
                program.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                program.kill()
            raise
    if program.returncode != 0:
        raise ModelError(f"`python -m qa_cluster.models {arguments[0]}` failed, see above (exit {program.returncode})")
    document: dict[str, Any] = json.loads(output)
    return document
