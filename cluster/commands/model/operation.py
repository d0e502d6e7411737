"""The options of the commands that manage readers, and the operation on all shards that these commands start."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.config import Settings

from ...nodes.all_shards import ClusterOperation
from ...servers.local import cluster_url
from ...terminal import console
from ..shared_options import load_settings

Timeout = Annotated[float, typer.Option("--timeout", help="Time limit of the command in seconds.", min=1)]
LoadedName = Annotated[
    str, typer.Argument(help="A loaded reader: id or id@revision; `qa-cluster model list` lists them.")
]
TIMEOUT_SECONDS = 300.0


def operation_of(context: typer.Context, seconds: float) -> tuple[Settings, ClusterOperation]:
    """Return the settings of the command, and an operation on all shards of the cluster. The operation has a time limit
    of `seconds`, which starts now.
    """
    settings = load_settings(context).settings
    return settings, ClusterOperation.begin(settings, cluster_url(settings), seconds, console.step)
