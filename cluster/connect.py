"""redis-py clients for administration: one server of the cluster at a time, with the login of the settings."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

import redis

from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, ConfigError, InvalidInput
from qa_cluster.topology import Address

from .topology import Node, nodes_of, primaries

_SCHEMES = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
_ADMIN_TIMEOUT_SECONDS = 120.0


class NotRunning(ClusterError):
    """There is no cluster to talk to, or it cannot be reached."""


def seeds(url: str) -> list[Address]:
    """The servers that ``redis[s]://[user:password@]host:port[,host:port..]`` names."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    if parts.scheme not in _SCHEMES or not hosts:
        raise ConfigError("setting 'cluster_url' must be redis://host:port or rediss://host:port")
    try:
        return [Address.parse(host) for host in hosts.split(",")]
    except InvalidInput as error:
        raise ConfigError(f"setting 'cluster_url': {error}") from error


def login(settings: Settings, url: str) -> dict[str, Any]:
    """Keyword arguments of redis-py for every server of the cluster at `url`; never logged, they hold the password."""
    parts = urlsplit(url)
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    options: dict[str, Any] = {
        "username": settings.cluster_user or unquote(user) or None,
        "password": settings.cluster_password or unquote(password) or None,
        "socket_connect_timeout": settings.connect_timeout_ms / 1000,
        "socket_timeout": _ADMIN_TIMEOUT_SECONDS,
    }
    if _SCHEMES[parts.scheme]:
        options |= {
            "ssl": True,
            "ssl_ca_certs": settings.cluster_tls_ca or None,
            "ssl_certfile": settings.cluster_tls_cert or None,
            "ssl_keyfile": settings.cluster_tls_key or None,
        }
    return options


def server_client(settings: Settings, url: str, address: Address) -> redis.Redis:
    """A client of one server."""
    return redis.Redis(host=address.host, port=address.port, **login(settings, url))


def seed_client(settings: Settings, url: str) -> redis.Redis:
    """A client of the first server named in `url` that answers; NotRunning when none does."""
    problems = []
    for address in seeds(url):
        client = server_client(settings, url, address)
        try:
            client.ping()
            return client
        except redis.exceptions.AuthenticationError as error:
            client.close()
            raise ClusterError(f"{address} refused the login: {error}") from error
        except redis.exceptions.RedisError as error:
            client.close()
            problems.append(f"{address}: {error}")
    raise NotRunning(f"no server of the cluster answers: {'; '.join(problems)}")


def cluster_client(settings: Settings, url: str) -> redis.RedisCluster:
    """redis-py's cluster client: it follows slots that move."""
    with seed_client(settings, url) as seed:
        options = seed.connection_pool.connection_kwargs
        return redis.RedisCluster(host=str(options["host"]), port=int(options["port"]), **login(settings, url))


def shards_of(settings: Settings, url: str) -> list[tuple[Node, redis.Redis]]:
    """The primaries of the cluster, the one with the lowest slot first, and a client of each."""
    with seed_client(settings, url) as seed:
        try:
            found = primaries(nodes_of(seed))
        except redis.exceptions.ResponseError as error:
            raise ClusterError(f"the server at that address is not part of a cluster: {error}") from error
    if not found:
        raise ClusterError("the cluster has no primary that owns slots")
    return [(node, server_client(settings, url, Address(node.host, node.port))) for node in found]
