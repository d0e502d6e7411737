"""`qa-cluster ingest` and `pretokenize`: documents in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from qa_cluster.cluster_client import ClusterClient
from qa_cluster.config import Settings
from qa_cluster.corpus import ON_ERROR, read_documents
from qa_cluster.types import Document

from ..provision import jobs, pretokenizing
from ..provision.tokenizing import wait_tokenized
from . import console
from .session import Session, with_cluster


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("ingest")(ingest)
    app.command("pretokenize")(pretokenize)


def ingest(
    context: typer.Context,
    paths: Annotated[list[Path], typer.Argument(help="Files and folders.", exists=True, metavar="PATH..")],
    on_error: Annotated[str, typer.Option(help="At a document that cannot be read: stop or skip.")] = "stop",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until questions are answered from the documents.")
    ] = True,
) -> None:
    """Store documents from .txt, .md, .jsonl, SQuAD JSON and CORD-19 JSON files; the shards split and tokenize them.

    A line of .jsonl is {"id": "..", "title": "..", "text": "..", "metadata": {..}}; title and metadata may be left out.
    A document that was stored before under the same id is replaced; of two with one id in one run, the second is an
    error.

    Examples:

        qa-cluster ingest articles/ notes.md

        qa-cluster ingest --on-error skip dump.jsonl
    """
    if on_error not in ON_ERROR:
        raise typer.BadParameter(f"{on_error!r} is not one of {', '.join(ON_ERROR)}", param_hint="--on-error")
    session: Session = context.obj
    settings = with_cluster(session.load().settings)
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


def pretokenize(
    context: typer.Context,
    background: Annotated[
        bool, typer.Option("--background", help="Return at once; `qa-cluster status` shows the progress.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Tokenize also what is tokenized already.")] = False,
) -> None:
    """Split and tokenize, on the shards, all documents that are stored but not tokenized yet.

    Needed only after text was written while no functions were registered, or (--force) to measure.

    Example: qa-cluster pretokenize --background
    """
    session: Session = context.obj
    loaded = session.load()
    settings = with_cluster(loaded.settings)
    if background:
        jobs.start(loaded)
        seconds = settings.pretokenize_timeout_ms / 1000
        job = jobs.enqueue(settings, pretokenizing.JOB_FUNCTION, "pre-tokenize", force, timeout_seconds=seconds)
        console.say(f"queued as job {job}: `qa-cluster status` shows its progress")
        return
    with console.progress("pre-tokenizing", None) as advance:
        counts = pretokenizing.pretokenize(settings, force=force, on_progress=advance)
    documents, sentences = console.counted(counts["done"], "document"), console.counted(counts["sentences"], "sentence")
    console.say(f"{documents}, {sentences} tokenized, {counts['failed']} failed")
    if counts["failed"]:
        raise typer.Exit(1)


def store(settings: Settings, documents: Iterable[Document], *, wait: bool = True) -> int:
    """Store documents and, with `wait`, wait until they are tokenized; returns how many.

    A KeyboardInterrupt says what is stored by then.
    """
    ids: list[str] = []
    stored = 0

    def noted() -> Iterator[Document]:
        for document in documents:
            ids.append(document.id)
            yield document

    try:
        with console.progress("storing documents", None) as advance, ClusterClient(settings) as client:

            def count(done: int) -> None:
                nonlocal stored
                stored = done
                advance(done)

            client.put_documents(noted(), on_progress=count)
        if wait and ids:
            with console.progress("tokenizing on the shards", len(ids)) as advance:
                wait_tokenized(settings, settings.cluster_url, ids, advance)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(
            f"{console.counted(stored, 'document')} stored, which stay and are tokenized by the shards;"
            " repeat the command to store the rest, if any"
        ) from interrupt
    return len(ids)
