"""QA.INDEX.BEGIN, ADD, COMMIT, ABORT: searches find a document in parts completely or not at all."""

from __future__ import annotations

import random
import signal
import struct
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.index.oracle import Sentence, pack_fields
from tests.module.indexes import TERMS, Parts, Twins, info, packed, some_sentences
from tests.module.persistence import rewrite_and_load_aof
from tests.module.test_index_commands import refusal
from tests.module.test_index_data import pair  # noqa: F401
from tests.module.test_index_watch import ONE, Listener, watch, watched

NOT_OPEN = "the document is not open at this place"


@pytest.fixture
def twins(shared_ai: redis.Redis) -> Twins:
    made = Twins(shared_ai)
    made.fill(5, 12, 3)
    return made


def test_no_search_finds_a_document_before_its_commit(twins: Twins) -> None:
    """Searches find the earlier version until the commit. The document keeps the position of its BEGIN."""
    chance, name = random.Random(1), next(iter(twins.oracle.live))
    before = twins.digest()
    parts = Parts(twins, name, {"tag": ["x"]})
    for _ in range(5):
        parts.add(some_sentences(chance, 3))
        twins.check()
    assert twins.digest() == before
    assert twins.client.execute_command("QA.INDEX.GET", twins.key, name)[2] != pack_fields({"tag": ["x"]})
    assert info(twins.client, twins.key)["open_documents"] == 1
    twins.put(("meanwhile", {}, some_sentences(chance, 3)))
    parts.add([])
    parts.commit()
    twins.check()
    assert twins.listed() == twins.expected()
    assert twins.listed(("==", "tag", "x")) == [name]
    assert info(twins.client, twins.key)["open_documents"] == 0


def test_a_document_in_parts_is_the_same_as_one_in_a_command(shared_ai: redis.Redis) -> None:
    whole, parted = Twins(shared_ai, "whole"), Twins(shared_ai, "parted")
    sentences = some_sentences(random.Random(2), 90, [f"w{number}" for number in range(5000)])
    whole.put(("d", {"year": [1.0]}, sentences))
    parts = Parts(parted, "d", {"year": [1.0]})
    for at in range(0, 90, 7):
        parts.add(sentences[at : at + 7])
    parts.commit()
    assert whole.digest() == parted.digest()


def test_a_writer_whose_document_was_discarded_gets_an_error(twins: Twins) -> None:
    """Only one document of an id is open at a time: BEGIN, PUT and DEL discard the earlier open document."""
    for change in ("BEGIN", "PUT", "DEL"):
        parts = Parts(twins, "contended")
        parts.add(ONE)
        if change == "BEGIN":
            assert Parts(twins, "contended").abort() == 1
        elif change == "PUT":
            twins.put(("contended", {}, ONE))
        else:
            assert twins.delete("contended") == 1
        assert NOT_OPEN in refusal(twins.client, "QA.INDEX.ADD", twins.key, "contended", parts.place, 1, packed(ONE))
        assert NOT_OPEN in refusal(twins.client, "QA.INDEX.COMMIT", twins.key, "contended", parts.place, 1)
        assert parts.abort() == 0
        assert info(twins.client, twins.key)["open_documents"] == 0
        twins.check()


def test_the_oldest_open_document_is_discarded_at_the_limit(twins: Twins) -> None:
    left = [Parts(twins, f"left {number}") for number in range(17)]
    for parts in left[1:]:
        parts.add(ONE)
    assert NOT_OPEN in refusal(twins.client, "QA.INDEX.ADD", twins.key, "left 0", left[0].place, 0, packed(ONE))
    assert info(twins.client, twins.key)["open_documents"] == 16
    assert [parts.abort() for parts in left] == [0] + [1] * 16
    eventually(lambda: info(twins.client, twins.key)["dead_postings"] < 64)
    twins.check()


def test_the_writer_of_a_deleted_key_cannot_change_the_new_key(shared_ai: redis.Redis) -> None:
    """A key that was deleted and created again reuses places."""
    twins = Twins(shared_ai, "index:{anew}")
    late = Parts(twins, "late")
    late.add(ONE)
    shared_ai.delete(twins.key)
    twins = Twins(shared_ai, twins.key)
    other = Parts(twins, "other")
    other.add(ONE)
    assert other.place == late.place
    for command in (("ADD", 1, packed(ONE)), ("COMMIT", 1)):
        name, *rest = command
        assert NOT_OPEN in refusal(shared_ai, f"QA.INDEX.{name}", twins.key, "late", late.place, *rest)
    assert late.abort() == 0
    other.commit()
    twins.check(["kakapo"])


