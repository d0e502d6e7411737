"""The argument that the commands about collections share."""

from __future__ import annotations

from typing import Annotated

import typer

from ..shared_options import collection_name

Name = Annotated[
    str,
    typer.Argument(
        help="Its name: a-z, 0-9, _ and -, 64 characters at most, the first a letter or a digit.",
        parser=collection_name,
        metavar="NAME",
    ),
]
