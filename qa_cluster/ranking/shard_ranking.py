"""How partitions are ranked: what their indexes are asked, and what becomes of the replies.

Each partition has an index of its own. They are asked twice: for how common the question's terms are, and then, with
the sums, for their best sentences, so that the best of all replies are the best of these partitions. A shard's worker
asks those of its shard, for ``qa.rank``; a service asks those of all shards itself. This file makes the commands and
reads their replies; to send them is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qa_cluster.keys import DEFAULT_COLLECTION, collection_prefix, epoch_key, flight_key, index_key, layout_key
from qa_cluster.ranking.bm25 import written_order

Command = tuple[str | int | bytes, ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a collection's partitions hold of a question's terms; `frequencies` has a row for each partition."""

    tags: tuple[str, ...]
    terms: tuple[str, ...]
    epochs: tuple[int, ...]
    sentences: tuple[int, ...]
    frequencies: tuple[tuple[int, ...], ...]
    collection: str = DEFAULT_COLLECTION

    @property
    def sums(self) -> list[int]:
        """How many sentences of these partitions hold each term."""
        return [sum(column) for column in zip(*self.frequencies, strict=True)] or [0] * len(self.terms)


def statistics_commands(
    tags: Sequence[str], terms: Sequence[str], collection: str = DEFAULT_COLLECTION
) -> list[Command]:
    """To be sent one after the other; `parse_statistics` reads their replies."""
    commands: list[Command] = []
    for tag in tags:
        # The second key keeps all from being answered while the partition's slot is on its way.
        commands.append(("MGET", epoch_key(tag, collection), flight_key(tag)))
        commands.append(("QA.INDEX.STATS", index_key(tag, collection), "TERMS", len(terms), *terms))
    return commands


def analyzer_commands(tags: Sequence[str]) -> list[Command]:
    """Which version of the analyzer made the terms of each partition; nil where no sweep has ended yet."""
    return [("HGET", layout_key(tag), "analyzer") for tag in tags]


def parse_statistics(
    tags: Sequence[str], terms: Sequence[str], replies: Sequence[Any], collection: str = DEFAULT_COLLECTION
) -> Statistics:
    """The replies to `statistics_commands` of the same tags, terms and collection."""
    found = replies[1::2]
    return Statistics(
        tuple(tags),
        tuple(terms),
        tuple(int(epoch or 0) for epoch, _ in replies[::2]),
        tuple(each[0] for each in found),
        tuple(tuple(each[2]) for each in found),
        collection,
    )


def rank_commands(statistics: Statistics, count: int, packed_filter: bytes = b"") -> list[Command]:
    """To be sent one after the other; `rank_reply` reads their replies. A filter is in its binary form."""
    chosen = ("FILTER", packed_filter) if packed_filter else ()
    words = [word for pair in zip(statistics.terms, statistics.sums, strict=True) for word in pair]
    sentences = sum(statistics.sentences)
    return [
        (
            "QA.INDEX.RANK",
            index_key(tag, statistics.collection),
            count,
            sentences,
            *chosen,
            "TERMS",
            len(statistics.terms),
            *words,
        )
        for tag in statistics.tags
    ]


def rank_reply(statistics: Statistics, replies: Sequence[Any], count: int) -> dict[str, Any]:
    """The reply to ``qa.rank``, for `qa_cluster.ranking.bm25.merge`; from the replies to `rank_commands`."""
    parts: dict[str, Any] = {}
    hits: list[tuple[float, tuple[str, int, int], str, list[float], int]] = []
    prefix = collection_prefix(statistics.collection)
    scores = sorted((float(hit[2]) for reply in replies for hit in reply[3]), reverse=True)
    least = scores[:count][-1] if scores else 0.0
    rows = zip(statistics.tags, statistics.sentences, statistics.frequencies, replies, strict=True)
    for tag, sentences, frequencies, (_, _, _, found, (identity, next_id), places) in rows:
        parts[tag] = [sentences, frequencies, identity, next_id]
        for (document, number, score, weights), place in zip(found, places, strict=True):
            if float(score) < least:
                break  # an index names its best first
            key = f"{prefix}{_text(document)}:{{{tag}}}:{number}"
            weighed = [float(weight) for weight in weights]
            hits.append((-float(score), written_order(key, place), key, weighed, place))
    hits.sort(key=lambda hit: hit[:2])
    return {
        "epochs": dict(zip(statistics.tags, statistics.epochs, strict=True)),
        "sentences": sum(statistics.sentences),
        "terms": statistics.terms,
        "df": statistics.sums,
        "parts": parts,
        "candidates": [hit[2:] for hit in hits[:count]],
    }


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
