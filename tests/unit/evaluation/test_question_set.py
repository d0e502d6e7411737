"""A question set gives a corpus with the documents that `ingest` makes, and the sentences that answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.documents.corpus import read_documents
from qa_cluster.documents.sentences import split_sentences
from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.evaluation.examples import Example
from qa_cluster.evaluation.question_set import gold_sentences, load_question_set

ADA = "Ada Lovelace wrote it. It was in 1843. Nobody ran it in 1843."


def squad(folder: Path, qas: list[dict[str, Any]], context: str = ADA) -> Path:
    paragraphs = [{"context": context, "qas": qas}, {"context": "Rome is in Italy.", "qas": []}]
    path = folder / "set.json"
    path.write_text(json.dumps({"data": [{"title": "Ada", "paragraphs": paragraphs}]}), encoding="utf-8")
    return path


def test_documents_are_those_of_ingest(tmp_path: Path) -> None:
    path = squad(tmp_path, [{"question": "When?", "answers": [{"text": "1843", "answer_start": ADA.index("1843")}]}])
    found = load_question_set(path)
    assert found.documents == list(read_documents([path]))
    assert [document.id for document in found.documents] == ["Ada:0", "Ada:1"]
    assert found.sentences["Ada:0"] == ["Ada Lovelace wrote it.", "It was in 1843.", "Nobody ran it in 1843."]
    assert len(found.all_sentences()) == 4
    assert found.gold == [frozenset({"It was in 1843."})]


def test_documents_of_json_lines_are_the_different_contexts(tmp_path: Path) -> None:
    rows = [
        {"question": "Who?", "context": ADA, "answer": "Ada Lovelace", "answer_start": 0},
        {"question": "Where?", "context": "Rome is in Italy.", "answer": "Italy", "answer_start": 11},
        {"question": "Why?", "context": ADA, "answer": "", "answer_start": -1},
    ]
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = load_question_set(path)
    assert [(document.id, document.text) for document in found.documents] == [
        ("lines:0", ADA),
        ("lines:1", "Rome is in Italy."),
    ]
    assert found.gold == [frozenset({"Ada Lovelace wrote it."}), frozenset({"Rome is in Italy."}), frozenset()]


def test_a_limit_takes_some_questions_and_all_documents(tmp_path: Path) -> None:
    path = squad(tmp_path, [{"question": f"When {i}?", "answers": []} for i in range(10)])
    found = load_question_set(path, limit=2)
    assert [example.question for example in found.examples] == ["When 0?", "When 5?"]
    assert len(found.documents) == 2
    with pytest.raises(InvalidInput, match="limit is 0"):
        load_question_set(path, limit=0)
    with pytest.raises(InputTooLong, match="'Ada:0'"):
        load_question_set(path, max_bytes=20)


@pytest.mark.parametrize(
    ("answers", "starts", "expected"),
    [
        (("1843",), (ADA.rindex("1843"),), {"Nobody ran it in 1843."}),
        (("1843",), (), {"It was in 1843."}),
        (("1843",), (3,), {"It was in 1843."}),
        (("it. It",), (ADA.index("it. It"),), {"Ada Lovelace wrote it.", "It was in 1843."}),
        (("Ada", "1843"), (0, ADA.index("1843")), {"Ada Lovelace wrote it.", "It was in 1843."}),
        (("Babbage",), (), set()),
        ((), (), set()),
    ],
)
def test_sentences_that_answer(answers: tuple[str, ...], starts: tuple[int, ...], expected: set[str]) -> None:
    assert gold_sentences(Example("?", ADA, answers, starts), split_sentences(ADA)) == expected
