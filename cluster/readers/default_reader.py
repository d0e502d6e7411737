"""Makes a stored reader the default one of every shard, also while slots move and replicas are promoted.

A shard's default is in keys with the tag of its lowest slot. When that slot moves, the shard takes the default of
another shard, which may still be the former one. So if a shard has another default than this command has set, and its
slots have changed since, the default is set again. If they have not changed, another command has set it, and this one
fails.
"""

from __future__ import annotations

from contextlib import ExitStack

import redis

from qa_cluster.errors import ClusterError

from ..nodes.all_shards import Place, until_all
from ..nodes.connect import shards_of
from ..nodes.node import Node, nodes_of
from . import shard_readers

_Layout = tuple[tuple[tuple[int, int], ...], int]


def change(place: Place, name: str) -> None:
    """Make a reader that is warm on all shards the default, and wait until no shard answers with another one.

    It raises `ClusterError`, which names the default of each shard, if a shard cannot be reached in time or another
    command makes another reader the default meanwhile.
    """
    place.on_step(f"making {name} the default")
    under_way = _Change(name)
    try:
        until_all(place, under_way.make, "")
        until_all(place, under_way.answers, "")
    except ClusterError as error:
        raise ClusterError(
            f"{name} is the default on some shards and not on others ({_defaults(place)}; {error}): all of them answer;"
            f" repeat the command, or `qa-cluster model use {name}`, when the shard can be reached"
        ) from error


class _Change:
    """One change of the default, with the slots that each shard had when its default was set."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._layouts: dict[str, _Layout] = {}

    def make(self, node: Node, client: redis.Redis) -> str:
        """Set the default of one shard; return the problem that prevents it, or nothing."""
        problem = shard_readers.make_default(node, client, self._name)
        if not problem:
            self._layouts[node.id] = _layout(node)
        return problem

    def answers(self, node: Node, client: redis.Redis) -> str:
        """What still prevents a shard from answering with the new default only, or nothing."""
        stored = shard_readers.default_on(node, client)
        if stored not in ("", self._name):
            now = next(found for found in nodes_of(client) if "myself" in found.flags)
            if self._layouts.get(node.id) == _layout(now):
                raise ClusterError(f"shard {node.address} got {stored} as its default from another command meanwhile")
            return self.make(now, client) or "its slots have moved: its worker must load the default again"
        entry = next((entry for entry in shard_readers.readers_on(client) if entry.default), None)
        if entry is None or entry.name != self._name:
            return f"its worker still answers with {entry.name if entry is not None else 'none'}"
        return "" if entry.settled else "cached answers of the former one are being removed"


def _layout(node: Node) -> _Layout:
    """A node's slots and its epoch, which differs if slots have left and come back."""
    return node.slots, node.config_epoch


def _defaults(place: Place) -> str:
    """The default of each shard, as far as the shards can be asked, in words."""
    holders: dict[str, list[str]] = {}
    with ExitStack() as stack:
        for node, client in shards_of(place.settings, place.url):
            stack.enter_context(client)
            try:
                name = shard_readers.default_on(node, client) or "none"
            except redis.exceptions.RedisError:
                name = "not reachable"
            holders.setdefault(name, []).append(node.address)
    return "; ".join(f"{name}: {', '.join(addresses)}" for name, addresses in holders.items())
