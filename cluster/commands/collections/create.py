"""`qa-cluster collections create`: makes a collection."""

from __future__ import annotations

from typing import Annotated

import typer

from ...terminal import console
from ..documents.options import client_of
from ..shared_options import collection_name

Name = Annotated[
    str,
    typer.Argument(
        help="Its name: a-z, 0-9, _ and -, 64 characters at most, the first a letter or a digit.",
        parser=collection_name,
        metavar="NAME",
    ),
]


def create(context: typer.Context, name: Name) -> None:
    """Make a collection. It is no error if there is one of that name already.

    Example: qa-cluster collections create books && qa-cluster ingest novels/ --collection books
    """
    with client_of(context) as client:
        created = client.create_collection(name)
    console.say(f"collection {name} created" if created else f"collection {name} exists already")
