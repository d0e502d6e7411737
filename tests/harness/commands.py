"""Runs `qa-cluster` in this process, because starting Python takes longer than most commands.

`tests/docs` runs every subcommand in a separate process, as users do. Tests of signals, of terminals and of a process's
visible arguments do so too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from qa_cluster.cluster.cli import main

SHOWN = {"NO_COLOR": "1", "TERM": "dumb"}


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set the variables in `values`, and remove all other settings from the environment."""
    with pytest.MonkeyPatch.context() as patched:
        for name in list(os.environ):
            if name.startswith("QA_") and not name.startswith("QA_TEST_") and name not in values:
                patched.delenv(name)
        for name, value in values.items():
            if os.environ.get(name) != value:
                patched.setenv(name, value)
        yield


def run_here(
    arguments: tuple[str, ...], folder: Path | None = None, values: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command in `folder`, with these variables; returns its exit code and output.

    Call it in the main thread and outside of coroutines, because commands handle signals and run an event loop.
    """
    with (
        environment({**SHOWN, **(values or {})}),
        pytest.MonkeyPatch.context() as patched,
        redirect_stdout(StringIO()) as output,
        redirect_stderr(StringIO()) as errors,
    ):
        if folder is not None:
            patched.chdir(folder)
        patched.setattr(sys, "argv", ["qa-cluster", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    return subprocess.CompletedProcess(
        arguments, code if isinstance(code, int) else int(code is not None), output.getvalue(), errors.getvalue()
    )
