"""Ranked sentences in a result: whether they are unchanged since the ranking, and the text around them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qa_cluster.documents.sentence_offsets import LocatedSentence
from qa_cluster.documents.stored import FoundDocument
from qa_cluster.ranking.bm25 import Candidate
from qa_cluster.ranking.hits import ShownDocument, has_weights, hit_of, passage_around
from qa_cluster.ranking.postings import weights_of
from qa_cluster.types import Passage

TEXT = "Ada wrote the first program in 1843."
TERMS = ("program", "wrote", "engin")
WEIGHTS = tuple(weights_of(TEXT).get(term, 0.0) for term in TERMS)


def test_weights_of_a_sentence_match_the_rounded_weights_of_an_index() -> None:
    assert has_weights(TEXT, TERMS, WEIGHTS)
    assert has_weights(TEXT, TERMS, [weight * 1.009 for weight in WEIGHTS])
    assert not has_weights(TEXT, TERMS, [weight * 1.02 for weight in WEIGHTS])
    assert not has_weights(TEXT, TERMS, [*WEIGHTS[:2], 0.5])
    assert not has_weights(TEXT.replace("wrote", "read"), TERMS, WEIGHTS)
    assert not has_weights(TEXT, TERMS, WEIGHTS[:2])
    lightest = "cat " + " ".join(f"word{number}" for number in range(3000))
    assert weights_of(lightest)["cat"] < 0.02
    assert has_weights(lightest, ["cat"], [0.02])


CANDIDATE = Candidate("a:{06S}:1", 3.14159, WEIGHTS)
OWN = LocatedSentence(1, TEXT, 10)
SHOWN = ShownDocument.of(FoundDocument(7, "v", "T", "{}", ()))
CHANGED = replace(SHOWN, epoch=8)


@pytest.mark.parametrize(
    ("document", "around", "shown"),
    [
        (SHOWN, (OWN,), True),
        (CHANGED, (OWN,), True),  # another document of the partition has changed
        (
            SHOWN,
            (LocatedSentence(1, "Bob sang.", 10),),
            True,
        ),  # the unchanged epoch proves that the text is unchanged
        (CHANGED, (LocatedSentence(1, "Bob sang.", 10),), False),
        (SHOWN, (LocatedSentence(0, TEXT, 10),), False),
        (SHOWN, (), False),
        (None, (), False),
    ],
)
def test_only_sentences_that_were_ranked_are_shown(
    document: ShownDocument | None, around: tuple[LocatedSentence, ...], shown: bool
) -> None:
    hit = hit_of(CANDIDATE, document, around, TERMS, {"06S": 7}, with_passage=False)
    assert (hit is not None) == shown


def test_offsets_are_those_of_the_document() -> None:
    document = ShownDocument.of(FoundDocument(7, "v", "T", '{"year": 1843}', ()))
    hit = hit_of(CANDIDATE, document, (OWN,), TERMS, {"06S": 7}, with_passage=True)
    assert hit is not None
    assert (hit.start, hit.end, hit.score, hit.passage_id) == (10, 10 + len(TEXT), 3.1416, "a:1")
    assert [TEXT[span.start - 10 : span.end - 10] for span in hit.highlights] == ["wrote", "program"]
    assert hit.passage == Passage(TEXT, 10, 10 + len(TEXT))
    assert (hit.title, hit.metadata) == ("T", {"year": 1843})


def test_a_passage_ends_where_sentences_do_not_follow_each_other() -> None:
    around = [
        LocatedSentence(0, "Far.", 0),
        LocatedSentence(1, "Near.", 100),
        LocatedSentence(2, "Own.", 106),
        LocatedSentence(3, "Next.", 112),
        LocatedSentence(4, "Nowhere.", -1),
    ]
    assert passage_around(around[2], around) == Passage("Near. Own.  Next.", 100, 117)
    overlapping = [LocatedSentence(0, "Own.", 0), LocatedSentence(1, "Stale.", 2)]
    assert passage_around(overlapping[0], overlapping) == Passage("Own.", 0, 4)
