"""The question word gives the type of a question."""

from __future__ import annotations

import pytest

from qa_cluster.evaluation.question_types import QUESTION_TYPES, question_type


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Who wrote the first program?", "who"),
        ("By whom was it written?", "who"),
        ("Whose engine was it?", "who"),
        ("When was it written?", "when"),
        ("In what year was it written?", "what"),
        ("Where does the Nile end?", "where"),
        ("How many bones has a hand?", "how many"),
        ("About how  much did it cost?", "how many"),
        ("How does it work?", "how"),
        ("Why is the sky blue?", "why"),
        ("WHAT'S a namespace?", "what"),
        ("In which town did he live?", "which"),
        ("Is it raining?", "yes-no"),
        ("\u201cDoesn\u2019t it end?", "yes-no"),
        ("Isthmus of Panama, what is it?", "what"),
        ("Name the first program.", "other"),
        ("Somewhat whatever", "other"),
        ("Wer war das?", "other"),
        ("", "other"),
    ],
)
def test_the_question_word_determines_the_type(question: str, expected: str) -> None:
    assert question_type(question) == expected
    assert expected in QUESTION_TYPES
