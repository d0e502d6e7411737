"""`qa-cluster model load`: loads a reader on the shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qa_cluster.config import Settings
from qa_cluster.reading.bundled import bundled_reader

from ...nodes.connect import shards_of
from ...provision.provisioning import provision
from ...readers import reader_loading, shard_readers
from ...readers.reader_files import budget_of, read_reader
from ...servers.signals import until_signal
from ...terminal import console
from ..shared_options import audit_of
from .place import TIMEOUT_SECONDS, Timeout, address_of


def load(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of a reader.", exists=True, file_okay=False, show_default="bundled")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Its id on the shards.", metavar="ID", show_default="the manifest's")
    ] = None,
    context_tokens: Annotated[
        int | None,
        typer.Option(
            help="Budget, in tokens, of a sentence with its neighbours; 0: each sentence alone.",
            min=0,
            show_default="the setting context_tokens, else the manifest's",
        ),
    ] = None,
    keep_old: Annotated[bool, typer.Option("--keep-old", help="Keep the former default reader loaded.")] = False,
    beside: Annotated[
        bool, typer.Option("--beside", help="Only load it: the default reader stays the default.")
    ] = False,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Load a reader on every shard and make it the default in place of the present one, without a pause.

    Every shard stores and compiles it next to the present one; then all shards make it the default, and remove the
    former one and its cached answers. If anything fails before that, nothing has changed. A shard's worker needs memory
    for about three times the model's size (qa.worker-memory-mb).

    Examples:

        qa-cluster model load my-reader

        qa-cluster model load my-reader --name my-reader-v2 --beside

        qa-cluster model load --context-tokens 128
    """
    audit = audit_of(context)
    settings, place = address_of(context, timeout)
    budget = budget_of(settings) if context_tokens is None else context_tokens
    reader = read_reader(folder or bundled_reader(), budget, name)
    _need_functions(settings, place.url)
    with until_signal():
        removed = reader_loading.load(place, reader, beside=beside, keep_old=keep_old)
    audit.note("model.load", model=reader.tag, beside=beside, removed=list(map(str, removed)))
    console.say(f"loaded {reader.tag}{' beside the default one' if beside else ''}")
    for old in removed:
        console.say(f"removed {old}")


def _need_functions(settings: Settings, url: str) -> None:
    """Set partitions and functions of a cluster that was never set up."""
    shards = shards_of(settings, url)
    try:
        lacking = not all(shard_readers.has_functions(client) for _, client in shards)
    finally:
        for _, client in shards:
            client.close()
    if lacking:
        provision(settings, url, None, console.step)
