"""Moves slots between the primaries of a cluster, while the cluster stays in use, until each primary has its share.

The steps are the same as in ``redis-cli --cluster rebalance``:

1. Mark the slot as importing on the target and as migrating on the source.
2. Migrate the keys of the slot in batches.
3. Tell every server the new owner.

`rebalance` first moves the slots that are still migrating because an earlier call was interrupted. So the call can be
repeated. A shard first gives away its highest slots. So keys with the hash tag of the shard's lowest slot do not move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import redis

from qa_cluster.errors import ClusterError
from qa_cluster.keys import SLOTS

from .connect import ShardClient
from .node import Node, command, nodes_of
from .polling import POLL_SECONDS

BATCH_KEYS = 64
BATCH_SLOTS = 128
MIGRATE_TIMEOUT_MS = 60_000
# How long a move waits for a server. A server that has just joined or lost contact refuses commands on keys until it
# reaches the other servers.
PATIENCE_SECONDS = 60.0
TEMPORARY = ("CLUSTERDOWN", "LOADING", "IOERR")

_RETRY_SECONDS = 0.1


@dataclass(frozen=True)
class Move:
    """The move of a slot between two primaries, given by their node ids."""

    slot: int
    source: str
    target: str


def plan(nodes: Sequence[Node]) -> list[Move]:
    """Return the fewest moves that give every primary in `nodes` its equal share of the slots. `nodes` may include
    primaries without slots.

    If the slots cannot be divided evenly, the first primaries in `nodes` get one slot more than the others.

    >>> node = lambda name, *slots: Node(name, "h", 1, frozenset(), "", True, slots)
    >>> [(move.slot, move.target) for move in plan([node("a", (0, 16381)), node("b", (16382, 16383))])][:2]
    [(16381, 'b'), (16380, 'b')]
    """
    quotas = [SLOTS // len(nodes) + (index < SLOTS % len(nodes)) for index in range(len(nodes))]
    surplus: list[tuple[int, str]] = []
    for node, quota in zip(nodes, quotas, strict=True):
        owned = [slot for first, last in node.slots for slot in range(first, last + 1)]
        surplus += [(slot, node.id) for slot in reversed(owned[quota:])]
    moves: list[Move] = []
    for node, quota in zip(nodes, quotas, strict=True):
        for _ in range(quota - node.slot_count):
            slot, source = surplus.pop(0)
            moves.append(Move(slot, source, node.id))
    return moves


def rebalance(
    shards: Sequence[ShardClient], *, password: str = "", on_move: Callable[[int, int], None] | None = None
) -> int:
    """Give every primary in `shards` its equal share of the slots. Return the number of moved slots.

    `password` is the password of the cluster, which a source needs to send keys to a target. `on_move` receives the
    number of slots that have been moved so far, and the number of slots to move.
    """
    moves = _left_open(shards)
    opened = {move.slot for move in moves}
    nodes = [_without(node, moves) for node, _ in shards]
    moves += [move for move in plan(nodes) if move.slot not in opened]
    move_slots(moves, shards, password=password, on_move=on_move)
    return len(moves)


def move_slots(
    moves: Sequence[Move],
    shards: Sequence[ShardClient],
    *,
    password: str = "",
    on_move: Callable[[int, int], None] | None = None,
) -> None:
    """Make the given moves.

    Slots with keys are moved one by one, so that each slot migrates only briefly. Empty slots are moved in batches. For
    `password` and `on_move`, see `rebalance`.
    """
    done = 0
    for batch in _batches(moves, shards):
        _move(batch, shards, password)
        done += len(batch)
        if on_move is not None:
            on_move(done, len(moves))


def _batches(moves: Sequence[Move], shards: Sequence[ShardClient]) -> Iterator[list[Move]]:
    clients = {node.id: client for node, client in shards}
    for source in dict.fromkeys(move.source for move in moves):
        from_source = [move for move in moves if move.source == source]
        with clients[source].pipeline(transaction=False) as pipeline:
            for move in from_source:
                command(pipeline, "CLUSTER", "COUNTKEYSINSLOT", move.slot)
            counts = pipeline.execute()
        yield from ([move] for move, count in zip(from_source, counts, strict=True) if count)
        empty = [move for move, count in zip(from_source, counts, strict=True) if not count]
        for target in dict.fromkeys(move.target for move in empty):
            to_target = [move for move in empty if move.target == target]
            for first in range(0, len(to_target), BATCH_SLOTS):
                yield to_target[first : first + BATCH_SLOTS]


def _left_open(shards: Sequence[ShardClient]) -> list[Move]:
    known = {node.id for node, _ in shards}
    return [Move(slot, node.id, target) for node, _ in shards for slot, target in node.leaving if target in known]


def _without(node: Node, moves: Sequence[Move]) -> Node:
    """Return `node` with the slots that it will own after `moves`."""
    slots = {slot for first, last in node.slots for slot in range(first, last + 1)}
    slots -= {move.slot for move in moves if move.source == node.id}
    slots |= {move.slot for move in moves if move.target == node.id}
    return replace(node, slots=tuple((slot, slot) for slot in sorted(slots)))


def _move(moves: Sequence[Move], shards: Sequence[ShardClient], password: str) -> None:
    """Move the slots of `moves`, which all have the same source and the same target. After an interruption at any
    point, the call can be repeated. Raises ClusterError if the servers refuse or do not answer.
    """
    by_id = {node.id: (node, client) for node, client in shards}
    source_id, target_id = moves[0].source, moves[0].target
    (_, source), (target_node, target) = by_id[source_id], by_id[target_id]
    numbers = [move.slot for move in moves]
    try:
        _wait_for_epoch(source_id, source, target)
        _set_slots(target, numbers, "IMPORTING", source_id)
        _set_slots(source, numbers, "MIGRATING", target_id)
        for number in numbers:
            _move_keys(source, number, target_node, password)
        # Tell the target first. Then the slot has an owner with all keys, even if this process dies before it has told
        # the others.
        for client in (target, source, *(c for node, c in shards if node.id not in (source_id, target_id))):
            _set_slots(client, numbers, "NODE", target_id)
    except redis.exceptions.RedisError as error:
        raise ClusterError(f"slot {numbers[0]} could not be moved; repeat the command to continue: {error}") from error


def _wait_for_epoch(source_id: str, source: redis.Redis, target: redis.Redis) -> None:
    """Wait until the target knows the configuration epoch of the source, for at most `PATIENCE_SECONDS`.

    As the new owner, the target chooses an epoch above all epochs that it knows. A source that has just received slots
    has a new epoch. If the target does not know this epoch, it may choose a lower epoch. Then an old message of the
    source makes the target return the slot, the source does not accept the slot, and no server serves it.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        (own,) = (node.config_epoch for node in nodes_of(source) if node.id == source_id)
        if any(node.id == source_id and node.config_epoch >= own for node in nodes_of(target)):
            return
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the target did not learn within {PATIENCE_SECONDS:.0f} s that the source {source_id[:8]} has epoch"
                f" {own}: check that the servers can reach each other's cluster bus"
            )
        time.sleep(POLL_SECONDS)


