"""From settings to an open engine: addresses, login, TLS and limits; for the REST service and the cluster client."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError, InvalidInput
from qa_cluster.topology import Address

from .connection import Login
from .engine import Engine, EngineOptions
from .questions import AskLimits

_SCHEMES = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster to connect to."""

    seeds: Sequence[Address]
    login: Login
    options: EngineOptions

    async def open(self) -> Engine:
        """Connect to it."""
        return await Engine.open(self.seeds, self.login, self.options)


def target_of(settings: Settings) -> Target:
    """The cluster of the setting `cluster_url`: ``redis[s]://[user:password@]host:port[,host:port..]``."""
    parts = urlsplit(settings.cluster_url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    if parts.scheme not in _SCHEMES or not hosts:
        raise ConfigError(
            "setting 'cluster_url' must be redis://host:port or rediss://host:port: it names the cluster to ask"
        )
    user, _, password = credentials.partition(":")
    try:
        seeds = [Address.parse(host) for host in hosts.split(",")]
    except InvalidInput as error:
        raise ConfigError(f"setting 'cluster_url': {error}") from error
    login = Login(
        username=settings.cluster_user or unquote(user) or None,
        password=settings.cluster_password or unquote(password) or None,
        tls=_tls(settings) if _SCHEMES[parts.scheme] else None,
        connect_timeout_seconds=settings.connect_timeout_ms / 1000,
    )
    return Target(seeds, login, _engine_options(settings))


def _tls(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.cluster_tls_ca or None)
        if settings.cluster_tls_cert:
            context.load_cert_chain(settings.cluster_tls_cert, settings.cluster_tls_key or None)
    except OSError as error:
        raise ConfigError(f"TLS files of the cluster cannot be used: {error}") from error
    return context


def _engine_options(settings: Settings) -> EngineOptions:
    return EngineOptions(
        near_cache_entries=settings.near_cache_entries,
        near_cache_ttl_seconds=settings.near_cache_ttl_s,
        whole_answer_ttl_seconds=settings.whole_answer_ttl_s,
        waves=settings.waves,
        pipeline_max_requests=settings.pipeline_max_requests,
        limits=AskLimits(
            question_max_chars=settings.question_max_chars,
            top_k_max=settings.top_k_max,
            retriever_k=settings.retriever_k,
            timeout_ms=settings.request_timeout_ms,
        ),
    )
