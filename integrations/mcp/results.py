"""The results of the tools: models for the output schemas, and functions that fill them from a client's results."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, Field

from qa_cluster.documents.source_map import shown_metadata, url_of
from qa_cluster.types import Answer, AskResult, CollectionEntry, Document, Hit, Index, SearchResult, WriteResult

from .bounds import (
    MAX_COLLECTIONS,
    MAX_PASSAGE_CHARS,
    MAX_QUOTE_CHARS,
    MAX_QUOTES,
    MAX_SECTION_CHARS,
    MAX_TITLE_CHARS,
    MAX_URL_CHARS,
    around,
    joined,
    metadata_within,
    shortened,
    within,
)

Start = Annotated[int, Field(description="offset in the document, in characters; pass it to `fetch` as offset")]
Title = Annotated[str | None, Field(description="title of the document")]
Url = Annotated[str | None, Field(description="web address of the document")]
Note = Annotated[str | None, Field(description="missing parts of this result, and advice")]
Confidence = Literal["sure", "likely", "unsure"]
COLLECTION = "collection of the documents"
# Answers with a lower score are left out, except the best answer.
MIN_SCORE = 0.05


class QuotedAnswer(BaseModel):
    """An answer with its passage."""

    answer: str = Field(description="exact words from the document")
    score: float = Field(description="probability that the answer is right")
    confidence: Confidence | None = Field(None, description="the score in words; check the quote of an unsure answer")
    pinned: bool | None = Field(None, description="true: an editor of the collection has written this answer")
    id: str = Field(description="id of the document; pass it to `fetch`")
    title: Title = None
    url: Url = None
    quote: str = Field(description="the passage with the answer, exactly as in the document")
    start: Start
    end: int
    section: str | None = Field(None, description="headings above the passage")
    page: int | None = Field(None, description="page of the source file")
    line: int | None = Field(None, description="line of the source file")


class AskOutput(BaseModel):
    """The answers to a question. `answerable` is false if the documents do not contain the answer."""

    collection: str = Field(description=COLLECTION)
    answerable: bool
    answers: list[QuotedAnswer]
    note: Note = None


class ExactQuote(BaseModel):
    """A sentence of a document that matches the query."""

    quote: str
    start: Start
    end: int


class MatchingDocument(BaseModel):
    """A document that matches the query."""

    id: str = Field(description="id of the document; pass it to `fetch`")
    title: Title = None
    url: Url = None
    text: str = Field(description="the best sentence with its neighbours")
    quotes: list[ExactQuote] = Field(description="matching sentences, exactly as in the document, the best first")


class SearchOutput(BaseModel):
    """The documents that match a query best."""

    collection: str = Field(description=COLLECTION)
    results: list[MatchingDocument]
    note: Note = None


class FetchOutput(BaseModel):
    """A part of the text of a document."""

    id: str
    collection: str
    title: Title = None
    url: Url = None
    text: str
    offset: int = Field(description="offset of the text in the document, in characters")
    length: int = Field(description="length of the whole document, in characters")
    next_offset: int | None = Field(description="offset of the next part; null at the end of the document")
    version: str
    metadata: dict[str, Any] | None = Field(None, description="metadata of the document, in the first part only")
    note: Note = None


class CollectionCounts(BaseModel):
    """A collection with its size."""

    name: str
    documents: int
    sentences: int
    state: str | None = Field(None, description="deleting or incomplete; missing for a usable collection")


class CollectionsOutput(BaseModel):
    """The collections that the caller may see."""

    collections: list[CollectionCounts]
    total: int
    note: Note = None


class StoredDocument(BaseModel):
    """The result of storing a document."""

    id: str
    collection: str
    version: str
    created: bool = Field(description="whether the document is new")
    changed: bool = Field(description="false if this version was already stored")
    indexed: bool = Field(description="whether questions already get answers from this document")


def asked(result: AskResult, collection: str) -> dict[str, Any]:
    """Return the fields of an `AskOutput` from a client's result. `collection` is the collection of the question."""
    answers = [_answer(answer) for answer in result.answers if answer.rank == 1 or answer.score >= MIN_SCORE]
    note = _missing(result.index)
    if not result.answerable:
        note = joined(note, "the documents do not contain the answer; `search` finds the closest sentences")
    if result.usage.truncated:
        note = joined(note, "the question was too long, so its end was not read: shorten it")
    return within(
        _plain(AskOutput(collection=collection, answerable=result.answerable, answers=answers, note=note)), "answers"
    )


