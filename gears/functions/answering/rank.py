"""Trigger `qa.rank`: finds this shard's best sentences for a question, with what the caller needs to merge shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.gears.functions.answering.arguments import check_number, within_limit
from qa_cluster.gears.functions.answering.timing import CallTimes
from qa_cluster.gears.functions.shard import partitions, slots
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import DEFAULT_COLLECTION, check_collection
from qa_cluster.ranking.filters import MAX_FILTER_BYTES
from qa_cluster.ranking.ranker import parse_statistics, rank_commands, ranking_of, statistics_commands
from qa_cluster.ranking.terms import question_terms
from qa_cluster.shard_functions import MAX_RANK_COUNT, RANK_TRIGGER

# Sentences beyond the requested count: the order by all shards' frequencies differs a little from the order here.
EXTRA_CANDIDATES = 8


async def on_rank(arguments: list[Any]) -> str:
    """Trigger ``qa.rank count question [filter [collection [traceparent]]]``: the best sentences, and what merges them.

    The filter is in its binary form, written in hex; an empty one admits all. The reply is JSON; with a `traceparent`
    it has `times`.
    """
    times = CallTimes.begin(arguments) if len(arguments) == 6 else None
    if times is not None:
        arguments = arguments[:-1]
    if len(arguments) not in (3, 4, 5):
        raise InvalidInput(f"{RANK_TRIGGER} takes a count, a question and perhaps a filter and a collection")
    packed_filter = _filter(arguments[3]) if len(arguments) > 3 else b""
    collection = check_collection(arguments[4]) if len(arguments) > 4 else DEFAULT_COLLECTION
    count, question = check_number(arguments[1], "count", 1, MAX_RANK_COUNT), within_limit(arguments[2])
    try:
        ranked = await _rank_settled(count, question, packed_filter, collection)
    except rg.error as error:
        if not slots.is_redirect(error):
            raise
        return f"-TRYAGAIN a partition of this shard is on its way to another: {error}"
    return orjson.dumps(ranked if times is None else {**ranked, "times": times.report()}).decode()


async def _rank_settled(count: int, question: str, packed_filter: bytes, collection: str) -> dict[str, Any]:
    """`_rank`; once more where a partition has just left this shard, as a new look at the slot table shows."""
    try:
        return _rank(await partitions.local_tags(), count, question, packed_filter, collection)
    except rg.error as error:
        if not slots.is_redirect(error):
            raise
    slots.forget()
    return _rank(await partitions.local_tags(), count, question, packed_filter, collection)


def _filter(value: Any) -> bytes:
    if isinstance(value, str) and len(value) > 2 * MAX_FILTER_BYTES:
        raise InputTooLong(f"filter has {len(value) // 2} bytes, the limit is {MAX_FILTER_BYTES}")
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"filter must be in hex, got {value!r}"[:200]) from error


def _rank(tags: Sequence[str], count: int, question: str, packed_filter: bytes, collection: str) -> dict[str, Any]:
    terms = question_terms(question)
    wanted = min(count + EXTRA_CANDIDATES, MAX_RANK_COUNT)
    replies = rg.execute_many(statistics_commands(tags, terms, collection))
    statistics = parse_statistics(tags, terms, replies, collection)
    replies = rg.execute_many(rank_commands(statistics, wanted, packed_filter))
    ranking = ranking_of(statistics, replies, wanted)
    parts = {
        tag: (each.sentences, each.frequencies, each.identity, each.next_id) for tag, each in ranking.parts.items()
    }
    return {
        "epochs": ranking.epochs,
        "sentences": ranking.sentences,
        "terms": ranking.terms,
        "df": ranking.frequencies,
        "parts": parts,
        "candidates": [(item.sentence, item.weights, item.place) for item in ranking.candidates],
    }
