"""The client that the commands about documents and collections use."""

from __future__ import annotations

import typer

from qa_cluster.cluster_client import ClusterClient

from ..servers.local import with_cluster
from .shared_options import load_settings


def client_of(context: typer.Context) -> ClusterClient:
    """A client of the cluster, to be used in a `with` block."""
    return ClusterClient(with_cluster(load_settings(context).settings))
