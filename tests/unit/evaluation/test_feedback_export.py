"""Feedback is exported as a question set, which `eval` and the training can read."""

from __future__ import annotations

from pathlib import Path

import orjson

from qa_cluster.evaluation.examples import Example, load_examples
from qa_cluster.evaluation.feedback_export import examples_of, lines_of, squad_of
from qa_cluster.models.examples.data import load_dataset
from qa_cluster.types import Feedback

GIVEN = (
    Feedback("Who?", "right", "a", "Ada", "Who wrote it? Ada wrote it."),
    Feedback("Where?", "wrong", "a", "Rome", "It is in Rome."),
    Feedback("When?", "better", "a", "1840", "In 1840 it rained.", "b", "1843", "It was in 1843."),
    Feedback("Why?", "right", "a", "Because"),
    Feedback("Who?", "wrong", "a", "Ada", "Who wrote it? Ada wrote it."),
    Feedback("Who?", "right", "a", "Ada", "Who wrote it? Ada wrote it."),
)
EXPECTED = [
    Example("Who?", "Who wrote it? Ada wrote it.", ("Ada",), (14,), "a"),
    Example("Where?", "It is in Rome.", (), (), "a"),
    Example("When?", "In 1840 it rained.", (), (), "a"),
    Example("When?", "It was in 1843.", ("1843",), (10,), "b"),
]


def test_the_last_entry_about_a_sentence_counts() -> None:
    assert examples_of(GIVEN) == EXPECTED


def test_an_evaluation_reads_both_forms(tmp_path: Path) -> None:
    squad, lines = tmp_path / "eval.json", tmp_path / "train.jsonl"
    squad.write_bytes(orjson.dumps(squad_of(EXPECTED)))
    lines.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines_of(EXPECTED)))
    for path in (squad, lines):
        found = [(each.question, each.context, each.answers, each.starts) for each in load_examples(path)]
        assert found == [(each.question, each.context, each.answers, each.starts) for each in EXPECTED]


def test_the_training_reads_both_forms(tmp_path: Path) -> None:
    squad, lines = tmp_path / "eval.json", tmp_path / "train.jsonl"
    squad.write_bytes(orjson.dumps(squad_of(EXPECTED)))
    lines.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines_of(EXPECTED)))
    for path in (squad, lines):
        found = load_dataset(path)
        assert (len(found.examples), found.dropped) == (4, {})
        assert [each.answer_start for each in found.examples] == [14, -1, -1, 10]
