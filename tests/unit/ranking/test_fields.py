"""Title, file name and section of a sentence take part in its ranking."""

from __future__ import annotations

import pytest

from qa_cluster.documents.source_map import FIELD, write_map
from qa_cluster.models.evaluation.sentence_index import SentenceIndex
from qa_cluster.ranking.fields import FILE, OCCURRENCE, SECTION, TITLE, field_terms, fields_of, scaled_length
from qa_cluster.ranking.postings import pack_sentences, weight, weights_of

SENTENCES = ["It was written by Jean-loup Gailly.", "It was written by Ada.", "Someone wrote to gzip users."]


def test_a_question_reaches_a_sentence_by_the_title_of_its_document() -> None:
    assert SentenceIndex(SENTENCES).rank("Who has written gzip?", 1)[0][0] == 2
    fields = [field_terms("gzip(1) - compress files"), field_terms("other(1)"), {}]
    assert SentenceIndex(SENTENCES, fields).rank("Who has written gzip?", 1)[0][0] == 0


@pytest.mark.parametrize("length", [1, 7, 15, 200])
@pytest.mark.parametrize("count", [1, 3])
def test_counting_in_quarters_changes_no_weight(length: int, count: int) -> None:
    assert weight(OCCURRENCE * count, scaled_length(length)) == pytest.approx(weight(count, length), abs=1e-4)


def test_a_field_counts_as_a_part_of_an_occurrence_and_adds_no_length() -> None:
    own = weights_of("A cat purrs.", {"cat": 2, "pet": 2})
    assert own["purr"] == pytest.approx(weights_of("A cat purrs.")["purr"], abs=1e-4)
    assert own["cat"] > weights_of("A cat purrs.")["cat"] > own["pet"] > 0


def test_fields_of_a_document_follow_its_sections() -> None:
    metadata = {FIELD: write_map("gzip/gzip.1.gz", "roff", 1, [(10, ["Options", "--force"]), (50, ["Authors"])])}
    first, second, third = fields_of("Manual", metadata, [0, 12, 60])
    assert first == {"manual": TITLE, "gzip": FILE}
    assert second == {**first, "forc": SECTION, "option": SECTION}
    assert third == {**first, "author": SECTION}


def test_long_fields_are_cut_off() -> None:
    words = " ".join(f"word{number}" for number in range(500))
    assert len(field_terms(words, words, [words])) <= 16 + 24


def test_documents_without_fields_are_packed_as_before() -> None:
    assert pack_sentences(SENTENCES, [{}, {}, {}]) == pack_sentences(SENTENCES)
