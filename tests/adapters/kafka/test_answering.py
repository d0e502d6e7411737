"""Questions in one topic, answers in another: keys, headers, order, limits, retries and dead letters."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from qa_cluster.errors import (
    ClusterError,
    InferenceFailed,
    InputTooLong,
    LimitReached,
    NotFound,
    NoWorker,
    QueueFull,
)
from qa_cluster.integrations.kafka import retries
from tests.adapters.kafka.conftest import Topics, adapter
from tests.adapters.kafka.foreign import AIOKafkaConsumer, KafkaConsumer
from tests.adapters.kafka.scripted import ScriptedClient, gate
from tests.harness.polling import eventually_async


def question(text: str, **fields: Any) -> bytes:
    return orjson.dumps({"question": text, **fields})


def headers(message: Any) -> dict[str, bytes]:
    return dict(message.headers())


async def read(topics: Topics, topic: str, count: int) -> list[Any]:
    return await asyncio.to_thread(topics.broker.read, topic, count)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between attempts."""
    monkeypatch.setattr(retries, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(retries, "LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(retries, "LONGEST_ASKED_SECONDS", 0.05)


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_foreign_clients_read_the_answers(topics: Topics, exactly_once: bool) -> None:
    value = question("Who?", top_k=2, filter=["year>=2020"], correlation_id={"trace": 7})
    topics.broker.write(topics.source, [(b"k1", value), (None, question("Why?"))], [("h", b"1"), ("empty", None)])
    client = ScriptedClient()
    async with adapter(topics, client, exactly_once=exactly_once):
        await read(topics, topics.to, 2)
    assert client.options["Who?"] == {"top_k": 2, "filter": ["year>=2020"]}

    isolation = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    consumer = AIOKafkaConsumer(topics.to, bootstrap_servers=topics.broker.address, **isolation)
    await consumer.start()
    try:
        first, second = [await asyncio.wait_for(consumer.getone(), 60) for _ in range(2)]
    finally:
        await consumer.stop()
    assert (first.key, second.key) == (b"k1", None)
    assert first.headers == (
        ("h", b"1"),
        ("empty", None),
        ("qa-source-topic", topics.source.encode()),
        ("qa-source-partition", b"0"),
        ("qa-source-offset", b"0"),
        ("qa-source-timestamp", dict(first.headers)["qa-source-timestamp"]),
    )
    answer = orjson.loads(first.value)
    assert (answer["question"], answer["object"], answer["answerable"]) == ("Who?", "qa.result", False)
    assert (answer["id"], answer["correlation_id"]) == (f"kafka:{topics.source}:0:0", {"trace": 7})

    def read_by_kafka_python() -> list[bytes]:
        other = KafkaConsumer(topics.to, bootstrap_servers=topics.broker.address, consumer_timeout_ms=5000, **isolation)
        try:
            return [message.value for message in other]
        finally:
            other.close()

    assert await asyncio.to_thread(read_by_kafka_python) == [first.value, second.value]


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_answers_have_the_order_of_the_questions(
    make_topics: Callable[[int], Topics], exactly_once: bool
) -> None:
    topics = make_topics(3)
    topics.broker.write(topics.source, [(b"k%d" % (n % 7), question(f"{n}?")) for n in range(300)])

    async def any_time(text: str, attempt: int) -> None:
        await asyncio.sleep(random.random() * 0.05)

    client = ScriptedClient(any_time)
    async with adapter(topics, client, exactly_once=exactly_once, concurrency=8, buffer=50):
        found = await read(topics, topics.to, 300)
    numbers: dict[bytes, list[int]] = {}
    for message in found:
        numbers.setdefault(message.key(), []).append(int(orjson.loads(message.value())["question"][:-1]))
    assert sorted(n for each in numbers.values() for n in each) == list(range(300))
    assert all(each == sorted(each) for each in numbers.values())
    assert client.most == 8


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_messages_that_cannot_be_processed_become_dead_letters(
    topics: Topics, quick: None, exactly_once: bool
) -> None:
    async def refuse(text: str, attempt: int) -> None:
        if text == "long?":
            raise InputTooLong("question has 9 characters, the limit is 8: shorten it")
        if text == "lost?":
            raise NotFound("no such collection: 'x'")
        if text == "bad?":
            raise InferenceFailed("the model failed")

    wrong = [
        (b"\xff\x00", "NOTJSON", "1"),
        (b"[1]", "NOTJSON", "1"),
        (None, "NOTJSON", "1"),
        (question("Who?", loud=True), "ERR", "1"),
        (question("Who?", top_k="3"), "ERR", "1"),
        (b'{"top_k":1}', "ERR", "1"),
        (question("long?"), "TOOLONG", "1"),
        (question("lost?", collection="x"), "NOTFOUND", "1"),
        (question("bad?"), "INFERENCE", "3"),
    ]
    topics.broker.write(topics.source, [(b"k", value) for value, _, _ in wrong], [("h", b"1")])
    topics.broker.write(topics.source, [(b"k", question("good?"))])
    async with adapter(topics, ScriptedClient(refuse), exactly_once=exactly_once, attempts=3) as running:
        (good,) = await read(topics, topics.to, 1)
        letters = await read(topics, topics.dead, len(wrong))
    assert orjson.loads(good.value())["question"] == "good?"
    assert [letter.value() for letter in letters] == [value for value, _, _ in wrong]
    assert [headers(letter)["qa-error-code"].decode() for letter in letters] == [code for _, code, _ in wrong]
    assert [headers(letter)["qa-attempts"].decode() for letter in letters] == [tries for _, _, tries in wrong]
    assert {(letter.key(), headers(letter)["h"]) for letter in letters} == {(b"k", b"1")}
    assert headers(letters[3])["qa-error"].startswith(b"unknown field 'loud' of a question")
    assert [headers(letter)["qa-source-offset"] for letter in letters] == [b"%d" % n for n in range(len(wrong))]
    assert {headers(letter)["qa-source-topic"] for letter in letters} == {topics.source.encode()}
    assert topics.broker.committed(topics.group, topics.source) >= len(wrong) + 1
    assert running.metrics.messages.value("dead_letter") == len(wrong)


async def test_errors_of_the_cluster_never_become_dead_letters(topics: Topics, quick: None) -> None:
    errors = [QueueFull, LimitReached, ClusterError, NoWorker, ConnectionRefusedError]

    async def fail(text: str, attempt: int) -> None:
        if attempt <= 12:
            raise errors[attempt % len(errors)]("not now")
        if text == "lost?" and attempt <= 14:
            raise NotFound("no such collection: 'of the command'")

    topics.broker.write(topics.source, [(b"k", question("late?")), (b"k", question("lost?"))])
    client = ScriptedClient(fail)
    async with adapter(topics, client, attempts=1) as running:
        found = await read(topics, topics.to, 2)
    assert [orjson.loads(message.value())["question"] for message in found] == ["late?", "lost?"]
    assert client.attempts == {"late?": 13, "lost?": 15}
    assert running.metrics.messages.value("dead_letter") == 0
    assert running.metrics.retries.value("LIMIT") > 0


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_an_answer_that_the_brokers_refuse_becomes_a_dead_letter(topics: Topics, exactly_once: bool) -> None:
    topics.broker.write(topics.source, [(b"k", question("Who?"))])
    async with adapter(topics, ScriptedClient(padding=2_000_000), exactly_once=exactly_once):
        (letter,) = await read(topics, topics.dead, 1)
    assert letter.value() == question("Who?")
    assert headers(letter)["qa-error-code"] == b"TOOLONG"
    assert b"message size" in headers(letter)["qa-error"].lower()


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_a_slow_cluster_pauses_consumption_and_the_process_stays_in_the_group(
    topics: Topics, exactly_once: bool
) -> None:
    topics.broker.write(topics.source, [(b"k", question(f"{n}?")) for n in range(200)])
    opened, wait = gate()
    client = ScriptedClient(wait)
    limits = ("max.poll.interval.ms=6000", "session.timeout.ms=6000")
    async with adapter(topics, client, limits, exactly_once=exactly_once, concurrency=4, buffer=20) as running:
        await eventually_async(lambda: running.session.buffered >= 20)
        await asyncio.sleep(10)  # longer than max.poll.interval.ms
        assert (running.session.buffered, client.most, running.metrics.paused()) == (20, 4, True)
        assert topics.broker.committed(topics.group, topics.source) < 0
        assert not running.task.done()
        opened.set()
        found = await read(topics, topics.to, 200)
    assert len(found) == 200
    assert {client.attempts[f"{n}?"] for n in range(200)} == {1}
    assert topics.broker.committed(topics.group, topics.source) == 200


async def test_a_killed_process_loses_nothing(topics: Topics) -> None:
    topics.broker.write(topics.source, [(b"k", question(f"{n}?")) for n in range(40)])

    async def stuck(text: str, attempt: int) -> None:
        if text == "20?":
            await asyncio.sleep(3600)

    async with adapter(topics, ScriptedClient(stuck), drain_seconds=0.0) as running:
        await read(topics, topics.to, 20)
        await eventually_async(lambda: running.session.buffered == 20)
        await running.break_off()
        assert topics.broker.committed(topics.group, topics.source) <= 20
    async with adapter(topics, ScriptedClient()):
        found = await read(topics, topics.to, 40)
    assert {orjson.loads(message.value())["question"] for message in found} == {f"{n}?" for n in range(40)}
