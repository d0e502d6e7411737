"""`qa-cluster ingest`: stores documents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qa_cluster.corpus import ON_ERROR, read_documents

from ..provision.storing import store
from ..servers.local import with_cluster
from ..terminal import console
from .shared_options import load_settings


def ingest(
    context: typer.Context,
    paths: Annotated[list[Path], typer.Argument(help="Files and folders.", exists=True, metavar="PATH..")],
    on_error: Annotated[str, typer.Option(help="What to do at a document that cannot be read: stop or skip.")] = "stop",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until questions are answered from the documents.")
    ] = True,
) -> None:
    """Store documents from .txt, .md, .jsonl, SQuAD JSON and CORD-19 JSON files; the shards split and tokenize them.

    A line of .jsonl is {"id": "..", "title": "..", "text": "..", "metadata": {..}}; title and metadata may be left out.
    A document replaces the one that was stored before under its id; the same id twice in one run is an error.

    Examples:

        qa-cluster ingest articles/ notes.md

        qa-cluster ingest --on-error skip dump.jsonl
    """
    if on_error not in ON_ERROR:
        raise typer.BadParameter(f"{on_error!r} is not one of {', '.join(ON_ERROR)}", param_hint="--on-error")
    settings = with_cluster(load_settings(context).settings)
    skipped: list[Exception] = []

    def skip(error: Exception) -> None:
        skipped.append(error)
        console.notice(f"skipped: {error}")

    documents = read_documents(paths, on_error=on_error, on_skip=skip, max_bytes=settings.body_max_bytes)
    try:
        count = store(settings, documents, wait=wait)
    except KeyboardInterrupt as interrupt:
        console.notice(f"interrupted: {str(interrupt) or 'nothing was stored'}")
        raise
    console.say(f"{console.counted(count, 'document')} stored" + (f", {len(skipped)} skipped" if skipped else ""))
