"""`qa-cluster model mine`, `train`, `export` and `evaluate`: each runs a program of `qa_cluster.models`."""

from __future__ import annotations

import subprocess

import typer

from ...servers import model_program


def mine(context: typer.Context) -> None:
    """Find passages that rank high for labelled questions but do not answer them, for `model train`.

    On a cluster, a reader reads many such passages, so it should also be trained on such passages. For all options,
    run: qa-cluster model mine --help

    Example: qa-cluster model mine groups.jsonl.gz --data my-questions.json --corpus handbook/
    """
    raise typer.Exit(model_program.run_to_its_end("mine", *context.args))


def train(context: typer.Context) -> None:
    """Fine-tune a Hugging Face checkpoint on files in SQuAD format.

    The checkpoint is a question-answering model, or a bare encoder: a model that has not learned to answer questions
    yet. Make a reader from the result with `qa-cluster model export`.

    Needs the extra `train` (torch): pip install 'qa-cluster[train]'. For all options, run: qa-cluster model train
    --help

    Example: qa-cluster model train deepset/tinyroberta-squad2 my-checkpoint --data my-questions.json:2:3e-5
    """
    raise typer.Exit(model_program.run_to_its_end("train", *context.args))


def export(context: typer.Context) -> None:
    """Convert a Hugging Face question-answering checkpoint to a reader for the shards.

    Needs the extra `export` (torch): pip install 'qa-cluster[export]'. For all options, run: qa-cluster model export
    --help

    SOURCE is a folder or a hub id, owner/name or owner/name@revision. A report compares the scores of the checkpoint
    and of the exported file. A file that loses more than --tolerance points of F1 is refused.

    Example: qa-cluster model export deepset/tinyroberta-squad2 my-reader --evaluation questions.json
    """
    raise typer.Exit(model_program.run_to_its_end("export", *context.args))


def evaluate(context: typer.Context) -> None:
    """Measure exact match and F1 of a reader on a file in SQuAD format.

    Example: qa-cluster model evaluate my-reader questions.json
    """
    raise typer.Exit(subprocess.run(model_program.command_line("evaluate", *context.args), check=False).returncode)
