"""`qa-cluster scale`: adds shards to the local cluster."""

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
    shards: Annotated[int, typer.Argument(help="The new number of shards.", min=1, max=1000)],
) -> None:
    """Add shards to the local cluster. The cluster answers questions while documents move. After an interruption,
    repeat the command.

    Example: qa-cluster scale 4
    """
    loaded = load_settings(context)
    settings = loaded.settings
    if settings.cluster_url:
        raise ConfigError(
            f"`scale` adds servers only to the local cluster of a data folder, but setting 'cluster_url' is"
            f" {loaded.shown('cluster_url')}: unset it, or add servers to that cluster and run"
            " `redis-cli --cluster rebalance`"
        )
    settings = replace(settings, shards=shards)
    cluster = LocalCluster(settings, options=module_options(settings), on_step=console.step)
    moved = scale_up(settings, cluster, shards, console.step)
    console.say(f"the cluster has {console.counted(shards, 'shard')}; {console.counted(moved, 'slot')} moved")
