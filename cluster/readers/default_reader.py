"""Makes a stored reader the default of every shard, even while slots move and replicas are promoted.

The default of a shard is in keys with the tag of its lowest slot. If this slot moves, the shard copies the default of
another shard, which may still be the previous default. So if the default of a shard is not the reader that this command
has set, the command checks the slots of the shard. If the slots have changed, the command sets the default again.
Otherwise, another command has set the default, and this command fails.
"""

from __future__ import annotations

import redis

from qa_cluster.errors import ClusterError

from ..nodes.all_shards import ClusterOperation, until_all
from ..nodes.connect import shards_of
from ..nodes.node import Node, nodes_of
from . import shard_readers

_Layout = tuple[tuple[tuple[int, int], ...], int]


def change(operation: ClusterOperation, name: str) -> None:
    """Make the reader `name`, which is warm on all shards, the default. Wait until every shard answers with this
    reader.

    Raises ClusterError if a shard cannot be reached in time, or if another command changes the default meanwhile. The
    error names the default of each shard.
    """
    operation.on_step(f"making {name} the default")
    started = _Change(name)
    try:
        until_all(operation, started.make, "")
        until_all(operation, started.answers, "")
    except ClusterError as error:
        raise ClusterError(
            f"{name} is the default on only some shards ({_defaults(operation)}; {error}). All shards still answer."
            f" Repeat the command, or run `qa-cluster model use {name}`, when every shard can be reached"
        ) from error


class _Change:
    """A change of the default reader to `name`. It keeps the slots that each shard had when its default was set."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._layouts: dict[str, _Layout] = {}

    def make(self, node: Node, client: redis.Redis) -> str:
        """Set the default reader of one shard. Return the problem that prevents this, or an empty string."""
        problem = shard_readers.make_default(node, client, self._name)
        if not problem:
            self._layouts[node.id] = _layout(node)
        return problem

    def answers(self, node: Node, client: redis.Redis) -> str:
        """Return the problem that prevents a shard from answering only with the new default, or an empty string. If the
        slots of the shard have moved, set its default again. Raises ClusterError if another command has set the
        default.
        """
        stored = shard_readers.default_on(node, client)
        if stored not in ("", self._name):
            now = next(found for found in nodes_of(client) if "myself" in found.flags)
            if self._layouts.get(node.id) == _layout(now):
                raise ClusterError(f"another command made {stored} the default of shard {node.address} meanwhile")
            return self.make(now, client) or "its slots have moved, and its worker loads the default again"
        entry = next((entry for entry in shard_readers.readers_on(client) if entry.default), None)
        if entry is None or entry.name != self._name:
            return f"its worker still answers with {entry.name if entry is not None else 'none'}"
        return "" if entry.settled else "it still removes the cached answers of the previous default"


def _layout(node: Node) -> _Layout:
    """Return the slots and the configuration epoch of a node. The epoch changes even if slots move away and back."""
    return node.slots, node.config_epoch


def _defaults(operation: ClusterOperation) -> str:
    """Return one line for an error: each default reader with the addresses of the shards that have it."""
    holders: dict[str, list[str]] = {}
    with shards_of(operation.settings, operation.url) as shards:
        for node, client in shards:
            try:
                name = shard_readers.default_on(node, client) or "none"
            except redis.exceptions.RedisError:
                name = "not reachable"
            holders.setdefault(name, []).append(node.address)
    return "; ".join(f"{name}: {', '.join(addresses)}" for name, addresses in holders.items())
