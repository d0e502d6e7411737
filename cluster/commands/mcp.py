"""`qa-cluster mcp`: runs the MCP server, for agents and other programs with a language model."""

from __future__ import annotations

from importlib import import_module
from ipaddress import ip_address
from typing import Annotated

import typer

from qa_cluster.errors import ConfigError
from qa_cluster.keys import DEFAULT_COLLECTION

from ..servers.local import with_cluster
from .shared_options import CollectionOption, load_settings

# The command imports this module of the adapter by name, and only when it runs, because the module needs the extra
# `mcp`.
_PROCESS = "qa_cluster.integrations.mcp.process"


def mcp(
    context: typer.Context,
    *,
    http: Annotated[
        bool, typer.Option("--http", help="Serve streamable HTTP instead of standard input and output.")
    ] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", show_default="8765")] = None,
    service: Annotated[
        str | None,
        typer.Option(
            "--service",
            help="Address of the REST service.",
            metavar="URL",
            show_default="the service of the settings http_host and http_port",
        ),
    ] = None,
    direct: Annotated[
        bool,
        typer.Option("--direct", help="Ask the cluster itself, without the REST service. Not with --http."),
    ] = False,
    collection: CollectionOption = DEFAULT_COLLECTION,
    write: Annotated[
        bool, typer.Option("--write", help="Offer the tool put_document, which stores documents.")
    ] = False,
    without_keys: Annotated[
        bool,
        typer.Option(
            "--without-keys",
            help="Listen on addresses other than loopback even if the REST service needs no API key. Every client that"
            " reaches the server can then read all documents.",
        ),
    ] = False,
) -> None:
    """Run an MCP server with the tools ask, search, fetch and list_collections.

    By default it serves one client on standard input and output, until the input ends. With --http it serves many
    clients, and passes the Authorization header of each request to the REST service.

    Examples:

        qa-cluster mcp

        qa-cluster mcp --http --port 8765
    """
    settings = load_settings(context, mcp_host=host, mcp_port=port, service_url=service).settings
    if direct and http:
        raise typer.BadParameter(
            "--direct checks no API keys, so it cannot be used with --http: start `qa-cluster serve` and leave --direct"
            " out",
            param_hint="--direct",
        )
    if not http and (host is not None or port is not None):
        raise typer.BadParameter("--host and --port need --http", param_hint="--http")
    if direct:
        settings = with_cluster(settings)
    try:
        process = import_module(_PROCESS)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types", "pydantic", "anyio"):
            raise
        raise ConfigError(f"{error.name} is not installed: pip install 'qa-cluster[mcp]'") from error
    status = process.run(
        settings,
        over_http=http,
        direct=direct,
        write=write,
        collection=collection,
        without_keys=without_keys,
        loopback=_is_loopback(settings.mcp_host),
    )
    raise typer.Exit(status)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
