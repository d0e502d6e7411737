"""The written passages have no faults, match their README, and share no text with the yardstick."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.models.examples.data import load_dataset
from qa_cluster.models.examples.passages import DOMAINS, WrittenPassage, WrittenQuestion, faults, folded, passage_of
from tests.harness.programs import ROOT

WRITTEN = ROOT / "models" / "training" / "written"
YARDSTICK = ROOT / "tests" / "yardstick"
NGRAM = 8
GOOD = WrittenPassage(
    "software",
    "tarsplit",
    "OPTIONS",
    "The option -s gives the size of a part in bytes. Its default is 4096 and its maximum is 1048576 bytes.",
    (WrittenQuestion("What is the default part size of tarsplit?", "4096", "default", "full"),),
)


@pytest.fixture(scope="module")
def passages() -> list[WrittenPassage]:
    files = sorted(WRITTEN.glob("*.jsonl.gz"))
    assert {path.name.removesuffix(".jsonl.gz") for path in files} == DOMAINS
    return [passage_of(json.loads(line), str(path)) for path in files for line in lines(path)]


def lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def test_the_written_passages_have_no_faults(passages: list[WrittenPassage]) -> None:
    assert faults(passages) == []


def test_the_readme_has_the_right_counts(passages: list[WrittenPassage]) -> None:
    card = (WRITTEN / "README.md").read_text()
    for domain in DOMAINS:
        here = [passage for passage in passages if passage.domain == domain]
        asked = [question for passage in here for question in passage.questions]
        counts = (len(here), len(asked), sum(question.answer is None for question in asked))
        assert "| {} | {} | {} | {} |".format(domain, *counts) in card


def ngrams(text: str) -> Iterator[str]:
    words = folded(text).split()
    return (" ".join(words[at : at + NGRAM]) for at in range(len(words) - NGRAM + 1))


def test_the_passages_share_no_eight_words_with_questions_of_the_yardstick(passages: list[WrittenPassage]) -> None:
    rows = [json.loads(row) for path in sorted(YARDSTICK.glob("*.jsonl")) for row in path.read_text().splitlines()]
    assert len(rows) > 500
    known = {gram for row in rows for gram in ngrams(row["question"])}
    texts = [text for passage in passages for text in (passage.text, *(asked.question for asked in passage.questions))]
    assert [text for text in texts if not known.isdisjoint(ngrams(text))] == []
    asked = {folded(row["question"]) for row in rows}
    assert [each for passage in passages for each in passage.questions if folded(each.question) in asked] == []


def test_training_accepts_the_written_passages() -> None:
    path = WRITTEN / "software.jsonl.gz"
    found = load_dataset(path)
    assert not found.dropped
    assert len(found.examples) == sum(len(json.loads(line)["questions"]) for line in lines(path))
    for example in found.examples:
        end = example.answer_start + len(example.answer)
        assert example.answer_start < 0 or example.context[example.answer_start : end] == example.answer


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"answer": "8192"}, "is not in the text"),
        ({"answer": "96"}, "starts inside a word"),
        ({"answer": "40"}, "ends inside a word"),
        ({"answer": " 4096"}, "is not in the text"),
        ({"answer": " ".join(GOOD.text.split()[:21])}, "has 21 words"),
        ({"kind": "riddle"}, "unknown kind"),
        ({"style": "loud"}, "unknown style"),
        ({"question": "What is the default in this passage?"}, "mentions the passage"),
    ],
)
def test_a_faulty_question_is_found(changed: dict[str, str], fault: str) -> None:
    assert faults([GOOD]) == []
    (found,) = faults([replace(GOOD, questions=(replace(GOOD.questions[0], **changed),))])
    assert fault in found


def test_faulty_passages_are_found() -> None:
    assert "unknown domain" in faults([replace(GOOD, domain="cooking")])[0]
    assert "3 words" in faults([replace(GOOD, text="Only 4096 here.")])[0]
    assert [re.sub(".*: (the text|the question) ", r"\1 ", fault)[:12] for fault in faults([GOOD, GOOD])] == [
        "the text occ",
        "the question",
    ]


@pytest.mark.parametrize(
    "row",
    [
        {"questions": []},
        {"domain": "law", "title": "t", "section": "", "text": "x", "questions": {}},
        {"domain": "law", "title": "t", "section": "", "text": "\ud800", "questions": []},
        {"domain": "law", "title": "t", "section": "", "text": "x", "questions": ["Who?"]},
        {"domain": "law", "title": "t", "section": "", "text": "x", "questions": [{"question": "Who?"}]},
        {
            "domain": "law",
            "title": "t",
            "section": "",
            "text": "x",
            "questions": [{"question": "Who?", "answer": 1, "kind": "who", "style": "full"}],
        },
    ],
)
def test_the_error_names_an_invalid_line(tmp_path: Path, row: dict[str, Any]) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(InvalidInput, match="line 1"):
        load_dataset(path)
