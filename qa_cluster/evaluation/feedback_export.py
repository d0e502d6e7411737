"""Makes question sets of feedback: SQuAD-format JSON for evaluation, and JSON lines for training. Pure.

An entry gives an example if it has the sentence of the answer. `right` says that the sentence has the answer; `wrong`
says that it has none; `better` gives the better place, and the sentence that was shown has no answer. The last entry
about a question and a sentence counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

from qa_cluster.types import Feedback

from .examples import Example


def examples_of(feedback: Iterable[Feedback]) -> list[Example]:
    """The examples, in the order of their first entries.

    >>> examples_of([Feedback("Who?", "wrong", answer="It", context="It rains.")])[0].answers
    ()
    """
    found: dict[tuple[str, str], Example] = {}
    for each in feedback:
        for example in _of(each):
            found[example.question, example.context] = example
    return list(found.values())


def _of(feedback: Feedback) -> Iterator[Example]:
    if feedback.context:
        right = feedback.verdict == "right"
        if not right:
            yield Example(feedback.question, feedback.context, (), (), feedback.document_id)
        elif feedback.answer:
            yield _answered(feedback.question, feedback.context, feedback.answer, feedback.document_id)
    if feedback.verdict == "better" and feedback.better_context and feedback.better_answer:
        document = feedback.better_document_id or feedback.document_id
        yield _answered(feedback.question, feedback.better_context, feedback.better_answer, document)


def _answered(question: str, context: str, answer: str, document: str) -> Example:
    return Example(question, context, (answer,), (context.index(answer),), document)


def squad_of(examples: Iterable[Example]) -> dict[str, Any]:
    """The examples in SQuAD format, each context with its questions."""
    contexts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for example in examples:
        answers = [
            {"text": text, "answer_start": start} for text, start in zip(example.answers, example.starts, strict=True)
        ]
        name = blake2b(f"{example.question}\n{example.context}".encode(), digest_size=8).hexdigest()
        contexts.setdefault((example.title, example.context), []).append(
            {"id": name, "question": example.question, "answers": answers, "is_impossible": not answers}
        )
    return {
        "version": "qa-cluster feedback",
        "data": [
            {"title": title or "feedback", "paragraphs": [{"context": context, "qas": questions}]}
            for (title, context), questions in contexts.items()
        ],
    }


def lines_of(examples: Iterable[Example]) -> Iterator[dict[str, Any]]:
    """The examples as lines for training."""
    for example in examples:
        yield {
            "question": example.question,
            "context": example.context,
            "answer": example.answers[0] if example.answers else "",
            "answer_start": example.starts[0] if example.starts else -1,
            "source": "feedback",
        }
