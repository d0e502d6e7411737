"""The passages of a search or of answers, in the same form for all frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qa_cluster.client import Answer, AskResult, Hit, SearchResult

SEARCH, ASK = "search", "ask"


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A part of a stored document in a search result or an answer, or the text of a pinned answer.

    `text` equals ``document.text[start:end]``, except that each white space character between two sentences is a space
    in `text`. For a pinned answer, which an editor wrote, `text` is the answer, and `start` and `end` are 0.

    Attributes:
        id: the document's id with the offsets of the passage, such as ``ada.txt:0-46``.
        start, end: the offsets of the passage in the stored text, in code points.
        score: for a search, the score of the ranking; for an answer, the probability that the answer is right.
        facts: the document's metadata, and the service's values about the passage, such as its section. A value of the
            service overrides metadata of the same name.
    """

    id: str
    document_id: str
    text: str
    start: int
    end: int
    score: float
    facts: Mapping[str, Any]


def of_search(result: SearchResult) -> list[FoundPassage]:
    """Return the passages of a search, in the order of its hits. A passage is the found sentence together with the
    neighbours that the search requested.
    """
    found = []
    for hit in result.hits:
        text, start, end = hit.text, hit.start, hit.end
        if hit.passage is not None:
            text, start, end = hit.passage.text, hit.passage.start, hit.passage.end
        found.append(_passage(hit, text, start, end, {"sentence_start": hit.start, "sentence_end": hit.end}))
    return found


def of_answers(result: AskResult) -> list[FoundPassage]:
    """Return the passage of each answer, in the order of the answers.

    The facts of a passage have the exact quote that answers the question, as ``answer``.
    """
    return [
        _passage(
            answer,
            answer.context,
            answer.context_start,
            answer.context_end,
            {
                "answer": answer.answer,
                "answer_start": answer.start,
                "answer_end": answer.end,
                "confidence": answer.confidence,
                "pinned": answer.pinned,
            },
        )
        for answer in result.answers
    ]


def _passage(found: Hit | Answer, text: str, start: int, end: int, more: Mapping[str, Any]) -> FoundPassage:
    facts = {
        **found.metadata,
        "document_id": found.document_id,
        "document_version": found.document_version,
        "title": found.title,
        "start": start,
        "end": end,
        "score": found.score,
        **more,
    }
    if found.section:
        facts["section"] = " > ".join(found.section)
    if found.url:
        facts["url"] = found.url
    if found.source is not None:
        facts["source"] = {name: value for name, value in asdict(found.source).items() if value is not None}
    return FoundPassage(f"{found.document_id}:{start}-{end}", found.document_id, text, start, end, found.score, facts)
