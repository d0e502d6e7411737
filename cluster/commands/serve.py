"""`qa-cluster serve`: runs the REST service."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from qa_cluster.errors import ConfigError
from qa_cluster.security.tls import service_context

from ..servers import ports, service
from ..servers.local import cluster_url
from .shared_options import file_option, load_settings


def serve(
    context: typer.Context,
    *,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", show_default="8080")] = None,
    tls_cert: Annotated[str | None, file_option("Serve HTTPS with this certificate (PEM); SIGHUP reloads it.")] = None,
    tls_key: Annotated[str | None, file_option("Private key of the certificate (PEM).")] = None,
    without_keys: Annotated[
        bool,
        typer.Option(
            "--without-keys",
            help="Listen on addresses other than loopback without API keys. Every client that reaches the service can"
            " then read, write and delete.",
        ),
    ] = False,
    admin_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the admin listener, which serves /metrics, /livez and /readyz without API keys. The main port"
            " then has no /metrics.",
            show_default="none",
        ),
    ] = None,
    admin_host: Annotated[
        str | None, typer.Option(help="Address of the admin listener.", show_default="127.0.0.1")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Name on the page.", show_default="qa-cluster")] = None,
    logo: Annotated[
        str | None,
        file_option("Image next to the name on the page: PNG, JPEG, GIF, WebP or SVG, at most 256 KiB."),
    ] = None,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            help="Send traces to this OTLP receiver (http://host:4318); needs the extra otel.", show_default="none"
        ),
    ] = None,
) -> None:
    """Run the REST service, with a web page for questions at /, until Ctrl-C.

    The service listens on addresses other than loopback only if the cluster has an API key (`qa-cluster keys create`),
    or with --without-keys. With --tls-cert and --tls-key it serves only HTTPS, with TLS 1.2 or newer. After you replace
    these files, send SIGHUP to the service: new connections then use the new certificate, and open connections stay
    open.

    Example: qa-cluster serve --port 9000
    """
    loaded = load_settings(
        context,
        http_host=host,
        http_port=port,
        http_without_keys=without_keys or None,
        admin_port=admin_port,
        admin_host=admin_host,
        otlp_endpoint=otlp_endpoint,
        http_tls_cert=tls_cert,
        http_tls_key=tls_key,
        page_title=title,
        page_logo=logo,
    )
    settings = loaded.settings
    _check_port(settings.http_host, settings.http_port, "http")
    if settings.admin_port:
        _check_port(settings.admin_host, settings.admin_port, "admin")
    if settings.http_tls_cert or settings.http_tls_key:
        service_context(settings.http_tls_cert, settings.http_tls_key)
    url = cluster_url(loaded.settings)
    command = service.command_line()
    # The service replaces this process, so a signal to this command stops the service.
    os.execve(command[0], command, dict(service.environment(loaded, url)))


def _check_port(host: str, port: int, listener: str) -> None:
    try:
        ports.bind_once(port, host)
    except OSError as error:
        prefix = "" if listener == "http" else f"{listener}-"
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address with --{prefix}host and"
            f" --{prefix}port (settings '{listener}_host' and '{listener}_port')"
        ) from error
