"""Runs each program of `qa_cluster.models` in its own process, because some measure time and some need torch."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

from qa_cluster.errors import ModelError

from .processes import python_module, tethered

_MODULE = "qa_cluster.models"
_END_SECONDS = 5.0


def command_line(*arguments: str) -> list[str]:
    """Return the command line of a program of `qa_cluster.models`. The first argument is the name of the program."""
    return python_module(_MODULE, *arguments)


def run_to_its_end(*arguments: str) -> int:
    """Run a program until it ends, and return its exit code. The program saves its work when Ctrl-C or SIGTERM stops
    it, so this function waits until the program has done this.

    subprocess.run would kill the program shortly after Ctrl-C.
    """
    signal.signal(signal.SIGINT, lambda *_: None)  # the terminal sends the signal to the program, too
    with subprocess.Popen(command_line(*arguments)) as program:
        signal.signal(signal.SIGTERM, lambda *_: program.terminate())
        return program.wait()


def result_of(*arguments: str) -> dict[str, Any]:
    """Run a program, and return the JSON object that it prints to standard output. Raises ModelError if it fails.

    The progress and the errors of the program go to standard error. The program ends if this call is interrupted and,
    on Linux, if this process ends.
    """
    command = tethered(command_line(*arguments), signal.SIGTERM)
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
        raise ModelError(f"`python -m {_MODULE} {arguments[0]}` failed, see above (exit {program.returncode})")
    document: dict[str, Any] = json.loads(output)
    return document
