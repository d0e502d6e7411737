"""Clients that ask and write while the cluster changes, and the records of their outcomes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import redis

from qa_cluster import keys
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.errors import QAError

PARTITIONS = 12
BREATH_SECONDS = 0.01
"""The pause of a client after each answer. Without it, the clients would use all cores."""
FACTS = {
    "lovelace": ("Ada Lovelace wrote the first program in 1843.", "When was the first program written?"),
    "everest": ("Mount Everest is 8849 metres high.", "How high is Mount Everest?"),
    "curie": ("Marie Curie was born in Warsaw.", "Where was Marie Curie born?"),
    "eiffel": ("The Eiffel Tower was built by Gustave Eiffel.", "Who built the Eiffel Tower?"),
    "kiwi": ("The kiwi is a flightless bird of New Zealand.", "Where does the kiwi live?"),
    "nile": ("The Nile flows into the Mediterranean Sea.", "Where does the Nile flow?"),
    "python": ("Python was created by Guido van Rossum.", "Who created Python?"),
    "titanic": ("The Titanic sank in 1912.", "When did the Titanic sink?"),
    "moon": ("Neil Armstrong walked on the Moon in 1969.", "Who walked on the Moon?"),
    "honey": ("Honey is made by bees.", "Who makes honey?"),
    "gold": ("Gold melts at 1064 degrees.", "At what temperature does gold melt?"),
    "mozart": ("Mozart composed The Magic Flute in 1791.", "Who composed The Magic Flute?"),
}


@dataclass
class Seen:
    """The records of all clients: the time of each right answer, other outcomes, and acknowledged writes."""

    right: list[tuple[float, float, str]] = field(default_factory=list)  # sent, answered, document
    wrong: list[str] = field(default_factory=list)
    errors: list[tuple[float, str]] = field(default_factory=list)
    stored: dict[str, str] = field(default_factory=dict)
    redirects: Counter[str] = field(default_factory=Counter)

    def slowest(self) -> float:
        """The duration of the slowest right answer, in seconds."""
        return max(answered - sent for sent, answered, _ in self.right)

    def longest_gap(self, documents: set[str], begun: float, ended: float) -> float:
        """The longest time, in seconds, without a right answer from one of these documents."""
        longest = 0.0
        for document in documents:
            times = [begun, *sorted(answered for _, answered, of in self.right if of == document), ended]
            longest = max(longest, *(b - a for a, b in pairwise(times)))
        return longest


class Load:
    """Threads that ask with a `ClusterClient` and with a stock client, and write documents, until they are stopped."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen = Seen()
        self.answers: dict[str, tuple[str, int, str]] = {}
        self._stop = threading.Event()

    def store_facts(self) -> None:
        """Store the documents, and record the right answers."""
        with ClusterClient(self.url) as client:
            for name, (text, _) in FACTS.items():
                client.put_document(name, text)
            for name, (_, question) in FACTS.items():
                best = client.ask(question, timeout=60).best
                assert best is not None, question
                assert best.document_id == name
                self.answers[name] = (best.answer, best.start, best.document_version)

    def ask(self, cache: str) -> None:
        """Ask all questions repeatedly with a `ClusterClient`."""
        with ClusterClient(self.url) as client:
            while not self._stop.is_set():
                for name, (_, question) in FACTS.items():
                    time.sleep(BREATH_SECONDS)
                    sent = time.monotonic()
                    try:
                        best = client.ask(question, cache=cache, timeout=60).best
                    except QAError as error:
                        self.seen.errors.append((time.monotonic(), f"ask: {error!r}"))
                        continue
                    if best is None or (best.answer, best.start, best.document_version) != self.answers[name]:
                        self.seen.wrong.append(f"{question} {best}")
                    else:
                        self.seen.right.append((sent, time.monotonic(), name))
            self.seen.redirects.update(client._client.engine.shards.redirects)

    def get(self) -> None:
        """Get cached and new answers of sentences with a stock client."""
        host, _, port = self.url.removeprefix("redis://").partition(",")[0].partition(":")
        with redis.RedisCluster(host=host, port=int(port), decode_responses=True, socket_timeout=60) as client:
            number = 0
            while not self._stop.is_set():
                for name, (_, question) in FACTS.items():
                    time.sleep(BREATH_SECONDS)
                    number += 1
                    tag = keys.partition_of(name, PARTITIONS)
                    asked = question if number % 2 else f"{question} ({number})"
                    try:
                        value = client.get(f"bertqa{{{tag}}}_{name}:{{{tag}}}:0_{asked}")
                    except AttributeError:
                        # A bug in redis-py: after a redirection to an unknown server, its node is None.
                        client.nodes_manager.initialize()
                        continue
                    except redis.RedisError as error:
                        self.seen.errors.append((time.monotonic(), f"stock GET: {error!r}"))
                        continue
                    if value is None or (number % 2 and f'"answer":"{self.answers[name][0]}"' not in value):
                        self.seen.wrong.append(f"stock GET {asked} {value}")

    def write(self) -> None:
        """Store new documents one after the other, and wait until each is indexed."""
        number = 0
        with ClusterClient(self.url) as client:
            while not self._stop.is_set():
                number += 1
                name, text = f"note-{number}", f"Gadget number {number} weighs {number + 100} grams."
                try:
                    client.put_document(name, text, timeout=60)
                    self.seen.stored[name] = text
                except QAError as error:
                    self.seen.errors.append((time.monotonic(), f"put: {error!r}"))
                time.sleep(0.02)

    @contextmanager
    def running(self, *work: Callable[[], None]) -> Iterator[None]:
        """Run each function in a separate thread."""
        threads = [threading.Thread(target=one) for one in work]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(120)

    def lost_writes(self) -> list[str]:
        """Documents whose acknowledged text is missing, different, or not indexed."""
        with ClusterClient(self.url) as client:
            lost = []
            for name, text in self.seen.stored.items():
                try:
                    found = client.get_document(name)
                    if found.text != text or not found.tokenized:
                        lost.append(name)
                except QAError:
                    lost.append(name)
            return lost
