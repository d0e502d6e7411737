"""Trigger `qa.rank`: finds this shard's best sentences for a question, with what the caller needs to merge shards.

Postings are read best first, at most a bounded number of a term, and kept in memory as arrays while the epoch of their
partition stands. Terms are looked up by name: the question's words go through the same analyzer as the text's, so a
search for all words of the vocabulary in the question would find the same terms later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.gears.functions.shard import partitions, slots
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import docs_key, epoch_key, flight_key, stats_key, terms_prefix
from qa_cluster.ranking.bm25 import IdArray, TermPostings, WeightArray, select
from qa_cluster.ranking.terms import question_terms
from qa_cluster.shard_functions import MAX_QUESTION_CHARS, RANK_TRIGGER

MAX_COUNT = 1000
MAX_POSTINGS_READ = 1024
MAX_CACHED_POSTINGS = 4_000_000
# What a term costs by itself, in postings: words that no text holds are asked for too.
TERM_OVERHEAD = 64
# Beyond what was asked for: the order under all shards' frequencies differs a little from the order here.
EXTRA_CANDIDATES = 8

# A sentence's id in the arrays: number of the partition's tag, of the document, of the sentence.
_INDEX_BITS = 20
_NUMBER_BITS = 28
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1


class _Partition:
    """What is kept of a partition while its epoch stands."""

    def __init__(self, tag: str, position: int) -> None:
        self.tag = tag
        self.base = position << (_INDEX_BITS + _NUMBER_BITS)
        self.epoch = -1
        self.sentences = 0
        self.terms_total = 0
        self.documents: dict[int, str | None] = {}
        self.postings: dict[str, tuple[IdArray, WeightArray, int]] = {}
        self.postings_kept = 0

    def renew(self, epoch: int) -> None:
        """Forget what belongs to another epoch."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.documents.clear()
            self.forget_postings()

    def keep(self, term: str, postings: tuple[IdArray, WeightArray, int]) -> None:
        """Keep the postings of a term."""
        self.postings[term] = postings
        self.postings_kept += len(postings[0]) + TERM_OVERHEAD

    def forget_postings(self) -> None:
        """Make room."""
        self.postings.clear()
        self.postings_kept = 0


@dataclass
class _Index:
    """All partitions that were ever here, and the joined postings of the terms asked for last."""

    by_tag: dict[str, _Partition] = field(default_factory=dict)
    by_position: list[_Partition] = field(default_factory=list)
    joined: OrderedDict[str, tuple[tuple[tuple[str, int], ...], TermPostings]] = field(default_factory=OrderedDict)
    joined_kept: int = 0

    def partition(self, tag: str) -> _Partition:
        """The partition with that tag."""
        found = self.by_tag.get(tag)
        if found is None:
            found = self.by_tag[tag] = _Partition(tag, len(self.by_position))
            self.by_position.append(found)
        return found


async def on_rank(arguments: list[Any]) -> str:
    """Trigger ``qa.rank count question``: one JSON object."""
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
    # A partition has just left this shard, and the slot table tells which; or one is on its way.
    slots.forget()
    try:
        return _rank(await partitions.local_tags(), count, question)
    except rg.error as error:
        if not slots.is_redirect(error):
            raise
        return f"-TRYAGAIN a partition of this shard is on its way to another: {error}"


def _count(value: Any) -> int:
    if not isinstance(value, str) or not value.isascii() or not value.isdigit() or not 1 <= int(value) <= MAX_COUNT:
        raise InvalidInput(f"count must be 1 to {MAX_COUNT}, got {value!r}"[:200])
    return int(value)


def _rank(tags: Sequence[str], count: int, question: str) -> str:
    here = _current_partitions(tags)
    terms = question_terms(question)
    postings = _postings(here, terms)
    sentences = sum(partition.sentences for partition in here)
    reply = {
        "epochs": {partition.tag: partition.epoch for partition in here},
        "sentences": sentences,
        "terms_total": sum(partition.terms_total for partition in here),
        "terms": terms,
        "df": [term.frequency for term in postings],
        "candidates": _candidates(terms, postings, sentences, count + EXTRA_CANDIDATES),
    }
    return orjson.dumps(reply).decode()


def _current_partitions(tags: Sequence[str]) -> list[_Partition]:
    """The partitions on this shard, each at its current epoch."""
    here = [state.of(_Index).partition(tag) for tag in tags]
    stale = []
    # The second key keeps all from being answered while the partition's slot is on its way.
    epochs = rg.execute_many([("MGET", epoch_key(tag), flight_key(tag)) for tag in tags])
    for partition, (epoch, _) in zip(here, epochs, strict=True):
        if int(epoch or 0) != partition.epoch:
            partition.renew(int(epoch or 0))
            stale.append(partition)
    if stale:
        statistics = rg.execute_many([("HMGET", stats_key(p.tag), "sentences", "terms") for p in stale])
        for partition, (sentences, terms_total) in zip(stale, statistics, strict=True):
            partition.sentences, partition.terms_total = int(sentences or 0), int(terms_total or 0)
    return here


