"""The arguments of `QA.INDEX.WATCH` for a cached answer: bounds that never allow more drift than the setting."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_cluster.ranking.bm25 import Candidate, RankedPartition, Ranking
from qa_cluster.ranking.meaning import QuestionVector
from qa_cluster.ranking.watching import watch_commands

TAGS = ("06S", "0Wq")


def ranking(sentences: int, frequencies: tuple[int, ...]) -> Ranking:
    """A ranking of two partitions; the first one has a third of the sentences and frequencies."""
    parts = {
        TAGS[0]: RankedPartition(sentences // 3, tuple(number // 3 for number in frequencies), 5, 50),
        TAGS[1]: RankedPartition(
            sentences - sentences // 3, tuple(number - number // 3 for number in frequencies), 6, 60
        ),
    }
    terms = tuple(f"t{number}" for number in range(len(frequencies)))
    return Ranking([], dict.fromkeys(TAGS, 1), sentences, terms, frequencies, parts)


def bounds(words: tuple[str | int, ...]) -> tuple[list[int], list[list[int]]]:
    """The bounds of the sentences and of each term."""
    count = int(words[11])
    terms = [[int(word) for word in words[14 + 4 * i : 16 + 4 * i]] for i in range(count)]
    return [int(word) for word in words[8:10]], terms


def test_a_command_for_each_partition() -> None:
    found = ranking(1000, (10,))
    best = [Candidate("a:{06S}:1", 9.0, (1.0,), 7), Candidate("b%25:{06S}:0", 8.0, (1.0,), 9)]
    commands = watch_commands(replace(found, candidates=best), 2, name="digest", ttl_ms=60, drift=0.0)
    assert commands["06S"] == (
        *("QA.INDEX.WATCH", "index:{06S}", "digest", 60, 5, 50, repr(8.0 * (1 - 1e-9)), 1000, 333, 333),
        *("TERMS", 1, "t0", 10, 3, 3, "DOCUMENTS", 2, "a", 7, "b%25", 9),
    )
    assert commands["0Wq"][-2:] == ("DOCUMENTS", 0)


@pytest.mark.parametrize(("asked", "least"), [(2, 0.0), (1, 7.8)])
def test_the_score_to_reach(asked: int, least: float) -> None:
    found = replace(ranking(1000, (10,)), candidates=[Candidate("a:{06S}:1", 8.0, (1.0,), 7)])
    commands = watch_commands(found, asked, name="n", ttl_ms=1, drift=0.05)
    assert float(commands["0Wq"][6]) == pytest.approx(least)


def test_without_candidates_every_sentence_counts() -> None:
    commands = watch_commands(ranking(0, (0, 0)), 8, name="n", ttl_ms=1, drift=0.05)
    assert float(commands["06S"][6]) == 0
    assert bounds(commands["06S"]) == ([0, 0], [[0, 0], [0, 0]])


def test_without_terms_the_number_of_sentences_has_no_bound() -> None:
    commands = watch_commands(ranking(1000, ()), 8, name="n", ttl_ms=1, drift=0.05)
    assert bounds(commands["06S"])[0] == [0, 2**53 - 1]


def test_terms_that_are_too_long_for_an_index_are_not_sent() -> None:
    found = Ranking([], dict.fromkeys(TAGS, 1), 9, ("x" * 257, "ok"), (0, 1), {"06S": RankedPartition(9, (0, 1), 1, 2)})
    words = watch_commands(found, 8, name="n", ttl_ms=1, drift=0.0)["06S"]
    assert words[10:] == ("TERMS", 1, "ok", 1, 1, 1, "DOCUMENTS", 0)


def idf(sentences: int, frequency: int) -> float:
    return math.log1p((sentences - frequency + 0.5) / (frequency + 0.5))


@given(st.integers(0, 10**7), st.lists(st.floats(0, 1), min_size=1, max_size=4), st.floats(0, 1))
def test_at_the_bounds_of_all_partitions_no_idf_exceeds_the_drift(
    sentences: int, shares: list[float], drift: float
) -> None:
    frequencies = tuple(int(share * sentences) for share in shares)
    found = ranking(sentences, frequencies)
    commands = watch_commands(found, 8, name="n", ttl_ms=1, drift=drift)
    ends = [bounds(commands[tag]) for tag in TAGS]
    for i, frequency in enumerate(frequencies):
        before = idf(sentences, frequency)
        allowed = drift * max(1.0, before) + 1e-9
        for of_sentences in (0, 1):
            for of_terms in (0, 1):
                number = sum(each[0][of_sentences] for each in ends)
                df = min(number, sum(each[1][i][of_terms] for each in ends))
                assert abs(idf(number, df) - before) <= allowed


VECTOR = QuestionVector(b"encoder1", b"packed", 40.0, 0.35)


@pytest.mark.parametrize(("asked", "least"), [(2, -80.0), (1, 20 + 8 * 0.975)])
def test_the_score_to_reach_by_meaning(asked: int, least: float) -> None:
    """Only the part by words may drift. A ranking with too few sentences admits each new sentence."""
    best = [Candidate("a:{06S}:1", 28.0, (1.0,), 7, by_meaning=20.0)]
    found = replace(ranking(1000, (10,)), candidates=best, vector=VECTOR)
    words = watch_commands(found, asked, name="n", ttl_ms=1, drift=0.05)["0Wq"]
    assert float(words[6]) == pytest.approx(least)
    assert words[10:15] == ("VECTOR", b"encoder1", "40.0", "0.35", b"packed")
