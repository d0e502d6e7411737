"""`qa-cluster node`: runs one server of a cluster in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from ...servers import ports, single
from ..shared_options import ServerOption, file_option, load_settings


def node(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    host: Annotated[
        str, typer.Option(help="Address to listen on; an address other than loopback requires a password.")
    ] = ports.HOST,
    port: Annotated[
        int, typer.Option(help="Port to listen on; the port of the cluster bus is 10000 higher.")
    ] = single.DEFAULT_PORT,
    announce: Annotated[
        str,
        typer.Option(
            help="Name or address under which other servers reach this host; required if the address of this host can"
            " change at a restart.",
            show_default="detected by the other servers",
        ),
    ] = "",
    server: ServerOption = None,
    tls_cert: Annotated[
        str | None,
        file_option("Accept only TLS, with this certificate (PEM), which the authority in --cluster-tls-ca signed."),
    ] = None,
    tls_key: Annotated[str | None, file_option("Private key of the certificate (PEM).")] = None,
) -> None:
    """Run one server of a cluster, with the module and its worker, under systemd, Docker or Kubernetes.

    The server replaces this process. It keeps its data in the folder `node` of the data folder. When all servers are
    running, `qa-cluster up --form --cluster-url ..` forms one cluster from them.

    With --tls-cert, --tls-key and --cluster-tls-ca, the server uses TLS for all connections, including those to other
    servers, and requires client certificates (setting server_tls_clients).

    Example: qa-cluster node --data-dir /var/lib/qa-cluster/7000 --port 7000
    """
    settings = load_settings(context, server=server, server_tls_cert=tls_cert, server_tls_key=tls_key).settings
    single.become(single.prepare(settings, host, port, announce))
