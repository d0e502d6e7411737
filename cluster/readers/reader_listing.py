"""Lists the readers on the shards, and finds a reader by name."""

from __future__ import annotations

from collections.abc import Iterable

import redis

from qa_cluster.errors import InvalidInput, NotFound

from ..nodes.all_shards import ClusterOperation, until_all
from ..nodes.node import Node
from . import shard_readers
from .shard_readers import ShardReader


def listing(operation: ClusterOperation) -> dict[str, list[ShardReader]]:
    """Return the readers and encoders of each shard, by the address of the shard. Raises ClusterError if a worker does
    not answer in time.
    """
    found: dict[str, list[ShardReader]] = {}

    def read(node: Node, client: redis.Redis) -> str:
        found[node.address] = shard_readers.readers_on(client)
        return ""

    until_all(operation, read, "the readers of the shards could not be listed")
    return found


def find(found: dict[str, list[ShardReader]], model: str) -> str:
    """Return the full name (``id@revision``) of the loaded reader or encoder that `model` names.

    `model` is an id or a full name. Raises NotFound, which lists all loaded readers and encoders, if nothing matches.
    Raises InvalidInput, which lists the revisions, if several match.
    """
    names = sorted({entry.name for entries in found.values() for entry in entries})
    matching = _matching(names, model)
    if not matching:
        raise NotFound(f"model {model!r} is not loaded, loaded are: {', '.join(names) or 'none'}")
    if len(matching) > 1:
        raise InvalidInput(f"model {model!r} is loaded in {len(matching)} revisions, choose one: {', '.join(matching)}")
    return matching[0]


def _matching(names: Iterable[str], model: str) -> list[str]:
    """Return those of the full names `names` that `model` means. If `model` is an id, all revisions of this id match.
    If `model` is a full name, only this name matches.
    """
    matching = [name for name in names if model in (name, name.rpartition("@")[0])]
    return [model] if model in matching else matching


def incomplete_readers(operation: ClusterOperation, found: dict[str, list[ShardReader]]) -> dict[str, list[str]]:
    """Return the readers whose model is on a shard although `found` does not list the reader for this shard.

    The result has the addresses of these shards by the name of the reader. There are two possible causes: a command is
    loading the reader now, or a command that loaded the reader was killed and has left the reader's model.
    """
    known = {address: {entry.name for entry in entries} for address, entries in found.items()}
    holding: dict[str, list[str]] = {}

    def read(node: Node, client: redis.Redis) -> str:
        for name in shard_readers.named_models(client) - known.get(node.address, set()):
            holding.setdefault(name, []).append(node.address)
        return ""

    until_all(operation, read, "the models of the shards could not be listed")
    return {name: sorted(addresses) for name, addresses in sorted(holding.items())}


def find_incomplete(left: dict[str, list[str]], model: str) -> str:
    """Return the full name of the reader in `left` that `model` means, or an empty text if no reader matches. `left` is
    the result of `incomplete_readers`. Raises InvalidInput if several readers match.
    """
    matching = _matching(left, model)
    if len(matching) > 1:
        raise InvalidInput(f"model {model!r} is stored in {len(matching)} revisions, choose one: {', '.join(matching)}")
    return "".join(matching)
