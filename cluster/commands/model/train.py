"""`qa-cluster model train`: fine-tunes a checkpoint, in a process of its own."""

from __future__ import annotations

import typer

from ...servers import model_program


def train(context: typer.Context) -> None:
    """Fine-tune a Hugging Face checkpoint, or a bare encoder, on SQuAD-format files; then export it.

    Needs the extra `train` (torch): pip install 'qa-cluster[train]'. Its options: qa-cluster model train --help

    Example: qa-cluster model train deepset/tinyroberta-squad2 my-checkpoint --data ours.json:2:3e-5
    """
    raise typer.Exit(model_program.run_to_its_end("train", *context.args))
