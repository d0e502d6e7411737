"""A question set as a corpus with questions: documents, and for each question the sentences that answer it.

A SQuAD-format file gives the same documents and ids as `ingest`. In a JSON-lines file, each distinct context is a
document with the id `<name of the file>:<n>`. Sentences with an answer are identified by their text, because the same
sentence may be in several contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qa_cluster.documents.corpus import read_documents
from qa_cluster.documents.sentences import SentenceSpan, split_sentences
from qa_cluster.types import Document

from .examples import Example, load_examples, spread


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions and their corpus.

    Attributes:
        sentences: the sentences of every document, by the document's id.
        gold: for every example, the texts of the sentences that contain an answer; empty if no sentence does.
    """

    examples: list[Example]
    documents: list[Document]
    sentences: dict[str, list[str]]
    gold: list[frozenset[str]]

    def all_sentences(self) -> list[str]:
        """Return the sentences of all documents, in the order of the documents."""
        return [sentence for document in self.documents for sentence in self.sentences[document.id]]


def load_question_set(path: Path, *, limit: int | None = None, max_bytes: int = 8 * 1024 * 1024) -> QuestionSet:
    """Read a question set: all documents, and at most `limit` questions, evenly spread over the file.

    `max_bytes` is the size limit of a document.
    """
    examples = load_examples(path)
    if path.name.lower().endswith(".json"):
        documents = list(read_documents([path], max_bytes=max_bytes))
    else:
        name = path.name.split(".")[0]
        contexts = dict.fromkeys(example.context for example in examples)
        documents = [Document(id=f"{name}:{i}", text=text, title=name) for i, text in enumerate(contexts)]
    chosen = spread(examples, limit) if limit is not None else examples
    spans = {document.text: split_sentences(document.text) for document in documents}
    sentences = {item.id: [item.text[start:end] for start, end in spans[item.text]] for item in documents}
    gold = [gold_sentences(example, spans[example.context]) for example in chosen]
    return QuestionSet(chosen, documents, sentences, gold)


def gold_sentences(example: Example, spans: Sequence[SentenceSpan]) -> frozenset[str]:
    """Return the texts of the sentences that contain an answer of the example, or a part of an answer.

    If an answer is not at its stated position, its first occurrence in the context is used.

    Args:
        spans: the sentences of the example's context.
    """
    context = example.context
    starts = example.starts or (-1,) * len(example.answers)
    found: set[str] = set()
    for answer, start in zip(example.answers, starts, strict=True):
        begin = start
        if begin < 0 or not context.startswith(answer, begin):
            begin = context.find(answer)
        end = begin + len(answer)
        found.update(context[a:b] for a, b in spans if begin >= 0 and a < end and begin < b)
    return frozenset(found)
