"""QA.INDEX.FIELDS, QA.INDEX.VALUES and QA.INDEX.CHANGE, against dictionaries with the same history."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from qa_cluster.ranking.filters import chosen_by, pack_fields
from tests.harness.servers import Server
from tests.index.oracle import Sentence
from tests.module.indexes import Twins, packed
from tests.module.test_index_commands import refusal
from tests.module.test_index_watch import Listener, watch, watched

KEY = "index:{t}"
NAMES = ["lang", "year", "tags", "äöü", "n" * 255]
VALUES: list[Any] = ["en", "de", "", 0, -0.0, 2020, 0.5, True, False, "2020-01-31", "2020-01-31T10:00:00.25Z"]
ONE = [Sentence({"kakapo": 1, "bird": 1}, 4)]


@pytest.fixture
def listener(shared_ai_server: Server) -> Iterator[Listener]:
    with closing(Listener(shared_ai_server)) as listening:
        yield listening


def fields(client: redis.Redis, key: str = KEY, count: int = 2) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    cursor = 0
    while True:
        cursor, rows = client.execute_command("QA.INDEX.FIELDS", key, "SCAN", cursor, count)
        assert len(rows) <= count and not found.keys() & {row[0].decode() for row in rows}
        found |= {row[0].decode(): row[1:] for row in rows}
        if not cursor:
            return found


def values(client: redis.Redis, name: str, condition: str = "") -> tuple[int, int, Counter[bytes]]:
    chosen = chosen_by(short=[condition] if condition else ())
    admitted = () if chosen is None else ("FILTER", chosen.packed)
    documents = having = cursor = 0
    found: Counter[bytes] = Counter()
    while True:
        reply = client.execute_command("QA.INDEX.VALUES", KEY, cursor, name, *admitted)
        cursor, documents, having = reply[0], documents + reply[1], having + reply[2]
        for value, count in zip(reply[3][::2], reply[3][1::2], strict=True):
            found[packed_value(0) if value == packed_value(0)[:-1] + b"\x80" else value] += count
        if not cursor:
            return documents, having, found


def packed_value(value: Any) -> bytes:
    """A value in the index's binary form; -0 is 0."""
    return pack_fields({"x": value + 0.0 if value == 0 and not isinstance(value, bool | str) else value})[6:]


