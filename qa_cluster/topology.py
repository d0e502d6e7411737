"""The map from slots to shards, parsed from the reply of `CLUSTER SLOTS`."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ClusterError, InvalidInput
from .keys import SLOTS

DEFAULT_PORT = 6379
_URL_END = re.compile(r"[/?#]")


class NotServed(ClusterError):
    """No shard serves the slot: the slot's primary failed, and no replica has replaced it yet."""


def split_cluster_url(url: str) -> tuple[str, str]:
    """Split a cluster's URL into its scheme and its servers, with user and password; both are empty without ``://``.

    The servers stay one text, separated by commas. `urllib` in recent Python versions refuses a list of servers that
    has an IPv6 address after the first server.

    >>> split_cluster_url("redis://me:secret@a:7000,[fd00::1]:7001/0")
    ('redis', 'me:secret@a:7000,[fd00::1]:7001')
    """
    scheme, separator, rest = url.strip().partition("://")
    return (scheme.lower(), _URL_END.split(rest, maxsplit=1)[0]) if separator else ("", "")


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """The address of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse ``host:port``, ``host`` or ``[v6]:port``; InvalidInput for any other text.

        Without a port, the port is `DEFAULT_PORT`.

        >>> Address.parse("127.0.0.1:7000")
        Address(host='127.0.0.1', port=7000)
        """
        host, separator, port = text.strip().rpartition(":")
        if not separator or (text.endswith("]") and text.startswith("[")):
            host, port = text.strip(), str(DEFAULT_PORT)
        is_whole = host.startswith("[") == host.endswith("]")
        host = host.removeprefix("[").removesuffix("]")
        if not (host and is_whole) or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise InvalidInput(f"not an address of the form host:port: {text!r}")
        return cls(host, int(port))


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard: the primary server with the node id `node_id`, and the address of this server."""

    node_id: str
    address: Address

    @property
    def name(self) -> str:
        """The short name shown to users: the first eight digits of the node id."""
        return self.node_id[:8]


class Topology:
    """The primaries of a cluster and the slots that they serve.

    Args:
        ranges: the ranges of slots, in any order: the first slot, the last slot (inclusive), and the shard that serves
            them. A shard may have several ranges. No two ranges overlap.
        spared: the shards that have a replica. The replica replaces the primary if the primary fails.

    Attributes:
        shards: all shards that serve slots, in the order of their lowest slots.
        covered: the number of slots that are served.
    """

    def __init__(self, ranges: Iterable[tuple[int, int, Shard]], spared: Iterable[Shard] = ()) -> None:
        self.spared = frozenset(spared)
        ordered = sorted(ranges, key=lambda entry: entry[0])
        self._starts = [start for start, _, _ in ordered]
        self._ranges = ordered
        self.shards: tuple[Shard, ...] = tuple(dict.fromkeys(shard for _, _, shard in ordered))
        self.covered = sum(end - start + 1 for start, end, _ in ordered)

    @property
    def whole(self) -> bool:
        """Whether every slot is served."""
        return self.covered == SLOTS

    def shard_of(self, slot: int) -> Shard:
        """Return the primary that serves `slot`; NotServed if no primary does."""
        index = bisect_right(self._starts, slot) - 1
        if index >= 0 and slot <= self._ranges[index][1]:
            return self._ranges[index][2]
        raise NotServed(f"slot {slot} is served by no shard ({self.covered} of {SLOTS} slots are)")

    def ranges_of(self, shard: Shard) -> list[tuple[int, int]]:
        """Return the first and the last slot of every range that `shard` serves, in ascending order."""
        return [(start, end) for start, end, owner in self._ranges if owner == shard]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(tuple(self._ranges))


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def parse_slots(reply: Sequence[Any], asked: Address) -> Topology:
    """Parse the reply of `CLUSTER SLOTS`. A node without a host gets the host of `asked`, the server that replied."""
    ranges: list[tuple[int, int, Shard]] = []
    spared: set[Shard] = set()
    for entry in reply:
        start, end, primary, *replicas = entry
        host, port, node_id = _text(primary[0]), int(primary[1]), _text(primary[2])
        shard = Shard(node_id, Address(asked.host if host in ("", "?") else host, port))
        ranges.append((int(start), int(end), shard))
        if replicas:  # the reply leaves out failed replicas
            spared.add(shard)
    if not ranges:
        raise ClusterError(f"{asked} serves a cluster without slots: create it first (qa-cluster up)")
    return Topology(ranges, spared)


def parse_redirect(text: str, asked: Address) -> tuple[int, Address]:
    """Parse the error ``MOVED <slot> <host>:<port>`` or ``ASK <slot> <host>:<port>`` into slot and address.

    `asked` is the server that sent the error. An empty host in `text` means the host of `asked`.
    """
    _, slot, where = text.split(" ", 2)
    host, _, port = where.rpartition(":")
    return int(slot), Address(host.removeprefix("[").removesuffix("]") or asked.host, int(port))
