"""Derives the address of a cluster and the login from the settings: servers, user, password and TLS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError, InvalidInput
from qa_cluster.security.local_password import local_servers
from qa_cluster.security.tls import TlsFiles
from qa_cluster.topology import Address, split_cluster_url

from .connection import Login

_SCHEMES = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The first servers to connect to, and the login for all servers of the cluster."""

    seeds: Sequence[Address]
    login: Login


def credentials_of(settings: Settings) -> tuple[str, str]:
    """Return user and password for the cluster; empty if unset.

    The settings `cluster_user` and `cluster_password` have priority over the user and the password in `cluster_url`.
    """
    user, _, password = split_cluster_url(settings.cluster_url)[1].rpartition("@")[0].partition(":")
    return settings.cluster_user or unquote(user), settings.cluster_password or unquote(password)


def address_of(settings: Settings) -> ClusterAddress:
    """Return the servers that the setting `cluster_url` names, and the login for them.

    The form of `cluster_url` is ``redis[s]://[user:password@]host:port[,host:port..]``. The scheme may also be
    ``valkey`` or ``valkeys``.

    Raises:
        ConfigError: `cluster_url` has a different form, or a TLS file cannot be used.
    """
    scheme, servers = split_cluster_url(settings.cluster_url)
    hosts = servers.rpartition("@")[2]
    if scheme not in _SCHEMES or not hosts:
        raise ConfigError(
            "setting 'cluster_url' must be redis://host:port or rediss://host:port: it names the cluster to ask"
        )
    user, password = credentials_of(settings)
    try:
        seeds = [Address.parse(host) for host in hosts.split(",")]
    except InvalidInput as error:
        raise ConfigError(f"setting 'cluster_url': {error}") from error
    tls = tls_files(settings).context() if _SCHEMES[scheme] else None
    only = local_servers(password, settings.data_dir.expanduser(), map(str, seeds)) if tls is None else None
    login = Login(
        username=user or None,
        password=password or None,
        tls=tls,
        connect_timeout_seconds=settings.connect_timeout_ms / 1000,
        only=only,
    )
    return ClusterAddress(seeds, login)


def tls_files(settings: Settings) -> TlsFiles:
    """Return the TLS files for connections to the cluster, from the settings."""
    return TlsFiles(
        settings.cluster_tls_ca, settings.cluster_tls_cert, settings.cluster_tls_key, settings.cluster_tls_check_host
    )
