"""`qa-cluster model use`: makes a loaded reader the default."""

from __future__ import annotations

import typer

from ...readers import reader_loading
from ...terminal import console
from ..shared_options import audit_of
from .place import TIMEOUT_SECONDS, LoadedName, Timeout, address_of


def use(context: typer.Context, name: LoadedName, timeout: Timeout = TIMEOUT_SECONDS) -> None:
    """Make a loaded reader the default. The former default stays loaded, and no question is lost.

    Example: qa-cluster model use my-reader
    """
    audit = audit_of(context)
    _, place = address_of(context, timeout)
    chosen = reader_loading.use(place, name)
    audit.note("model.use", model=str(chosen))
    console.say(f"the default reader is {chosen}")
