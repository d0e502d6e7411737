"""Plain questions are read strictly, and an answer is right as the documentation says."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.evaluation.plain_questions import PlainQuestion, holds_plain_questions, load_plain_questions

ADA = PlainQuestion("Who wrote it?", ("Ada Lovelace", "Countess of Lovelace"))


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Ada Lovelace", True),
        ("the ada lovelace.", True),
        ("the Countess of Lovelace", True),
        ("the long program that Ada Lovelace wrote herself then", False),
        ("by Ada Lovelace in June of 1843", True),
        ("Lovelace", False),
        ("Ada and Lovelace", False),
        ("Adam Lovelace", False),
        ("", False),
        (".", False),
    ],
)
def test_an_answer_is_right_if_it_contains_an_accepted_answer_and_little_else(answer: str, right: bool) -> None:
    assert ADA.is_right(answer, "any") is right


@pytest.mark.parametrize(
    ("document_id", "right"),
    [("ada.txt", True), ("letters/ada.txt", True), ("set:ada.txt", True), ("nada.txt", False), ("ada.txt.old", False)],
)
def test_the_answer_must_come_from_the_document_that_the_question_names(document_id: str, right: bool) -> None:
    assert PlainQuestion("Who?", ("Ada",), document="ada.txt").is_right("Ada", document_id) is right


def test_a_pattern_can_ignore_case() -> None:
    question = PlainQuestion("Which option?", pattern=re.compile("--no-?wait$", re.IGNORECASE))
    assert question.answered
    assert question.is_right("the option --NOWAIT", "any")
    assert not question.is_right("--no-wait=1", "any")


def test_an_accepted_answer_without_words_must_match_exactly() -> None:
    question = PlainQuestion("Which character ends it?", ("$!",))
    assert question.is_right(" $! ", "any")
    assert not question.is_right("$?", "any")
    assert not question.is_right("the $", "any")
    assert not ADA.is_right("$!", "any")


def test_no_answer_is_right_for_an_unanswerable_question() -> None:
    assert not PlainQuestion("Who?").is_right("Ada", "any")


def test_all_fields_are_read(tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl.gz"
    rows = [
        {"question": "Who?", "answers": ["Ada"], "document": "ada.txt", "kind": "who", "number": 3},
        {"question": "Which?", "pattern": "x+"},
        {"question": "Why?", "answers": []},
    ]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("\n".join(map(json.dumps, rows)) + "\n\n")
    assert holds_plain_questions(path)
    who, which, why = load_plain_questions(path)
    assert (who.answers, who.document, who.labels) == (("Ada",), "ada.txt", {"kind": "who"})
    assert which.pattern is not None
    assert which.pattern.pattern == "x+"
    assert not why.answered


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "must be an object"),
        ('{"question": "Who?"}', "either answers or pattern"),
        ('{"question": "Who?", "answers": [], "pattern": "x"}', "either answers or pattern"),
        ('{"question": " ", "answers": []}', "not empty"),
        ('{"question": 3, "answers": []}', "must be texts"),
        ('{"question": "Who?", "answers": "Ada"}', "list of non-empty texts"),
        ('{"question": "Who?", "answers": [" "]}', "list of non-empty texts"),
        ('{"question": "Who?", "answers": [], "document": 1}', "must be texts"),
        ('{"question": "Who?", "pattern": "("}', "not a regular expression"),
        ('{"question": "Who?", "pattern": ""}', "1 to 1000 characters"),
        ('{"question": "\\ud800", "answers": []}', "lone surrogate"),
    ],
)
def test_a_faulty_line_is_named_with_its_reason(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "plain.jsonl"
    path.write_text('{"question": "Who?", "answers": []}\n\n' + line, encoding="utf-8")
    with pytest.raises(InvalidInput, match=rf"plain.jsonl' line 3.*{reason}"):
        load_plain_questions(path)


def test_labelled_examples_and_other_files_hold_no_plain_questions(tmp_path: Path) -> None:
    labelled, squad, empty = (tmp_path / name for name in ("labelled.jsonl", "squad.json", "empty.jsonl"))
    labelled.write_text('{"question": "Who?", "context": "Ada.", "answer": "Ada", "answer_start": 0}', encoding="utf-8")
    squad.write_text('{"question": "Who?", "answers": []}', encoding="utf-8")
    empty.write_text("\n", encoding="utf-8")
    assert not any(map(holds_plain_questions, (labelled, squad, empty)))
    with pytest.raises(InvalidInput, match="contains no question"):
        load_plain_questions(empty)
    with pytest.raises(InvalidInput, match="cannot read"):
        load_plain_questions(tmp_path / "none.jsonl")
