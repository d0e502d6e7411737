"""Turns feedback about answers into question sets: SQuAD-format JSON for evaluation, JSON lines for training.

An example is a question with a sentence. The verdict of an entry of feedback decides which examples the entry makes:

- `right` makes an example of the judged sentence, with the judged answer.
- `wrong` makes an example of the judged sentence, without an answer.
- `better` makes two examples: the judged sentence without an answer, and the better sentence with the better answer.

An example is left out if the entry lacks the sentence or the answer of this example. If several examples have the same
question and sentence, only the last example is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

from qa_cluster.types import Feedback

from .examples import Example


def examples_of(feedback: Iterable[Feedback]) -> list[Example]:
    """Return the examples of all entries, in the order in which each question and sentence first occur together.

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
    """Return the examples as a SQuAD-format document, in which each context has its questions."""
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
    """Yield each example as the JSON object of one line, with `question`, `context`, `answer` and `answer_start`.

    `answer` is the first answer of the example. If the example has no answer, `answer_start` is -1.
    """
    for example in examples:
        yield {
            "question": example.question,
            "context": example.context,
            "answer": example.answers[0] if example.answers else "",
            "answer_start": example.starts[0] if example.starts else -1,
            "source": "feedback",
        }
