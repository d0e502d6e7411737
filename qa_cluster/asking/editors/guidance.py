"""Stores what editors add to a collection: answers to questions (*pins*) and synonyms.

A pin is the answer to one question. Questions that differ only in case, white space or closing punctuation are the same
question (`questions.fold`). Synonyms add terms to the ranking by words. Each collection has one key for pins and one
for synonyms, both in one partition. Every process caches the pins and synonyms, and reads them again after a shard has
reported a change (`Freshness.guidance_changes`). A change also increases `Freshness.generation`, which invalidates the
near cache. The names of cached answers contain a digest of the pin and the synonyms, so no process returns an answer
with an earlier pin.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from qa_cluster.errors import ClusterError, InvalidInput, NotFound, ReplyError
from qa_cluster.keys import DEFAULT_COLLECTION, Partitioning, pins_key, synonyms_key
from qa_cluster.ranking.expansion import Expansion, added_by_synonyms
from qa_cluster.ranking.terms import question_terms
from qa_cluster.routing.shards import Shards
from qa_cluster.topology import Shard
from qa_cluster.types import SURE, Answer, Pin, Synonyms

from ..collections import Collections
from ..freshness import Freshness
from ..questions import fold, normalize

MAX_PINS = 1000
MAX_PIN_ANSWER_CHARS = 4000
MAX_PIN_QUESTION_CHARS = 1000
MAX_PIN_ID_BYTES = 512
MAX_PIN_URL_CHARS = 2000
MAX_GROUPS = 1000
MAX_GROUP_WORDS = 16
MAX_GROUP_CHARS = 500
# The maximum number of terms that synonyms add to one question.
MAX_ADDED_TERMS = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Guide:
    """The pins and synonyms of one collection, or the synonyms of several collections (`merged`).

    Attributes:
        pins: the pins by their questions, in the form of `questions.fold`.
        groups: for each group of synonyms, the terms of each word or phrase.
        weight: the weight of a synonym, relative to the weight of the question's own term.
        digest: identifies the synonyms of a collection; empty if the collection has no synonyms, and in a merged guide.
    """

    pins: dict[str, Pin] = field(default_factory=dict)
    groups: tuple[tuple[tuple[str, ...], ...], ...] = ()
    weight: float = 0.0
    digest: str = ""

    def expansion(self, text: str) -> Expansion | None:
        """Return the terms of a question with their synonyms; None if no synonym applies."""
        if not self.groups:
            return None
        terms = question_terms(text)
        found = added_by_synonyms(terms, self.groups, self.weight, MAX_ADDED_TERMS)
        return found if len(found.terms) > len(terms) else None


def pinned_answer(pin: Pin) -> Answer:
    """Return the answer object of a pin, with rank 1 and score 1."""
    return Answer(
        rank=1,
        answer=pin.answer,
        score=1.0,
        logit=0.0,
        start=0,
        end=0,
        document_id=pin.document_id,
        document_version="",
        passage_id="",
        title=pin.title,
        context=pin.answer,
        context_start=0,
        context_end=0,
        shard="",
        url=pin.url,
        pinned=True,
        confidence=SURE,
    )


def pin_digest(pin: Pin | None) -> str:
    """Return a digest that identifies a pin in the names of cached answers; empty for None."""
    return "" if pin is None else blake2b(pin.to_json(), digest_size=8).hexdigest()


class Guidance:
    """Reads and changes the pins and synonyms of one cluster."""

    def __init__(
        self, shards: Shards, freshness: Freshness, collections: Collections, partitions: Partitioning
    ) -> None:
        self._shards = shards
        self._freshness = freshness
        self._collections = collections
        self._partitions = partitions
        self._known: dict[str, Guide] = {}
        self._seen = -1
        self._complaint = ""

    async def of(self, collection: str, without: Container[Shard] = ()) -> Guide:
        """Return the pins and synonyms of a collection. The shards in `without` are not asked.

        The result is empty in these cases:

        - This process has not read the pins and synonyms since the last change that a shard has reported, and their
          shard is down or in `without`.
        - The cluster's user may not read the keys of pins and synonyms.
        """
        fresh = await self._freshness.drain(without_down=True)
        changes = self._freshness.guidance_changes
        if self._seen != changes:
            self._known, self._seen = {}, changes
        guide = self._known.get(collection)
        if guide is None and self._shards.shard_of_key(self._keys(collection)[0]) in without:
            return Guide()
        if guide is None:
            try:
                guide = await self._read(collection)
            except ReplyError as error:
                if error.code != "NOPERM":
                    raise
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    _log.warning("pins and synonyms are not used: %s", error)
                guide = Guide()
            except ClusterError:
                guide, fresh = Guide(), False  # the shard with the keys is down
            if fresh and self._seen == self._freshness.guidance_changes:
                self._known[collection] = guide
        return guide

    async def _read(self, collection: str) -> Guide:
        pins, synonyms = self._keys(collection)
        stored, raw = await self._shards.execute_many([(pins, ("HVALS", pins)), (synonyms, ("GET", synonyms))])
        found = [Pin.from_json(each) for each in stored]
        words = None if raw is None else Synonyms.from_json(raw)
        return Guide(
            {fold(pin.question): pin for pin in found},
            () if words is None else groups_of(words),
            0.0 if words is None else words.weight,
            "" if raw is None else blake2b(raw, digest_size=8).hexdigest(),
        )

    def _keys(self, collection: str) -> tuple[str, str]:
        tag = self._partitions.tag_of(collection)
        return pins_key(tag, collection), synonyms_key(tag, collection)

    async def pins(self, collection: str = DEFAULT_COLLECTION) -> tuple[Pin, ...]:
        """Return the pins of a collection, sorted by their questions."""
        await self._collections.check(collection)
        key, _ = self._keys(collection)
        stored: list[bytes] = await self._shards.execute(key, "HVALS", key)
        return tuple(sorted(map(Pin.from_json, stored), key=lambda pin: pin.question))

    async def put_pin(self, pin: Pin, collection: str = DEFAULT_COLLECTION) -> bool:
        """Store a pin and return whether it is new. It replaces the pin of the same question (`questions.fold`).

        InvalidInput if a field is invalid, or if the collection already has `MAX_PINS` other pins.
        """
        pin = check_pin(pin)
        await self._collections.check(collection)
        key, _ = self._keys(collection)
        name = fold(pin.question)
        count, known = await self._shards.execute_many([(key, ("HLEN", key)), (key, ("HEXISTS", key, name))])
        if count >= MAX_PINS and not known:
            raise InvalidInput(f"collection {collection} has {count} pins, the limit is {MAX_PINS}: delete one first")
        return bool(await self._shards.execute(key, "HSET", key, name, pin.to_json()))

    async def delete_pin(self, question: str, collection: str = DEFAULT_COLLECTION) -> None:
        """Delete the pin of a question; NotFound if the question has no pin."""
        key, _ = self._keys(collection)
        if not await self._shards.execute(key, "HDEL", key, fold(normalize(question))):
            raise NotFound(
                f"collection {collection} has no pin for {question[:200]!r}; `qa-cluster pins list` shows all pins"
            )

    async def synonyms(self, collection: str = DEFAULT_COLLECTION) -> Synonyms:
        """Return the synonyms of a collection. If the collection has none, the result has no groups."""
        await self._collections.check(collection)
        _, key = self._keys(collection)
        raw = await self._shards.execute(key, "GET", key)
        return Synonyms() if raw is None else Synonyms.from_json(raw)

    async def set_synonyms(self, synonyms: Synonyms, collection: str = DEFAULT_COLLECTION) -> None:
        """Replace the synonyms of a collection. An empty list of groups deletes all synonyms of the collection.

        InvalidInput if a group or the weight is invalid.
        """
        check_synonyms(synonyms)
        await self._collections.check(collection)
        _, key = self._keys(collection)
        if synonyms.groups:
            await self._shards.execute(key, "SET", key, synonyms.to_json())
        else:
            await self._shards.execute(key, "DEL", key)


def check_pin(pin: Pin) -> Pin:
    """Return the pin with its question normalised and its answer stripped; InvalidInput names the invalid field."""
    question = normalize(pin.question)
    limits = (
        ("question", question, 1, MAX_PIN_QUESTION_CHARS),
        ("answer", pin.answer.strip(), 1, MAX_PIN_ANSWER_CHARS),
        ("title", pin.title, 0, MAX_PIN_ID_BYTES),
        ("document_id", pin.document_id, 0, MAX_PIN_ID_BYTES),
        ("url", pin.url, 0, MAX_PIN_URL_CHARS),
    )
    for name, value, low, high in limits:
        if not low <= len(value) <= high:
            raise InvalidInput(f"{name} must have {low} to {high} characters, got {len(value)}", place=name)
    if pin.url and not pin.url.startswith(("http://", "https://")):
        raise InvalidInput(f"url must start with http:// or https://, got {pin.url[:100]!r}", place="url")
    return Pin(question, pin.answer.strip(), pin.document_id, pin.title, pin.url)


def words_of(group: str) -> list[str]:
    """Return the words and phrases of a group of synonyms, which are separated by commas."""
    return [word for part in group.split(",") if (word := part.strip())]


def groups_of(synonyms: Synonyms) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Return the groups of synonyms. A group is a tuple, which has for each word or phrase the tuple of its terms."""
    return tuple(tuple(tuple(question_terms(word)) for word in words_of(group)) for group in synonyms.groups)


