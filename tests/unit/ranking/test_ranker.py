"""Rankings from the replies of the partitions' indexes."""

from __future__ import annotations

from typing import Any

from qa_cluster.ranking.bm25 import RankedPartition
from qa_cluster.ranking.meaning import QuestionVector
from qa_cluster.ranking.ranker import parse_statistics, rank_commands, ranking_of, statistics_commands
from qa_cluster.ranking.terms import ANALYZER_VERSION

ANALYZER = ANALYZER_VERSION.encode()
VECTOR = QuestionVector(b"encoder1", b"packed", 40.0, 0.35)


def statistics_replies(*partitions: tuple[int, int, int, bytes | None]) -> list[Any]:
    """Replies to `statistics_commands` for one term: each partition's epoch, sentences, frequency and analyzer."""
    replies: list[Any] = []
    for epoch, sentences, frequency, analyzer in partitions:
        replies += [[b"%d" % epoch, None], [sentences, 0, [frequency]], analyzer]
    return replies


def test_each_partition_has_its_own_statistics() -> None:
    statistics = parse_statistics(["t", "u"], ["x"], statistics_replies((1, 3, 2, ANALYZER), (4, 3, 1, ANALYZER)))
    assert [command[1:5] for command in rank_commands(statistics, 2)] == [
        ("index:{t}", 2, 6, "TERMS"),
        ("index:{u}", 2, 6, "TERMS"),
    ]
    replies = [[0, 0, 0, [[b"d", 7, b"1.5", [b"2.0"]]], [11, 20], [4]], [0, 0, 0, [], [12, 30], []]]
    found = ranking_of(statistics, replies, 2)
    assert [(item.sentence, item.weights, item.place) for item in found.candidates] == [("d:{t}:7", (2.0,), 4)]
    assert (found.sentences, found.terms, found.frequencies, found.epochs) == (6, ("x",), (3,), {"t": 1, "u": 4})
    assert found.parts == {"t": RankedPartition(3, (2,), 11, 20), "u": RankedPartition(3, (1,), 12, 30)}
    assert not found.reindexing


def test_a_partition_with_sentences_of_another_analyzer_is_reindexing() -> None:
    replies = statistics_replies((1, 3, 2, ANALYZER), (1, 0, 0, None), (1, 1, 1, b"old"), (1, 1, 1, None))
    assert parse_statistics("tuvw", ["x"], replies).stale == [("v", "analyzer old"), ("w", "an unknown analyzer")]


def test_commands_name_keys_of_one_partition() -> None:
    assert [str(command[1]) for command in statistics_commands(["t"], ["x"], "books")] == [
        "epoch:books:{t}",
        "index:books:{t}",
        "layout:{t}",
    ]


def test_by_meaning_a_sentence_counts_with_the_cosine_of_its_passage() -> None:
    statistics = parse_statistics(["t"], ["x"], statistics_replies((1, 3, 2, ANALYZER)))
    (command,) = rank_commands(statistics, 2, b"filter", VECTOR, distinct=True)
    assert command[4:13] == ("FILTER", b"filter", *VECTOR.arguments, "DISTINCT", "TERMS")
    hits = [[b"d", 7, b"0.5", [b"1.0"]], [b"d", 9, b"0", [b"0"]], [b"e", 0, b"0.1", [b"0.1"]]]
    replies = [[0, 0, 0, hits, [11, 20], [4, 4, 5], [[b"0.5", 6, 2], [b"0.75", 9, 3], [None, 0, 1]]]]
    found = ranking_of(statistics, replies, 2, VECTOR)
    assert [(item.sentence, item.by_meaning) for item in found.candidates] == [("d:{t}:9", 30.0), ("d:{t}:7", 20.0)]
    assert found.vector is VECTOR and not found.reindexing
