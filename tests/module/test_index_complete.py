"""QA.INDEX.COMPLETE, against a dictionary with the same history."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import redis

from tests.index.oracle import Sentence
from tests.module.indexes import Twins
from tests.module.test_index_commands import refusal


def complete(client: redis.Redis, prefix: str, count: int) -> list[tuple[str, int]]:
    whole, found = client.execute_command("QA.INDEX.COMPLETE", "index:{t}", prefix, count)
    assert whole == 1
    return [(term.decode(), number) for term, number in zip(found[::2], found[1::2], strict=True)]


def test_the_most_frequent_terms_of_any_history(shared_ai: redis.Redis) -> None:
    chance, twins = random.Random(7), Twins(shared_ai)
    terms = [a + b + c for a in "ab" for b in ("", "c", "ca", "é") for c in ("", "x", "y", "yz" * 20)]
    for step in range(200):
        name = f"d{chance.randrange(30)}"
        if chance.random() < 0.3:
            twins.delete(name)
        else:
            twins.put((name, {}, [Sentence(dict.fromkeys(chance.sample(terms, 3), 1), 3) for _ in range(3)]))
        if step % 20 == 0:
            live = twins.oracle.live.values()
            counts = Counter(term for each in live for sentence in each.sentences for term in sentence[1].terms)
            ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0].encode()))
            for prefix in ("a", "ac", "é", "bé", "acay", "c"):
                expected = [item for item in ordered if item[0].startswith(prefix)]
                for count in (1, 5, 100):
                    assert complete(shared_ai, prefix, count) == expected[:count]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("", 1), "prefix must have 1 to 256 bytes"),
        (("x" * 257, 1), "prefix must have 1 to 256 bytes"),
        (("x", 0), "count must be between 1 and 100"),
        (("x", 101), "count must be between 1 and 100"),
        (("x",), "wrong number of arguments"),
        (("x", 1, 2), "wrong number of arguments"),
    ],
)
def test_bad_arguments_are_refused(shared_ai: redis.Redis, arguments: tuple[object, ...], said: str) -> None:
    assert said in refusal(shared_ai, "QA.INDEX.COMPLETE", "index:{t}", *arguments)


def test_a_missing_key_has_no_terms(shared_ai: redis.Redis) -> None:
    assert complete(shared_ai, "a", 8) == []
    shared_ai.set("index:{t}", "text")
    assert "WRONGTYPE" in refusal(shared_ai, "QA.INDEX.COMPLETE", "index:{t}", "a", 8)
