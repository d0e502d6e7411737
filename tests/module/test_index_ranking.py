"""QA.INDEX.RANK and QA.INDEX.LIST give the answers of the oracle, which scores every sentence."""

from __future__ import annotations

import random

import redis

from tests.harness.servers import Server
from tests.index.oracle import Condition, Date
from tests.module.indexes import TERMS, Twins, info, some_sentences

CONDITIONS: list[Condition] = [
    ("==", "year", 2004.0),
    (">=", "year", 2005.0),
    ("NOT", (">=", "year", 2005.0)),
    ("AND", [("!=", "year", 2003.0), ("not in", "", ["document1", "document2"])]),
    ("OR", [("in", "", ["document3", "document5", "absent"]), ("in", "year", [2001.0, 2002.0])]),
    ("==", "", "document4"),
    ("<", "published", Date(0)),
]


def test_a_random_corpus_ranks_as_the_oracle(shared_ai: redis.Redis) -> None:
    twins = Twins(shared_ai)
    twins.fill(0, 120)
    chance = random.Random(0)
    for _ in range(100):
        terms = chance.sample([*TERMS, "unknown", "x" * 300], chance.choice([1, 3, 4, 9, 32]))
        k = chance.choice([0, 1, 8, 8, 100, 1000])
        corpus = (chance.randrange(1, 5000), [chance.randrange(6000) for _ in terms]) if chance.random() < 0.5 else None
        condition = chance.choice(CONDITIONS) if chance.random() < 0.5 else None
        hits, frequencies, totals = twins.rank(terms, k, corpus, condition)
        assert hits == twins.best(terms, k, corpus, condition)
        assert frequencies == twins.oracle.frequencies(terms)
        assert totals == twins.oracle.totals()[1:]
        assert shared_ai.execute_command("QA.INDEX.STATS", twins.key, "TERMS", len(terms), *terms) == [
            *totals,
            frequencies,
        ]


def test_listing_and_filters(shared_ai: redis.Redis) -> None:
    twins = Twins(shared_ai)
    twins.fill(4, 50)
    assert twins.listed() == twins.expected() == twins.listed(count=1000)
    for condition in CONDITIONS:
        assert twins.listed(condition) == twins.expected(condition), condition
    twins.put(("late", {}, []))
    assert twins.listed()[-1] == "late"
    document = twins.oracle.live[twins.expected()[0]]
    lengths = [sentence.length for _, sentence, _ in document.sentences]
    _, page = shared_ai.execute_command("QA.INDEX.LIST", twins.key, 0, 1)
    assert page == [[document.id.encode(), len(lengths), sum(lengths)]]


def test_a_missing_key_is_an_empty_index(shared_ai: redis.Redis) -> None:
    run = shared_ai.execute_command
    assert run("QA.INDEX.RANK", "none", 3, 0, "TERMS", 2, "a", 0, "b", 0) == [0, 0, [0, 0], [], [0, 0], []]
    assert run("QA.INDEX.RANK", "none", 3, 9, "FILTER", b"&\0\0", "TERMS", 0) == [0, 0, [], [], [0, 0], []]
    assert run("QA.INDEX.STATS", "none", "TERMS", 1, "a") == [0, 0, [0]]
    assert run("QA.INDEX.LIST", "none", 0, 10) == [0, []]
    assert run("QA.INDEX.GET", "none", "a") is None
    assert run("QA.INDEX.INFO", "none") is None
    assert run("QA.INDEX.DEL", "none", "a") == 0
    assert shared_ai.exists("none") == 0


def test_numbers_are_doubles_in_resp3(shared_ai: redis.Redis, shared_ai_server: Server) -> None:
    twins = Twins(shared_ai)
    twins.fill(1, 10)
    with shared_ai_server.client(decode_responses=False, protocol=3) as client:
        *_, hits, _, _ = client.execute_command("QA.INDEX.RANK", twins.key, 3, 0, "TERMS", 1, TERMS[0], 0)
        assert [hit[2] for hit in hits] == [hit[2] for hit in twins.oracle.rank(TERMS[:1], 3)]
        assert all(isinstance(number, float) for hit in hits for number in (hit[2], *hit[3]))


def test_counts_match_the_written_documents(shared_ai: redis.Redis) -> None:
    twins = Twins(shared_ai)
    sentences = some_sentences(random.Random(3), 40)
    assert twins.put(("a", {}, sentences[:10]), ("b", {}, sentences[10:30])) == [2, 0, 30]
    assert twins.put(("b", {"tag": ["x", "y"]}, sentences[30:]), ("c", {}, []), ("c", {}, [])) == [1 + 0, 2, 10]
    documents, count, terms = twins.oracle.totals()
    found = info(shared_ai, twins.key)
    assert (found["documents"], found["sentences"], found["terms"]) == (documents, count, terms)
    assert found["document_id_bytes"] == 3 and found["distinct_terms"] > 0
    lengths = sum(sentence.length for sentence in sentences[30:])
    assert shared_ai.execute_command("QA.INDEX.GET", twins.key, "b") == [10, lengths, b"\1\0\3tag\2\0s\1\0xs\1\0y"]
    assert twins.delete("a", "none", "a") == 1
    twins.check()
    assert twins.delete("b", "c") == 2
    assert shared_ai.exists(twins.key) == 0