@pytest.mark.parametrize("end", ["ABORT", "DEL"])
def test_a_key_with_only_an_open_document_is_deleted_with_it(shared_ai: redis.Redis, end: str) -> None:
    twins = Twins(shared_ai, "index:{new}")
    parts = Parts(twins, "d")
    parts.add(ONE)
    assert shared_ai.exists(twins.key)
    twins.check(["kakapo"])
    other = Parts(twins, "other")
    other.commit()
    assert twins.delete("other") == 1
    parts.add(ONE)
    assert parts.abort() == 1 if end == "ABORT" else twins.delete("d") == 0
    assert not shared_ai.exists(twins.key)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["BEGIN", "k", "", b""], "document 1: its id has 0 bytes, it must have 1 to 65536"),
        (["BEGIN", "k", "d", b"\1"], "document 1: its fields are not valid"),
        (["ADD", "k", "open", "x", 0, b""], "place must be a number that QA.INDEX.BEGIN gave"),
        (["ADD", "k", "open", -1, 0, b""], "place must be a number that QA.INDEX.BEGIN gave"),
        (["ADD", "k", "open", "OTHER", 0, b""], NOT_OPEN),
        (["ADD", "none", "open", 0, 0, b""], NOT_OPEN),
        (["ADD", "k", "open", "PLACE", "x", b""], "number of sentences must not be negative"),
        (["ADD", "k", "open", "PLACE", 0, packed(ONE)], "the document has 1 sentences so far, not 0"),
        (
            ["ADD", "k", "open", "PLACE", 1, b"\1"],
            "document 1: a sentence must have 0 to 65535 distinct terms, at byte 1",
        ),
        (["ADD", "k", "open", "PLACE", 1, b"\0" * 65537], "a part has 65537 bytes, it must have 65536 at most"),
        (["COMMIT", "k", "open", "PLACE", 2], "the document has 1 sentences so far, not 2"),
        (["COMMIT", "none", "open", 0, 0], NOT_OPEN),
        (["ADD", "k", "other", "PLACE", 1, packed(ONE)], NOT_OPEN),
        (["COMMIT", "k", "other", "PLACE", 1], NOT_OPEN),
        (["COMMIT", "k", "ope", "PLACE", 1], NOT_OPEN),
        (["ABORT", "k", "open", "x"], "place must be a number that QA.INDEX.BEGIN gave"),
    ],
)
def test_refused_commands_change_nothing_of_a_document_in_parts(
    shared_ai: redis.Redis, words: list[Any], error: str
) -> None:
    twins = Twins(shared_ai, "k")
    parts = Parts(twins, "open")
    parts.add(ONE)
    places = {"PLACE": parts.place, "OTHER": parts.place + 1}
    assert error in refusal(shared_ai, f"QA.INDEX.{words[0]}", *(places.get(word, word) for word in words[1:]))
    assert shared_ai.exists("none") == 0
    parts.commit()
    twins.check(["kakapo"])


Survive = Callable[[redis.Redis, Server], Any]


def killed(client: redis.Redis, server: Server) -> None:
    server.stop(signal.SIGKILL)
    server.start()


def rewritten(client: redis.Redis, server: Server) -> None:
    client.execute_command("BGREWRITEAOF")
    eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
    killed(client, server)


@pytest.mark.parametrize(
    "survive",
    [
        lambda client, _: client.execute_command("DEBUG", "RELOAD"),
        lambda client, _: client.execute_command("DEBUG", "LOADAOF"),
        lambda client, _: rewrite_and_load_aof(client),
        rewritten,
        killed,
    ],
    ids=["RDB", "AOF", "AOF rewritten as commands", "AOF rewritten, kill -9", "kill -9"],
)
def test_an_open_document_survives_operations_of_the_server(
    ai: redis.Redis, ai_server: Server, survive: Survive
) -> None:
    """The writer can continue. Searches never find an abandoned document, and a new write of its id discards it."""
    # The restarted server needs this setting too. With `everysec`, a server may acknowledge writes before it writes
    # them, and a kill loses these writes.
    ai.config_set("appendfsync", "always")
    ai.config_rewrite()
    twins, chance = Twins(ai), random.Random(3)
    twins.fill(1, 30)
    name = next(iter(twins.oracle.live))
    parts, left = Parts(twins, name, {"tag": ["x"]}), Parts(twins, "left")
    for _ in range(4):
        parts.add(some_sentences(chance, 40))
        left.add(some_sentences(chance, 5))
        twins.put((f"between {chance.random()}", {}, some_sentences(chance, 4)))
    digest = twins.digest()
    survive(ai, ai_server)
    assert twins.digest() == digest
    twins.check()
    parts.add(some_sentences(chance, 40))
    parts.commit()
    twins.check()
    assert twins.listed() == twins.expected()
    assert info(ai, twins.key)["open_documents"] == 1
    twins.put(("left", {}, ONE))
    assert info(ai, twins.key)["open_documents"] == 0
    digest = twins.digest()
    survive(ai, ai_server)
    assert twins.digest() == digest
    twins.delete(name)
    eventually(lambda: info(ai, twins.key)["dead_postings"] < 64)
    twins.check()


