"""Forms one cluster from servers on any hosts. Also reconnects servers after their addresses have changed.

Each step asks the servers what is missing, and adds only that. So a step can be repeated, interrupted, or run twice at
the same time. In contrast, `formation` forms the local cluster in a single run. Each `deadline` is a value of
`time.monotonic`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

import redis

from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, ConfigError
from qa_cluster.routing.cluster_address import address_of
from qa_cluster.topology import Address

from .all_shards import OnStep
from .cluster_secrets import allow_replication, replication_password
from .connect import TlsRefused, server_client
from .formation import Servers, introduce, pause, slot_ranges, wait_whole
from .node import Node, command, nodes_of, text_of


def join_servers(settings: Settings, on_step: OnStep = lambda text: None) -> None:
    """Form one cluster from the servers in `cluster_url`. The first `shards` servers become primaries, the other
    servers become their replicas.

    A server keeps the slots that it owns. Raises ConfigError if the settings contradict each other. Raises ClusterError
    if a server does not answer, has data outside a cluster, or `start_timeout_ms` ends.
    """
    addresses = _addresses(settings)
    deadline = time.monotonic() + settings.start_timeout_ms / 1000
    with ExitStack() as stack:
        clients = {
            address: stack.enter_context(server_client(settings, settings.cluster_url, address))
            for address in addresses
        }
        try:
            on_step(f"waiting for {len(addresses)} servers")
            _wait_for(clients, deadline)
            for address, client in clients.items():
                _need_empty_or_joined(address, client)
            if password := replication_password(settings):
                for client in clients.values():
                    allow_replication(client, password)
            on_step("introducing the servers to each other")
            introduce(clients, deadline)
            _share_slots(list(clients.values()), settings.shards)
            _follow(list(clients.values()), settings.shards, deadline)
            on_step("waiting until the cluster is complete")
            wait_whole(list(clients.values()), len(addresses), deadline)
        except redis.exceptions.RedisError as error:
            raise ClusterError(f"a server failed while the cluster was formed: {error}") from error


def _addresses(settings: Settings) -> list[Address]:
    """Return the servers in `cluster_url`, in order. Raises ConfigError if a server is named twice, or if the number of
    servers does not match the settings `shards` and `replicas`.
    """
    found = list(address_of(settings).seeds)
    wanted = settings.shards * (1 + settings.replicas)
    if len(set(found)) != len(found) or len(found) != wanted:
        raise ConfigError(
            f"setting 'cluster_url' names {len(set(found))} servers, but {settings.shards} shards with"
            f" {settings.replicas} replicas each need {wanted}: name every server once, primaries first, or change"
            " 'shards' and 'replicas'"
        )
    return found


def _wait_for(clients: Servers, deadline: float) -> None:
    """Wait until each server answers. Raises ConfigError if two addresses lead to the same server. Raises ClusterError
    if a server refuses the login or TLS, is not in cluster mode, or does not answer before the deadline.
    """
    found: dict[Address, str] = {}
    for address, client in clients.items():
        while address not in found:
            try:
                found[address] = text_of(command(client, "CLUSTER", "MYID"))
            except (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError) as error:
                raise ClusterError(f"{address} refused the login: {error}; check setting 'cluster_password'") from error
            except redis.exceptions.ResponseError as error:
                if "LOADING" not in str(error):  # "This instance has cluster support disabled"
                    raise ClusterError(f"{address} cannot join a cluster: {error}") from error
                pause(deadline, f"{address} still loads its data")
            except TlsRefused as error:
                raise ClusterError(str(error)) from error
            except redis.exceptions.RedisError as error:
                pause(deadline, f"{address}: {error}")
    if len(set(found.values())) != len(found):
        raise ConfigError(f"setting 'cluster_url' names a server twice: {', '.join(map(str, found))}")


def _need_empty_or_joined(address: Address, client: redis.Redis) -> None:
    """Raise ClusterError if a server outside a cluster has keys, because their slots will belong to other servers."""
    nodes = nodes_of(client)
    if len(nodes) == 1 and not nodes[0].slots and client.dbsize():
        raise ClusterError(
            f"{address} is not in a cluster and holds data: empty the server, or remove it from 'cluster_url'"
        )


def _share_slots(clients: Sequence[redis.Redis], shards: int) -> None:
    """Give each primary its even share of the slots. Skip shares in which a server already owns a slot."""
    # Ask each server for its own slots, because other servers may have outdated information.
    owned = [span for client in clients for span in _own(client).slots]
    taken = {slot for first, last in owned for slot in range(first, last + 1)}
    for client, (first, last) in zip(clients, slot_ranges(shards), strict=False):
        if not taken & set(range(first, last + 1)):
            command(client, "CLUSTER", "ADDSLOTSRANGE", first, last)


def _own(client: redis.Redis) -> Node:
    return next(node for node in nodes_of(client) if "myself" in node.flags)


def _follow(clients: Sequence[redis.Redis], shards: int, deadline: float) -> None:
    """Make every server after the first `shards` servers a replica, spread evenly over the first servers.

    Skip servers that are already replicas, or that own slots, for example after a failover. If a first server is itself
    a replica now, use its primary instead.
    """
    for index, client in enumerate(clients[shards:]):
        own = _own(client)
        if own.primary_id or own.slots:
            continue
        first = _own(clients[index % shards])
        primary = first.primary_id or first.id
        while primary not in {node.id for node in nodes_of(client)}:
            pause(deadline, f"{own.address} does not know its primary yet")
        command(client, "CLUSTER", "REPLICATE", primary)
