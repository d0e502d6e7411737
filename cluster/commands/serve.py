"""`qa-cluster serve`: answers over HTTP."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError
from qa_cluster.tls import service_context

from ..servers import ports, service
from ..servers.local import cluster_url
from .shared_options import load_settings


def serve(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", show_default="8080")] = None,
    tls_cert: Annotated[
        str | None,
        typer.Option(
            help="Speak HTTPS with this certificate (PEM); SIGHUP reads it again.", metavar="FILE", show_default=False
        ),
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(help="The certificate's key (PEM).", metavar="FILE", show_default=False)
    ] = None,
    without_keys: Annotated[
        bool,
        typer.Option(
            "--without-keys",
            help="Listen beyond loopback although there is no API key: whoever reaches it may read, write and delete.",
        ),
    ] = False,
) -> None:
    """Run the REST service, with a page to ask from at /, until Ctrl-C.

    It listens on other addresses than loopback only if there is an API key (`qa-cluster keys create`), or
    with --without-keys. With --tls-cert and --tls-key it speaks HTTPS only, TLS 1.2 or newer. After the files have been
    replaced, send it SIGHUP: connections that are open stay.

    Example: qa-cluster serve --port 9000
    """
    loaded = load_settings(
        context,
        http_host=host,
        http_port=port,
        http_without_keys=without_keys or None,
        http_tls_cert=tls_cert,
        http_tls_key=tls_key,
    )
    _need_port(loaded.settings)
    if loaded.settings.http_tls_cert or loaded.settings.http_tls_key:
        service_context(loaded.settings.http_tls_cert, loaded.settings.http_tls_key)
    url = cluster_url(loaded.settings)
    command = service.command_line()
    # The service replaces this process, so that a signal to this command ends the service.
    os.execve(command[0], command, dict(service.environment(loaded, url)))


def _need_port(settings: Settings) -> None:
    try:
        ports.bind_once(settings.http_port, settings.http_host)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {settings.http_host}:{settings.http_port}: {error.strerror or error}; choose another"
            " address with --host and --port (settings 'http_host' and 'http_port')"
        ) from error
