"""Makes redis-py clients for administration, each for one server of the cluster, with the login of the settings."""

from __future__ import annotations

import re
import ssl
from dataclasses import replace
from functools import cache
from socket import socket
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError
from qa_cluster.routing.cluster_address import ClusterAddress, address_of
from qa_cluster.security.tls import explain_closed, explain_failure
from qa_cluster.topology import Address

from .node import Node, nodes_of, primaries

_ADMIN_TIMEOUT_SECONDS = 120.0
# redis-py's words for a connection that was ended, and for one that was not made
_ENDED = re.compile(r"Error while reading from \S+ : \(\d+, ['\"](.*)['\"]\)")
_REFUSED = re.compile(r"Error \d+ connecting to \S+\. (.*?)\.?$")

# A primary and a client for it.
ShardClient = tuple[Node, redis.Redis]


class NotRunning(ClusterError):
    """There is no cluster, or it cannot be reached."""


class TlsRefused(redis.exceptions.ConnectionError):
    """One side did not take the other's certificate, or only one of them speaks TLS: to try again would not help."""


class _HungUp(redis.exceptions.ConnectionError):
    """A server with TLS has ended the connection without a word; it may be starting or ending."""


class _TlsConnection(redis.SSLConnection):
    """redis-py's connection with a context of ours: its own would trust the system's authorities beside the named one.

    The two methods that it replaces are those of redis-py 8; `tests/cluster/test_tls.py` notices others.
    """

    context: ssl.SSLContext

    def _wrap_socket_with_ssl(self, sock: socket) -> ssl.SSLSocket:
        try:
            return self.context.wrap_socket(sock, server_hostname=self.host)
        except ssl.SSLError as error:
            raise TlsRefused(f"{self.host}:{self.port}: {explain_failure(error)}") from error

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Log in; with TLS 1.3 a server refuses a client's certificate only then."""
        try:
            super().on_connect_check_health(check_health)
        except redis.exceptions.ConnectionError as error:
            if found := explain_failure(error):
                raise TlsRefused(f"{self.host}:{self.port}: {found}") from error
            if type(error) is redis.exceptions.ConnectionError:  # it may have gone before its alert could be read
                raise _HungUp(f"{self.host}:{self.port}: {explain_closed(error, tls=True)}") from error
            raise


def login(settings: Settings, url: str) -> dict[str, Any]:
    """Keyword arguments of redis-py for the servers of the cluster at `url`. Never log them: they hold the password."""
    place = _place(settings, url)
    options: dict[str, Any] = {
        "username": place.login.username,
        "password": place.login.password,
        "socket_connect_timeout": settings.connect_timeout_ms / 1000,
        "socket_timeout": _ADMIN_TIMEOUT_SECONDS,
        "driver_info": _driver(),
    }
    if place.login.tls is not None:
        options["connection_class"] = type("TlsConnection", (_TlsConnection,), {"context": place.login.tls})
    return options


@cache
def _driver() -> redis.DriverInfo:
    """What redis-py tells servers about itself; by default it finds that out again for each client, and slowly."""
    return redis.DriverInfo()


def _place(settings: Settings, url: str) -> ClusterAddress:
    return address_of(replace(settings, cluster_url=url))


def server_client(settings: Settings, url: str, address: Address, **changes: Any) -> redis.Redis:
    """A client of one server. It does not retry: callers report a server that is down."""
    options = login(settings, url) | changes
    if "connection_class" in options:
        pool = redis.ConnectionPool(host=address.host, port=address.port, retry=Retry(NoBackoff(), 0), **options)
        return redis.Redis.from_pool(pool)
    return redis.Redis(host=address.host, port=address.port, retry=Retry(NoBackoff(), 0), **options)


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
            raise ClusterError(
                f"{address} refused the login: {str(error).rstrip('.')}; see setting 'cluster_password'"
                " (QA_CLUSTER_PASSWORD), or the user and password in 'cluster_url'"
            ) from error
        except (TlsRefused, _HungUp) as error:
            client.close()
            problems.append(str(error))
        except redis.exceptions.RedisError as error:
            client.close()
            problems.append(f"{address}: {unreached(error, tls=_place(settings, url).login.tls is not None)}")
    raise NotRunning(f"no server of the cluster answers: {'; '.join(problems)}")


def unreached(error: redis.exceptions.RedisError, *, tls: bool) -> str:
    """Why a server could not be reached, in words without its address."""
    if found := explain_failure(error):
        return found
    if ended := _ENDED.match(str(error)):
        return explain_closed(ConnectionError(ended[1]), tls=tls)
    refused = _REFUSED.match(str(error))
    return refused[1] if refused else str(error)


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
        # of an address redis-py makes its connections by the class that it is given
        return redis.RedisCluster.from_url(f"redis://{options['host']}:{options['port']}", **login(settings, url))


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
