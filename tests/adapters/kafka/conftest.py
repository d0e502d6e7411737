"""Fixtures: a broker for each file, topics for each test, and an adapter in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from qa_cluster.integrations.kafka.handlers import DocumentHandler, MessageHandler, QuestionHandler
from qa_cluster.integrations.kafka.metrics import AdapterMetrics
from qa_cluster.integrations.kafka.properties import KafkaProperties
from qa_cluster.integrations.kafka.publishing import SessionLost
from qa_cluster.integrations.kafka.session import KafkaSession, SessionOptions
from tests.adapters.kafka.broker import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@dataclass
class Topics:
    """The topics of one test, and their broker."""

    broker: Broker
    source: str
    to: str
    dead: str
    group: str

    def options(self, **changes: Any) -> SessionOptions:
        """The options of a session on these topics."""
        return SessionOptions(self.source, self.group, self.dead, **changes)


@pytest.fixture
def make_topics(broker: Broker) -> Callable[[int], Topics]:
    def make(partitions: int) -> Topics:
        name = os.urandom(4).hex()
        topics = Topics(broker, f"questions-{name}", f"answers-{name}", f"dead-{name}", f"group-{name}")
        broker.create(topics.source, topics.to, topics.dead, partitions=partitions)
        return topics

    return make


@pytest.fixture
def topics(make_topics: Callable[[int], Topics]) -> Topics:
    return make_topics(1)


@dataclass
class Running:
    """A running session in this process."""

    session: KafkaSession
    metrics: AdapterMetrics
    task: asyncio.Task[None]
    broken_off: bool = False

    async def break_off(self) -> None:
        """End the session with a failure, after which it publishes and commits nothing."""
        self.broken_off = True
        self.session.fail(SessionLost("broken off by the test"))
        await asyncio.wait([self.task])
        with pytest.raises(SessionLost):
            self.task.result()


@asynccontextmanager
async def adapter(
    topics: Topics, client: Any, given: tuple[str, ...] = (), *, ingest: bool = False, **options: Any
) -> AsyncIterator[Running]:
    """Run a session during the block, then drain it."""
    properties = KafkaProperties.of(brokers=topics.broker.address, given=given)
    handler: MessageHandler = DocumentHandler(client) if ingest else QuestionHandler(client, topics.to, {})
    stop, metrics = asyncio.Event(), AdapterMetrics()
    session = KafkaSession(topics.options(**options), properties, handler, metrics)
    running = Running(session, metrics, asyncio.create_task(session.run(stop)))
    try:
        yield running
    finally:
        stop.set()
        if not running.broken_off:
            await running.task
