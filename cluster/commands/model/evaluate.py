"""`qa-cluster model evaluate`: measures exact match and F1 of a reader, in a process of its own."""

from __future__ import annotations

import subprocess

import typer

from ...servers import model_program


def evaluate(context: typer.Context) -> None:
    """Measure exact match and F1 of a reader on a SQuAD-format file.

    Example: qa-cluster model evaluate my-reader questions.json
    """
    raise typer.Exit(subprocess.run(model_program.command_line("evaluate", *context.args), check=False).returncode)
