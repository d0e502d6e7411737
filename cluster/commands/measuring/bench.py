"""`qa-cluster bench`: runs the benchmarks behind the README's figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

from qa_cluster.errors import ConfigError

from ...servers.native import checkout_source
from ...terminal import console


def bench(context: typer.Context) -> None:
    """Run the benchmarks behind the README's figures. They need the source checkout (tests/benchmarks).

    Example: qa-cluster bench --help
    """
    source = checkout_source()
    if context.args in (["--help"], ["-h"]) and not _has_benchmarks(source):
        console.say(context.get_help())
        return
    if source is None or not _has_benchmarks(source):
        raise ConfigError(
            "this installation has no benchmarks (tests/benchmarks): clone the repository and run `make bench` there"
        )
    arguments = [sys.executable, "-m", "tests.benchmarks.run", *context.args]
    raise typer.Exit(subprocess.run(arguments, cwd=source.parent, check=False).returncode)


def _has_benchmarks(source: Path | None) -> bool:
    return source is not None and (source.parent / "tests" / "benchmarks" / "run.py").is_file()
