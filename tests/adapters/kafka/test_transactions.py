"""With transactions, each question has exactly one answer despite zombies, rebalances, aborts and broken sessions."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest
from confluent_kafka import Consumer

from qa_cluster.integrations.kafka import publishing
from qa_cluster.integrations.kafka.metrics import AdapterMetrics
from qa_cluster.integrations.kafka.properties import KafkaProperties
from qa_cluster.integrations.kafka.publishing import (
    DeadLetterTopic,
    HandledEntry,
    SessionLost,
    TransactionalPublisher,
)
from qa_cluster.integrations.kafka.records import KafkaRecord, reply
from tests.adapters.kafka.conftest import Running, Topics, adapter
from tests.adapters.kafka.scripted import ScriptedClient
from tests.harness.polling import eventually_async

LOG = logging.getLogger("tests.kafka")


def questions(first: int, count: int) -> list[tuple[bytes, bytes]]:
    return [(b"k%d" % (n % 11), orjson.dumps({"question": f"{n}?"})) for n in range(first, first + count)]


def counted(messages: list[Any]) -> Counter[str]:
    return Counter(orjson.loads(message.value())["question"] for message in messages)


async def soon(text: str, attempt: int) -> None:
    await asyncio.sleep(random.random() * 0.02)


class Owner:
    """The publisher of a process that owns a partition."""

    def __init__(self, topics: Topics, threads: ThreadPoolExecutor) -> None:
        self.topics, self.metrics = topics, AdapterMetrics()
        self.consumer = Consumer(topics.broker.configuration(group_id=topics.group))
        self.positions: list[int] = []
        self.publisher = TransactionalPublisher(
            (topics.source, 0),
            group_metadata=self.consumer.consumer_group_metadata,
            dead_letters=DeadLetterTopic(topics.dead),
            metrics=self.metrics,
            threads=threads,
            processed=self.positions.append,
            linger_seconds=0.0,
        )

    async def open(self) -> None:
        properties = KafkaProperties.of(brokers=self.topics.broker.address)
        await self.publisher.open(properties.producer(self.topics.options().transactional_id(0)), LOG)

    async def publish(self, text: str, offset: int) -> None:
        record = KafkaRecord(self.topics.source, 0, offset, b"k", None)
        outgoing = reply(record, self.topics.to, orjson.dumps({"question": text}), "answer")
        await self.publisher.publish([HandledEntry(record, "answer", outgoing)], offset + 1)


@pytest.fixture
def owners(topics: Topics) -> Iterator[Callable[[], Owner]]:
    made: list[Owner] = []
    with ThreadPoolExecutor(8) as threads:

        def make() -> Owner:
            made.append(Owner(topics, threads))
            return made[-1]

        yield make
        for owner in made:
            owner.consumer.close()


async def test_a_former_owner_of_a_partition_can_commit_nothing(topics: Topics, owners: Callable[[], Owner]) -> None:
    zombie, heir = owners(), owners()
    await zombie.open()
    await zombie.publish("before", 0)
    await heir.open()
    with pytest.raises(SessionLost, match="fenced"):
        await zombie.publish("too late", 1)
    assert topics.broker.committed(topics.group, topics.source) == 1
    await heir.publish("of the heir", 1)
    found = await asyncio.to_thread(topics.broker.read, topics.to, 2)
    assert counted(found) == {"before": 1, "of the heir": 1}
    assert (zombie.positions, heir.positions) == ([1], [2])
    await zombie.publisher.close()
    await heir.publisher.close()


async def test_an_open_transaction_of_a_former_owner_is_aborted(topics: Topics, owners: Callable[[], Owner]) -> None:
    zombie, heir = owners(), owners()
    await zombie.open()
    producer = zombie.publisher._producer
    producer.begin_transaction()
    producer.produce(topics.to, b'{"question": "unfinished"}')
    producer.flush(20)
    await heir.open()
    await heir.publish("of the heir", 0)
    found = await asyncio.to_thread(topics.broker.read, topics.to, 1)
    assert counted(found) == {"of the heir": 1}
    await heir.publisher.close()


async def test_an_aborted_transaction_is_repeated(
    topics: Topics, owners: Callable[[], Owner], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, until_done, lost = owners(), publishing._until_done, [True]
    await owner.open()

    def lose_a_message(call: Callable[[], object], seconds: float) -> None:
        if lost.pop() if lost else False:
            owner.publisher._producer.purge()  # the delivery fails, so the owner must abort the transaction
        until_done(call, seconds)

    monkeypatch.setattr(publishing, "_until_done", lose_a_message)
    await owner.publish("repeated", 0)
    found = await asyncio.to_thread(topics.broker.read, topics.to, 1)
    assert counted(found) == {"repeated": 1}
    assert (owner.metrics.transactions.value("aborted"), owner.metrics.transactions.value("committed")) == (1, 1)
    await owner.publisher.close()


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("strategy", ["roundrobin", "range"])  # noida-db stalls with cooperative-sticky
async def test_processes_join_and_leave(
    make_topics: Callable[[int], Topics], exactly_once: bool, strategy: str
) -> None:
    topics, count = make_topics(4), 600
    await asyncio.to_thread(topics.broker.write, topics.source, questions(0, 300))
    quick = ("heartbeat.interval.ms=500", "session.timeout.ms=6000", "max.poll.interval.ms=10000")
    given = (f"partition.assignment.strategy={strategy}", *quick)

    async def has_partitions(running: Running) -> None:
        await eventually_async(lambda: running.metrics.assigned > 0)

    async with AsyncExitStack() as stack:
        client = ScriptedClient(soon)
        first = await stack.enter_async_context(adapter(topics, client, given, exactly_once=exactly_once))
        await has_partitions(first)
        async with adapter(topics, client, given, exactly_once=exactly_once) as second:
            await has_partitions(second)
            await asyncio.to_thread(topics.broker.write, topics.source, questions(300, 300))
            await asyncio.sleep(0.5)
        third = await stack.enter_async_context(adapter(topics, client, given, exactly_once=exactly_once))
        await has_partitions(third)
        found = counted(await asyncio.to_thread(topics.broker.read, topics.to, count))
    assert found.keys() == {f"{n}?" for n in range(count)}
    assert not exactly_once or set(found.values()) == {1}


async def test_a_failed_session_loses_and_repeats_nothing(topics: Topics) -> None:
    topics.broker.write(topics.source, questions(0, 400))
    for _ in range(3):
        async with adapter(topics, ScriptedClient(soon), exactly_once=True, linger_seconds=0.02) as running:
            await eventually_async(lambda: running.metrics.messages.value("no_answer") > 0)
            await running.break_off()
    async with adapter(topics, ScriptedClient(soon), exactly_once=True):
        found = counted(await asyncio.to_thread(topics.broker.read, topics.to, 400))
        await asyncio.sleep(1)
    assert found == {f"{n}?": 1 for n in range(400)}
    assert topics.broker.committed(topics.group, topics.source) == 400
    assert len(topics.broker.read(topics.to, 400)) == 400
