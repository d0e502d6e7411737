"""The options that the commands about readers on the shards share, and the cluster on which they work."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.config import Settings

from ...nodes.all_shards import Place
from ...servers.local import cluster_url
from ...terminal import console
from ..shared_options import load_settings

Timeout = Annotated[float, typer.Option("--timeout", help="Longest time for all of it, in seconds.", min=1)]
LoadedName = Annotated[str, typer.Argument(help="A loaded reader, an id or id@revision (`qa-cluster model list`).")]
TIMEOUT_SECONDS = 300.0


def address_of(context: typer.Context, seconds: float) -> tuple[Settings, Place]:
    """The settings of this run, and the cluster with the time limit of the command."""
    settings = load_settings(context).settings
    return settings, Place.of(settings, cluster_url(settings), seconds, console.step)