def _postings(here: list[_Partition], terms: list[str]) -> list[TermPostings]:
    """The postings of every term over all partitions on this shard."""
    index = state.of(_Index)
    epochs = tuple((partition.tag, partition.epoch) for partition in here)
    missing = []
    for term in terms:
        known = index.joined.get(term)
        if known is None or known[0] != epochs:
            missing.append(term)
        else:
            index.joined.move_to_end(term)
    if missing:
        _read_postings(here, missing)
        for term in missing:
            _join(here, term, epochs)
    return [index.joined[term][1] for term in terms]


def _read_postings(here: list[_Partition], terms: list[str]) -> None:
    wanted = [(partition, term) for term in terms for partition in here if term not in partition.postings]
    commands: list[tuple[object, ...]] = []
    for partition, term in wanted:
        key = terms_prefix(partition.tag) + term
        commands.append(("ZREVRANGE", key, 0, MAX_POSTINGS_READ - 1, "WITHSCORES"))
        commands.append(("ZCARD", key))
    replies = rg.execute_many(commands)
    for (partition, term), flat, frequency in zip(wanted, replies[::2], replies[1::2], strict=True):
        ids = np.array([_id(partition, member) for member in flat[::2]], dtype=np.int64)
        weights = np.array([float(score) for score in flat[1::2]], dtype=np.float32)
        partition.keep(term, (ids, weights, frequency))


def _id(partition: _Partition, member: str) -> int:
    number, _, i = member.partition(".")
    return partition.base | (int(number) << _INDEX_BITS) | int(i)


def _join(here: list[_Partition], term: str, epochs: tuple[tuple[str, int], ...]) -> None:
    index = state.of(_Index)
    parts = [partition.postings[term] for partition in here]
    joined = TermPostings.build(
        np.concatenate([ids for ids, _, _ in parts]) if parts else np.zeros(0, dtype=np.int64),
        np.concatenate([weights for _, weights, _ in parts]) if parts else np.zeros(0, dtype=np.float32),
        sum(frequency for _, _, frequency in parts),
    )
    before = index.joined.pop(term, None)
    index.joined_kept += _cost(joined) - (_cost(before[1]) if before else 0)
    index.joined[term] = (epochs, joined)
    while index.joined_kept > MAX_CACHED_POSTINGS and len(index.joined) > 1:
        _, (_, dropped) = index.joined.popitem(last=False)
        index.joined_kept -= _cost(dropped)
    for partition in here:
        if partition.postings_kept > MAX_CACHED_POSTINGS // len(here):
            partition.forget_postings()


def _cost(postings: TermPostings) -> int:
    return len(postings.ids) + TERM_OVERHEAD


def _candidates(terms: list[str], postings: list[TermPostings], sentences: int, count: int) -> list[list[Any]]:
    """Sentence keys with their weights; sentences of dropped versions are passed over."""

    def lookup(term: int, ids: IdArray) -> WeightArray:
        return _weights_of(terms[term], ids)

    wanted = count
    while True:
        ids, weights = select(postings, sentences, wanted, lookup)
        keys = _sentence_keys(ids.tolist())
        live = [[key, row] for key, row in zip(keys, weights.tolist(), strict=True) if key is not None]
        if len(live) >= count or len(ids) < wanted:
            return live[:count]
        wanted *= 2


def _weights_of(term: str, ids: IdArray) -> WeightArray:
    weights = np.zeros(len(ids), dtype=np.float32)
    groups: dict[int, list[int]] = {}
    for place, value in enumerate(ids.tolist()):
        groups.setdefault(value >> (_INDEX_BITS + _NUMBER_BITS), []).append(place)
    commands: list[tuple[object, ...]] = []
    for position, places in groups.items():
        members = [f"{(v >> _INDEX_BITS) & _NUMBER_MASK}.{v & _INDEX_MASK}" for v in ids[places].tolist()]
        commands.append(("ZMSCORE", terms_prefix(state.of(_Index).by_position[position].tag) + term, *members))
    for places, scores in zip(groups.values(), rg.execute_many(commands), strict=True):
        weights[places] = [float(score or 0) for score in scores]
    return weights


def _sentence_keys(ids: list[int]) -> list[str | None]:
    """The key of every sentence, None where its document's number is no longer ranked."""
    index = state.of(_Index)
    unknown: dict[int, set[int]] = {}
    split = [(v >> (_INDEX_BITS + _NUMBER_BITS), (v >> _INDEX_BITS) & _NUMBER_MASK, v & _INDEX_MASK) for v in ids]
    for position, number, _ in split:
        if number not in index.by_position[position].documents:
            unknown.setdefault(position, set()).add(number)
    if unknown:
        numbers = {position: sorted(wanted) for position, wanted in unknown.items()}
        commands = [("HMGET", docs_key(index.by_position[p].tag), *wanted) for p, wanted in numbers.items()]
        for (position, wanted), names in zip(numbers.items(), rg.execute_many(commands), strict=True):
            index.by_position[position].documents.update(zip(wanted, names, strict=True))
    keys: list[str | None] = []
    for position, number, i in split:
        partition = index.by_position[position]
        name = partition.documents[number]
        keys.append(None if name is None else f"{name}:{{{partition.tag}}}:{i}")
    return keys
