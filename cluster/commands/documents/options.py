"""The options that the subcommands of `qa-cluster documents` share."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.documents.stored import MAX_ID_BYTES

Prefix = Annotated[
    str, typer.Option(help=f"Only documents whose ids start with this prefix of at most {MAX_ID_BYTES} bytes.")
]