def _set_slots(client: redis.Redis, numbers: Sequence[int], state: str, node_id: str) -> None:
    """Send CLUSTER SETSLOT with `state` and `node_id` for each of the slots `numbers`. One pipeline sends all commands,
    so that the server writes its cluster file only once.
    """
    with client.pipeline(transaction=False) as pipeline:
        for number in numbers:
            command(pipeline, "CLUSTER", "SETSLOT", number, state, node_id)
        pipeline.execute()


def _move_keys(source: redis.Redis, number: int, target: Node, password: str) -> None:
    """Migrate all keys of the slot `number` to `target`. After an error in `TEMPORARY`, try again. If the target
    accepts no key for `PATIENCE_SECONDS`, raise the error.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while names := command(source, "CLUSTER", "GETKEYSINSLOT", number, BATCH_KEYS):
        try:
            _migrate(source, target, names, password)
            deadline = time.monotonic() + PATIENCE_SECONDS
        except redis.exceptions.ResponseError as error:
            if time.monotonic() > deadline or not any(word in str(error) for word in TEMPORARY):
                raise
            time.sleep(_RETRY_SECONDS)


def _migrate(source: redis.Redis, target: Node, names: Sequence[bytes | str], password: str) -> None:
    login = ("AUTH", password) if password else ()
    # An interrupted run can leave a key on both servers. The source still serves the key, so the value on the source is
    # valid.
    try:
        command(source, "MIGRATE", target.host, target.port, "", 0, MIGRATE_TIMEOUT_MS, *login, "KEYS", *names)
    except redis.exceptions.ResponseError as error:
        if "BUSYKEY" not in str(error):
            raise
        command(
            source, "MIGRATE", target.host, target.port, "", 0, MIGRATE_TIMEOUT_MS, "REPLACE", *login, "KEYS", *names
        )


def all_primaries(client: redis.Redis) -> list[Node]:
    """Return all running primaries of the cluster, including primaries without slots."""
    return [node for node in nodes_of(client) if node.met and not node.primary_id and not node.failed]
