"""A long document is indexed in parts while its shard serves others. It is found completely or not at all."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from qa_cluster import keys
from tests.harness.polling import eventually
from tests.harness.servers import Server

from .running_shards import Shards, tag

SECONDS = 120.0
WORDS = 80_000


def different_words(count: int, letter: str) -> str:
    """A text of this many different words, which the stemmer does not change."""
    words = [f"{letter}{number:05x}" for number in range(count)]
    rows = [" ".join(words[at : at + 12]) for at in range(0, count, 12)]
    return ".\n\n".join(rows) + "."


def in_index(shards: Shards, name: str, first: str, last: str) -> list[int]:
    """The numbers of the document's sentences that have one of two words, as the index finds them."""
    key = keys.index_key(tag(name))
    reply = shards.on(shards.node_of(key), "QA.INDEX.RANK", key, 10, 0, "TERMS", 2, first, 0, last, 0)
    return sorted(int(hit[1]) for hit in reply[3])


def open_documents(shards: Shards, name: str) -> int:
    key = keys.index_key(tag(name))
    flat = shards.on(shards.node_of(key), "QA.INDEX.INFO", key) or []
    return int(dict(zip(flat[::2], flat[1::2], strict=True)).get("open_documents", 0))


@contextmanager
def timed_commands(server: Server) -> Iterator[dict[str, list[int]]]:
    """The durations of the block's commands in microseconds, by command. The dict is filled at the end of the block."""
    found: dict[str, list[int]] = {}
    with server.client(decode_responses=False) as client:
        before: dict[str, Any] = client.config_get("slowlog-*")
        client.config_set("slowlog-max-len", 100_000)
        client.config_set("slowlog-log-slower-than", 0)
        client.slowlog_reset()
        try:
            yield found
            for entry in client.slowlog_get(100_000):
                found.setdefault(entry["command"].split()[0].decode().upper(), []).append(entry["duration"])
        finally:
            for name in ("slowlog-max-len", "slowlog-log-slower-than"):
                client.config_set(name, before[name])


@pytest.mark.hostile
def test_a_document_of_very_many_different_words_delays_no_other_client(shards: Shards) -> None:
    """The worker sends the document in parts. Each command is much shorter than all parts together."""
    name, last = "different", (WORDS - 1) // 12
    words = ("q00000", f"q{WORDS - 1:05x}")
    seen: set[tuple[int, ...]] = set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            seen.add(tuple(in_index(shards, name, *words)))

    looking = threading.Thread(target=look)
    with timed_commands(shards.node_of(keys.index_key(tag(name)))) as took:
        looking.start()
        try:
            shards.put(name, different_words(WORDS, "q"))
            eventually(lambda: (record := shards.record(name)) is not None and record.tokenized, SECONDS)
        finally:
            over.set()
            looking.join()
    assert seen <= {(), (0, last)}
    assert in_index(shards, name, *words) == [0, last]
    parts = took["QA.INDEX.ADD"]
    assert len(parts) > WORDS // 2400
    longest = max(max(took[command]) for command in ("QA.INDEX.ADD", "QA.INDEX.BEGIN", "EVALSHA") if command in took)
    assert longest < sum(parts)
    assert open_documents(shards, name) == 0
    shards.delete(name)


def put_until_open(shards: Shards, name: str) -> str:
    """Store long versions until the test observes an open version; return the letter of the version's words."""
    key = keys.index_key(tag(name))
    with shards.node_of(key).client() as client:
        for letter in "nopqrstuvw":
            shards.put(name, different_words(WORDS, letter))
            while (record := shards.record(name)) is None or not record.tokenized:
                for _ in range(20):
                    flat = client.execute_command("QA.INDEX.INFO", key) or []
                    if dict(zip(flat[::2], flat[1::2], strict=True)).get("open_documents"):
                        return letter
    raise AssertionError("no version was seen while it was open")


def test_a_new_version_overtakes_a_version_that_is_being_indexed(shards: Shards) -> None:
    name = "overtaken"
    letter = put_until_open(shards, name)
    shards.put(name, "Tuataras have three eyes.")
    eventually(lambda: name in shards.ranked_documents("tuataras"), SECONDS)
    eventually(lambda: open_documents(shards, name) == 0, SECONDS)
    assert in_index(shards, name, f"{letter}00000", f"{letter}00001") == []
    shards.delete(name)


def test_a_plain_set_of_a_long_text_is_enough(shards: Shards) -> None:
    name = "plainly long"
    shards.client.set(keys.paragraphs_key(name, tag(name)), different_words(20_000, "s"))
    eventually(lambda: in_index(shards, name, "s00000", f"s{19_999:05x}") == [0, 19_999 // 12], SECONDS)
    eventually(lambda: (record := shards.record(name)) is not None and record.tokenized, SECONDS)
    assert open_documents(shards, name) == 0
    shards.client.delete(keys.paragraphs_key(name, tag(name)))
    eventually(lambda: shards.record(name) is None, SECONDS)


def test_parts_of_a_dead_worker_are_removed_by_the_next_worker(shards: Shards) -> None:
    name = "interrupted"
    node = shards.node_of(keys.index_key(tag(name)))
    letter = put_until_open(shards, name)
    node.signal_worker(signal.SIGKILL)
    eventually(lambda: (record := shards.record(name)) is not None and record.tokenized, SECONDS)
    assert in_index(shards, name, f"{letter}00000", f"{letter}{WORDS - 1:05x}") == [0, (WORDS - 1) // 12]
    assert open_documents(shards, name) == 0
    node.wait_ready(SECONDS)
    shards.delete(name)
