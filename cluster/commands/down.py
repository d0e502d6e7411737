"""`qa-cluster down`: stops the local cluster and its background jobs."""

from __future__ import annotations

import typer

from qa_cluster.errors import ConfigError

from ..provision import jobs
from ..servers.local import LocalCluster
from ..terminal import console
from .shared_options import load_settings


def down(context: typer.Context) -> None:
    """Stop the local cluster and its background jobs. Its data is kept.

    Example: qa-cluster down --data-dir /var/lib/qa
    """
    loaded = load_settings(context)
    settings = loaded.settings
    if settings.cluster_url:
        raise ConfigError(
            f"`down` stops only the local cluster of a data folder, but setting 'cluster_url' is"
            f" {loaded.shown('cluster_url')} ({loaded.sources['cluster_url']}). Unset it to stop the cluster in"
            f" {str(settings.data_dir)!r}. Stop the servers of other clusters where they were started."
        )
    stopped = jobs.stop(settings) + LocalCluster(settings).down()
    for name in stopped:
        console.step(f"stopped {name}")
    console.say(
        f"{console.counted(len(stopped), 'process', 'processes')} stopped" if stopped else "nothing was running"
    )
