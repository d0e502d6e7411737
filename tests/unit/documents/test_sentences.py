"""Sentence spans are exact for every text."""

# ruff: noqa: RUF001 (characters that look like others are the point)

from __future__ import annotations

import json
from hashlib import blake2b

import pytest
from hypothesis import given, settings

from qa_cluster.documents.sentences import MAX_SENTENCE_LENGTH, MAX_SENTENCE_TOKENS, SPLITTER_VERSION, split_sentences
from tests.unit.text_strategies import texts


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


@settings(max_examples=300, deadline=None)
@given(texts())
def test_spans_are_ordered_trimmed_and_lose_nothing(text: str) -> None:
    position = 0
    for start, end in split_sentences(text):
        assert position <= start < end <= len(text)
        assert end - start <= MAX_SENTENCE_LENGTH
        assert not text[position:start].strip()
        assert text[start:end] == text[start:end].strip()
        position = end
    assert not text[position:].strip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n\t\u3000", []),
        ("One. Two? Three!", ["One.", "Two?", "Three!"]),
        ("Dr. Smith met Mr. Jones at 3.50 p.m. He left.", ["Dr. Smith met Mr. Jones at 3.50 p.m.", "He left."]),
        ("A title\n\nIts text goes\non here. Then ends.", ["A title", "Its text goes\non here.", "Then ends."]),
        ("你好。我是人！「真的？」他说。", ["你好。", "我是人！", "「真的？」", "他说。"]),
        ("नमस्ते दुनिया। मैं हूँ।", ["नमस्ते दुनिया।", "मैं हूँ।"]),
        ("- one\n- two\n", ["- one", "- two"]),
        ("a\tb\n1\t2\n", ["a\tb", "1\t2"]),
    ],
)
def test_sentences_of_all_sorts_of_text(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_a_long_sentence_is_cut_between_clauses() -> None:
    text = "one two three four five six, " * 80
    pieces = sentences(text)
    assert len(pieces) > 1
    assert all(piece.endswith("six,") for piece in pieces)


def test_a_long_sentence_without_clauses_is_cut_between_words() -> None:
    pieces = sentences("word " * 1000)
    assert {word for piece in pieces for word in piece.split()} == {"word"}
    assert all(len(piece.split()) <= MAX_SENTENCE_TOKENS for piece in pieces)


def test_a_text_without_words_is_cut_anywhere() -> None:
    assert "".join(sentences("x" * 10_000)) == "x" * 10_000
    assert all(len(piece) <= MAX_SENTENCE_TOKENS for piece in sentences("字" * 2000))


@pytest.mark.parametrize("part", ["a", ". ", "\n", "(", ", ", "“", " ", "!", "。", "a   b" + " " * 50, "x;\n", "\n- "])
def test_no_text_takes_forever(part: str) -> None:
    # Some of these once took time that grew with the square of the length.
    split_sentences(part * (100_000 // len(part)))


# Abbreviations, blocks, items, tables, code, full stops without spaces, and sentences cut to a readable length.
CORPUS = (
    "Dr. Smith (b. 1950, Washington, D.C.) met Mr. Jones at 3.50 p.m. He left! Did she? \u201cNo.\u201d It was 4.2%.",
    "A title\n\nIts text goes\non here. Then ends.\r\n\r\nThe next.\fAfter the page.\u2029After the paragraph.",
    "Shopping:\n- milk\n* eggs\n1. bread\n(2) salt\na) rice\n# Part\n>>> 1 + 1\n```\nx = 1;\n",
    "name\tage\nAda\t36\n\n| a | b |\n=====\nleft    middle    right\nint main() {\n}\n",
    "你好。我是人！「真的？」他说。नमस्ते दुनिया। मैं हूँ। Mixed. 终わり。",
    "one two three four five six, " * 80,
    "word " * 1000,
    "x" * 3000 + " " + "字" * 700,
    "A sentence that repeats. " * 600,
)
# The version of the splitter, and a hash of its results. If the hash changes, the version must change as well: shards
# split stored documents again only for another version.
PINNED = ("1-nupunkt-0.8.0", "8d941fc20725b79e")


def test_a_change_of_the_spans_needs_a_new_version() -> None:
    spans = json.dumps([split_sentences(text) for text in CORPUS]).encode()
    assert (SPLITTER_VERSION, blake2b(spans, digest_size=8).hexdigest()) == PINNED, "move SPLITTER_VERSION, then pin"
