"""Runs registrations of a StreamSource. The batches of a stream run one after the other.

The module only reports that an entry was added to a stream. The worker reads each stream in the consumer group that
RedisGears also uses. It first reads delivered but unacknowledged entries, whose worker or primary has died. Then it
reads new entries. After the run of a batch, the worker acknowledges the batch and trims the stream. At most
`MAX_RUNNING` batches of all streams run at once. The other batches wait in the order of their reports.

A batch must not kill one worker after the other. Before a second run of entries, the worker claims them for a second
consumer. If a worker finds unacknowledged entries of the second consumer, two workers have died while they ran these
entries. These entries count as failed without a third run, except with `onFailedPolicy="retry"`. Second runs of batches
run one at a time, so that a crash has only one possible cause.

`qa.background-timeout-ms` is the only time limit of a batch. After an abort of a batch, the started entries count as
failed. The other entries stay for the next batch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from ...shard.failures import GearsError, error_line
from ...shard.link import Argument, Reply, raise_on_error
from ..calling.threads import FunctionPool
from ..host.executions import Execution
from ..host.script_host import ScriptHost
from ..runs.distributed import Distributor
from ..runs.history import ExecutionHistory
from ..runs.key_values import scan
from ..runs.sources import StreamSource
from .on_registered import OnRegisteredCalls
from .sessions import Registration, ScriptSession, execution_of
from .stream_commands import GROUP, Records, check_report, has_group, known_statuses, read_command, take_new
from .stream_state import CONSUMER, SECOND_CONSUMER, Consumer, Delivery, Entry, Phase, Stream

logger = logging.getLogger(__name__)
TWO_WORKERS_LOST = "WORKERLOST two workers died while this batch ran"
MAX_RUNNING = 64
LOST_SECONDS = 1.0
"""The delay before a stream is read again after an error of the server."""

# The error codes of a server that does not have the stream, or that may not write to it.
_NOT_SERVED = frozenset({"MOVED", "ASK", "READONLY", "WRONGTYPE"})
# If a registration has more streams than this number, the state of streams that have no unprocessed entries is dropped.
MAX_KNOWN = 10_000
_GLOB = str.maketrans({character: f"\\{character}" for character in "*?[]\\"})


class Streams:
    """All stream registrations of this shard."""

    def __init__(
        self, host: ScriptHost, history: ExecutionHistory, distributor: Distributor, on_registered: OnRegisteredCalls
    ) -> None:
        self._host = host
        self._on_registered = on_registered
        self._history = history
        self._distributor = distributor
        self._consumers: dict[str, Consumer] = {}
        # the state of ended registrations that still run a batch
        self._leaving: set[Consumer] = set()
        self._queue: deque[tuple[Consumer, Stream]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = 0
        self._one_redelivered = asyncio.Lock()

    def start(self, session: ScriptSession, registration: Registration) -> None:
        """Start to read the streams of a registration, including streams that already exist.

        If this registration is read already, find and read its streams again. Do nothing for a registration of another
        source.
        """
        if not isinstance(registration.source, StreamSource):
            return
        consumer = self._consumers.get(registration.id)
        if consumer is None or consumer.registration is not registration:
            self.stop(registration.id)
            consumer = Consumer(session, registration, registration.source)
            status = known_statuses(self._host).get(registration.id, "OK")
            consumer.paused, consumer.ended = status == "PAUSED", status == "ABORTED"
            self._consumers[registration.id] = consumer
        self._spawn(self._scan(consumer))

    def stop(self, registration_id: str) -> None:
        """Stop reading for a registration. A running batch continues to its end, and its outcome is then processed as
        usual.
        """
        consumer = self._consumers.pop(registration_id, None)
        if consumer is None:
            return
        consumer.ended = True
        for key, stream in consumer.streams.items():
            stream.stop_timer()
            if stream.phase is Phase.RUNNING:
                self._leaving.add(consumer)
            elif stream.entries:
                self._leave_to_others(key)

    def _leave_to_others(self, key: bytes) -> None:
        """Make the other registrations of the stream `key` read the unacknowledged entries of an ended registration."""
        for consumer in self._consumers.values():
            stream = consumer.streams.get(key)
            if stream is None:
                continue
            stream.left_over = True
            if stream.phase is Phase.IDLE:
                self._wake(consumer, key)

    def notice(self, registration_id: str, key: bytes) -> None:
        """Make a registration read the stream `key`, because the module has reported a new entry."""
        consumer = self._consumers.get(registration_id)
        if consumer is not None:
            self._wake(consumer, key)

    def pause(self, registration_id: str, paused: bool) -> None:
        """Pause the reading of a registration if `paused` is true. Otherwise resume it, and read all its streams.

        A running batch continues to its end.
        """
        consumer = self._consumers.get(registration_id)
        if consumer is None:
            return
        consumer.paused = paused
        if not paused:
            self._spawn(self._scan(consumer))

    def promoted(self) -> None:
        """Read all streams again after the promotion of this server, because the previous primary may have left pending
        entries. Registrations that a failed batch has stopped on the previous primary read again, too.
        """
        for registration_id, status in known_statuses(self._host).items():
            if status == "ABORTED":  # set by the previous primary; the failed batch may succeed on this server
                self._host.execute("QA.STREAM", registration_id, "OK")
                if registration_id in self._consumers:
                    self._consumers[registration_id].ended = False
        for consumer in self._consumers.values():
            for stream in consumer.streams.values():
                if stream.phase is not Phase.RUNNING:  # a running batch still uses the entries
                    stream.start_over()
            self._spawn(self._scan(consumer))

    def rescan(self) -> None:
        """Find and read streams that arrived with slots from another shard, because no event reports these streams."""
        for consumer in self._consumers.values():
            for stream in consumer.streams.values():
                if stream.phase is Phase.IDLE and not stream.entries:  # another shard may have had the stream meanwhile
                    stream.start_over()
            self._spawn(self._scan(consumer))

    async def _scan(self, consumer: Consumer) -> None:
        pattern = consumer.source.stream
        if not pattern.endswith("*"):
            self._wake(consumer, pattern.encode())
            return
        said = ""
        while not consumer.ended:
            try:
                await self._scan_pattern(consumer, pattern[:-1].translate(_GLOB) + "*")
                return
            except GearsError as error:
                if str(error) != said:
                    said = str(error)
                    logger.error("streams of registration %s cannot be found: %s", consumer.registration.id, error)
                await asyncio.sleep(LOST_SECONDS)

    async def _scan_pattern(self, consumer: Consumer, pattern: str) -> None:
        for keys in scan(self._host, pattern):
            for key, kind in zip(keys, self._host.execute_many([("TYPE", key) for key in keys]), strict=True):
                if kind == b"stream":
                    self._wake(consumer, key)
            await asyncio.sleep(0)

    def _wake(self, consumer: Consumer, key: bytes) -> None:
        if consumer.stopped:
            return
        stream = consumer.streams.setdefault(key, Stream(key))
        if stream.phase is not Phase.IDLE:
            stream.again = True
            return
        self._enqueue(consumer, stream)
        self._dispatch()

    def _enqueue(self, consumer: Consumer, stream: Stream) -> None:
        stream.stop_timer()
        stream.phase = Phase.QUEUED
        self._queue.append((consumer, stream))

    def _dispatch(self) -> None:
        while self._queue and self._running < MAX_RUNNING:
            self._running += 1
            self._spawn(self._work(*self._queue.popleft()))

    async def _work(self, consumer: Consumer, stream: Stream) -> None:
        """Run one batch of a stream, if it has entries, and schedule the next batch."""
        stream.phase = Phase.RUNNING
        stream.again = False
        due = False
        try:
            if not consumer.stopped and not self._is_left(stream.key):
                due = self._read(consumer, stream) and await self._run(consumer, stream)
        except Exception as error:  # a fault of this package must not stop reading either
            self._read_failed(consumer, stream, error)
        finally:
            self._running -= 1
            if stream.phase is Phase.RUNNING:
                stream.phase = Phase.IDLE
            self._schedule_next(consumer, stream, due)

    def _schedule_next(self, consumer: Consumer, stream: Stream, due: bool) -> None:
        """After `_work` on a stream, queue the stream again or drop its state. Then start the next streams in the
        queue.

        `due` says whether the next batch of the stream may start at once.
        """
        idle = stream.phase is Phase.IDLE
        if idle and (due or stream.again) and not consumer.stopped:
            self._enqueue(consumer, stream)
        elif consumer.ended or (idle and not stream.entries and len(consumer.streams) > MAX_KNOWN):
            consumer.streams.pop(stream.key, None)
        if consumer in self._leaving:
            if all(other.phase is not Phase.RUNNING for other in consumer.streams.values()):
                self._leaving.discard(consumer)
            self._leave_to_others(stream.key)
        self._dispatch()

    def _is_left(self, key: bytes) -> bool:
        """Return whether an ended registration still runs a batch of the stream.

        At the end of this batch, the ended registration wakes the other registrations.
        """
        streams = (consumer.streams.get(key) for consumer in self._leaving)
        return any(stream is not None and stream.phase is Phase.RUNNING for stream in streams)

    def _others(self, stream: Stream) -> list[Stream]:
        """Return the state of the same stream for each other registration that has entries of it."""
        found = [consumer.streams.get(stream.key) for consumer in (*self._consumers.values(), *self._leaving)]
        return [other for other in found if other is not None and other is not stream and other.entries]

    def _read_failed(self, consumer: Consumer, stream: Stream, error: Exception) -> None:
        """Handle an error of a read. Stop reading a stream that was removed or migrated, or if this server is a replica
        now.

        After any other error (for example, of a busy server or a full disk), read the stream again soon. Without this
        retry, the stream would not be read before its next entry.
        """
        stream.start_over()
        stream.has_group = False
        if not isinstance(error, GearsError):
            logger.exception("stream %r could not be read: %s", stream.key, error_line(error))
        elif (code := str(error).partition(" ")[0]) in _NOT_SERVED:
            logger.info("stream %r is not read any more: %s", stream.key, error)
            return
        elif code == "NOGROUP":  # only the group was removed, not the stream: the next `_work` creates the group
            logger.info("stream %r gets a new group: %s", stream.key, error)
            stream.again = True
            return
        else:
            logger.warning("stream %r could not be read, and is read again: %s", stream.key, error)
        if not consumer.ended:
            self._retry_later(consumer, stream, LOST_SECONDS)

    def _read(self, consumer: Consumer, stream: Stream) -> bool:
        """Read entries for the next batch, up to the batch size of the registration.

        Return whether the batch must run now. If the batch is not full and the option `duration` is set, a timer
        wakes the stream when this time is over.
        """
        if not has_group(self._host, stream):
            return False
        if stream.left_over and not stream.entries:
            stream.start_over()
        while stream.delivery is not Delivery.NEW and not stream.entries:
            self._take_redelivered(stream, self._host.execute(*read_command(stream, consumer.source)))
        if stream.delivery is Delivery.NEW and len(stream.entries) < consumer.source.batch:
            take_new(stream, self._host.execute(*read_command(stream, consumer.source)))
        return self._is_due(consumer, stream)

    def _is_due(self, consumer: Consumer, stream: Stream) -> bool:
        if len(stream.entries) >= consumer.source.batch or (stream.entries and stream.delivery is not Delivery.NEW):
            return True
        if stream.cut_short and stream.entries:
            return True
        if not stream.entries or not consumer.source.duration_ms:
            return False
        left = stream.waiting_since + consumer.source.duration_ms / 1000 - time.monotonic()
        if left <= 0:
            return True
        stream.stop_timer()
        stream.timer = self._host.loop.call_later(left, self._wake, consumer, stream.key)
        return False

    def _take_redelivered(self, stream: Stream, reply: Reply) -> None:
        arrived = reply[0][1] if reply else []
        # All registrations share the consumers of the consumer group. Exclude entries that another registration is
        # processing.
        taken = {entry_id for other in self._others(stream) for entry_id, _ in other.entries}
        stream.entries += [(name, fields) for name, fields in arrived if fields is not None and name not in taken]
        gone = [entry_id for entry_id, fields in arrived if fields is None]
        if gone:  # entries that were trimmed or deleted from the stream before their acknowledgement
            self._host.execute("XACK", stream.key, GROUP, *gone)
        if arrived:
            stream.cursor = arrived[-1][0]
        else:
            stream.delivery, stream.cursor = Delivery(stream.delivery + 1), b"0"

    async def _run(self, consumer: Consumer, stream: Stream) -> bool:
        """Run the batch, and process its outcome (`_settle`).

        Return whether the next batch may start at once.
        """
        batch = stream.entries[: consumer.source.batch]
        if stream.delivery is Delivery.NEW:
            return await self._run_batch(consumer, stream, batch)
        self._running -= 1  # a batch that waits for the lock does not count as running
        self._dispatch()
        try:
            async with self._one_redelivered:
                return await self._run_again(consumer, stream, batch)
        finally:
            self._running += 1

    async def _run_again(self, consumer: Consumer, stream: Stream, batch: list[Entry]) -> bool:
        if consumer.stopped:
            return False
        if stream.delivery is Delivery.FIRST:
            self._claim(stream, batch, SECOND_CONSUMER)
        continues = await self._run_batch(consumer, stream, batch)
        if stream.entries:  # unacknowledged entries, although no worker was lost
            self._claim(stream, batch, CONSUMER)
        return continues

    def _claim(self, stream: Stream, batch: list[Entry], consumer: str) -> None:
        ids = [entry_id for entry_id, _ in batch]
        self._host.execute("XCLAIM", stream.key, GROUP, consumer, 0, *ids, "JUSTID")

    async def _run_batch(self, consumer: Consumer, stream: Stream, batch: list[Entry]) -> bool:
        registration = consumer.registration
        execution = execution_of(registration, consumer.session, self._host.ids, FunctionPool.BACKGROUND)
        self._history.add_registered(registration.id, execution)
        began = time.perf_counter()
        if stream.delivery is Delivery.SECOND and consumer.source.on_failed != "retry":
            execution.add_error(TWO_WORKERS_LOST)
            execution.finish()
            return self._settle(consumer, stream, batch, execution, 0)
        await self._on_registered.until_returned(registration.id)
        records = Records(stream.key, batch)
        await self._distributor.run(registration.plan(), execution, records.read(), registration.id)
        # an aborted run may still process an entry, which must not count as ended
        await execution.until_ended()
        begun = batch[: records.taken] if execution.aborted else batch
        stream.cut_short = len(begun) < len(batch)
        return self._settle(consumer, stream, begun, execution, round((time.perf_counter() - began) * 1e6))

    def _settle(
        self,
        consumer: Consumer,
        stream: Stream,
        batch: list[Entry],
        execution: Execution,
        run_us: int,
    ) -> bool:
        """Process the outcome of a batch: acknowledge its entries, or stop or retry as `onFailedPolicy` says.

        `batch` has the processed entries: all entries, or only the first entries if the batch was aborted. The other
        entries stay for the next batch. `run_us` is the duration of the run in microseconds; 0 without a run. Return
        whether the next batch may start at once.
        """
        registration = consumer.registration
        first = (batch or stream.entries)[0][0]
        lag_ms = max(0, round(time.time() * 1000) - int(first.partition(b"-")[0]))
        outcome = "ABORTED" if execution.aborted else "ERR" if execution.errors else "OK"
        # an error may contain text that cannot be encoded, but the batch must be reported
        failure = (execution.failure or "").encode("utf-8", "backslashreplace")
        numbers: tuple[Argument, ...] = (outcome, run_us, lag_ms, failure)
        if any(text.startswith("PAUSE") for text in execution.errors):
            consumer.paused = True
            self._report(registration, "PAUSED", numbers)
            return False
        if outcome != "OK" and consumer.source.on_failed == "abort":
            consumer.ended = True
            self._report(registration, "ABORTED", numbers)
            return False
        if outcome != "OK" and consumer.source.on_failed == "retry":
            if not consumer.ended:
                self._retry_later(consumer, stream, consumer.source.retry_seconds)
            self._report(registration, "WAITING_FOR_RETRY_ON_FAILURE", numbers)
            return False
        return self._acknowledge(consumer, stream, batch, numbers)

    def _acknowledge(
        self, consumer: Consumer, stream: Stream, batch: list[Entry], numbers: tuple[Argument, ...]
    ) -> bool:
        """Acknowledge a batch, trim the stream, report the batch to the module, and read new entries.

        `numbers` are the outcome, the duration, the lag and the error for the report (`QA.STREAM`).
        All commands are sent in one round trip. New entries are read only if the registration continues and no
        earlier entry is left.

        Return whether the next batch may start at once.
        """
        del stream.entries[: len(batch)]
        ids = [entry_id for entry_id, _ in batch]
        commands: list[tuple[Argument, ...]] = [("XACK", stream.key, GROUP, *ids)] if ids else []
        # entries left by another registration may be older, so only a later batch trims the stream
        if consumer.source.trim and ids and not stream.left_over:
            commands.append(("XTRIM", stream.key, "MINID", self._first_needed(stream, ids[-1])))
        commands.append(("QA.STREAM", consumer.registration.id, "OK", *numbers))
        idle = not (consumer.stopped or stream.entries or stream.left_over)
        reads_on = idle and stream.delivery is Delivery.NEW
        if reads_on:
            commands.append(read_command(stream, consumer.source))
        replies = self._host.execute_many(commands)
        if reads_on:
            take_new(stream, raise_on_error(replies.pop()))
        check_report(replies.pop())
        for reply in replies:
            raise_on_error(reply)
        return bool(stream.entries) or not reads_on

    def _first_needed(self, stream: Stream, done: bytes) -> str:
        """Return the id before which a stream may be trimmed, because no registration needs earlier entries.

        `done` is the id of the last acknowledged entry.
        """
        milliseconds, _, sequence = done.partition(b"-")
        needed = (int(milliseconds), int(sequence) + 1)
        for holder in (*self._others(stream), *((stream,) if stream.entries else ())):
            first_ms, _, first_sequence = holder.entries[0][0].partition(b"-")
            needed = min(needed, (int(first_ms), int(first_sequence)))
        return f"{needed[0]}-{needed[1]}"

    def _retry_later(self, consumer: Consumer, stream: Stream, seconds: float) -> None:
        def retry() -> None:
            stream.phase = Phase.IDLE
            self._wake(consumer, stream.key)

        stream.phase = Phase.RETRYING
        stream.timer = self._host.loop.call_later(seconds, retry)

    def _report(self, registration: Registration, status: str, numbers: tuple[Argument, ...]) -> None:
        (reply,) = self._host.execute_many([("QA.STREAM", registration.id, status, *numbers)])
        check_report(reply)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        # an empty context, because reading must not have the rights of the registering function
        task = self._host.loop.create_task(_logged(work), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:  # a fault of this package: only this stream waits, until its next entry
        logger.exception("a stream is not read any more: %s", error_line(error))
