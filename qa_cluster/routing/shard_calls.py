"""Calls of the functions on a shard. The calls of a traced question also ask for the times of their steps."""

from __future__ import annotations

import asyncio
from time import monotonic, perf_counter
from typing import Any

from qa_cluster.errors import ClusterError, ReplyError
from qa_cluster.shard_functions import NOT_REGISTERED, READ_TRIGGER
from qa_cluster.topology import Shard
from qa_cluster.tracing import Fact, ShardTimes, TracedStep, step

from .shards import Shards

# Shards compare their functions every 2 s and then send each other the missing ones.
REGISTERED_WITHIN_SECONDS = 5.0
REGISTERED_PAUSE_SECONDS = 0.1


async def read_sentences(shards: Shards, shard: Shard, model: str, question: str, sentences: list[str]) -> list[Any]:
    """Return the replies of `qa.read` on a shard, one per sentence."""
    with step(READ_TRIGGER, is_call=True) as call:
        if call is None:
            return await _trigger(shards, shard, READ_TRIGGER, model, question, *sentences)
        call.note({**shard_facts(shard), "qa.sentences": len(sentences)})
        replies = await _trigger(shards, shard, READ_TRIGGER, model, question, *sentences, call.traceparent)
        if len(replies) > len(sentences):
            _put(call, replies.pop())
        return replies


async def _trigger(shards: Shards, shard: Shard, name: str, *arguments: str | int) -> list[Any]:
    """Return the reply of a function on a shard.

    A shard that has just joined gets its functions from the other shards; until then, the call is retried for some
    seconds.
    """
    until = monotonic() + REGISTERED_WITHIN_SECONDS
    while True:
        try:
            reply = await shards.execute_on(shard, "RG.TRIGGER", name, *arguments, blocking=True)
            break
        except ReplyError as error:
            if NOT_REGISTERED not in str(error):
                raise
            if monotonic() >= until:
                raise without_function(shard, name) from error
        await asyncio.sleep(REGISTERED_PAUSE_SECONDS)
    if not isinstance(reply, list):
        raise ClusterError(f"shard {shard.address} answered {name} with {reply!r}"[:300])
    return reply


def without_function(shard: Shard, name: str) -> ClusterError:
    """The error for a shard on which the function is not registered."""
    return ClusterError(f"the function {name} is not registered on shard {shard.address}: run `qa-cluster up`")


def shard_facts(shard: Shard) -> dict[str, Fact]:
    """The attributes of a traced call that describe its shard."""
    return {"server.address": shard.address.host, "server.port": shard.address.port, "qa.shard": shard.name}


def _put(call: TracedStep, reported: object) -> None:
    """Add the times that the shard reports to a call that has just ended."""
    times, ended = ShardTimes.parse(reported, call.traceparent), perf_counter()
    if times is not None:
        for part in times.parts(ended if call.sent_at is None else call.sent_at, ended):
            call.put(part.name, part.begun, part.ended, part.facts)
