"""Group protocols that do not work with noida-db (KIP-848, cooperative-sticky), on the mock broker of librdkafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from confluent_kafka import Consumer, Producer

from qa_cluster.integrations.kafka.session import SessionOptions
from tests.adapters.kafka.conftest import adapter
from tests.adapters.kafka.scripted import ScriptedClient
from tests.harness.polling import eventually_async

SOURCE, TO, DEAD = "questions", "answers", "dead"
PARTITIONS = 4  # of each topic of the mock


@pytest.fixture
def mock() -> Iterator[tuple[Producer, str]]:
    """A producer that contains a mock cluster, and the address of the cluster."""
    producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "test.mock.broker.rtt": 0})
    brokers = producer.list_topics(timeout=20).brokers.values()
    yield producer, ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    producer.flush(10)


@pytest.mark.parametrize(
    "given",
    [
        ("group.protocol=consumer",),
        ("partition.assignment.strategy=cooperative-sticky", "heartbeat.interval.ms=500", "session.timeout.ms=6000"),
    ],
    ids=["KIP-848", "cooperative-sticky"],
)
async def test_questions_are_answered_while_a_process_joins_and_leaves(
    mock: tuple[Producer, str], given: tuple[str, ...]
) -> None:
    producer, address = mock
    for number in range(20):
        producer.produce(SOURCE, orjson.dumps({"question": f"{number}?"}), f"k{number % 3}")
    for topic in (TO, DEAD):  # the mock creates a topic at its first message
        producer.produce(topic, b"{}")
    assert producer.flush(20) == 0
    topics: Any = SimpleNamespace(
        broker=SimpleNamespace(address=address), to=TO, options=lambda **changes: SessionOptions(SOURCE, "g", DEAD)
    )
    async with adapter(topics, ScriptedClient(), given) as first:
        await eventually_async(lambda: first.metrics.messages.value("no_answer") == 20)
        async with adapter(topics, ScriptedClient(), given) as second:
            await eventually_async(lambda: second.metrics.assigned > 0)
            for number in range(20, 40):
                producer.produce(SOURCE, orjson.dumps({"question": f"{number}?"}), f"k{number}")
            assert producer.flush(20) == 0
            count = second.metrics.messages
            await eventually_async(lambda: first.metrics.messages.value("no_answer") + count.value("no_answer") >= 40)
        await eventually_async(lambda: first.metrics.assigned == PARTITIONS)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "r", "auto.offset.reset": "earliest"})
    consumer.subscribe([TO])
    found = []
    while len({*found}) < 41:
        message = await asyncio.to_thread(consumer.poll, 10)
        assert message is not None and message.error() is None
        found.append(orjson.loads(message.value()).get("question"))
    consumer.close()
    assert {*filter(None, found)} == {f"{number}?" for number in range(40)}
