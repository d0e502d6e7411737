"""Handles the messages of one assigned partition concurrently, and publishes their outcomes in order.

`publishing.py` explains outcomes. An outcome is published only after the outcomes of all earlier messages. So answers
have the same order as their questions, and the committed offset never skips a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from .handlers import HandledMessage, MessageHandler
from .metrics import AdapterMetrics
from .publishing import BatchPublisher, DeadLetterTopic, HandledEntry
from .records import KafkaRecord, dead_letter
from .retries import FailureLog, Verdict, pause_seconds, verdict_on

MAX_BATCH = 500

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HandlingOptions:
    """Options for handling the messages of all partitions.

    Attributes:
        handler: processes a message in one *attempt*. After some errors, there is another attempt (`retries.py`).
        slots: the semaphore that limits the attempts in progress.
        attempts: the number of failed attempts after which a message becomes a dead letter, if it may have caused the
            errors.
        dead_letters: the topic for messages that cannot be processed.
        failures: the log of failed attempts.
    """

    handler: MessageHandler
    slots: asyncio.Semaphore
    attempts: int
    dead_letters: DeadLetterTopic
    metrics: AdapterMetrics
    failures: FailureLog = field(default_factory=FailureLog)


@dataclass(slots=True, eq=False)
class _Entry:
    record: KafkaRecord
    task: asyncio.Task[None] | None = None
    handled: HandledEntry | None = None
    in_attempt: bool = False


class AssignedPartition:
    """A partition that is assigned to this process, with its messages.

    Args:
        options: options for handling messages.
        publisher: publishes the outcomes of the messages.
        on_progress: called after each published batch.
        on_failure: called with an error that must end the session.
    """

    def __init__(
        self,
        options: HandlingOptions,
        publisher: BatchPublisher,
        on_progress: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._options = options
        self._publisher = publisher
        self._on_progress = on_progress
        self._on_failure = on_failure
        self._entries: deque[_Entry] = deque()
        self._publishing = 0
        self._last_of_key: dict[bytes, _Entry] = {}
        self._head_is_done = asyncio.Event()
        self._closing = False
        self._publisher_task = asyncio.create_task(self._publish())

    @property
    def buffered(self) -> int:
        """The number of messages that are not published yet."""
        return len(self._entries) + self._publishing

    @property
    def in_flight(self) -> int:
        """The number of attempts in progress."""
        return sum(entry.in_attempt for entry in self._entries)

    def add(self, record: KafkaRecord) -> None:
        """Start to handle a message. If an earlier message with the same order key (`MessageHandler.order_key`) is not
        processed yet, the message first waits for the earlier message.
        """
        entry = _Entry(record)
        key = self._options.handler.order_key(record)
        before = None if key is None else self._last_of_key.get(key)
        if key is not None:
            self._last_of_key[key] = entry
        self._entries.append(entry)
        entry.task = asyncio.create_task(self._handle(entry, before.task if before is not None else None))
        entry.task.add_done_callback(partial(self._note_done, entry, key))

    def _note_done(self, entry: _Entry, key: bytes | None, task: asyncio.Task[None]) -> None:
        if key is not None and self._last_of_key.get(key) is entry:
            del self._last_of_key[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
        if self._entries and self._entries[0] is entry:
            self._head_is_done.set()

    async def _handle(self, entry: _Entry, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
            if before.cancelled():
                raise asyncio.CancelledError
        options, record, attempt, begun = self._options, entry.record, 0, monotonic()
        while True:
            attempt += 1
            failure: Exception | None = None
            async with options.slots:
                entry.in_attempt = True
                try:
                    done = await options.handler.handle(record)
                except Exception as error:
                    failure = error
                finally:
                    entry.in_attempt = False
            if failure is None:
                entry.handled = HandledEntry(record, done.outcome, done.outgoing, attempt)
                break
            verdict = verdict_on(failure, options.handler.names_target(record))
            if verdict is Verdict.DEAD_LETTER or (verdict is Verdict.A_FEW_TIMES and attempt >= options.attempts):
                done = self._dead_letter(record, failure, attempt)
                entry.handled = HandledEntry(record, done.outcome, done.outgoing, attempt)
                break
            options.metrics.retries.inc(getattr(failure, "resp_code", type(failure).__name__))
            options.failures.note(failure, record.place, attempt)
            if self._closing:
                raise asyncio.CancelledError
            await asyncio.sleep(pause_seconds(failure, attempt))
        options.metrics.seconds.observe(monotonic() - begun)

    def _dead_letter(self, record: KafkaRecord, failure: Exception, attempts: int) -> HandledMessage:
        _log.warning(
            "%s becomes a dead letter after %d attempts: %s", record.place, attempts, _without_content(failure)
        )
        letter = dead_letter(record, self._options.dead_letters.topic, failure, attempts)
        return HandledMessage("dead_letter", letter)

    async def _publish(self) -> None:
        try:
            while True:
                await self._head_is_done.wait()
                if self._publisher.linger_seconds and not self._closing:
                    await asyncio.sleep(self._publisher.linger_seconds)
                self._head_is_done.clear()
                batch = self._finished_head()
                if not batch:
                    if self._closing:
                        return
                    continue
                self._publishing = len(batch)
                await self._publisher.publish(batch, batch[-1].record.offset + 1)
                self._publishing = 0
                for handled in batch:
                    self._options.metrics.messages.inc(handled.outcome)
                self._on_progress()
                self._head_is_done.set()  # check again, because more messages may be finished
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._on_failure(error)

    def _finished_head(self) -> list[HandledEntry]:
        batch: list[HandledEntry] = []
        while self._entries and len(batch) < MAX_BATCH and (handled := self._entries[0].handled) is not None:
            self._entries.popleft()
            batch.append(handled)
        return batch

    async def close(self, seconds: float) -> None:
        """Stop: wait up to `seconds` for the attempts in progress, then publish the finished messages.

        All other messages are dropped. Messages that are not published are not committed, so the next owner of the
        partition reads them again.
        """
        self._closing = True
        running = []
        for entry in self._entries:
            if entry.task is not None and not entry.task.done():
                if entry.in_attempt:
                    running.append(entry.task)
                else:
                    entry.task.cancel()
        begun = monotonic()
        if running:
            await asyncio.wait(running, timeout=seconds)
        self._head_is_done.set()
        left = max(0.0, seconds - (monotonic() - begun))
        await asyncio.wait([self._publisher_task], timeout=left + 1.0)
        await self.abandon()

    async def abandon(self) -> None:
        """Stop at once and publish nothing more.

        Call this if another process owns the partition now, or if the session has ended. `close` also calls this at its
        end.
        """
        self._closing = True
        tasks = [entry.task for entry in self._entries if entry.task is not None]
        for task in (*tasks, self._publisher_task):
            task.cancel()
        await asyncio.wait([*tasks, self._publisher_task], timeout=1.0)
        self._entries.clear()
        self._publishing = 0
        await self._publisher.close()


def _without_content(failure: Exception) -> str:
    """Return the type and code of a failure for the log. The failure's text may quote a message, so it is left out."""
    return f"{type(failure).__name__} ({getattr(failure, 'resp_code', 'INTERNAL')})"
