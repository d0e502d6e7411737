"""Publishes the outcomes of a partition's messages: writes the outcomes, and marks the messages as processed.

The outcome of a question is an outgoing message: an answer, or a dead letter if the question cannot be answered. A
document that was stored or deleted has an outcome without an outgoing message.

Both publishers get batches in the order of the messages. `AtLeastOncePublisher` waits until the brokers have
acknowledged a batch, and then reports its offset for the next commit. `TransactionalPublisher` writes a batch and its
offset in one transaction.

A transactional id belongs to one input partition. A new owner of the partition first initialises a producer with this
id, and then reads the committed offset. The initialisation fences every earlier owner: the broker aborts its open
transaction, and refuses its later commits. So a suspended or disconnected owner can do no harm, even if it does not
know that it has lost the partition.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from qa_cluster.errors import InputTooLong

from .metrics import AdapterMetrics
from .records import KafkaRecord, OutgoingRecord, dead_letter

INIT_SECONDS = 60.0
CALL_SECONDS = 30.0
CLOSE_SECONDS = 10.0
RETRY_SECONDS = 0.2
MAX_ABORTS = 5
# Permanent errors of a single message.
_REFUSED = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})

_log = logging.getLogger(__name__)


class SessionLost(Exception):
    """The session with the brokers must end. A new session resumes at the committed offsets."""


@dataclass(slots=True)
class HandledEntry:
    """A processed message and its outcome.

    Attributes:
        outcome: the label of the message in the metrics, such as ``answer`` or ``dead_letter``.
        outgoing: the message to write; None: nothing is to be written.
        attempts: the number of attempts to process the message.
    """

    record: KafkaRecord
    outcome: str
    outgoing: OutgoingRecord | None
    attempts: int = 1


class BatchPublisher(Protocol):
    """Publishes the outcomes of one partition.

    `linger_seconds` is the time for which the partition waits for more outcomes before it publishes a batch.
    """

    linger_seconds: float

    async def publish(self, batch: Sequence[HandledEntry], next_offset: int) -> None:
        """Publish a batch of processed messages. Return when all outcomes are stored on the brokers.

        `next_offset` is the offset after the last message of the batch. Raise SessionLost after a failure.
        """

    async def close(self) -> None:
        """Release the resources that the publisher holds for the partition."""


class DeadLetterTopic:
    """The topic for dead letters. Creates dead letters for outcomes that the brokers refuse to store."""

    def __init__(self, topic: str) -> None:
        self.topic = topic

    def replace(self, entry: HandledEntry, error: KafkaError) -> None:
        """Replace the outgoing message of an entry with a dead letter. `error` is the refusal of the brokers.

        Raise SessionLost if the outgoing message is already a dead letter.
        """
        if entry.outcome == "dead_letter":
            raise SessionLost(f"the brokers refuse the dead letter of {entry.record.place}: {error.str()}")
        reason = InputTooLong(f"the brokers refuse the answer: {error.str()}")
        entry.outgoing, entry.outcome = dead_letter(entry.record, self.topic, reason, entry.attempts), "dead_letter"


OnDelivery = Callable[[HandledEntry, KafkaError | None], None]


def _produce(producer: Any, entry: HandledEntry, on_delivery: OnDelivery) -> None:
    """Put the outgoing message of an entry into the producer's queue. Raise BufferError if the queue is full."""
    outgoing = entry.outgoing
    assert outgoing is not None
    producer.produce(
        outgoing.topic,
        value=outgoing.value,
        key=outgoing.key,
        headers=list(outgoing.headers),
        on_delivery=lambda error, message: on_delivery(entry, error),
    )


