"""The options of questions and searches, as clients give them.

The module does no I/O and does not import numpy, because the thin client (`qa-cluster-client`) contains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from qa_cluster.errors import InvalidInput
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.ranking.meaning import BOTH, WORDS

# Policies for a shard that is down: answer without it, or refuse.
PARTIAL, FULL = "partial", "full"
COVERAGES = (PARTIAL, FULL)
# The limit of collections in one search, and the name that means all collections.
MAX_SEARCHED_COLLECTIONS = 20
ALL_COLLECTIONS = "*"
CACHE_MODES = ("use", "refresh", "only", "off")


@dataclass(frozen=True, slots=True)
class AskOptions:
    """The options of a question.

    Attributes:
        top_k: the limit of answers.
        min_score: answers with a lower score are left out.
        retriever_k: how many sentences are ranked for reading; None means the number that the plan reads.
        collection: the collection that the answers come from.
        doc_id: the documents that answers may come from. If it is empty, answers may come from all documents.
        filters: a filter in Haystack's form. Only documents whose metadata satisfies it can give answers. None means no
            filter.
        filter: conditions in the short form, ``year>=2020``; all conditions must hold.
        waves: whether reading stops after a wave if an answer is sure enough; false: all sentences of the plan
            are read.
        timeout: the time limit in seconds; None means the service's default.
        cache: ``use`` reads and writes the caches; ``refresh`` only writes them; ``only`` answers from the caches,
            never runs the model, and raises NotFound if the answer is not cached; ``off`` neither reads nor writes.
        coverage: what happens while shards are down: ``partial`` answers without their documents and says so; ``full``
            raises an error.
        model: the id or ``id@revision`` of a loaded reader. If it is empty, the readers of the reading plan are used.
        no_answer: whether "no answer" is a possible result; false returns the best spans, however improbable.
        retriever: how sentences are ranked: by ``words``, by ``meaning``, or by ``both``. Without an encoder on the
            shards, ``both`` means words.
        plan: the reading plan, ``fast``, ``balanced`` or ``accurate``. It says which readers read how many sentences.
            Empty: the service's plan.
    """

    top_k: int = 3
    min_score: float = 0.0
    retriever_k: int | None = None
    collection: str = DEFAULT_COLLECTION
    doc_id: tuple[str, ...] = ()
    filters: Mapping[str, Any] | None = None
    filter: tuple[str, ...] = ()
    waves: bool = True
    timeout: float | None = None
    cache: str = "use"
    coverage: str = FULL
    no_answer: bool = True
    model: str = ""
    retriever: str = BOTH
    plan: str = ""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The options of a search.

    Attributes:
        top_k: the limit of sentences.
        collection: the collection that the sentences come from, or several collections; ``*`` means all collections.
        doc_id: the documents that are searched. If it is empty, all documents are searched.
        filters, filter: only sentences of documents whose metadata satisfies both are returned, as in `AskOptions`.
        context: how many neighbours are returned with each sentence, on each side.
        timeout: the time limit in seconds; None means the service's default.
        coverage: ``partial`` or ``full``, as in `AskOptions`.
        retriever: ``words``, ``meaning`` or ``both``, as in `AskOptions`.
        prefix: whether the last word may be incomplete, for results while a person types. It requires the retriever
            ``words``.
    """

    top_k: int = 10
    collection: str | tuple[str, ...] = DEFAULT_COLLECTION
    doc_id: tuple[str, ...] = ()
    filters: Mapping[str, Any] | None = None
    filter: tuple[str, ...] = ()
    context: int = 0
    timeout: float | None = None
    coverage: str = FULL
    retriever: str = WORDS
    prefix: bool = False

    @property
    def collections(self) -> tuple[str, ...]:
        """The names of the searched collections, without duplicates."""
        given = (self.collection,) if isinstance(self.collection, str) else self.collection
        return tuple(dict.fromkeys(given))


class SearchArguments(TypedDict, total=False):
    """The fields of `SearchOptions` as the clients' `search` accepts them. None means the default."""

    top_k: int | None
    collection: str | Iterable[str] | None
    doc_id: str | Iterable[str] | None
    filters: Mapping[str, Any] | None
    filter: str | Iterable[str] | None
    context: int | None
    timeout: float | None
    coverage: str | None
    retriever: str | None
    prefix: bool | None


# Options that take several values; a single value may be given without a list.
LISTS = frozenset({"doc_id", "filter"})


class AskArguments(TypedDict, total=False):
    """The fields of `AskOptions` as the clients' `ask` accepts them. None means the default."""

    top_k: int | None
    min_score: float | None
    retriever_k: int | None
    collection: str | None
    doc_id: str | Iterable[str] | None
    filters: Mapping[str, Any] | None
    filter: str | Iterable[str] | None
    waves: bool | None
    timeout: float | None
    cache: str | None
    coverage: str | None
    no_answer: bool | None
    model: str | None
    retriever: str | None
    plan: str | None


def ask_options(arguments: AskArguments) -> AskOptions:
    """Create the options from the arguments of a client's `ask`. A single `doc_id` or `filter` needs no list.

    >>> ask_options({"doc_id": "a", "top_k": None}).doc_id
    ('a',)
    """
    return AskOptions(**_given(arguments, AskOptions, "a question"))


def search_options(arguments: SearchArguments) -> SearchOptions:
    """Create the options from the arguments of a client's `search`. A single `doc_id` or `filter` needs no list.

    >>> search_options({"doc_id": "a", "context": None}).doc_id
    ('a',)
    """
    return SearchOptions(**_given(arguments, SearchOptions, "a search"))


def _given(arguments: Mapping[str, Any], kind: type[AskOptions | SearchOptions], what: str) -> dict[str, Any]:
    given = {name: value for name, value in arguments.items() if value is not None}
    if unknown := sorted(set(arguments) - {field.name for field in fields(kind)}):
        hint = ": the clients take seconds, timeout=2.5" if unknown[0] == "timeout_ms" else ""
        raise InvalidInput(f"unknown option {unknown[0]!r} of {what}{hint}")
    for name in LISTS & given.keys():
        given[name] = (given[name],) if isinstance(given[name], str) else tuple(given[name])
    if kind is SearchOptions and not isinstance(given.get("collection", ""), str):
        given["collection"] = tuple(given["collection"])
    return given
