"""`qa-cluster model load`: loads a reader on the shards and makes it the default, or loads an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError
from qa_cluster.reading.bundled import bundled_reader

from ...nodes.connect import shards_of
from ...provision.provisioning import provision
from ...readers import reader_loading, shard_readers
from ...readers.reader_files import budget_of, read_reader
from ...servers.signals import until_signal
from ...terminal import console
from ..shared_options import audit_of
from .operation import TIMEOUT_SECONDS, Timeout, operation_of


def load(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder of a reader or an encoder.", exists=True, file_okay=False, show_default="bundled"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Id of the reader on the shards.", metavar="ID", show_default="from its manifest")
    ] = None,
    context_tokens: Annotated[
        int | None,
        typer.Option(
            help="Maximum tokens of a sentence with its neighbours; with 0, each sentence is read alone.",
            min=0,
            show_default="setting context_tokens, else the manifest",
        ),
    ] = None,
    keep_old: Annotated[bool, typer.Option("--keep-old", help="Keep the previous default reader loaded.")] = False,
    beside: Annotated[bool, typer.Option("--beside", help="Only load the reader; do not make it the default.")] = False,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Load a reader on every shard and make it the default, while the cluster answers questions.

    Every shard stores and compiles the new reader while the current default reader answers. Then all shards make the
    new reader the default. Unless you give --keep-old, they then remove the previous default reader and its cached
    answers. If a step before the change of the default fails, nothing changes. The worker of a shard needs memory for
    about three times the size of the model (qa.worker-memory-mb).

    An encoder is never the default. It replaces the previous encoder, except with --beside or --keep-old. With several
    encoders, the encoder with the latest export makes the vectors.

    Examples:

        qa-cluster model load my-reader

        qa-cluster model load my-reader --name my-reader-v2 --beside

        qa-cluster model load --context-tokens 128
    """
    audit = audit_of(context)
    settings, operation = operation_of(context, timeout)
    budget = budget_of(settings) if context_tokens is None else context_tokens
    reader = read_reader(folder or bundled_reader(), budget, name)
    if reader.is_encoder and context_tokens is not None:
        raise ConfigError(f"{reader.tag} is an encoder, which has a fixed token budget: leave out --context-tokens")
    _set_up_functions(settings, operation.url)
    with until_signal():
        removed = reader_loading.load(operation, reader, make_default=not beside, keep_old=keep_old)
    audit.note("model.load", model=reader.tag, beside=beside, removed=list(map(str, removed)))
    suffix = "; the default reader is unchanged" if beside or reader.is_encoder else " as the default reader"
    console.say(f"loaded {reader.tag}{suffix}")
    for old in removed:
        console.say(f"removed {old}")


def _set_up_functions(settings: Settings, url: str) -> None:
    """Register qa-cluster's own functions on all shards, and set up the partitions, if a shard lacks the functions."""
    with shards_of(settings, url) as shards:
        lacking = not all(shard_readers.has_functions(client) for _, client in shards)
    if lacking:
        provision(settings, url, None, console.step)
