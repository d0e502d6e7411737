"""Creates redis-py clients for administration, each for one server, with the login from the settings."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
from qa_cluster.routing.connection import ConnectionLost, Login
from qa_cluster.security.tls import explain_closed, explain_failure
from qa_cluster.topology import Address

from .node import Node, nodes_of, primaries

_ADMIN_TIMEOUT_SECONDS = 120.0
# redis-py's messages for closed connections and for refused connections
_ENDED = re.compile(r"Error while reading from \S+ : \(\d+, ['\"](.*)['\"]\)")
_REFUSED = re.compile(r"Error \d+ connecting to \S+\. (.*?)\.?$")

# A primary, and a client of this server.
ShardClient = tuple[Node, redis.Redis]


class NotRunning(ClusterError):
    """The cluster is not running or cannot be reached."""


class TlsRefused(redis.exceptions.ConnectionError):
    """A certificate was refused, or only one side uses TLS. Retrying would not help."""


class _ClosedByServer(redis.exceptions.ConnectionError):
    """A server with TLS closed the connection without an error message. The server may be starting or stopping."""


class _TlsConnection(redis.SSLConnection):
    """redis-py's connection with the TLS context of qa-cluster.

    The default context of redis-py also trusts the authorities of the system. This class overrides two methods of
    redis-py 8; `tests/cluster/test_tls.py` fails if a later version changes them.
    """

    context: ssl.SSLContext

    def _wrap_socket_with_ssl(self, sock: socket) -> ssl.SSLSocket:
        try:
            return self.context.wrap_socket(sock, server_hostname=self.host)
        except ssl.SSLError as error:
            raise TlsRefused(f"{self.host}:{self.port}: {explain_failure(error)}") from error

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Log in. With TLS 1.3, a server may refuse the client's certificate only at this time."""
        try:
            super().on_connect_check_health(check_health)
        except redis.exceptions.ConnectionError as error:
            if found := explain_failure(error):
                raise TlsRefused(f"{self.host}:{self.port}: {found}") from error
            # The server closed the connection before its TLS alert could be read.
            if type(error) is redis.exceptions.ConnectionError:
                raise _ClosedByServer(f"{self.host}:{self.port}: {explain_closed(error, tls=True)}") from error
            raise


class _GuardedConnection(redis.Connection):
    """redis-py's connection, which logs in only at servers that may receive the password."""

    login: Login

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Log in. Raise redis-py's ConnectionError if the server must not receive the password."""
        try:
            self.login.need(self.host, self.port)
        except ConnectionLost as error:
            raise redis.exceptions.ConnectionError(str(error)) from error
        super().on_connect_check_health(check_health)


def login(settings: Settings, url: str) -> dict[str, Any]:
    """Return redis-py arguments for the servers of the cluster at `url`. Never log them, because they contain the
    password.
    """
    place = _place(settings, url)
    options: dict[str, Any] = {
        "username": place.login.username,
        "password": place.login.password,
        "socket_connect_timeout": settings.connect_timeout_ms / 1000,
        "socket_timeout": _ADMIN_TIMEOUT_SECONDS,
        "driver_info": _driver(),
    }
    if place.login.only is not None:
        options["connection_class"] = type("GuardedConnection", (_GuardedConnection,), {"login": place.login})
    if place.login.tls is not None:
        options["connection_class"] = type("TlsConnection", (_TlsConnection,), {"context": place.login.tls})
    return options


@cache
def _driver() -> redis.DriverInfo:
    """Return redis-py's description of itself for servers. The result is cached, because computing it is slow."""
    return redis.DriverInfo()


def _place(settings: Settings, url: str) -> ClusterAddress:
    return address_of(replace(settings, cluster_url=url))


def server_client(settings: Settings, url: str, address: Address, **changes: Any) -> redis.Redis:
    """Return a client of the server at `address`. The client does not retry, because callers report a server that is
    down. `url` is the address of the cluster, and `changes` override arguments of `redis.Redis`.
    """
    options = login(settings, url) | changes
    if "connection_class" in options:
        pool = redis.ConnectionPool(host=address.host, port=address.port, retry=Retry(NoBackoff(), 0), **options)
        return redis.Redis.from_pool(pool)
    return redis.Redis(host=address.host, port=address.port, retry=Retry(NoBackoff(), 0), **options)


def seed_client(settings: Settings, url: str, **changes: Any) -> redis.Redis:
    """Return a client of the first server in `url` that answers. Raises NotRunning if no server answers, and
    ClusterError if a server refuses the login.

    `changes` override arguments of `redis.Redis`.
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
                f"{address} refused the login: {str(error).rstrip('.')}; check setting 'cluster_password'"
                " (QA_CLUSTER_PASSWORD), or the user and password in 'cluster_url'"
            ) from error
        except (TlsRefused, _ClosedByServer) as error:
            client.close()
            problems.append(str(error))
        except redis.exceptions.RedisError as error:
            client.close()
            problems.append(f"{address}: {unreached(error, tls=_place(settings, url).login.tls is not None)}")
    raise NotRunning(f"no server of the cluster answers: {'; '.join(problems)}")


def unreached(error: redis.exceptions.RedisError, *, tls: bool) -> str:
    """Return the reason why a server could not be reached, as text without the server's address. `tls` says whether the
    client uses TLS.
    """
    if found := explain_failure(error):
        return found
    if ended := _ENDED.match(str(error)):
        return explain_closed(ConnectionError(ended[1]), tls=tls)
    refused = _REFUSED.match(str(error))
    return refused[1] if refused else str(error)


def _answers(client: redis.Redis) -> None:
    """Raise an error if the server does not answer.

    A server that cannot write to its disk refuses PING (MISCONF), but this is an answer, too.
    """
    try:
        client.ping()
    except redis.exceptions.ResponseError as error:
        if not str(error).startswith("MISCONF"):
            raise


def host_and_port(client: redis.Redis) -> str:
    """Return the host and the port of a client's server, as `host:port`."""
    options = client.connection_pool.connection_kwargs
    return f"{options['host']}:{options['port']}"


def cluster_client(settings: Settings, url: str) -> redis.RedisCluster:
    """Return redis-py's client of the whole cluster, which finds the new shard of a slot that has moved."""
    with seed_client(settings, url) as seed:
        # `from_url` is used, because the constructor ignores the connection class in the arguments
        return redis.RedisCluster.from_url(f"redis://{host_and_port(seed)}", **login(settings, url))


@contextmanager
def shards_of(settings: Settings, url: str) -> Iterator[list[ShardClient]]:
    """Yield the primaries of the cluster in the order of their slots, each with a client."""
    with seed_client(settings, url) as seed:
        try:
            found = primaries(nodes_of(seed))
        except redis.exceptions.ResponseError as error:
            raise ClusterError(f"the server at {host_and_port(seed)} is not part of a cluster: {error}") from error
    if not found:
        raise ClusterError("the cluster has no primary that owns slots: form it with `qa-cluster up --form`")
    with ExitStack() as stack:
        yield [
            (node, stack.enter_context(server_client(settings, url, Address(node.host, node.port)))) for node in found
        ]
