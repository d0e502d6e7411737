"""Finds free loopback ports for cluster nodes. A node needs its port and its bus port, which is 10000 higher.

A port is free if it can be bound now. If another program takes the port before the server does, the server fails to
start, and `LocalCluster.up` tries another port.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from qa_cluster.errors import ClusterError, ConfigError

BUS_OFFSET = 10_000
HIGHEST = 65_535 - BUS_OFFSET
# The range of the ports that this module chooses at random. These ports and their bus ports are below 32768. Otherwise,
# an outgoing connection could take the port of a stopped node.
_LOWEST_CHOSEN, _HIGHEST_CHOSEN = 15_000, 20_999
HOST = "127.0.0.1"
_LOWEST_NEAR = 1024  # lower ports need root rights
_ATTEMPTS = 2000


def is_free(port: int, host: str = HOST) -> bool:
    """Return whether `port` can be bound on `host` now."""
    try:
        bind_once(port, host)
    except OSError:
        return False
    return True


def bind_once(port: int, host: str) -> None:
    """Bind `port` on `host`, and release the port. Raises OSError if the port cannot be bound."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def is_free_for_node(port: int) -> bool:
    """Return whether `port` and its bus port are both valid and free."""
    return 0 < port <= HIGHEST and is_free(port) and is_free(port + BUS_OFFSET)


def free_node_ports(count: int, *, avoid: Collection[int] = ()) -> list[int]:
    """Return `count` free ports for cluster nodes, chosen at random. All these ports and their bus ports differ from
    each other, and from the ports in `avoid` and their bus ports. Raises ClusterError if too few ports are found.
    """
    taken = {port for used in avoid for port in (used, used + BUS_OFFSET)}
    found: list[int] = []
    for _ in range(_ATTEMPTS):
        if len(found) == count:
            return found
        port = random.randint(_LOWEST_CHOSEN, _HIGHEST_CHOSEN)
        if not {port, port + BUS_OFFSET} & taken and is_free_for_node(port):
            found.append(port)
            taken |= {port, port + BUS_OFFSET}
    raise ClusterError(
        f"found only {len(found)} of {count} free port pairs (port and port + {BUS_OFFSET}) on {HOST}: choose the"
        " ports with setting 'first_port'"
    )


def node_ports_near(used: Collection[int], count: int) -> list[int]:
    """Return `count` free ports for additional nodes of a cluster: first the next ports above `used`, the ports of the
    cluster, then the ports below them. Raises ClusterError if there are too few free ports.
    """
    taken = {port for each in used for port in (each, each + BUS_OFFSET)}
    found: list[int] = []
    for port in (*range(max(used) + 1, HIGHEST + 1), *range(min(used) - 1, _LOWEST_NEAR - 1, -1)):
        if len(found) == count:
            break
        if not {port, port + BUS_OFFSET, port - BUS_OFFSET} & taken and is_free_for_node(port):
            found.append(port)
            taken |= {port, port + BUS_OFFSET}
    if len(found) < count:
        raise ClusterError(
            f"found only {len(found)} of {count} free port pairs (port and port + {BUS_OFFSET}) on {HOST} near"
            f" {max(used)}, up to port {HIGHEST}"
        )
    return found


def node_ports_from(first: int, count: int) -> list[int]:
    """Return the `count` consecutive ports that start with `first`. Raises ConfigError, which names the port, if a
    cluster node cannot use one of these ports.
    """
    chosen = list(range(first, first + count))
    if chosen[-1] > HIGHEST:
        raise ConfigError(
            f"setting 'first_port' is {first}: the last of {count} servers would get port {chosen[-1]}, but the limit"
            f" is {HIGHEST} (its bus port is {BUS_OFFSET} higher)"
        )
    for port in chosen:
        need_for_node(port, first)
    return chosen


def need_for_node(port: int, first: int) -> None:
    """Raise ConfigError if `port` or its bus port cannot be bound. `first` is the value of setting 'first_port'."""
    for wanted in (port, port + BUS_OFFSET):
        try:
            bind_once(wanted, HOST)
        except OSError as error:
            raise ConfigError(
                f"setting 'first_port' is {first}: port {wanted} cannot be used: {error.strerror} (a server needs its"
                f" port and its bus port, {BUS_OFFSET} higher); choose another 'first_port'"
            ) from error


def next_free(port: int, host: str = HOST, tries: int = 100) -> int:
    """Return the first free port from `port` to `port + tries`, both inclusive. Raises ClusterError if none of these
    ports is free.
    """
    for candidate in range(port, min(port + tries, 65_535) + 1):
        if is_free(candidate, host):
            return candidate
    raise ClusterError(f"no free port on {host} from {port} to {min(port + tries, 65_535)}")
