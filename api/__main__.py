"""`python -m qa_cluster.api`: runs the REST service in this process until SIGINT or SIGTERM.

Settings come from the TOML file and the environment (`QA_HTTP_PORT`, `QA_CLUSTER_URL`, ..). Only the most common
settings have flags. `cluster_url` must name at least one server of the cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
from collections.abc import Mapping
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop

from qa_cluster.asking.connecting import target_of
from qa_cluster.batches.records import BatchLimits
from qa_cluster.config import Settings, load
from qa_cluster.errors import ConfigError, QAError
from qa_cluster.huggingface.request import PipelineLimits
from qa_cluster.security.passwords import hide_typed_passwords

from .admin import AdminApplication, AdminListener
from .admission.hosts import Hosts, is_loopback
from .admission.origins import Origins
from .app import Application
from .certificate import Certificate
from .connections import ConnectionLimits, bounded
from .routes.branding import check_title, load_logo
from .service.lifespan import ServiceOptions

if TYPE_CHECKING:
    from .tracing import Traced

SHUTDOWN_SECONDS = 10
BACKLOG = 1024
KEYS_SECONDS = 10.0
# OpenTelemetry's environment variables that name the receiver of traces.
_RECEIVERS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_CANNOT_START = 3  # uvicorn's exit status if the server cannot start or listen

# Settings that have a flag: the name of the setting, the flag and its help text.
_FLAGS = (
    ("http_host", "--host", "address to listen on"),
    ("http_port", "--port", "port to listen on"),
    ("cluster_url", "--cluster-url", "redis://host:port of the cluster"),
    ("http_tls_cert", "--tls-cert", "certificate of the service (PEM)"),
    ("http_tls_key", "--tls-key", "private key of the certificate (PEM)"),
    ("admin_port", "--admin-port", "port of the admin listener for /metrics and probes"),
    ("admin_host", "--admin-host", "address of the admin listener"),
    ("otlp_endpoint", "--otlp-endpoint", "receiver of traces, http://host:4318"),
)

_log = logging.getLogger(__name__)


def service_options(settings: Settings) -> ServiceOptions:
    """Return the options of the service. Raises ConfigError if an origin, a proxy, the title or the logo is invalid."""
    Origins(settings.cors_origins)
    forwarded_by(settings)
    check_title(settings.page_title)
    load_logo(settings.page_logo)
    pipeline = PipelineLimits(
        pairs=settings.pipeline_pairs_max,
        question_chars=settings.question_max_chars,
        context_chars=settings.pipeline_context_max_chars,
    )
    return ServiceOptions(
        target_of(settings),
        settings.http_max_requests,
        settings.body_max_bytes,
        pipeline,
        coverage=settings.coverage,
        page_questions=tuple(line.strip() for line in settings.page_questions.splitlines() if line.strip()),
        page_title=settings.page_title,
        page_logo=settings.page_logo,
        body_timeout_ms=settings.body_timeout_ms,
        hosts=(settings.http_host, *settings.http_hosts.split(",")),
        cors_origins=settings.cors_origins,
        keys_required=not settings.http_without_keys and not is_loopback(settings.http_host),
        audit_log=settings.audit_log,
        metrics=not settings.admin_port,
        async_result_ttl_seconds=settings.async_result_ttl_s,
        async_results_max=settings.async_results_max,
        upload_max_bytes=settings.upload_max_bytes,
        upload_max_files=settings.upload_max_files,
        upload_max_requests=settings.upload_max_requests,
        upload_timeout_ms=settings.upload_timeout_ms,
        batches=BatchLimits.of(settings),
    )


async def check_keys(options: ServiceOptions, host: str) -> None:
    """Raise ConfigError if the service requires API keys and the cluster has none.

    If the cluster does not answer within `KEYS_SECONDS`, the service starts. It then refuses every request that needs a
    key, until the cluster has a key. `host` is the address on which the service listens; the error names this address.
    """
    if not options.keys_required:
        return
    try:
        async with asyncio.timeout(KEYS_SECONDS):
            engine = await options.target.open()
            try:
                known = await engine.api_keys.current()
            finally:
                await engine.aclose()
    except (QAError, TimeoutError):
        return
    if not known.closed:
        raise ConfigError(
            f"the cluster has no API key, so every client that reaches {host} could read, write and delete: create a"
            " key with `qa-cluster keys create`, listen on 127.0.0.1, or add --without-keys (setting http_without_keys)"
        )


def connection_limits(settings: Settings) -> ConnectionLimits:
    """Return the limits of connections, from the settings."""
    return ConnectionLimits(
        connections=settings.http_max_connections,
        head_seconds=settings.http_head_timeout_ms / 1000,
        stall_seconds=settings.body_timeout_ms / 1000,
        idle_seconds=settings.http_idle_timeout_ms / 1000,
    )


def forwarded_by(settings: Settings) -> list[str]:
    """Return the addresses and networks of the proxies whose `X-Forwarded-For` the service trusts.

    Raises ConfigError for a text that is not an address or network. `*` is such a text: with it, any client could
    choose its address in the audit log.
    """
    words = [word.strip() for word in settings.forwarded_allow_ips.split(",") if word.strip()]
    for word in words:
        try:
            ip_network(word)
        except ValueError as error:
            raise ConfigError(
                f"setting 'forwarded_allow_ips' has {word!r}, but must have addresses and networks such as 127.0.0.1 or"
                f" 10.0.0.0/8, separated by commas: {error}"
            ) from error
    return words


def application(
    settings: Settings, options: ServiceOptions, certificate: Certificate | None = None
) -> Application | Traced:
    """Create the service, with the admin listener and with traces if the settings ask for them.

    `certificate` is the certificate that the admin listener uses; None means that the admin listener has no TLS. Raises
    ConfigError if the admin listener or the traces cannot be set up.
    """
    app = Application(options)
    if settings.admin_port:
        if settings.admin_port == settings.http_port and settings.admin_host == settings.http_host:
            raise ConfigError(
                f"setting 'admin_port' is {settings.admin_port}, which is also the port of the service (http_port):"
                " choose another port"
            )
        hosts = Hosts((settings.admin_host, *settings.http_hosts.split(",")))
        limits = connection_limits(settings)
        admin = AdminApplication(app, hosts)
        app.companion = AdminListener(admin, settings.admin_host, settings.admin_port, limits, certificate)
    return with_traces(app, settings, os.environ)


def with_traces(app: Application, settings: Settings, environment: Mapping[str, str]) -> Application | Traced:
    """Wrap the application so that it sends traces, if a receiver is configured; otherwise return it unchanged.

    The setting `otlp_endpoint` or an environment variable of OpenTelemetry names the receiver; `environment` has the
    variables of this process. OpenTelemetry is imported only if a receiver is configured. If OpenTelemetry is then not
    installed, raise ConfigError for a receiver in the setting. For a receiver in the environment, instead log a warning
    and return the application unchanged.
    """
    from_environment = environment.get("OTEL_TRACES_EXPORTER") != "none" and any(map(environment.get, _RECEIVERS))
    if not settings.otlp_endpoint and not from_environment:
        return app
    if settings.otlp_endpoint and not re.match(r"https?://[^/\s]+", settings.otlp_endpoint):
        raise ConfigError(
            f"setting 'otlp_endpoint' is {settings.otlp_endpoint!r}, but must be a URL such as http://127.0.0.1:4318"
        )
    try:
        from .tracing import traced
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("opentelemetry"):
            raise
        advice = f"{error.name} is not installed: pip install 'qa-cluster[otel]'"
        if settings.otlp_endpoint:
            raise ConfigError(f"setting 'otlp_endpoint' is {settings.otlp_endpoint!r}, but {advice}") from error
        _log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but %s; the service sends no traces", advice)
        return app
    return traced(app, settings.otlp_endpoint, question_text=settings.otlp_question_text)


def certificate_of(settings: Settings) -> Certificate | None:
    """Load the certificate of the service, which SIGHUP then reloads. Return None if the settings name no certificate
    and no key; raise ConfigError if the files are invalid.
    """
    if not settings.http_tls_cert and not settings.http_tls_key:
        return None
    certificate = Certificate(settings.http_tls_cert, settings.http_tls_key)
    certificate.renew_at_hangup()
    return certificate


def server_of(
    app: Application | Traced, settings: Settings, certificate: Certificate | None = None, *, access_log: bool = False
) -> uvicorn.Server:
    """Return the server of the application, which does not listen yet.

    Without `certificate`, the server has no TLS. With `access_log`, the server logs every request.
    """
    proxies = forwarded_by(settings)
    config = uvicorn.Config(
        app,
        host=settings.http_host,
        port=settings.http_port,
        http=bounded(connection_limits(settings)),
        ws="none",
        lifespan="on",  # by default, uvicorn ignores an application that fails to start
        access_log=access_log,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        server_header=False,
        log_level=settings.log_level,
        backlog=BACKLOG,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    config.load()
    if certificate is not None:
        config.ssl = certificate.context
    return uvicorn.Server(config)


def serve(server: uvicorn.Server, handshake_seconds: float) -> int:
    """Run the server until a signal stops it.

    `handshake_seconds` is the time limit of each TLS handshake. Return the exit status: 0 after an orderly end, 3 if
    the server could not start or listen.
    """
    try:
        with asyncio.Runner(loop_factory=lambda: _Loop(handshake_seconds)) as runner:
            runner.run(server.serve())
    except KeyboardInterrupt:
        pass  # uvicorn raises the signal again after an orderly shutdown
    return 0 if server.started else _CANNOT_START


class _Loop(uvloop.Loop):
    """An event loop whose servers limit the time of a TLS handshake. uvicorn has no setting for this limit."""

    def __init__(self, handshake_seconds: float) -> None:
        super().__init__()
        self._handshake_seconds = handshake_seconds

    async def create_server(self, *arguments: Any, **named: Any) -> asyncio.AbstractServer:  # type: ignore[override]
        if named.get("ssl") is not None:
            named.setdefault("ssl_handshake_timeout", self._handshake_seconds)
        return await super().create_server(*arguments, **named)


def main(arguments: list[str] | None = None) -> int:
    """Run the service until a signal stops it.

    `arguments` are the words of the command line; None means the words with which this process was started. Return the
    exit status: 0 after an orderly end, 2 for an invalid setting, 3 if the service could not start.
    """
    parser = argparse.ArgumentParser(prog="python -m qa_cluster.api", description="The REST service of qa-cluster.")
    parser.add_argument("--config", help="TOML file with settings")
    for name, flag, help in _FLAGS:
        parser.add_argument(flag, dest=name, help=f"{help} ({name})")
    parser.add_argument(
        "--without-keys",
        dest="http_without_keys",
        action="store_const",
        const="true",
        help="listen on addresses other than loopback without API keys (http_without_keys)",
    )
    parser.add_argument("--access-log", action="store_true", help="log every request")
    hide_typed_passwords()
    given = parser.parse_args(arguments)
    flags = {
        name: text for name, text in vars(given).items() if text is not None and name not in ("config", "access_log")
    }
    try:
        loaded = load(given.config, flags=flags)
        settings = loaded.settings
        certificate = certificate_of(settings)
        options = service_options(settings)
        asyncio.run(check_keys(options, settings.http_host))
        logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        if loaded.foreign:
            _log.info("ignored environment variables that are not settings: %s", ", ".join(loaded.foreign))
        app = application(settings, options, certificate)
        server = server_of(app, settings, certificate, access_log=given.access_log)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return serve(server, settings.http_head_timeout_ms / 1000)


if __name__ == "__main__":
    sys.exit(main())
