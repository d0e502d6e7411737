"""`qa-cluster model mine`: finds passages to train on, in a process of its own."""

from __future__ import annotations

import typer

from ...servers import model_program


def mine(context: typer.Context) -> None:
    """Find passages that rank high for labelled questions and do not answer them, for `model train`.

    They are what a reader meets in use. Its options: qa-cluster model mine --help

    Example: qa-cluster model mine groups.jsonl.gz --data ours.json --corpus handbook/
    """
    raise typer.Exit(model_program.run_to_its_end("mine", *context.args))
