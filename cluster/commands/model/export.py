"""`qa-cluster model export`: turns a checkpoint into a reader, in a process of its own."""

from __future__ import annotations

import typer

from ...servers import model_program


def export(context: typer.Context) -> None:
    """Turn a Hugging Face question-answering checkpoint into a reader that shards run.

    Needs the extra `export` (torch): pip install 'qa-cluster[export]'. Its options: qa-cluster model export --help

    SOURCE is a folder or a hub id, owner/name or owner/name@revision. A report says what the checkpoint and the file
    made of it score, side by side; a file that loses more than --tolerance points of F1 is refused.

    Example: qa-cluster model export deepset/tinyroberta-squad2 my-reader --evaluation questions.json
    """
    raise typer.Exit(model_program.run_to_its_end("export", *context.args))
