"""`qa-cluster model unload`: removes a reader from the shards."""

from __future__ import annotations

from typing import Annotated

import typer

from ...readers import reader_loading
from ...terminal import console
from ..shared_options import audit_of
from .operation import TIMEOUT_SECONDS, LoadedName, Timeout, operation_of


def unload(
    context: typer.Context,
    name: LoadedName,
    force: Annotated[
        bool, typer.Option("--force", help="Remove even the default reader. No question can then be answered.")
    ] = False,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Remove a reader and its cached answers from every shard.

    Example: qa-cluster model unload my-reader@0123456789ab
    """
    audit = audit_of(context)
    _, operation = operation_of(context, timeout)
    removed = reader_loading.unload(operation, name, force=force)
    audit.note("model.unload", model=str(removed))
    console.say(f"removed {removed}")
