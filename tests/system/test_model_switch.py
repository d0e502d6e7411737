"""The default reader changes while questions are asked: no error, no pause, no answer under a wrong name.

One reader always answers with the first word of the sentence and the other with the last word, so each answer shows
its reader. After the command has reported the change, only the new reader may answer, even to stock clients.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from qa_cluster import keys
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.cluster.nodes.resharding import Move, all_primaries, move_slots
from qa_cluster.errors import QAError
from qa_cluster.keys import SentenceRef
from tests.functions.running_shards import tag
from tests.functions.tiny_shards import FIRST, LAST, TEXT, TinyShards, tiny_shards

from .load import BREATH_SECONDS

DOCUMENTS = 6
QUESTION = "Who discovered radium in {}?"
# The limit is generous, because a busy machine takes longer for a change.
LONGEST_PAUSE_SECONDS = 10.0


@dataclass
class Watchers:
    """Clients that ask continuously, and their answers: the time of sending, the time of arrival, and the reader."""

    shards: TinyShards
    seen: list[tuple[float, float, str, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    # (time, reader): after this time, only this reader may answer; an empty name allows both readers
    rules: list[tuple[float, str]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    longest_change: float = 0.0

    def took(self, who: str, sent: float, revision: str, answer: str) -> None:
        expected = {self.shards.first.revision: FIRST, self.shards.last.revision: LAST}.get(revision)
        if answer != expected:
            self.errors.append(f"{who}: {answer!r} under the name of {revision}")
        self.seen.append((sent, time.monotonic(), revision, who))

    def through_our_client(self) -> None:
        with ClusterClient(self.shards.url) as client:
            number = 0
            while not self.stop.is_set():
                number += 1
                # repeated questions use the near cache and the shards' caches; every third question uses no cache
                cache = ("use", "use", "off")[number % 3]
                only = f"radium{number % DOCUMENTS}" if number % 2 else ()  # one shard, or all shards
                asked, sent = QUESTION.format(f"city {number % DOCUMENTS}"), time.monotonic()
                try:
                    result = client.ask(asked, cache=cache, doc_id=only, waves=False, timeout=60)
                except QAError as error:
                    self.errors.append(f"ask: {error!r}")
                    continue
                if result.best is None:
                    self.errors.append(f"ask: no answer: {result}")
                else:
                    self.took(f"ask {result.cache.status}", sent, result.model.revision, result.best.answer)
                time.sleep(BREATH_SECONDS)

    def through_a_stock_client(self) -> None:
        port = self.shards.nodes[0].port
        with redis.RedisCluster(host="127.0.0.1", port=port, decode_responses=True, socket_timeout=60) as client:
            number = 0
            while not self.stop.is_set():
                number += 1
                name = f"radium{number % DOCUMENTS}"
                asked = "Who?" if number % 2 else f"Who is number {number}?"
                sent = time.monotonic()
                try:
                    value = client.get(keys.answer_key(SentenceRef(name, tag(name), 0), asked))
                except redis.RedisError as error:
                    self.errors.append(f"GET: {error!r}")
                    continue
                except AttributeError:
                    # a bug in redis-py: after a redirection to an unknown server, its node is None
                    client.nodes_manager.initialize()
                    continue
                found = json.loads(value) if value is not None else {"model": {"revision": ""}, "answer": None}
                self.took("GET", sent, found["model"]["revision"], found["answer"])
                time.sleep(BREATH_SECONDS)

    def change(self, work: Callable[[], object], to: str) -> None:
        """Change the default. Both readers may answer during the change, and only the new reader afterwards."""
        self.rules.append((time.monotonic(), ""))
        work()
        self.rules.append((time.monotonic(), to))
        self.longest_change = max(self.longest_change, self.rules[-1][0] - self.rules[-2][0])
        time.sleep(0.3)

    def late(self) -> list[str]:
        """Answers of the former reader to questions that were sent after the change."""
        found = []
        for (since, revision), (until, _) in pairwise([*self.rules, (float("inf"), "")]):
            found += [
                f"{who} {sent - since:.3f} s after the change is answered by {by}"
                for sent, came, by, who in self.seen
                if revision and since <= sent and came < until and by != revision
            ]
        return found

    def longest_pause(self) -> float:
        """The longest time between two answers to any clients, in seconds."""
        times = sorted(came for _, came, _, _ in self.seen)
        return max(b - a for a, b in pairwise(times))


@contextmanager
def watched(shards: TinyShards) -> Iterator[Watchers]:
    for number in range(DOCUMENTS):
        shards.written(f"radium{number}", TEXT)
    watchers = Watchers(shards)
    threads = [threading.Thread(target=work) for work in (watchers.through_our_client, watchers.through_a_stock_client)]
    for thread in threads:
        thread.start()
    try:
        yield watchers
    finally:
        watchers.stop.set()
        for thread in threads:
            thread.join(120)


@pytest.fixture(scope="module")
def cluster(shared_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyShards]:
    with tiny_shards(shared_binary, tmp_path_factory.mktemp("switch")) as found:
        yield found


@pytest.fixture
def shards(cluster: TinyShards) -> TinyShards:
    """Shards on which `first` is the only reader."""
    if cluster.last.name in cluster.models(cluster.nodes[0]):
        cluster.load("first", keep_old=True)
        cluster.unload("last")
    return cluster


def check(watchers: Watchers, what: str) -> None:
    assert not watchers.errors, watchers.errors[:5]
    assert not watchers.late(), watchers.late()[:5]
    by = {revision for _, _, revision, _ in watchers.seen}
    assert by == {watchers.shards.first.revision, watchers.shards.last.revision}
    pause = watchers.longest_pause()
    print(f"\n{what}: {len(watchers.seen)} answers, longest time without one {pause * 1000:.0f} ms")
    assert pause < max(LONGEST_PAUSE_SECONDS, watchers.longest_change)


def test_questions_continue_while_the_default_is_changed_repeatedly(shards: TinyShards) -> None:
    first, last = shards.first.revision, shards.last.revision
    with watched(shards) as watchers:
        watchers.change(lambda: shards.load("last", keep_old=True), last)
        watchers.change(lambda: shards.use("first"), first)
        watchers.change(lambda: shards.use("last"), last)
        # one command loads the new reader and removes the former one, which may still read questions
        watchers.change(lambda: shards.unload("first"), last)
        watchers.change(lambda: shards.load("first"), first)
        watchers.change(lambda: shards.load("last"), last)
    check(watchers, "changes of the default")
    assert any(who == "ask hit" for *_, who in watchers.seen)


def test_questions_continue_while_slots_move_and_a_reader_is_loaded(shards: TinyShards) -> None:
    moved = threading.Thread(target=move_there_and_back, args=(shards,))
    with watched(shards) as watchers:
        moved.start()
        watchers.change(lambda: shards.load("last", keep_old=True), shards.last.revision)
        watchers.change(lambda: shards.use("first"), shards.first.revision)
        moved.join(120)
        watchers.change(lambda: shards.use("last"), shards.last.revision)
    assert not moved.is_alive()
    check(watchers, "changes while slots move")


def move_there_and_back(shards: TinyShards) -> None:
    """Move the second shard's lowest slots, which have its readers' keys, to the first shard and back."""
    clients = [node.client(decode_responses=False) for node in shards.nodes]
    try:
        by_port = {node.port: node for node in all_primaries(clients[0])}
        nodes = [by_port[node.port] for node in shards.nodes]
        slots = range(nodes[1].slots[0][0], nodes[1].slots[0][0] + 20)
        for source, target in ((1, 0), (0, 1)):
            found = {node.port: node for node in all_primaries(clients[0])}
            now = [(found[node.port], client) for node, client in zip(shards.nodes, clients, strict=True)]
            move_slots([Move(slot, nodes[source].id, nodes[target].id) for slot in slots], now)
            time.sleep(1.0)
    finally:
        for client in clients:
            client.close()
