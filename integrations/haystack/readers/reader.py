"""The reader component: finds exact quotes in given documents, like Haystack's former `ExtractiveReader`.

The service runs the model, so the pipeline needs no torch. The documents may come from any document store.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from haystack import Document, component, default_to_dict
from haystack.dataclasses import ExtractedAnswer
from haystack.utils import Secret

from qa_cluster.integrations.haystack.connected import Connected
from qa_cluster.integrations.service.connection import DEFAULT_URL, KEY_VARIABLE, TIMEOUT_SECONDS

# The maximum number of documents in one request.
_BATCH = 64


@component
class QAClusterReader(Connected):
    """Reads the answers to a question from documents.

    Args:
        base_url: the address of the service.
        api_key: the API key; by default the environment variable QA_CLUSTER_API_KEY, if it is set. None: no key.
        model: the name of the reader on the service.
        top_k: the maximum number of returned answers; "no answer" is not counted.
        score_threshold: answers with a lower score are left out. This is also true for "no answer".
        no_answer: whether to add "no answer", which is an answer without data. Its score is the probability that the
            best `top_k` answers are all wrong. For this score, answers below `score_threshold` also count.
        answers_per_seq: the maximum number of answers from one document.
        overlap_threshold: the allowed overlap of two answers, as a fraction (0 to 1) of the shorter answer. If two
            answers overlap more, only the answer with the higher score is returned. None: both answers are returned.
        tls_ca: the PEM file of the certificate authority of an `https` service; empty: the authorities that the system
            trusts.
        timeout: the time limit for a call with all its retries, in seconds.
        attempts: the maximum number of attempts for a call; None: as many as the timeout allows.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: Secret | None = Secret.from_env_var(KEY_VARIABLE, strict=False),  # noqa: B008 - a Secret is immutable
        model: str = "default",
        top_k: int = 20,
        score_threshold: float | None = None,
        no_answer: bool = True,
        answers_per_seq: int = 20,
        overlap_threshold: float | None = 0.01,
        tls_ca: str = "",
        timeout: float = TIMEOUT_SECONDS,
        attempts: int | None = None,
    ) -> None:
        self._connect_to(base_url, api_key, tls_ca, timeout, attempts)
        self.model = model
        self.top_k = top_k
        self.score_threshold = score_threshold
        self.no_answer = no_answer
        self.answers_per_seq = answers_per_seq
        self.overlap_threshold = overlap_threshold

    def to_dict(self) -> dict[str, Any]:
        """Return the component as a dictionary, with the name of the environment variable instead of the key."""
        return default_to_dict(
            self,
            **self._service(),
            model=self.model,
            top_k=self.top_k,
            score_threshold=self.score_threshold,
            no_answer=self.no_answer,
            answers_per_seq=self.answers_per_seq,
            overlap_threshold=self.overlap_threshold,
        )

    @component.output_types(answers=list[ExtractedAnswer])
    def run(
        self,
        query: str,
        documents: list[Document],
        top_k: int | None = None,
        score_threshold: float | None = None,
        no_answer: bool | None = None,
    ) -> dict[str, list[ExtractedAnswer]]:
        """Return the answers, the best first, as `answers`. `top_k`, `score_threshold` and `no_answer` override the
        component's arguments; None: use the component's argument. Documents without text are ignored."""
        texts = _with_text(documents)
        read = [self.connection.client.pipeline(batch, **self._options()) for batch in _batches(query, texts)]
        return {"answers": self._answers(_read(query, texts, read), query, top_k, score_threshold, no_answer)}

    @component.output_types(answers=list[ExtractedAnswer])
    async def run_async(
        self,
        query: str,
        documents: list[Document],
        top_k: int | None = None,
        score_threshold: float | None = None,
        no_answer: bool | None = None,
    ) -> dict[str, list[ExtractedAnswer]]:
        """Return the same as `run`, without blocking the event loop."""
        texts = _with_text(documents)
        client = self.connection.async_client
        read = [await client.pipeline(batch, **self._options()) for batch in _batches(query, texts)]
        return {"answers": self._answers(_read(query, texts, read), query, top_k, score_threshold, no_answer)}

    def _options(self) -> dict[str, Any]:
        # If `top_k` is above 1, the result of each pair of question and document is a list. If "no answer" is included
        # (`handle_impossible_answer`), the scores are probabilities.
        return {"model": self.model, "top_k": self.answers_per_seq + 1, "handle_impossible_answer": True}

    def _answers(
        self,
        found: list[ExtractedAnswer],
        query: str,
        top_k: int | None,
        score_threshold: float | None,
        no_answer: bool | None,
    ) -> list[ExtractedAnswer]:
        top_k = self.top_k if top_k is None else top_k
        if top_k < 1:
            raise ValueError(f"top_k must be 1 or more, got {top_k}")
        answers = self._without_overlaps(found)[:top_k]
        if self.no_answer if no_answer is None else no_answer:
            nothing = ExtractedAnswer(query=query, score=prod(1 - min(answer.score, 1.0) for answer in answers))
            answers = sorted([*answers, nothing], key=lambda answer: -answer.score)
        threshold = self.score_threshold if score_threshold is None else score_threshold
        return answers if threshold is None else [answer for answer in answers if answer.score >= threshold]

    def _without_overlaps(self, answers: Sequence[ExtractedAnswer]) -> list[ExtractedAnswer]:
        if self.overlap_threshold is None:
            return list(answers)
        chosen: list[ExtractedAnswer] = []
        for answer in answers:
            if all(_overlap(answer, other) <= self.overlap_threshold for other in chosen):
                chosen.append(answer)
        return chosen


def _with_text(documents: Sequence[Document]) -> list[Document]:
    return [document for document in documents if document.content]


def _batches(query: str, documents: Sequence[Document]) -> list[list[dict[str, str]]]:
    pairs = [{"question": query, "context": document.content or ""} for document in documents]
    return [pairs[start : start + _BATCH] for start in range(0, len(pairs), _BATCH)]


def _read(
    query: str, documents: Sequence[Document], read: Sequence[list[list[dict[str, Any]]]]
) -> list[ExtractedAnswer]:
    """Return the answers of all documents, the best first, without "no answer".

    `read` has a list for each batch of documents (`_batches`), with the results of each document in the batch.
    """
    results = [result for batch in read for result in batch]
    found = [
        _answer(query, document, row)
        for document, result in zip(documents, results, strict=True)
        for row in result
        if row["answer"]
    ]
    return sorted(found, key=lambda answer: -answer.score)


def _answer(query: str, document: Document, row: dict[str, Any]) -> ExtractedAnswer:
    return ExtractedAnswer(
        query=query,
        score=row["score"],
        data=row["answer"],
        document=document,
        document_offset=ExtractedAnswer.Span(row["start"], row["end"]),
    )


def _overlap(one: ExtractedAnswer, other: ExtractedAnswer) -> float:
    """Return the fraction of the shorter answer that both answers contain; 0 for answers of different documents."""
    first, second = one.document_offset, other.document_offset
    if one.document is not other.document or first is None or second is None:
        return 0.0
    shared = min(first.end, second.end) - max(first.start, second.start)
    return max(0, shared) / max(1, min(first.end - first.start, second.end - second.start))
