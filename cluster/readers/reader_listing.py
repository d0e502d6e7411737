"""Finds which readers are on the shards, and which of them a name means."""

from __future__ import annotations

import redis

from qa_cluster.errors import InvalidInput, NotFound

from ..nodes.all_shards import Place, until_all
from ..nodes.node import Node
from . import shard_readers
from .shard_readers import ShardReader


def listing(place: Place) -> dict[str, list[ShardReader]]:
    """The readers of each shard, by its address; ClusterError if a worker does not answer in time."""
    found: dict[str, list[ShardReader]] = {}

    def look(node: Node, client: redis.Redis) -> str:
        found[node.address] = shard_readers.readers_on(client)
        return ""

    until_all(place, look, "the shards' readers are not known")
    return found


def find(found: dict[str, list[ShardReader]], model: str) -> str:
    """The full name of a loaded reader; NotFound names the loaded readers, InvalidInput those that fit."""
    names = sorted({entry.name for entries in found.values() for entry in entries})
    fitting = [name for name in names if model in (name, name.rpartition("@")[0])]
    if model in fitting:
        return model
    if not fitting:
        raise NotFound(f"model {model!r} is not loaded, loaded are: {', '.join(names) or 'none'}")
    if len(fitting) > 1:
        raise InvalidInput(f"model {model!r} is loaded in {len(fitting)} revisions, choose one: {', '.join(fitting)}")
    return fitting[0]


def parts(place: Place, found: dict[str, list[ShardReader]]) -> dict[str, list[str]]:
    """Readers that are not in `found` and whose model is on some shards, with the addresses of these shards.

    They are being loaded, or a command that was killed left them behind.
    """
    known = {address: {entry.name for entry in entries} for address, entries in found.items()}
    holding: dict[str, list[str]] = {}

    def look(node: Node, client: redis.Redis) -> str:
        for name in shard_readers.named_models(client) - known.get(node.address, set()):
            holding.setdefault(name, []).append(node.address)
        return ""

    until_all(place, look, "the shards' models are not known")
    return {name: sorted(addresses) for name, addresses in sorted(holding.items())}


def find_part(left: dict[str, list[str]], model: str) -> str:
    """The full name of a reader that is partly stored, empty for none; InvalidInput for an id that fits several."""
    fitting = [name for name in left if model in (name, name.rpartition("@")[0])]
    if len(fitting) > 1 and model not in fitting:
        raise InvalidInput(f"{len(fitting)} revisions of model {model!r} are stored, choose one: {', '.join(fitting)}")
    return model if model in fitting else "".join(fitting)
