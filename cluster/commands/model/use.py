"""`qa-cluster model use`: makes a loaded reader the default."""

from __future__ import annotations

import typer

from ...readers import reader_loading
from ...terminal import console
from ..shared_options import audit_of
from .operation import TIMEOUT_SECONDS, LoadedName, Timeout, operation_of


def use(context: typer.Context, name: LoadedName, timeout: Timeout = TIMEOUT_SECONDS) -> None:
    """Make a loaded reader the default. The previous default stays loaded, and no question fails.

    Example: qa-cluster model use my-reader
    """
    audit = audit_of(context)
    _, operation = operation_of(context, timeout)
    chosen = reader_loading.use(operation, name)
    audit.note("model.use", model=str(chosen))
    console.say(f"the default reader is {chosen}")
