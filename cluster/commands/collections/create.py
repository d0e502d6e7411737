"""`qa-cluster collections create`: creates a collection."""

from __future__ import annotations

import typer

from ...terminal import console
from ..shared_options import audit_of, client_of
from .options import Name


def create(context: typer.Context, name: Name) -> None:
    """Create a collection. If the collection already exists, nothing changes.

    Example: qa-cluster collections create books && qa-cluster ingest novels/ --collection books
    """
    audit = audit_of(context)
    with client_of(context) as client:
        created = client.create_collection(name)
    audit.note("collection.create", collection=name, created=created)
    console.say(f"collection {name} created" if created else f"collection {name} already exists")
