"""Trigger `qa.rank`: finds this shard's best sentences for a question, with what the caller needs to merge shards.

Each partition has an index of its own, a key on its shard. All are asked twice: first for the frequencies of the
question's terms, then, with the sums of these, for their best sentences. The best of all replies are thus the best of
the shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.gears.functions.shard import partitions, slots
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import epoch_key, flight_key, index_key
from qa_cluster.ranking.terms import question_terms
from qa_cluster.shard_functions import MAX_QUESTION_CHARS, MAX_RANK_COUNT, RANK_TRIGGER

# Sentences beyond the requested count: the order by all shards' frequencies differs a little from the order here.
EXTRA_CANDIDATES = 8


async def on_rank(arguments: list[Any]) -> str:
    """Trigger ``qa.rank count question``: one JSON object with the best sentences and what is needed to merge them."""
    if len(arguments) < 3:
        raise InvalidInput(f"{RANK_TRIGGER} takes a count and a question")
    count, question = _count(arguments[1]), arguments[2]
    if not isinstance(question, str):
        raise InvalidInput("question is not valid UTF-8")
    if len(question) > MAX_QUESTION_CHARS:
        raise InputTooLong(f"question has {len(question)} code points, the limit is {MAX_QUESTION_CHARS}")
    try:
        return _rank(await partitions.local_tags(), count, question)
    except rg.error as error:
        if not slots.is_redirect(error):
            raise
    # A partition has just left this shard, as a new look at the slot table shows, or it is still moving.
    slots.forget()
    try:
        return _rank(await partitions.local_tags(), count, question)
    except rg.error as error:
        if not slots.is_redirect(error):
            raise
        return f"-TRYAGAIN a partition of this shard is on its way to another: {error}"


def _count(value: Any) -> int:
    if (
        not isinstance(value, str)
        or not value.isascii()
        or not value.isdigit()
        or not 1 <= int(value) <= MAX_RANK_COUNT
    ):
        raise InvalidInput(f"count must be 1 to {MAX_RANK_COUNT}, got {value!r}"[:200])
    return int(value)


def _rank(tags: Sequence[str], count: int, question: str) -> str:
    terms = question_terms(question)
    epochs, sentences, terms_total, frequencies = _statistics(tags, terms)
    wanted = min(count + EXTRA_CANDIDATES, MAX_RANK_COUNT)
    reply = {
        "epochs": epochs,
        "sentences": sentences,
        "terms_total": terms_total,
        "terms": terms,
        "df": frequencies,
        "candidates": _candidates(tags, list(zip(terms, frequencies, strict=True)), sentences, wanted),
    }
    return orjson.dumps(reply).decode()


def _statistics(tags: Sequence[str], terms: Sequence[str]) -> tuple[dict[str, int], int, int, list[int]]:
    """The epoch of each partition; the numbers of all sentences and of all their terms; the frequency of each term."""
    commands: list[tuple[object, ...]] = []
    for tag in tags:
        # The second key makes the server refuse all commands while the partition's slot is moving.
        commands.append(("MGET", epoch_key(tag), flight_key(tag)))
        commands.append(("QA.INDEX.STATS", index_key(tag), "TERMS", len(terms), *terms))
    replies = rg.execute_many(commands)
    epochs = {tag: int(epoch or 0) for tag, (epoch, _) in zip(tags, replies[::2], strict=True)}
    found = replies[1::2]
    frequencies = [sum(column) for column in zip(*(each[2] for each in found), strict=True)] or [0] * len(terms)
    return epochs, sum(each[0] for each in found), sum(each[1] for each in found), frequencies


def _candidates(
    tags: Sequence[str], terms: Sequence[tuple[str, int]], sentences: int, count: int
) -> list[tuple[str, list[float]]]:
    """The best sentences' keys, best first, each with its weight for every term."""
    if not any(frequency for _, frequency in terms):
        return []
    words = [word for pair in terms for word in pair]
    replies = rg.execute_many(
        [("QA.INDEX.RANK", index_key(tag), count, sentences, "TERMS", len(terms), *words) for tag in tags]
    )
    best = [
        (-float(score), f"{document}:{{{tag}}}:{sentence}", weights)
        for tag, reply in zip(tags, replies, strict=True)
        for document, sentence, score, weights in reply[3]
    ]
    best.sort(key=lambda hit: hit[:2])
    return [(key, [float(weight) for weight in weights]) for _, key, weights in best[:count]]
