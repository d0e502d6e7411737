"""Documents of a topic are stored and deleted at least once, in order for each document."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import orjson

from tests.adapters.kafka.conftest import Topics, adapter
from tests.adapters.kafka.scripted import ScriptedClient
from tests.harness.polling import eventually_async


def document(text: str, **fields: object) -> bytes:
    return orjson.dumps({"text": text, **fields})


async def test_puts_and_tombstones(topics: Topics) -> None:
    topics.broker.write(
        topics.source,
        [
            (b"ada", document("Ada.", title="A", metadata={"year": 1843})),
            (b"bob", document("Bob.")),
            (None, document("Eve.", id="eve")),
            (b"bob", None),
            (b"missing", None),
        ],
    )
    client = ScriptedClient()
    async with adapter(topics, client, ingest=True) as running:
        await eventually_async(lambda: len(client.writes) == 5)
    assert client.documents == {"ada": "Ada.", "eve": "Eve."}
    assert topics.broker.committed(topics.group, topics.source) == 5
    assert (running.metrics.messages.value("stored"), running.metrics.messages.value("deleted")) == (3, 2)


async def test_reading_a_topic_again_changes_nothing(topics: Topics) -> None:
    topics.broker.write(topics.source, [(b"ada", document("Ada.")), (b"bob", document("B.")), (b"bob", None)])
    client = ScriptedClient()
    for group in ("first", "second"):
        topics.group = group + topics.source
        async with adapter(topics, client, ingest=True) as running:
            await eventually_async(lambda: running.metrics.messages.value("deleted") == 1)
        assert client.documents == {"ada": "Ada."}
    assert running.metrics.messages.value("unchanged") == 1


async def test_messages_of_a_document_keep_their_order(make_topics: Callable[[int], Topics]) -> None:
    topics = make_topics(2)
    keys = [b"d%d" % number for number in range(6)]
    topics.broker.write(topics.source, [(key, document(f"{turn}.")) for turn in range(20) for key in keys])
    topics.broker.write(topics.source, [(keys[0], None), (None, document("x.", id="none")), (keys[1], None)])

    async def any_time(text: str, attempt: int) -> None:
        await asyncio.sleep(random.random() * 0.02)
        if random.random() < 0.2:
            raise ConnectionResetError("lost")

    client = ScriptedClient(any_time)
    async with adapter(topics, client, ingest=True):
        await eventually_async(lambda: len(client.writes) == 123)
    for key in keys:
        written = [text for id, text in client.writes if id == key.decode()]
        assert written[:20] == [f"{turn}." for turn in range(20)]
    assert client.documents == {**{f"d{number}": "19." for number in range(2, 6)}, "none": "x."}
    assert client.most > 1


async def test_wrong_documents_become_dead_letters(topics: Topics) -> None:
    wrong = [
        (b"a", b"no JSON"),
        (b"a", b'{"title": "no text"}'),
        (b"a", document("x", id="b")),
        (b"a", document("x", metadata=[1])),
        (b"a", document("x", author="me")),
        (b"\xff", document("x")),
        (None, document("x")),
        (None, None),
    ]
    topics.broker.write(topics.source, [*wrong, (b"good", document("x"))])
    client = ScriptedClient()
    async with adapter(topics, client, ingest=True):
        letters = await asyncio.to_thread(topics.broker.read, topics.dead, len(wrong))
        await eventually_async(lambda: client.documents == {"good": "x"})
    assert [(letter.key(), letter.value()) for letter in letters] == wrong
    assert {dict(letter.headers())["qa-error-code"] for letter in letters} == {b"NOTJSON", b"ERR"}