def test_replicas_have_open_documents_too(pair: tuple[redis.Redis, redis.Redis]) -> None:  # noqa: F811
    """A replica that connects between two parts gets the earlier parts, and then the rest."""
    client, there = pair
    twins, chance = Twins(client, "index:{u}"), random.Random(4)
    twins.fill(1, 12)
    parts, left = Parts(twins, "parts"), [Parts(twins, f"left {number}") for number in range(3)]

    def caught_up(number: int) -> bool:
        client.set("last", number)
        return bool(there.get("last") == str(number).encode())

    for number in range(8):
        parts.add(some_sentences(chance, 20))
        if number == 3:
            there.execute_command("REPLICAOF", "NO", "ONE")
            there.flushall()
            there.execute_command("REPLICAOF", "127.0.0.1", client.info("server")["tcp_port"])
            eventually(lambda: there.info("replication").get("master_link_status") == "up")
    left += [Parts(twins, f"more {number}") for number in range(13)]  # the first document is discarded, on both servers
    assert refusal(client, "QA.INDEX.ADD", twins.key, "parts", parts.place + 10**6, 0, b"").startswith(NOT_OPEN)
    eventually(lambda: caught_up(1))
    assert info(client, twins.key)["open_documents"] == info(there, twins.key)["open_documents"] == 16
    assert parts.abort() == 0
    again = Parts(twins, "parts")
    again.add(some_sentences(chance, 20))
    again.commit()
    twins.put(("after", {}, ONE))
    eventually(lambda: caught_up(2))
    assert twins.digest() == twins.digest(there)
    twins.check(client=there)
    assert info(there, twins.key)["open_documents"] == info(client, twins.key)["open_documents"]


def test_a_part_drops_the_questions_that_it_concerns(twins: Twins, shared_ai_server: Server) -> None:
    """The part drops them at once. These questions cannot be watched again before the commit."""
    twins.put(("one", {}, ONE))
    with closing(Listener(shared_ai_server)) as listening:
        parts = Parts(twins, "parts")
        assert watch(twins, "q")
        parts.add(ONE)
        assert listening.heard() == [f"watched:{twins.key}:q"]
        assert not watch(twins, "q")
        parts.commit()
        assert watch(twins, "q")


def test_the_terms_of_a_long_document_are_compared_later(twins: Twins, shared_ai_server: Server) -> None:
    """A timer compares the terms. It drops only questions whose frequencies have changed too much."""
    twins.put(("one", {}, ONE))
    words = [f"w{number:06}" for number in range(60_000)]
    rows = [Sentence(dict.fromkeys(words[at : at + 20], 1), 20) for at in range(0, len(words), 20)]
    parts = Parts(twins, "long")
    for at in range(0, len(rows), 200):
        parts.add(rows[at : at + 200])
    parts.add([Sentence({"kakapo": 1}, 3000)])
    with closing(Listener(shared_ai_server)) as listening:
        key, terms = twins.key, ["kakapo", "bird"]
        *_, state, _ = twins.client.execute_command("QA.INDEX.RANK", key, 1, 100, "TERMS", 2, *["kakapo", 5, "bird", 7])
        for name, drift in (("near", 0), ("far", 5)):
            bounds = [word for term in terms for word in (term, 5, max(0, 1 - drift), 1 + drift)]
            ask = [key, name, 60000, *state, 1e9, 100, 0, 10**6, "TERMS", 2, *bounds, "DOCUMENTS", 0]
            assert twins.client.execute_command("QA.INDEX.WATCH", *ask)
        parts.commit()
        eventually(lambda: not watched(twins, "near"))
        assert listening.heard() == [f"watched:{key}:near"]
        assert watched(twins, "far")
    twins.check(["kakapo", "bird", *words[:3], TERMS[0]])


def test_a_payload_has_the_earliest_format_that_it_needs(shared_ai: redis.Redis) -> None:
    """QAINDEX2 has open documents, QAINDEX3 has vectors."""
    twins = Twins(shared_ai)
    twins.put(("one", {}, ONE))
    assert b"QAINDEX1" in shared_ai.dump(twins.key)
    parts = Parts(twins, "parts")
    assert b"QAINDEX2" in shared_ai.dump(twins.key)
    parts.commit()
    assert b"QAINDEX1" in shared_ai.dump(twins.key)
    shared_ai.execute_command("QA.INDEX.EMBED", twins.key, "one", "encoder1", 4, 0, 1, struct.pack("<IIf4x", 0, 1, 1.0))
    assert b"QAINDEX3" in shared_ai.dump(twins.key)
    twins.delete("one")
    assert b"QAINDEX1" in shared_ai.dump(twins.key)
