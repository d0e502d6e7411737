"""QA.INDEX.WATCH watches a question under the name of a key. Clients that track the key are notified of the drop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server, connected
from tests.index.oracle import Sentence
from tests.module.indexes import Twins, packed
from tests.module.test_index_commands import refusal

KEY = "index:{t}"
ONE = [Sentence({"kakapo": 1, "bird": 1}, 4)]
OTHER = [Sentence({"fish": 1}, 4)]


class Listener:
    """A connection that tracks the keys `watched:*`."""

    def __init__(self, server: Server) -> None:
        """Subscribes."""
        self.socket = connected(server.socket, 30)
        self.socket.sendall(b"HELLO 3\r\nCLIENT TRACKING ON BCAST PREFIX watched:\r\n")
        self.number = 0
        self.heard()

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()

    def heard(self) -> list[str]:
        """The keys that changed before this call, in any order; `*` means all."""
        self.number += 1
        mark, data = f"end {self.number}".encode(), b""
        self.socket.sendall(b'ECHO "%b"\r\n' % mark)
        while mark not in data:
            data += self.socket.recv(65536)
        if b"invalidate\r\n_" in data:
            return ["*"]
        return sorted(key.decode() for key in re.findall(rb"watched:[^\r]+", data))


@pytest.fixture
def listener(shared_ai_server: Server) -> Iterator[Listener]:
    with closing(Listener(shared_ai_server)) as listening:
        yield listening


@pytest.fixture
def twins(shared_ai: redis.Redis) -> Twins:
    made = Twins(shared_ai, KEY)
    made.put(("one", {}, ONE), ("two", {}, OTHER))
    return made


def watch(twins: Twins, name: str, *, k: int = 1, drift: int = 1000, ttl: int = 3_600_000) -> int:
    """Ranks the question `kakapo bird`, watches it, and returns its token."""
    terms = ["kakapo", "bird"]
    state = twins.client.execute_command("QA.INDEX.RANK", twins.key, k, 100, "TERMS", 2, *["kakapo", "5", "bird", "7"])
    sentences, _, frequencies, hits, (identity, following), places = state
    bounds = [[max(0, number - drift), number + drift] for number in (sentences, *frequencies)]
    words: list[Any] = [name, ttl, identity, following, hits[-1][2] if len(hits) == k else 0, 100, *bounds[0]]
    words += [
        "TERMS",
        2,
        *(word for row in zip(terms, (5, 7), *zip(*bounds[1:], strict=True), strict=True) for word in row),
    ]
    words += [
        "DOCUMENTS",
        len(hits),
        *(word for hit, place in zip(hits, places, strict=True) for word in (hit[0], place)),
    ]
    return int(twins.client.execute_command("QA.INDEX.WATCH", twins.key, *words))


def watched(twins: Twins, name: str) -> int:
    return int(twins.client.execute_command("QA.INDEX.WATCHED", twins.key, name))


def test_a_question_is_dropped_only_by_changes_that_concern_it(twins: Twins, listener: Listener) -> None:
    token = watch(twins, "q")
    assert token > 0
    assert watched(twins, "q") == token
    twins.put(("three", {}, OTHER), ("two", {}, OTHER * 3))
    twins.delete("two")
    assert (listener.heard(), watched(twins, "q")) == ([], token)
    twins.put(("four", {}, ONE))
    assert (listener.heard(), watched(twins, "q")) == ([f"watched:{KEY}:q"], 0)


def test_an_outdated_ranking_is_not_watched(twins: Twins) -> None:
    words = ["q", "60000", "0", "0", "1", "100", "0", "9", "TERMS", "0", "DOCUMENTS", "0"]
    assert twins.client.execute_command("QA.INDEX.WATCH", twins.key, *words) == 0
    assert twins.client.execute_command("QA.INDEX.WATCH", "index:{none}", *words) > 0


def test_each_watch_has_its_own_token(twins: Twins, listener: Listener) -> None:
    tokens = [watch(twins, "q"), watch(twins, "q"), watch(twins, "other")]
    assert len({*tokens}) == 3
    assert [watched(twins, name) for name in ("q", "other", "none")] == [*tokens[1:], 0]
    assert not listener.heard()


@pytest.mark.parametrize(
    "command",
    [
        *("DEL index:{t}", "UNLINK index:{t}", "SET index:{t} text", "RENAME index:{t} moved:{t}"),
        *("EXPIRE index:{t} -1", "FLUSHALL", "RENAME another:{t} index:{t}"),
    ],
)
def test_any_other_change_of_the_key_drops_all_questions(twins: Twins, listener: Listener, command: str) -> None:
    Twins(twins.client, "another:{t}").put(("one", {}, ONE))
    assert watch(twins, "q")
    assert watch(twins, "p")
    twins.client.execute_command(*command.split())
    heard = listener.heard()
    assert heard in (["*"], [f"watched:{KEY}:p", f"watched:{KEY}:q"])
    assert not watched(twins, "q")
    twins.client.flushall()


def test_of_commands_in_another_database_only_swapdb_drops_questions(twins: Twins, shared_ai_server: Server) -> None:
    token = watch(twins, "q")
    with shared_ai_server.client(db=5) as elsewhere:
        elsewhere.set(KEY, "text")
        elsewhere.flushdb()
    assert watched(twins, "q") == token
    for _ in range(2):
        twins.client.execute_command("SWAPDB", 0, 5)
    assert not watched(twins, "q")


def test_an_expired_key_has_no_questions(twins: Twins) -> None:
    twins.client.pexpire(KEY, 3000)
    assert watch(twins, "q")
    eventually(lambda: not watched(twins, "q"))


def test_restore_and_flush_drop_all_questions(twins: Twins, listener: Listener) -> None:
    payload = twins.client.dump(KEY)
    assert watch(twins, "q")
    twins.client.restore(KEY, 0, payload, replace=True)
    assert listener.heard() == [f"watched:{KEY}:q"]
    assert watch(twins, "q")
    twins.client.execute_command("QA.INDEX.DEL", KEY, "one", "two")
    assert listener.heard() == [f"watched:{KEY}:q"]


def test_scripts_and_transactions_report_drops_too(twins: Twins, listener: Listener) -> None:
    assert watch(twins, "q")
    script = "return redis.call('QA.INDEX.PUT', KEYS[1], 'six', '', ARGV[1])"
    twins.client.eval(script, 1, KEY, packed(ONE))
    assert listener.heard() == [f"watched:{KEY}:q"]
    assert watch(twins, "q")
    with twins.client.pipeline(transaction=True) as pipe:
        pipe.execute_command("QA.INDEX.DEL", KEY, "six")
        pipe.execute_command("QA.INDEX.PUT", KEY, "seven", b"", packed(ONE))
        pipe.execute()
    assert listener.heard() == [f"watched:{KEY}:q"]


def test_the_number_of_questions_is_bounded(twins: Twins, listener: Listener, shared_ai_server: Server) -> None:
    twins.client.config_set("qa.max-watched-questions", 3)
    for number in range(5):
        assert watch(twins, f"q{number}")
    assert listener.heard() == [f"watched:{KEY}:q0", f"watched:{KEY}:q1"]
    other = Twins(twins.client, "index:{other}")
    other.put(("one", {}, ONE))
    assert watch(other, "q") == 0
    assert shared_ai_server.field("watched_questions") == 3
    assert shared_ai_server.field("watched_bytes") > 300
    twins.client.config_set("qa.max-watched-questions", 0)
    assert watch(twins, "q9") == 0
    twins.client.config_set("qa.max-watched-questions", 10000)


def test_expired_questions_of_another_key_free_capacity(twins: Twins) -> None:
    other = Twins(twins.client, "index:{other}")
    other.put(("one", {}, ONE))
    assert watch(other, "q")
    twins.client.delete(KEY, "index:{other}")
    other.put(("one", {}, ONE))
    twins.put(("one", {}, ONE))
    twins.client.config_set("qa.max-watched-questions", 1)
    assert watch(twins, "short", ttl=50)
    eventually(lambda: watch(other, "q"))
    twins.client.config_set("qa.max-watched-questions", 10000)


def test_many_questions_are_dropped_at_once_and_reported_together(
    twins: Twins, listener: Listener, shared_ai_server: Server
) -> None:
    """The server frees their memory soon."""
    other = Twins(twins.client, "index:{other}")
    other.put(("one", {}, ONE))
    assert watch(other, "elsewhere")
    names = [f"q{number}" for number in range(700)]
    assert all(watch(twins, name) for name in names)
    dropped, held = shared_ai_server.fields("watched_dropped", "watched_bytes")
    assert held > 200_000
    twins.client.delete(KEY)
    assert [watched(twins, name) for name in names] == [0] * 700
    assert listener.heard() == [f"watched:{KEY}:"]
    assert shared_ai_server.fields("watched_dropped", "watched_questions") == (dropped + 700, 1)
    eventually(lambda: shared_ai_server.field("watched_bytes") < 50_000)
    assert watched(other, "elsewhere")
    other.delete("one")


def test_a_replica_drops_questions_by_replicated_writes(server_binary: Path) -> None:
    with Server(server_binary) as primary, primary.client(decode_responses=False, protocol=2) as client:
        twins = Twins(client, KEY)
        twins.put(("one", {}, ONE))
        settings = {"replicaof": f"127.0.0.1 {primary.port}"}
        with Server(server_binary, settings) as server, server.client(decode_responses=False, protocol=2) as replica:
            eventually(lambda: replica.exists(KEY), ignore=redis.RedisError)
            there = Twins(replica, KEY)
            assert watch(there, "q")
            with closing(Listener(server)) as listening:
                twins.put(("two", {}, ONE))
                eventually(lambda: not watched(there, "q"))
                assert listening.heard() == [f"watched:{KEY}:q"]


GOOD = {"name": "n", "ttl": 1, "identity": 0, "next": 0, "score": 1, "sentences": 0, "fewest": 0, "most": 1}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"name": ""}, "must have 1 to 256 bytes"),
        ({"name": "n" * 257}, "must have 1 to 256 bytes"),
        ({"ttl": 0}, "between 1 and 31622400000 ms"),
        ({"ttl": 31622400001}, "between 1 and 31622400000 ms"),
        ({"identity": -1}, "must come from a reply to QA.INDEX.RANK"),
        ({"next": "x"}, "must come from a reply to QA.INDEX.RANK"),
        ({"score": "nan"}, "score must be a number"),
        ({"sentences": 2**53}, "from 0 to 2^53 - 1"),
        ({"fewest": 2}, "must be two ascending numbers"),
    ],
)
def test_invalid_commands_are_refused(twins: Twins, wrong: dict[str, Any], error: str) -> None:
    words = (GOOD | wrong).values()
    assert error in refusal(twins.client, "QA.INDEX.WATCH", KEY, *words, *["TERMS", "0", "DOCUMENTS", "0"])


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        ("TERM 0 DOCUMENTS 0", "TERMS is missing"),
        ("TERMS 33 DOCUMENTS 0", "between 0 and 32"),
        ("FILTER x TERMS 0 DOCUMENTS 0", "filter is not valid"),
        (f"FILTER {'x' * 65537} TERMS 0 DOCUMENTS 0", "must have 65536 bytes at most"),
        ("TERMS 1 a 0 0", "does not match"),
        ("TERMS 1 a x 0 1 DOCUMENTS 0", "document frequency must be"),
        (f"TERMS 1 {'x' * 257} 0 0 1 DOCUMENTS 0", "a term must have 1 to 256 bytes"),
        (f"TERMS 0 DOCUMENTS 2 {'x' * 40000} 1 {'y' * 40000} 1", "must have 65536 bytes at most"),
        ("TERMS 1 a 0 1 0 DOCUMENTS 0", "two ascending numbers"),
        ("TERMS 2 a 0 0 1 a 0 0 1 DOCUMENTS 0", "a term comes twice"),
        ("TERMS 0 DOCUMENT 0", "DOCUMENTS is missing"),
        ("TERMS 0 DOCUMENTS 1001", "between 0 and 1000"),
        ("TERMS 0 DOCUMENTS 1 a", "does not match"),
        ("TERMS 0 DOCUMENTS 1 a x", "place of a document"),
        ("TERMS 0 DOCUMENTS 0 more", "does not match"),
    ],
)
def test_invalid_terms_and_documents_are_refused(twins: Twins, rest: str, error: str) -> None:
    assert error in refusal(twins.client, "QA.INDEX.WATCH", KEY, *GOOD.values(), *rest.split())


def test_other_types_and_databases_are_refused(twins: Twins, shared_ai_server: Server) -> None:
    rest = [*GOOD.values(), *["TERMS", "0", "DOCUMENTS", "0"]]
    twins.client.set("text:{t}", "x")
    assert "WRONGTYPE" in refusal(twins.client, "QA.INDEX.WATCH", "text:{t}", *rest)
    with shared_ai_server.client(db=3) as elsewhere:
        assert "database 0" in refusal(elsewhere, "QA.INDEX.WATCH", KEY, *rest)
        assert elsewhere.execute_command("QA.INDEX.WATCHED", KEY, "n") == 0
