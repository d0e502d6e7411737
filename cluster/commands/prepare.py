"""`qa-cluster prepare`: stores the tokens and vectors of all documents; `pretokenize` is the former name."""

from __future__ import annotations

from typing import Annotated

import typer

from ..provision import jobs, preparing
from ..servers.local import with_cluster
from ..terminal import console
from .shared_options import collection_name, load_settings


def prepare(
    context: typer.Context,
    background: Annotated[
        bool, typer.Option("--background", help="Run as a background job; `qa-cluster status` shows its progress.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace tokens that are already stored.")] = False,
    collection: Annotated[
        str | None,
        typer.Option(
            help="Only documents of this collection.", parser=collection_name, metavar="NAME", show_default="all"
        ),
    ] = None,
) -> None:
    """Store the tokens and the missing vectors of all documents on the shards, and wait until this is done.

    Workers also make vectors in the background, soon after a document is written. This command makes the vectors now,
    and shows the progress. Meanwhile, questions to the cluster have priority. To resume a killed command, run it again.

    Tokens take about 120 bytes for each sentence. Without stored tokens, a sentence is tokenized when it is first read,
    which makes this reading 1 to 3 % slower. Vectors take about 400 bytes for each passage.

    Example: qa-cluster prepare --background
    """
    loaded = load_settings(context)
    settings = with_cluster(loaded.settings)
    if background:
        jobs.start(loaded)
        seconds = settings.pretokenize_timeout_ms / 1000
        job = jobs.enqueue(
            settings, preparing.JOB_FUNCTION, "prepare", force, collection or "", timeout_seconds=seconds
        )
        console.say(f"queued as job {job}: `qa-cluster status` shows its progress")
        return
    with console.progress("preparing", None) as advance:
        made = preparing.prepare(settings, force=force, collection=collection or "", on_progress=advance)
    counts = made.counts
    for failure in made.failures:
        console.error(failure)
    if (more := counts["failed"] - len(made.failures)) > 0:
        console.error(f"{console.counted(more, 'more document')} failed: the logs of the servers name them")
    documents, sentences = console.counted(counts["done"], "document"), console.counted(counts["sentences"], "sentence")
    console.say(f"{documents}, {sentences} tokenized, {counts['failed']} failed")
    if counts["to_embed"]:
        console.say(f"{console.counted(counts['embedded'], 'document')} got vectors")
    if counts["failed"]:
        raise typer.Exit(1)
