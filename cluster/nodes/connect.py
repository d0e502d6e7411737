"""Makes redis-py clients for administration, each for one server of the cluster, with the login of the settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError
from qa_cluster.routing.cluster_place import ClusterPlace, place_of
from qa_cluster.topology import Address

from .node import Node, nodes_of, primaries

_ADMIN_TIMEOUT_SECONDS = 120.0

# A primary and a client for it.
ShardClient = tuple[Node, redis.Redis]


class NotRunning(ClusterError):
    """There is no cluster, or it cannot be reached."""


def login(settings: Settings, url: str) -> dict[str, Any]:
    """Keyword arguments of redis-py for the servers of the cluster at `url`. Never log them: they hold the password."""
    place = _place(settings, url)
    options: dict[str, Any] = {
        "username": place.login.username,
        "password": place.login.password,
        "socket_connect_timeout": settings.connect_timeout_ms / 1000,
        "socket_timeout": _ADMIN_TIMEOUT_SECONDS,
    }
    if place.login.tls is not None:
        options |= {
            "ssl": True,
            "ssl_ca_certs": settings.cluster_tls_ca or None,
            "ssl_certfile": settings.cluster_tls_cert or None,
            "ssl_keyfile": settings.cluster_tls_key or None,
        }
    return options


def _place(settings: Settings, url: str) -> ClusterPlace:
    return place_of(replace(settings, cluster_url=url))


def server_client(settings: Settings, url: str, address: Address, **changes: Any) -> redis.Redis:
    """A client of one server. It does not retry: callers report a server that is down."""
    return redis.Redis(
        host=address.host, port=address.port, retry=Retry(NoBackoff(), 0), **login(settings, url) | changes
    )


def seed_client(settings: Settings, url: str, **changes: Any) -> redis.Redis:
    """A client of the first server named in `url` that answers; NotRunning if none does.

    `changes` replace arguments of `redis.Redis`.
    """
    problems = []
    for address in _place(settings, url).seeds:
        client = server_client(settings, url, address, **changes)
        try:
            _answers(client)
            return client
        except redis.exceptions.AuthenticationError as error:
            client.close()
            raise ClusterError(f"{address} refused the login: {error}") from error
        except redis.exceptions.RedisError as error:
            client.close()
            problems.append(f"{address}: {error}")
    raise NotRunning(f"no server of the cluster answers: {'; '.join(problems)}")


def _answers(client: redis.Redis) -> None:
    """Raise unless the server answers; one that cannot write to its disk refuses a PING, but does answer."""
    try:
        client.ping()
    except redis.exceptions.ResponseError as error:
        if not str(error).startswith("MISCONF"):
            raise


def cluster_client(settings: Settings, url: str) -> redis.RedisCluster:
    """redis-py's cluster client: it follows slots that move."""
    with seed_client(settings, url) as seed:
        options = seed.connection_pool.connection_kwargs
        return redis.RedisCluster(host=str(options["host"]), port=int(options["port"]), **login(settings, url))


def shards_of(settings: Settings, url: str) -> list[ShardClient]:
    """The primaries of the cluster, the one with the lowest slot first, and a client of each."""
    with seed_client(settings, url) as seed:
        try:
            found = primaries(nodes_of(seed))
        except redis.exceptions.ResponseError as error:
            raise ClusterError(f"the server at that address is not part of a cluster: {error}") from error
    if not found:
        raise ClusterError("the cluster has no primary that owns slots")
    return [(node, server_client(settings, url, Address(node.host, node.port))) for node in found]
