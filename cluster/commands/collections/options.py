"""The argument that the subcommands of `qa-cluster collections` share."""

from __future__ import annotations

from typing import Annotated

import typer

from ..shared_options import collection_name

Name = Annotated[
    str,
    typer.Argument(
        help="Name of the collection: a-z, 0-9, _ and -, at most 64 characters; starts with a letter or digit.",
        parser=collection_name,
        metavar="NAME",
    ),
]
