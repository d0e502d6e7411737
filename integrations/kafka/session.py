"""Runs a session: the time in which a process is a member of a consumer group, until a signal or a failure.

One thread makes all calls of the consumer. It never stops polling, so the process stays in the group
(`max.poll.interval.ms`) even if the cluster is slow. While the buffer is full, the thread pauses the partitions and
polls only for events of the group. The callbacks of a rebalance run in this thread and wait for the event loop. So
before the process releases a partition, it waits up to `revoke_seconds` for the attempts in progress, and commits the
offset.

A failure never skips a message. The session ends, and the next session resumes at the committed offsets.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from .handlers import MessageHandler
from .metrics import AdapterMetrics
from .partitions import AssignedPartition, HandlingOptions
from .properties import KafkaProperties
from .publishing import (
    CLOSE_SECONDS,
    AtLeastOncePublisher,
    BatchPublisher,
    DeadLetterTopic,
    SessionLost,
    SharedProducer,
    TransactionalPublisher,
)
from .records import KafkaRecord
from .retries import FailureLog

POLL_SECONDS = 0.1
COMMIT_SECONDS = 1.0
# The partitions are paused if the buffer is full for this time. Each pause discards prefetched messages.
FULL_SECONDS = 1.0
TRANSACTION_THREADS = 64

_Source = tuple[str, int]
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionOptions:
    """The options of all sessions of a process.

    Attributes:
        topic, group: the topic to read, and the consumer group.
        dead_letter_topic: the topic for messages that cannot be processed.
        concurrency: the maximum number of attempts in progress.
        buffer: the maximum number of messages that were read and are not published.
        attempts: the number of failed attempts after which a message becomes a dead letter, if it may have caused the
            errors.
        exactly_once: whether to write outcomes and offsets in transactions.
        linger_seconds: the time that a transaction waits for more outcomes.
        drain_seconds: the time for which a session that ends processes the messages that it has already read.
        revoke_seconds: the time for which the attempts in progress of a revoked partition may continue. A longer time
            than half of `max.poll.interval.ms` is shortened to that half.
    """

    topic: str
    group: str
    dead_letter_topic: str
    concurrency: int = 16
    buffer: int = 128
    attempts: int = 5
    exactly_once: bool = False
    linger_seconds: float = 0.1
    drain_seconds: float = 30.0
    revoke_seconds: float = 30.0

    def transactional_id(self, partition: int) -> str:
        """Return the transactional id of an input partition, which is the same in every process of the group."""
        return f"qa-cluster.{self.group}.{self.topic}.{partition}"


class KafkaSession:
    """Reads messages, passes them to the handler, and commits their offsets. `run` can be called once."""

    def __init__(
        self, options: SessionOptions, properties: KafkaProperties, handler: MessageHandler, metrics: AdapterMetrics
    ) -> None:
        self._options = options
        self._properties = properties
        self._metrics = metrics
        self._dead_letters = DeadLetterTopic(options.dead_letter_topic)
        self._handling = HandlingOptions(
            handler,
            asyncio.Semaphore(options.concurrency),
            options.attempts,
            self._dead_letters,
            metrics,
        )
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._failure.add_done_callback(lambda failure: failure.cancelled() or failure.exception())
        self._partitions: dict[_Source, AssignedPartition] = {}
        self._positions: dict[_Source, int] = {}
        self._due: dict[_Source, int] = {}
        self._due_lock = threading.Lock()
        self._committed_at = time.monotonic()
        self._fetched: list[KafkaRecord] = []
        self._paused = self._reassigned = False
        # Only one call of the consumer runs at a time. So a transaction uses this copy of the group's metadata, and
        # does not wait for the end of `poll`.
        self._group_metadata: Any = None
        self._space = asyncio.Event()
        self._abandoned = False
        self.member = False
        self._revoke_seconds = min(options.revoke_seconds, properties.max_poll_seconds / 2)
        self._failures = FailureLog()
        self._log = properties.log()
        self._poller = ThreadPoolExecutor(1, "kafka-consumer")
        self._transactions = ThreadPoolExecutor(TRANSACTION_THREADS, "kafka-transaction")
        callbacks = {"on_commit": self._on_commit, "error_cb": self._on_error}
        with properties.faults_as_config_errors():
            self._consumer: Any = Consumer(properties.consumer(options.group) | callbacks, logger=self._log)
            self._producer = None if options.exactly_once else self._shared_producer()
        metrics.buffered = lambda: self.buffered
        metrics.in_flight = lambda: sum(partition.in_flight for partition in self._partitions.values())
        metrics.paused = lambda: self._paused

    def _shared_producer(self) -> SharedProducer:
        def fail(error: BaseException) -> None:
            self._loop.call_soon_threadsafe(self.fail, error)

        return SharedProducer(self._properties.producer(), self._log, fail)

    @property
    def buffered(self) -> int:
        """The number of messages that were read and are not published."""
        return sum(partition.buffered for partition in self._partitions.values())

    @property
    def positions(self) -> dict[_Source, int | None]:
        """For each assigned partition, the next offset to process, or None if this offset is unknown."""
        return {source: self._positions.get(source) for source in self._partitions}

    async def run(self, stop: asyncio.Event) -> None:
        """Handle messages until `stop` is set, then finish the messages that were read.

        Raise the error of the session (`fail`), usually SessionLost or KafkaException, after a failure.
        """
        self._metrics.sessions.inc()
        stopped = asyncio.create_task(stop.wait())
        try:
            await self._in_poller(self._subscribe)
            await self._read_until(stopped)
            if not self._failure.done():
                await self._drain()
        finally:
            stopped.cancel()
            await self._close()
        if self._failure.done():
            self._failure.result()

    async def _read_until(self, stopped: asyncio.Task[bool]) -> None:
        full_since: float | None = None
        while not stopped.done() and not self._failure.done():
            free = self._options.buffer - self.buffered
            if free <= 0:
                now = time.monotonic()
                full_since = now if full_since is None else full_since
                if now - full_since < FULL_SECONDS:
                    await self._wait_for_space(stopped, FULL_SECONDS - (now - full_since))
                    continue
                free = 0
            elif self._paused and free < self._options.buffer // 2:
                free = 0  # stay paused, because each new pause would discard prefetched messages
            else:
                full_since = None
            for record in await self._in_poller(partial(self._poll, free)):
                self._partitions[record.topic, record.partition].add(record)

    async def _wait_for_space(self, stopped: asyncio.Task[bool], seconds: float) -> None:
        self._space.clear()
        space = asyncio.create_task(self._space.wait())
        try:
            awaited: list[asyncio.Future[Any]] = [space, stopped, self._failure]
            await asyncio.wait(awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            space.cancel()

    async def _drain(self) -> None:
        """Finish and publish the messages that were read, for up to `drain_seconds`. Read no more messages."""
        _log.info("stopping: %d messages are in progress", self.buffered)
        deadline = time.monotonic() + self._options.drain_seconds
        while self.buffered and time.monotonic() < deadline and not self._failure.done():
            await self._in_poller(partial(self._poll, 0))
        if left := self.buffered:
            _log.warning("%d messages were not processed in time; the next process reads them again", left)

    async def _close(self) -> None:
        if self._failure.done():
            self._abandoned = True
            for partition in list(self._partitions.values()):
                await partition.abandon()
        # `close` of the consumer calls `_on_revoke` with the assigned partitions.
        closing = self._loop.run_in_executor(self._poller, self._consumer.close)
        await asyncio.wait([closing], timeout=self._revoke_seconds + CLOSE_SECONDS)
        if not closing.done():
            self._abandoned = True
            _log.warning(
                "this process could not leave the consumer group; the brokers remove it after session.timeout.ms"
            )
        elif isinstance(error := closing.exception(), Exception):
            _log.warning("the consumer ended with an error: %s", self._clean(error))
        for partition in list(self._partitions.values()):
            await partition.abandon()
        self._partitions.clear()
        self._metrics.assigned, self._metrics.lag, self.member = 0, {}, False
        if self._producer is not None:
            await self._loop.run_in_executor(None, self._producer.close, 0.0 if self._abandoned else CLOSE_SECONDS)
        self._poller.shutdown(wait=False)
        self._transactions.shutdown(wait=False)

    def fail(self, error: BaseException) -> None:
        """End the session with an error, which `run` then raises. Only the first error counts."""
        if not self._failure.done():
            self._failure.set_exception(error)
        self._space.set()

    async def _in_poller(self, work: Callable[[], _T]) -> _T:
        return await self._loop.run_in_executor(self._poller, work)

    def _clean(self, error: object) -> str:
        return self._properties.without_secrets(str(error))

    # The methods below run in the thread of the consumer.

    def _in_loop(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _subscribe(self) -> None:
        self._consumer.subscribe(
            [self._options.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _poll(self, free: int) -> list[KafkaRecord]:
        """Return up to `free` messages. If no message arrives within `POLL_SECONDS`, the list is empty.

        If `free` is 0, pause the partitions and process only events of the group.
        """
        self._commit_due()
        self._pause(free <= 0)
        self._group_metadata = self._consumer.consumer_group_metadata()
        self._fetched = []
        wait = POLL_SECONDS
        while len(self._fetched) < max(free, 1):
            # Each poll returns one message. With `consume`, a rebalance could mix messages of the old and the new
            # assignment.
            message = self._consumer.poll(wait)
            if message is None:
                break
            wait = 0
            if (error := message.error()) is not None:
                self._note(error)
                continue
            record = _record_of(message)
            if (record.topic, record.partition) in self._partitions:
                self._fetched.append(record)
        fetched, self._fetched = self._fetched, []
        return fetched

    def _pause(self, wanted: bool) -> None:
        if wanted == self._paused and not self._reassigned:
            return
        # A partition that was paused earlier is still paused when librdkafka assigns it again.
        assignment = self._consumer.assignment()
        if assignment:
            (self._consumer.pause if wanted else self._consumer.resume)(assignment)
        self._paused, self._reassigned = wanted, False

    def _note(self, error: KafkaError) -> None:
        """Record an error of the consumer. Raise SessionLost if the consumer cannot continue."""
        if error.fatal():
            raise SessionLost(self._clean(error.str()))
        self._on_error(error)

    def _on_error(self, error: KafkaError) -> None:
        self._metrics.broker_errors.inc()
        self._failures.note(KafkaException(error), "the connection to the brokers", 1)

    def _on_assign(self, consumer: object, partitions: list[TopicPartition]) -> None:
        """Start to handle newly assigned partitions. The consumer reads their committed offsets after this callback."""
        sources = [(entry.topic, entry.partition) for entry in partitions]
        _log.info("assigned: %s", _names(sources))
        self._reassigned = True
        try:
            self._in_loop(self._open(sources))
        except Exception as error:
            self._loop.call_soon_threadsafe(self.fail, error)

    def _on_revoke(self, consumer: object, partitions: list[TopicPartition]) -> None:
        sources = [(entry.topic, entry.partition) for entry in partitions]
        self._drop_fetched(sources)
        if self._abandoned:
            return
        _log.info("revoked: %s", _names(sources))
        self._group_metadata = self._consumer.consumer_group_metadata()
        try:
            self._in_loop(self._close_partitions(sources))
            self._commit(sources)
        except Exception as error:
            self._loop.call_soon_threadsafe(self.fail, error)

    def _on_lost(self, consumer: object, partitions: list[TopicPartition]) -> None:
        """Stop publishing and committing for these partitions, because other processes may already own them."""
        sources = [(entry.topic, entry.partition) for entry in partitions]
        self._drop_fetched(sources)
        if self._abandoned:
            return
        _log.warning("lost: %s; other processes read the uncommitted messages again", _names(sources))
        self._in_loop(self._abandon_partitions(sources))

    def _drop_fetched(self, sources: Iterable[_Source]) -> None:
        gone = set(sources)
        self._fetched = [record for record in self._fetched if (record.topic, record.partition) not in gone]

    def _commit_due(self) -> None:
        if self._due and time.monotonic() - self._committed_at >= COMMIT_SECONDS:
            self._committed_at = time.monotonic()
            with self._due_lock:
                due, self._due = self._due, {}
            self._consumer.commit(offsets=_offsets(due), asynchronous=True)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Schedule a failed commit again, unless a later offset of the partition is scheduled, or the partition is no
        longer assigned. `error` is the error of the whole commit, and each partition may have an error of its own.
        """
        for entry in partitions:
            source = (entry.topic, entry.partition)
            if (error is not None or entry.error is not None) and source in self._partitions:
                with self._due_lock:
                    self._due.setdefault(source, entry.offset)

    def _commit(self, sources: Iterable[_Source]) -> None:
        with self._due_lock:
            due = {source: offset for source in sources if (offset := self._due.pop(source, None)) is not None}
        if due:
            try:
                self._consumer.commit(offsets=_offsets(due), asynchronous=False)
            except KafkaException as error:
                _log.warning("%s: offsets were not committed: %s", _names(due), self._clean(error))

    # The methods below run in the event loop, while the thread of the consumer waits for them.

    async def _open(self, sources: list[_Source]) -> None:
        publishers = await asyncio.gather(*map(self._publisher, sources))
        for source, publisher in zip(sources, publishers, strict=True):
            self._partitions[source] = AssignedPartition(self._handling, publisher, self._space.set, self.fail)
        self.member = True
        self._metrics.assigned = len(self._partitions)

    async def _publisher(self, source: _Source) -> BatchPublisher:
        processed = partial(self._processed, source)
        if self._producer is not None:
            return AtLeastOncePublisher(self._producer, self._dead_letters, processed)
        options = self._options
        publisher = TransactionalPublisher(
            source,
            group_metadata=lambda: self._group_metadata,
            dead_letters=self._dead_letters,
            metrics=self._metrics,
            threads=self._transactions,
            processed=processed,
            linger_seconds=options.linger_seconds,
        )
        await publisher.open(self._properties.producer(options.transactional_id(source[1])), self._log)
        return publisher

    def _processed(self, source: _Source, offset: int) -> None:
        self._positions[source] = offset
        if self._producer is not None:
            with self._due_lock:
                self._due[source] = offset

    async def _close_partitions(self, sources: Iterable[_Source]) -> None:
        owned = [(source, self._partitions[source]) for source in sources if source in self._partitions]
        await asyncio.gather(*(partition.close(self._revoke_seconds) for _, partition in owned))
        self._remove(source for source, _ in owned)

    async def _abandon_partitions(self, sources: Iterable[_Source]) -> None:
        owned = [(source, self._partitions[source]) for source in sources if source in self._partitions]
        await asyncio.gather(*(partition.abandon() for _, partition in owned))
        with self._due_lock:
            for source, _ in owned:
                self._due.pop(source, None)
        self._remove(source for source, _ in owned)

    def _remove(self, sources: Iterable[_Source]) -> None:
        for source in sources:
            del self._partitions[source]
            self._positions.pop(source, None)
        self._metrics.assigned = len(self._partitions)
        self._metrics.lag = {source: lag for source, lag in self._metrics.lag.items() if source in self._partitions}
        self._space.set()


def _offsets(offsets: dict[_Source, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]


def _names(sources: Iterable[_Source]) -> str:
    return ", ".join(f"{topic}[{partition}]" for topic, partition in sources) or "no partitions"


def _record_of(message: Any) -> KafkaRecord:
    kind, timestamp = message.timestamp()
    return KafkaRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        timestamp if kind else None,
    )
