"""Checks and normalises questions and searches before they are sent, and computes the names of cached answers.

The module does no I/O.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, fields
from hashlib import blake2b

import orjson

from qa_cluster.config import Settings
from qa_cluster.documents.stored import MAX_ID_BYTES
from qa_cluster.documents.unicode import is_unicode
from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.keys import check_collection
from qa_cluster.options.questions import (
    ALL_COLLECTIONS,
    CACHE_MODES,
    COVERAGES,
    MAX_SEARCHED_COLLECTIONS,
    AskOptions,
    SearchOptions,
)
from qa_cluster.ranking.expansion import Expansion
from qa_cluster.ranking.filters import Filter, chosen_by
from qa_cluster.ranking.meaning import RETRIEVERS, WORDS
from qa_cluster.reading.passages import MAX_NEIGHBOURS
from qa_cluster.reading.plan import PLANS, ReadingPlan
from qa_cluster.shard_functions import MAX_RANK_COUNT
from qa_cluster.types import Pin

MAX_DOC_IDS = 100
# The part of an error text that says how to select more documents.
MORE_VALUES = "use the operator `in` of `filters`, which allows 10,000 values, for metadata fields and for the field id"
MAX_MODEL_BYTES = 512
_SPACE = re.compile(r"\s+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class AskLimits:
    """The limits for questions and their options, and the default values of options.

    `retriever_k` and `timeout_ms` are default values. All other fields are limits.
    """

    question_max_chars: int = Settings.question_max_chars
    answer_max_bytes: int = Settings.answer_max_bytes
    top_k_max: int = Settings.top_k_max
    retriever_k: int = Settings.retriever_k
    retriever_k_max: int = 64
    timeout_ms: int = Settings.request_timeout_ms
    timeout_ms_max: int = 600_000


# Options that do not change an answer. All other options are a part of the answer's name in caches. `coverage` is in
# this set because partial answers are not cached.
SAME_ANSWER = frozenset({"timeout", "cache", "coverage"})


@dataclass(frozen=True, slots=True)
class Question:
    """A checked question. The model reads `text`. Questions with equal `folded` are the same question.

    Attributes:
        retriever_k: the number of sentences that the ranking of the question returns. The readers read some of them.
        chosen: the filter that combines the options `doc_id`, `filters` and `filter`.
        pin: the editor's answer; None if the question has no pin.
        expansion: the terms of the question with their synonyms; None if no synonym applies.
        guide: identifies the pin and the synonyms in the names of cached answers; empty if there are neither.
    """

    text: str
    folded: str
    options: AskOptions
    retriever_k: int
    timeout_seconds: float
    chosen: Filter | None = None
    pin: Pin | None = None
    expansion: Expansion | None = None
    guide: str = ""

    def digest(self, plan: ReadingPlan) -> str:
        """Return the name of the answer in caches. Questions that must have the same answer have the same name."""
        options = self.options
        given = {field.name: getattr(options, field.name) for field in fields(options)}
        # The answer depends on the effective values of these options, not on how they were given.
        effective = {
            "retriever_k": self.retriever_k,
            "doc_id": (),
            "filters": None,
            "filter": None if self.chosen is None else self.chosen.canonical,
            "model": plan.digest,
            "plan": "",
            "retriever": "",
        } | ({"guide": self.guide} if self.guide else {})
        what = {name: value for name, value in (given | effective).items() if name not in SAME_ANSWER}
        text = orjson.dumps((self.folded, what), option=orjson.OPT_SORT_KEYS)
        return blake2b(text, digest_size=16).hexdigest()


def normalize(text: str) -> str:
    """Return the question as the model reads it: in NFC, with each run of white space replaced by one space.

    >>> normalize("  Who  wrote\\n it? ")
    'Who wrote it?'
    """
    return _SPACE.sub(" ", unicodedata.normalize("NFC", text)).strip()


def fold(text: str) -> str:
    """Return a normalised question in lower case and without closing punctuation.

    Questions with equal results are the same question.

    >>> fold("Who wrote it ?!")
    'who wrote it'
    """
    return text.casefold().rstrip(" ?!.") or text.casefold()


def check_question(text: object, options: AskOptions, limits: AskLimits) -> Question:
    """Return the question in its normal form; InvalidInput or InputTooLong if the text or an option is invalid."""
    normal = _check_text("question", text, limits.question_max_chars)
    chosen = _check_options(options, limits)
    planned = PLANS[options.plan][0].candidates if options.plan else None
    return Question(
        text=normal,
        folded=fold(normal),
        options=options,
        retriever_k=options.retriever_k or planned or limits.retriever_k,
        timeout_seconds=timeout_of(options, limits),
        chosen=chosen,
    )


def timeout_of(options: AskOptions | SearchOptions, limits: AskLimits) -> float:
    """Return the timeout of a request in seconds."""
    return limits.timeout_ms / 1000 if options.timeout is None else options.timeout


def check_search(text: object, options: SearchOptions, limits: AskLimits) -> tuple[str, Filter | None]:
    """Return the normalised query and its filter; InvalidInput or InputTooLong if the text or an option is invalid."""
    normal = _check_text("query", text, limits.question_max_chars)
    _within("top_k", options.top_k, 1, MAX_RANK_COUNT)
    _within("context", options.context, 0, MAX_NEIGHBOURS)
    if options.prefix and options.retriever != WORDS:
        raise InvalidInput(
            f"prefix searches by words, got retriever={options.retriever}: leave out one of them", place="prefix"
        )
    if options.collections != (ALL_COLLECTIONS,):
        _check_collections(options.collections)
    return normal, _check_corpus(options, limits)


def _check_collections(names: tuple[str, ...]) -> None:
    for name in names:
        if name == ALL_COLLECTIONS:
            raise InvalidInput(
                f"collection {ALL_COLLECTIONS} means all collections: leave out the others", place="collection"
            )
        check_collection(name)
    if not 1 <= len(names) <= MAX_SEARCHED_COLLECTIONS:
        raise InvalidInput(
            f"a search may name 1 to {MAX_SEARCHED_COLLECTIONS} collections, got {len(names)}", place="collection"
        )


def _check_text(name: str, text: object, limit: int) -> str:
    if not isinstance(text, str):
        raise InvalidInput(f"{name} must be a string, got {type(text).__name__}", place=name)
    if len(text) > limit:
        raise InputTooLong(f"{name} has {len(text)} characters, the limit is {limit}: shorten it")
    _check_unicode(name, text)
    normal = normalize(text)
    if not any(character.isalnum() for character in normal):
        raise InvalidInput(f"{name} must contain a letter or a digit", place=name)
    if _CONTROL.search(normal):
        raise InvalidInput(f"{name} contains a control character", place=name)
    return normal


def _check_options(options: AskOptions, limits: AskLimits) -> Filter | None:
    _within("top_k", options.top_k, 1, limits.top_k_max)
    _within("min_score", options.min_score, 0, 1)
    if options.retriever_k is not None:
        _within("retriever_k", options.retriever_k, 1, limits.retriever_k_max)
    check_collection(options.collection)
    chosen = _check_corpus(options, limits)
    if options.cache not in CACHE_MODES:
        raise InvalidInput(f"cache must be one of {', '.join(CACHE_MODES)}, got {options.cache!r}", place="cache")
    if options.plan and options.plan not in PLANS:
        raise InvalidInput(f"plan must be one of {', '.join(PLANS)}, got {options.plan!r}", place="plan")
    if options.model:
        _check_name("model", options.model, MAX_MODEL_BYTES)
    return chosen


def _check_corpus(options: AskOptions | SearchOptions, limits: AskLimits) -> Filter | None:
    if options.coverage not in COVERAGES:
        known = ", ".join(COVERAGES)
        raise InvalidInput(f"coverage must be one of {known}, got {options.coverage!r}", place="coverage")
    if options.retriever not in RETRIEVERS:
        known = ", ".join(RETRIEVERS)
        raise InvalidInput(f"retriever must be one of {known}, got {options.retriever!r}", place="retriever")
    if options.timeout is not None:
        _within("timeout", options.timeout, 0.001, limits.timeout_ms_max / 1000, " seconds")
    for name, values, what in (("doc_id", options.doc_id, "documents"), ("filter", options.filter, "conditions")):
        if (count := len(values)) > MAX_DOC_IDS:
            raise InvalidInput(f"{name} has {count} {what}, the limit is {MAX_DOC_IDS}: {MORE_VALUES}", place=name)
    for doc_id in options.doc_id:
        _check_name("doc_id", doc_id, MAX_ID_BYTES)
    return chosen_by(options.filters, options.filter, options.doc_id)


def _check_name(name: str, value: str, limit: int) -> None:
    _check_unicode(name, value)
    if not 0 < (size := len(value.encode())) <= limit:
        raise InvalidInput(f"{name} must have 1 to {limit} bytes, got {size}", place=name)


def _check_unicode(name: str, text: str) -> None:
    if not is_unicode(text):
        raise InvalidInput(f"{name} contains a lone surrogate: it is not valid Unicode", place=name)


def _within(name: str, value: float, low: float, high: float, unit: str = "") -> None:
    if not low <= value <= high:
        raise InvalidInput(f"{name} must be from {low:g} to {high:g}{unit}, got {value:g}", place=name)