def _answer(answer: Answer) -> QuotedAnswer:
    low, high = around(
        answer.context, answer.start - answer.context_start, answer.end - answer.context_start, MAX_QUOTE_CHARS
    )
    source = answer.source
    return QuotedAnswer(
        answer=shortened(answer.answer, MAX_QUOTE_CHARS),
        score=round(answer.score, 3),
        confidence=cast("Confidence | None", answer.confidence or None),
        pinned=answer.pinned or None,
        id=answer.document_id,
        title=_short(answer.title, MAX_TITLE_CHARS),
        url=_web_address(answer.url),
        quote=answer.context[low:high],
        start=answer.context_start + low,
        end=answer.context_start + high,
        section=_short(" > ".join(answer.section), MAX_SECTION_CHARS),
        page=source.page if source else None,
        line=source.line if source else None,
    )


def found(result: SearchResult, collection: str, top_k: int) -> dict[str, Any]:
    """Return the fields of a `SearchOutput`: the best `top_k` documents, each with its best sentences.

    `collection` is the collection of the search. The hits of `result` must be in the order of their ranks.
    """
    documents: dict[str, list[Hit]] = {}
    for hit in result.hits:
        documents.setdefault(hit.document_id, []).append(hit)
    results = [_match(hits) for hits in list(documents.values())[:top_k]]
    note = _missing(result.index)
    if not results:
        note = joined(note, "no sentence matches: use different words, a different collection or fewer filters")
    return within(_plain(SearchOutput(collection=collection, results=results, note=note)), "results")


def _match(hits: list[Hit]) -> MatchingDocument:
    best = hits[0]
    text, at = (best.passage.text, best.start - best.passage.start) if best.passage else (best.text, 0)
    low, high = around(text, at, at + len(best.text), MAX_PASSAGE_CHARS)
    return MatchingDocument(
        id=best.document_id,
        title=_short(best.title, MAX_TITLE_CHARS),
        url=_web_address(best.url),
        text=text[low:high],
        quotes=[_quote(hit) for hit in hits[:MAX_QUOTES]],
    )


def _quote(hit: Hit) -> ExactQuote:
    text = hit.text[:MAX_QUOTE_CHARS]
    return ExactQuote(quote=text, start=hit.start, end=hit.start + len(text))


def fetched(document: Document, collection: str, offset: int, limit: int) -> dict[str, Any]:
    """Return the fields of a `FetchOutput`: at most `limit` characters of the document, from the offset `offset` on."""
    text = document.text[offset : offset + limit]
    end = offset + len(text)
    metadata, omitted = metadata_within(shown_metadata(document.metadata)) if not offset else ({}, 0)
    value = _plain(
        FetchOutput(
            id=document.id,
            collection=collection,
            title=_short(document.title, MAX_TITLE_CHARS),
            url=_web_address(url_of(document.metadata)),
            text=text,
            offset=offset,
            length=len(document.text),
            next_offset=None,
            version=document.version,
            metadata=metadata or None,
            note=f"{omitted} large metadata fields are left out" if omitted else None,
        )
    )
    return value | {"next_offset": end if end < len(document.text) else None}


def listed(entries: tuple[CollectionEntry, ...], prefix: str) -> dict[str, Any]:
    """Return the fields of a `CollectionsOutput`: the first `MAX_COLLECTIONS` collections whose names start with
    `prefix`, and the number of all such collections.
    """
    chosen = [entry for entry in entries if entry.name.startswith(prefix)]
    counts = [
        CollectionCounts(
            name=entry.name,
            documents=entry.documents,
            sentences=entry.sentences,
            state=None if entry.state == "ready" else entry.state,
        )
        for entry in chosen[:MAX_COLLECTIONS]
    ]
    rest = len(chosen) - len(counts)
    note = f"{rest} more collections are left out: pass `prefix` with the start of the name" if rest else None
    return _plain(CollectionsOutput(collections=counts, total=len(chosen), note=note))


def stored(result: WriteResult, collection: str) -> dict[str, Any]:
    """Return the fields of a `StoredDocument` from the result of a write to `collection`."""
    return _plain(
        StoredDocument(
            id=result.id,
            collection=collection,
            version=result.version,
            created=result.created,
            changed=result.changed,
            indexed=result.tokenized,
        )
    )


def _plain(model: BaseModel) -> dict[str, Any]:
    """Return the fields of a model without None values."""
    return model.model_dump(exclude_none=True)


def _short(text: str, limit: int) -> str | None:
    return shortened(text, limit) or None


def _web_address(url: str) -> str | None:
    """Return the address, or None if it is empty or too long. A shortened address would lead to a different page."""
    return url if 0 < len(url) <= MAX_URL_CHARS else None


def _missing(index: Index) -> str | None:
    if not index.partial:
        return None
    return (
        f"{len(index.missing)} of {index.shards_total} shards did not answer, so some documents are missing: ask again"
        " later"
    )
