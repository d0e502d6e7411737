"""`qa-cluster check`: checks whether this host can run a server of the cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ...provision.host_check import HostPlan, check_host
from ...servers import ports, single
from ...terminal import console
from ..shared_options import Json, ServerOption, file_option, load_settings

_FAILED = 1


def check(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address for the server to listen on.")] = ports.HOST,
    port: Annotated[int, typer.Option(help="Port for the server to listen on.")] = single.DEFAULT_PORT,
    announce: Annotated[
        str, typer.Option(help="Name or address under which other servers reach this host.", show_default="none")
    ] = "",
    server: ServerOption = None,
    tls_cert: Annotated[str | None, file_option("Certificate of the server (PEM).")] = None,
    tls_key: Annotated[str | None, file_option("Private key of the certificate (PEM).")] = None,
    json: Json = False,
) -> None:
    """Check whether this host has everything that a server of the cluster needs.

    The command checks the server program, the module, the worker's environment, the password, the certificate with its
    key, and the ports. As a test, it also starts a server with the module and a worker in a temporary folder. With
    --cluster-url, it connects from this host to every server of the cluster and to the cluster bus of each server. Give
    the command the same options as `qa-cluster node`.

    The exit code is 0 if nothing is missing, else 1.

    Example: qa-cluster check --host 0.0.0.0 --announce a.example --cluster-url redis://b.example:7000
    """
    settings = load_settings(context, server=server, server_tls_cert=tls_cert, server_tls_key=tls_key).settings
    results = []
    for result in check_host(HostPlan(settings, host, port, announce)):
        results.append(result)
        if not json:
            console.say(f"{'ok     ' if result.ok else 'MISSING'}  {result.what}: {result.said}")
    complete = all(result.ok for result in results)
    if json:
        console.say_json({"complete": complete, "checks": [asdict(result) for result in results]})
    elif complete:
        console.say("this host can run a server of the cluster")
    if not complete:
        raise typer.Exit(_FAILED)
