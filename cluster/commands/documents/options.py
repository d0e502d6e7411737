"""The options that the commands about documents share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from qa_cluster.documents.stored import MAX_ID_BYTES
from qa_cluster.errors import InvalidInput

Prefix = Annotated[str, typer.Option(help=f"Only documents whose ids begin with it, {MAX_ID_BYTES} bytes at most.")]


@contextmanager
def usage(option: str) -> Iterator[None]:
    """What the cluster finds wrong in an option is wrong usage."""
    try:
        yield
    except InvalidInput as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
