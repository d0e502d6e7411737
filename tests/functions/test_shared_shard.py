"""Two users ask one shard with the real worker. The tests count answers to one user while the other user waits."""

from __future__ import annotations

import itertools
import re
import statistics
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server

from .running_shards import Shards, sentence_name

pytestmark = pytest.mark.hostile

CONNECTIONS = 40
SENTENCES = 50
QUESTIONS = 15
ANSWERED = re.compile(r"qa_jobs_trigger:[^\r]*\bok=(\d+)")


@pytest.fixture
def asked(shards: Shards) -> Iterator[tuple[Server, list[str]]]:
    """A shard where alice and bob have all rights, and the names of the shard's sentences."""
    shards.put("shared", " ".join(f"The keeper of house {number} is called Peter." for number in range(SENTENCES)))
    shards.wait_tokenized("shared")
    names = [sentence_name("shared", number) for number in range(SENTENCES)]
    node = shards.node_of(names[0])
    for user in ("alice", "bob"):
        shards.on(node, "ACL", "SETUSER", user, "on", ">p", "~*", "+@all")
    yield node, names
    for user in ("alice", "bob"):
        shards.on(node, "ACL", "DELUSER", user)


class Flood:
    """Many connections, each of which asks the next question when its last question is answered."""

    def __init__(self, node: Server, user: str, name: str, calls: Iterator[tuple[str, ...]]) -> None:
        self._options: dict[str, Any] = {"username": user, "password": "p", "client_name": name, "socket_timeout": 120}
        self._node, self._calls = node, calls
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def _ask(self) -> None:
        with self._node.client(**self._options) as client:
            while not self._stop.is_set():
                with self._lock:
                    call = next(self._calls)
                replies = client.execute_command("RG.TRIGGER", "qa.read", "", *call)
                assert not any(isinstance(reply, Exception) for reply in replies), replies

    @contextmanager
    def asking(self, connections: int) -> Iterator[None]:
        with ThreadPoolExecutor(connections) as pool, ExitStack() as stack:
            stack.callback(self._stop.set)
            asking = [pool.submit(self._ask) for _ in range(connections)]
            yield
            assert not any(each.done() for each in asking), "they still ask"
            self._stop.set()
            for each in asking:
                each.result()


def answered(node: Server) -> int:
    """The number of calls of all clients that the server has answered."""
    return int(node.field("jobs_trigger")["ok"])


def answers_meanwhile(client: redis.Redis, call: tuple[str, ...]) -> int:
    """The number of answers to other clients while `call` waits for its answer.

    The server counts, in the same pipeline before and after the call. A count in this process would be late.
    """
    connection: Any = client.connection_pool.get_connection()
    try:
        asked = ("RG.TRIGGER", "qa.read", "", *call)
        connection.send_packed_command(connection.pack_commands([("INFO", "modules"), asked, ("INFO", "modules")]))
        before, (reply,), after = [connection.read_response() for _ in range(3)]
    finally:
        client.connection_pool.release(connection)
    assert "Peter" in reply
    first, last = (ANSWERED.search(text) for text in (before, after))
    assert first is not None and last is not None
    return int(last[1]) - int(first[1]) - 1


def calls(names: list[str], each: int, said: str) -> Iterator[tuple[str, ...]]:
    sentences = itertools.cycle(names)
    for number in itertools.count():
        yield (f"{said} {number}?", *itertools.islice(sentences, each))


@pytest.mark.parametrize(
    ("user", "name", "connections"),
    [("bob", "", CONNECTIONS), ("alice", "other", CONNECTIONS), ("bob", "bulk:run", CONNECTIONS)],
    ids=["another user", "another name", "bulk work"],
)
def test_a_user_with_one_connection_does_not_wait_for_a_user_with_many(
    shards: Shards, asked: tuple[Server, list[str]], user: str, name: str, connections: int
) -> None:
    node, names = asked
    flood = Flood(node, user, name, calls(names, 1, f"Who keeps house, {user} {name} asks,"))
    passed = []
    begun = answered(node)
    with (
        node.client(username="alice", password="p", client_name="one", socket_timeout=120) as client,
        flood.asking(connections),
    ):
        eventually(lambda: answered(node) >= begun + connections)
        for number, call in enumerate(calls(names, 1, f"What is his name, beside {user} {name},")):
            passed.append(answers_meanwhile(client, call))
            if number == QUESTIONS:
                break
    # the first answer also waits for the jobs that the worker already has
    assert statistics.median(passed[1:]) <= connections / 8, passed
