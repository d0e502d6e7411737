"""`qa-cluster node`: one server of a cluster, in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from ..servers import ports, single
from .shared_options import load_settings


def node(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback need a password.")] = ports.HOST,
    port: Annotated[
        int, typer.Option(help="Port to listen on; the cluster's bus is 10000 above.")
    ] = single.DEFAULT_PORT,
    announce: Annotated[
        str,
        typer.Option(
            help="Name or address of this machine for the other servers; needed where addresses change at a restart.",
            show_default="as they find it",
        ),
    ] = "",
) -> None:
    """Run one server of a cluster, with the module and its worker, for systemd, Docker or Kubernetes to supervise.

    It takes the place of this process. Its data are in the folder `node` of the data folder. When all servers run,
    `qa-cluster up --form --cluster-url ..` makes one cluster of them.

    Example: qa-cluster node --data-dir /var/lib/qa-cluster/7000 --port 7000
    """
    single.become(single.prepare(load_settings(context).settings, host, port, announce))
