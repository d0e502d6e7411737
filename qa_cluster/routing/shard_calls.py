"""Calls of the functions on a shard; those of a recorded question ask for their times, which become its parts."""

from __future__ import annotations

import asyncio
from time import monotonic, perf_counter
from typing import Any

import orjson

from qa_cluster.errors import ClusterError, ReplyError
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.shard_functions import NOT_REGISTERED, RANK_TRIGGER, READ_TRIGGER
from qa_cluster.topology import Shard
from qa_cluster.tracing import Fact, ShardTimes, TracedStep, step

from .shards import Shards

# Shards compare their functions every 2 s, and then send what another one lacks.
REGISTERED_WITHIN_SECONDS = 5.0
REGISTERED_PAUSE_SECONDS = 0.1


async def read_sentences(shards: Shards, shard: Shard, model: str, question: str, sentences: list[str]) -> list[Any]:
    """The replies of `qa.read` on a shard, one for each sentence."""
    with step(READ_TRIGGER, is_call=True) as call:
        if call is None:
            return await _trigger(shards, shard, READ_TRIGGER, model, question, *sentences)
        call.note({**shard_facts(shard), "qa.sentences": len(sentences)})
        # A shard of an earlier version takes the name of the step for one more sentence, which does not exist.
        replies = await _trigger(shards, shard, READ_TRIGGER, model, question, *sentences, call.traceparent)
        if len(replies) > len(sentences):
            _put(call, replies.pop())
        return replies


async def rank_on(
    shards: Shards, shard: Shard, count: int, question: str, *, packed_filter: str, collection: str
) -> dict[str, Any] | ReplyError:
    """What `qa.rank` answers on a shard, or the error in its place; the filter is in hex, empty for none."""
    given = (packed_filter,) if packed_filter else ()
    arguments = (question, *given) if collection == DEFAULT_COLLECTION else (question, packed_filter, collection)
    with step(RANK_TRIGGER, is_call=True) as call:
        if call is None:
            return _part(await _trigger(shards, shard, RANK_TRIGGER, count, *arguments))
        call.note(shard_facts(shard))
        traced = (question, packed_filter, collection, call.traceparent)
        try:
            part = _part(await _trigger(shards, shard, RANK_TRIGGER, count, *traced))
        except ReplyError as error:
            if f"{RANK_TRIGGER} takes" not in str(error):
                raise
            # an earlier version of the shard's functions, which takes no name of a step
            return _part(await _trigger(shards, shard, RANK_TRIGGER, count, *arguments))
        if isinstance(part, dict):
            _put(call, part.pop("times", None))
        return part


async def _trigger(shards: Shards, shard: Shard, name: str, *arguments: str | int) -> list[Any]:
    """The reply of a function on a shard.

    A shard that has just joined gets its functions from the others: until then it is asked again, for some seconds.
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
    """The error of a shard on which nobody has registered the function."""
    return ClusterError(f"the function {name} is not registered on shard {shard.address}: run `qa-cluster up`")


def _part(reply: list[Any]) -> dict[str, Any] | ReplyError:
    if reply and isinstance(reply[0], ReplyError):
        return reply[0]
    try:
        part = orjson.loads(reply[0])
    except (orjson.JSONDecodeError, IndexError, TypeError) as error:
        raise ClusterError(f"a shard's reply to {RANK_TRIGGER} cannot be read: {error!r}") from error
    if not isinstance(part, dict):
        raise ClusterError(f"a shard's reply to {RANK_TRIGGER} cannot be read: it is no object")
    return part


def shard_facts(shard: Shard) -> dict[str, Fact]:
    """What a trace says of the shard of a call."""
    return {"server.address": shard.address.host, "server.port": shard.address.port, "qa.shard": shard.name}


def _put(call: TracedStep, reported: object) -> None:
    """Add what the shard reports to a call that has just ended."""
    times, ended = ShardTimes.parse(reported, call.traceparent), perf_counter()
    if times is not None:
        for part in times.parts(ended if call.sent_at is None else call.sent_at, ended):
            call.put(part.name, part.begun, part.ended, part.facts)