def expected(documents: dict[str, dict[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    kinds = {b"b": 1, b"n": 2, b"s": 3, b"t": 4, b"m": 4}
    for metadata in documents.values():
        for name, value in metadata.items():
            row = found.setdefault(name, [0] * 5)
            row[0] += 1
            for each in value if isinstance(value, list) else [value]:
                row[kinds[packed_value(each)[:1]]] += 1
    return found


def check(client: redis.Redis, documents: dict[str, dict[str, Any]]) -> None:
    assert fields(client) == expected(documents)
    for name in NAMES:
        having = [metadata[name] for metadata in documents.values() if name in metadata]
        lists = [value if isinstance(value, list) else [value] for value in having]
        counts = Counter(found for value in lists for found in set(map(packed_value, value)))
        assert values(client, name) == (len(documents), len(having), counts), name
        names = client.execute_command("QA.INDEX.FIELDS", KEY, "NAMES", name, "absent", "", "n" * 300)
        assert names == [len(having), 0, 0, 0]


def test_any_history_of_writes_has_its_fields(ai: redis.Redis) -> None:
    chance = random.Random(38)
    documents: dict[str, dict[str, Any]] = {}

    def metadata() -> dict[str, Any]:
        made = {name: chance.choice(VALUES) for name in NAMES if chance.random() < 0.5}
        return {name: [one, chance.choice(VALUES)] if chance.random() < 0.3 else one for name, one in made.items()}

    for step in range(400):
        name, made = f"d{chance.randrange(40)}", metadata()
        action = chance.choice(["put", "put", "change", "change", "delete", "parts"])
        if action == "put":
            ai.execute_command("QA.INDEX.PUT", KEY, name, pack_fields(made), packed(ONE * chance.randrange(3)))
            documents[name] = made
        elif action == "change":
            reply = ai.execute_command("QA.INDEX.CHANGE", KEY, name, pack_fields(made))
            assert reply == (name in documents)
            documents |= {name: made} if reply else {}
        elif action == "delete":
            assert ai.execute_command("QA.INDEX.DEL", KEY, name) == (documents.pop(name, None) is not None)
        else:
            place = ai.execute_command("QA.INDEX.BEGIN", KEY, name, pack_fields(made))
            if chance.random() < 0.5:
                ai.execute_command("QA.INDEX.COMMIT", KEY, name, place, 0)
                documents[name] = made
            else:
                ai.execute_command("QA.INDEX.ABORT", KEY, name, place)
        if step % 40 == 0:
            check(ai, documents)
    check(ai, documents)
    digest = ai.execute_command("DEBUG", "DIGEST-VALUE", KEY)
    for reload in ("RELOAD", "LOADAOF"):
        ai.execute_command("DEBUG", reload)
        check(ai, documents)
        assert ai.execute_command("DEBUG", "DIGEST-VALUE", KEY) == digest
    assert values(ai, "lang", "year!=null")[0] == sum("year" in each for each in documents.values())
    ai.execute_command("QA.INDEX.DEL", KEY, *documents)
    assert fields(ai) == {} and values(ai, "lang") == (0, 0, {})


def test_pages_end_after_many_values(shared_ai: redis.Redis) -> None:
    for number in range(12):
        made = pack_fields({"x": [f"{number}-{index}" for index in range(4000)], "y": "same"})
        shared_ai.execute_command("QA.INDEX.PUT", KEY, f"d{number}", made, packed(ONE))
    reply = shared_ai.execute_command("QA.INDEX.VALUES", KEY, 0, "x")
    assert reply[0] and 0 < len(reply[3]) // 2 < 48_000
    assert len(values(shared_ai, "x")[2]) == 48_000
    assert values(shared_ai, "y") == (12, 12, {b"s\4\0same": 12})


def test_a_change_keeps_place_and_sentences(shared_ai: redis.Redis) -> None:
    twins = Twins(shared_ai, KEY)
    twins.put(("one", {}, ONE), ("two", {"tag": ["x"]}, ONE * 3))
    before = twins.listed(), shared_ai.execute_command("QA.INDEX.GET", KEY, "two")
    for size in (0, 3, 200, 1):
        made = pack_fields({"tag": ["y" * 100] * size})
        assert shared_ai.execute_command("QA.INDEX.CHANGE", KEY, "two", made) == 1
        assert shared_ai.execute_command("QA.INDEX.GET", KEY, "two") == [*before[1][:2], made]
        assert twins.listed() == before[0]
        twins.oracle.live["two"].fields = {"tag": ["y" * 100] * size}
        twins.check(["kakapo", "bird"])
    assert shared_ai.execute_command("QA.INDEX.CHANGE", KEY, "none", b"") == 0
    assert shared_ai.execute_command("QA.INDEX.CHANGE", "none", "one", b"") == 0
    assert "fields are not valid" in refusal(shared_ai, "QA.INDEX.CHANGE", KEY, "two", b"\1")


def test_a_change_drops_the_questions_that_it_concerns(shared_ai: redis.Redis, listener: Listener) -> None:
    twins = Twins(shared_ai, KEY)
    twins.put(("one", {}, ONE), ("two", {}, [Sentence({"fish": 1}, 4)]), ("three", {}, [Sentence({"bird": 1}, 40)]))
    token = watch(twins, "q")
    assert token
    for other in ("two", "three"):
        assert shared_ai.execute_command("QA.INDEX.CHANGE", KEY, other, pack_fields({"x": 1})) == 1
    assert (listener.heard(), watched(twins, "q")) == ([], token)
    assert shared_ai.execute_command("QA.INDEX.CHANGE", KEY, "one", pack_fields({"x": 1})) == 1
    assert (listener.heard(), watched(twins, "q")) == ([f"watched:{KEY}:q"], 0)


def test_a_question_with_a_filter_is_dropped_when_it_admits_more(shared_ai: redis.Redis, listener: Listener) -> None:
    twins = Twins(shared_ai, KEY)
    twins.put(("one", {}, ONE), ("two", {}, ONE), ("fish", {}, [Sentence({"fish": 1}, 4)]))
    chosen = chosen_by(short=["x=1"])
    assert chosen is not None

    def asked(since: int | None = None) -> tuple[int, int]:
        ranked = shared_ai.execute_command(
            *("QA.INDEX.RANK", KEY, 1, 100, "FILTER", chosen.packed, "TERMS", 1, "kakapo", 5)
        )
        assert ranked[3] == []
        identity, following = ranked[4]
        words = ["q", 3_600_000, identity, since or following, 0, 100, 0, 1000, "FILTER", chosen.packed]
        words += ["TERMS", 1, "kakapo", 5, 0, 1000, "DOCUMENTS", 0]
        return int(shared_ai.execute_command("QA.INDEX.WATCH", KEY, *words)), following

    token, before = asked()
    assert token
    for name, made in (("one", {"x": 2}), ("two", {"y": 1}), ("fish", {"x": 1})):
        assert shared_ai.execute_command("QA.INDEX.CHANGE", KEY, name, pack_fields(made)) == 1
    assert (listener.heard(), watched(twins, "q")) == ([], token)
    assert asked(since=before)[0] == 0  # ranked before the changes
    assert asked()[0]
    assert shared_ai.execute_command("QA.INDEX.CHANGE", KEY, "one", pack_fields({"x": 1})) == 1
    assert (listener.heard(), watched(twins, "q")) == ([f"watched:{KEY}:q"], 0)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("FIELDS", KEY, "ALL", "x"), "SCAN or NAMES"),
        (("FIELDS", KEY, "SCAN", "x", "1"), "invalid cursor"),
        (("FIELDS", KEY, "SCAN", "0", "0"), "between 1 and 1000"),
        (("FIELDS", KEY, "SCAN", "0", "1001"), "between 1 and 1000"),
        (("FIELDS", KEY, "SCAN", "0", "1", "x"), "nothing may follow"),
        (("VALUES", KEY, "x", "y"), "invalid cursor"),
        (("VALUES", KEY, "0", ""), "1 to 255 bytes"),
        (("VALUES", KEY, "0", "x" * 256), "1 to 255 bytes"),
        (("VALUES", KEY, "0", "x", "y"), "only FILTER"),
        (("VALUES", KEY, "0", "x", "FILTER"), "must be followed"),
        (("VALUES", KEY, "0", "x", "FILTER", "?"), "filter is not valid"),
    ],
)
def test_faulty_arguments(shared_ai: redis.Redis, words: tuple[str, ...], error: str) -> None:
    assert error in refusal(shared_ai, f"QA.INDEX.{words[0]}", *words[1:])
