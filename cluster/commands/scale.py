"""`qa-cluster scale`: gives the local cluster more shards."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from qa_cluster.errors import ConfigError

from ..provision.scaling import scale as scale_up
from ..servers.local import LocalCluster
from ..servers.module_options import module_options
from ..terminal import console
from .shared_options import load_settings


def scale(
    context: typer.Context,
    shards: Annotated[int, typer.Argument(help="How many shards the cluster will have.", min=1, max=1000)],
) -> None:
    """Give the local cluster more shards. It keeps answering while documents move; after an interruption, repeat it.

    Example: qa-cluster scale 4
    """
    settings = load_settings(context).settings
    if settings.cluster_url:
        raise ConfigError(
            "`scale` starts servers of the local cluster of a data folder: leave setting 'cluster_url' out, or add"
            " servers to the cluster there and use `redis-cli --cluster rebalance`"
        )
    settings = replace(settings, shards=shards)
    cluster = LocalCluster(settings, options=module_options(settings), on_step=console.step)
    moved = scale_up(settings, cluster, shards, console.step)
    console.say(f"{console.counted(shards, 'shard', 'shards')}; {console.counted(moved, 'slot', 'slots')} moved")
