"""The limit of sentences per document: no text exceeds it, and only texts that might exceed it are split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_cluster.documents import sentence_limit
from qa_cluster.documents.sentence_limit import MAX_SENTENCES, end_of_limit, most_sentences
from qa_cluster.documents.sentences import split_sentences
from qa_cluster.documents.stored import check_document
from qa_cluster.errors import InputTooLong
from tests.unit.text_strategies import texts

# Texts that are cut for their length: huge words, runs of marks, clauses without an end.
CUT = st.sampled_from(("漢" * 300, "x" * 1400, "a, " * 200, "a " * 300, "/ " * 200, "、" * 300, "-" * 300, "a," * 99))


@given(st.one_of(texts(), st.lists(st.one_of(CUT, texts(2)), max_size=8).map("".join)))
def test_no_text_has_more_sentences_than_its_bound(text: str) -> None:
    assert len(split_sentences(text)) <= most_sentences(text, 10**9)


@given(texts(), st.integers(1, 12))
def test_the_limit_is_exact(text: str, limit: int) -> None:
    spans = split_sentences(text)
    assert end_of_limit(text, limit) == (spans[limit - 1][1] if len(spans) > limit else None)


def test_texts_that_cannot_exceed_the_limit_are_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "qa_cluster.documents.sentences", None)
    assert end_of_limit("a。" * (MAX_SENTENCES // 2)) is None
    assert end_of_limit("This is a sentence of usual length, more or less. " * 40_000) is None
    with pytest.raises(ImportError):
        end_of_limit("a。" * (MAX_SENTENCES + 1))


@pytest.mark.hostile
def test_two_million_sentences_in_eight_megabytes_are_refused() -> None:
    text = "a。" * 2_000_000
    with pytest.raises(InputTooLong) as refused:
        check_document("huge", text)
    said = str(refused.value)
    assert "text of document 'huge' has more than 100000 sentences" in said
    assert "its first 200000 of 4000000 code points" in said and said.endswith("Divide it into several documents")
    assert check_document("half", text[: 2 * MAX_SENTENCES]).text == text[: 2 * MAX_SENTENCES]
    assert sentence_limit.MAX_SENTENCES == 100_000
