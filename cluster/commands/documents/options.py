"""The options that the commands about documents share, and the client that they use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from qa_cluster.cluster_client import ClusterClient
from qa_cluster.documents import MAX_ID_BYTES
from qa_cluster.errors import InvalidInput

from ...servers.local import with_cluster
from ..shared_options import load_settings

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Prefix = Annotated[str, typer.Option(help=f"Only documents whose ids begin with it, {MAX_ID_BYTES} bytes at most.")]


@contextmanager
def usage(option: str) -> Iterator[None]:
    """What the cluster finds wrong in an option is wrong usage."""
    try:
        yield
    except InvalidInput as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def client_of(context: typer.Context) -> ClusterClient:
    """A client of the cluster, to be used in a `with` block."""
    return ClusterClient(with_cluster(load_settings(context).settings))