def check_synonyms(synonyms: Synonyms) -> None:
    """Raise InvalidInput if the synonyms or their weight are invalid. The error shows the invalid group or value."""
    if len(synonyms.groups) > MAX_GROUPS:
        raise InvalidInput(f"there are {len(synonyms.groups)} groups, the limit is {MAX_GROUPS}", place="groups")
    if not 0 < synonyms.weight <= 1:
        raise InvalidInput(f"weight must be above 0 and at most 1, got {synonyms.weight:g}", place="weight")
    for group in synonyms.groups:
        words = words_of(group)
        if not 2 <= len(words) <= MAX_GROUP_WORDS or len(group) > MAX_GROUP_CHARS:
            raise InvalidInput(
                f"a group must have 2 to {MAX_GROUP_WORDS} words or phrases, separated by commas, and at most"
                f" {MAX_GROUP_CHARS} characters, got {group[:100]!r}",
                place="groups",
            )
        if empty := [word for word in words if not question_terms(word)]:
            raise InvalidInput(f"{empty[0][:100]!r} in {group[:100]!r} has no searchable word", place="groups")


def merged(guides: Sequence[Guide]) -> Guide:
    """Merge the synonyms of several collections into one guide without pins.

    The weight of the merged guide is the largest weight of the given guides.
    """
    groups: Iterable[Any] = dict.fromkeys(group for guide in guides for group in guide.groups)
    return Guide({}, tuple(groups), max((guide.weight for guide in guides), default=0.0))