class SharedProducer:
    """The idempotent producer of all partitions, with a thread that processes delivery reports.

    The thread calls `on_failure` if the producer cannot continue, for example after brokers have lost messages.
    """

    def __init__(
        self, configuration: dict[str, Any], logger: logging.Logger, on_failure: Callable[[BaseException], None]
    ) -> None:
        self._producer = Producer(configuration, logger=logger)
        self._on_failure = on_failure
        self._open = True
        self._thread = threading.Thread(target=self._serve, name="kafka-producer", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._open:
            try:
                self._producer.poll(0.2)
            except KafkaException as error:
                self._on_failure(SessionLost(f"the producer failed: {error.args[0].str()}"))
                return

    async def deliver(self, entries: Sequence[HandledEntry]) -> list[tuple[HandledEntry, KafkaError]]:
        """Write the outgoing messages of the entries, and wait until each message is acknowledged or has failed.

        Return the entries whose messages have failed, with their errors. The result is empty if all were acknowledged.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        failures: list[tuple[HandledEntry, KafkaError]] = []
        left = len(entries)

        def finish(entry: HandledEntry, error: KafkaError | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                failures.append((entry, error))
            if not left and not done.done():
                done.set_result(None)

        def delivered(entry: HandledEntry, error: KafkaError | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, entry, error)

        for entry in entries:
            while True:
                try:
                    _produce(self._producer, entry, delivered)
                except BufferError:
                    await asyncio.sleep(0.05)
                    continue
                except KafkaException as error:
                    finish(entry, error.args[0])
                break
        await done
        return failures

    def close(self, flush_seconds: float) -> None:
        """Deliver the queued messages for at most `flush_seconds`. Then drop the remaining messages and stop."""
        self._open = False
        with contextlib.suppress(KafkaException):  # the producer has failed
            self._producer.flush(flush_seconds)
            self._producer.purge()
        self._thread.join()


class AtLeastOncePublisher:
    """Publishes the outcomes of one partition through the shared producer.

    After each batch, `processed` is called with the next offset to commit.
    """

    linger_seconds = 0.0

    def __init__(
        self, producer: SharedProducer, dead_letters: DeadLetterTopic, processed: Callable[[int], None]
    ) -> None:
        self._producer = producer
        self._dead_letters = dead_letters
        self._processed = processed

    async def publish(self, batch: Sequence[HandledEntry], next_offset: int) -> None:
        """Write a batch, wait for the acknowledgements, and report `next_offset` for the next commit."""
        unwritten = [entry for entry in batch if entry.outgoing is not None]
        while unwritten:
            failures = await self._producer.deliver(unwritten)
            for entry, error in failures:
                if error.code() not in _REFUSED:
                    raise SessionLost(f"{entry.record.place}: its outcome was not written: {error.str()}")
                self._dead_letters.replace(entry, error)
            unwritten = [entry for entry, _ in failures]
        self._processed(next_offset)

    async def close(self) -> None:
        """Do nothing, because other partitions also use the producer."""


class TransactionalPublisher:
    """Publishes the outcomes of one partition in transactions, with a separate producer.

    Args:
        source: the topic and the number of the partition.
        group_metadata: returns the current metadata of the consumer group, which a transaction needs.
        threads: run the calls of the producer, because these calls block.
        processed: called with the next offset after each committed transaction.
        linger_seconds: the time that a transaction waits for more outcomes.
    """

    def __init__(
        self,
        source: tuple[str, int],
        *,
        group_metadata: Callable[[], Any],
        dead_letters: DeadLetterTopic,
        metrics: AdapterMetrics,
        threads: ThreadPoolExecutor,
        processed: Callable[[int], None],
        linger_seconds: float,
    ) -> None:
        self.linger_seconds = linger_seconds
        self._source = source
        self._group_metadata = group_metadata
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._threads = threads
        self._processed = processed
        self._producer: Any = None

    async def open(self, configuration: dict[str, Any], logger: logging.Logger) -> None:
        """Create the producer. This fences earlier owners of the partition, and aborts their open transactions.

        `configuration` has the properties of the producer with the transactional id of the partition. Raise SessionLost
        after a failure.
        """
        await self._in_thread(partial(self._open, configuration, logger))

    def _open(self, configuration: dict[str, Any], logger: logging.Logger) -> None:
        self._producer = Producer(configuration, logger=logger)
        try:
            _until_done(lambda: self._producer.init_transactions(INIT_SECONDS), INIT_SECONDS)
        except KafkaException as error:
            topic, number = self._source
            raise SessionLost(f"{topic}[{number}]: no transaction can start: {error.args[0].str()}") from error

    async def publish(self, batch: Sequence[HandledEntry], next_offset: int) -> None:
        """Write a batch and its offset in one transaction. After an abort, repeat this in a new transaction.

        Raise SessionLost if `MAX_ABORTS` transactions were aborted.
        """
        await self._in_thread(partial(self._publish, batch, next_offset))
        self._processed(next_offset)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _publish(self, batch: Sequence[HandledEntry], next_offset: int) -> None:
        for attempt in range(1, MAX_ABORTS + 1):
            failure = self._transaction(batch, next_offset)
            if failure is None:
                self._metrics.transactions.inc("committed")
                return
            self._metrics.transactions.inc("aborted")
            _log.warning("transaction %d of %s[%d] was aborted: %s", attempt, *self._source, failure)
            time.sleep(RETRY_SECONDS * attempt)
        raise SessionLost(f"{self._source[0]}[{self._source[1]}]: {MAX_ABORTS} transactions in a row were aborted")

    def _transaction(self, batch: Sequence[HandledEntry], next_offset: int) -> str | None:
        """Run one transaction. Return None after a commit, or the reason for an abort."""
        refused: list[tuple[HandledEntry, KafkaError]] = []

        def delivered(entry: HandledEntry, error: KafkaError | None) -> None:
            if error is not None and error.code() in _REFUSED:
                refused.append((entry, error))

        topic, number = self._source
        offsets = [TopicPartition(topic, number, next_offset)]
        producer = self._producer
        if producer is None:
            raise SessionLost(f"{topic}[{number}]: this process no longer owns the partition")
        try:
            producer.begin_transaction()
            for entry in batch:
                if entry.outgoing is not None:
                    self._produce(producer, entry, delivered)
            group = self._group_metadata()
            _until_done(lambda: producer.send_offsets_to_transaction(offsets, group, CALL_SECONDS), CALL_SECONDS)
            _until_done(lambda: producer.commit_transaction(CALL_SECONDS), 2 * CALL_SECONDS)
        except KafkaException as error:
            return self._abort(producer, error.args[0], refused)
        return None

    def _produce(self, producer: Any, entry: HandledEntry, delivered: OnDelivery) -> None:
        while True:
            try:
                _produce(producer, entry, delivered)
                return
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                if error.args[0].code() not in _REFUSED:
                    raise
                self._dead_letters.replace(entry, error.args[0])

    def _abort(self, producer: Any, error: KafkaError, refused: Sequence[tuple[HandledEntry, KafkaError]]) -> str:
        """Abort the transaction after an error, and return the reason as text.

        Raises:
            SessionLost: the state of the transaction is unknown, or a later owner has fenced the producer.
        """
        if error.fatal() or not error.txn_requires_abort():
            topic, number = self._source
            raise SessionLost(f"{topic}[{number}]: the transaction failed: {error.str()}")
        try:
            _until_done(lambda: producer.abort_transaction(CALL_SECONDS), CALL_SECONDS)
        except KafkaException as worse:
            raise SessionLost(f"the transaction cannot be aborted: {worse.args[0].str()}") from worse
        for entry, reason in refused:
            self._dead_letters.replace(entry, reason)
        return str(error.str())

    async def close(self) -> None:
        """Drop the producer. The next owner of the partition aborts a transaction that is still open."""
        held, self._producer = [self._producer], None
        if held[0] is not None:
            self._threads.submit(_drop, held)  # do not wait, because `_drop` can hang after the failure of a broker


def _drop(held: list[Any]) -> None:
    """Destroy the producer in `held`. This may take seconds, so call it in a thread that may block."""
    held.pop().purge()


def _until_done(call: Callable[[], object], seconds: float) -> None:
    """Call a function of the transactional API. After a retriable error, retry for up to `seconds`.

    Raises KafkaException after any other error, and after the last try.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)
