"""Registrations of a StreamReader: batches of a stream's entries run one after the other, acknowledged when done.

The module only says that something was added to a stream. Here each stream of a registration is read in the consumer
group that RedisGears used: entries that were delivered but not acknowledged come first (their worker or their primary
died), then new ones. A batch is acknowledged after its run, then the stream is trimmed. At most `MAX_RUNNING` batches
of all streams run at once; the others wait their turn in the order in which they were announced.

A batch that kills its worker must not do so for ever: entries that are run a second time are claimed for a consumer of
their own before. What a worker finds there has cost two workers, and counts as failed without a third run (unless its
registration retries). Such batches run one at a time, so that one does not pass for the culprit of another's crash.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

from ..runs.sources import StreamReader, scan, stream_record
from ..shard.executions import Execution
from ..shard.failures import GearsError, error_line
from ..shard.link import Argument, Reply, raise_on_error
from ..shard.replies import decode_reply
from .sessions import Registration, Session
from .stream_state import CONSUMER, CONSUMERS, SECOND_CONSUMER, Consumer, Entry, Phase, Source, Stream

if TYPE_CHECKING:
    from ..scripting.runtime import Runtime

logger = logging.getLogger(__name__)
GROUP = "__gears_consumer_group__"
TWO_WORKERS_LOST = "WORKERLOST two workers died while this batch ran"
MAX_RUNNING = 64
# streams of one registration whose state is kept while nothing is in them
MAX_KNOWN = 10_000
_GLOB = str.maketrans({character: f"\\{character}" for character in "*?[]\\"})


class Streams:
    """All registrations on streams of this shard."""

    def __init__(self, runtime_of: Callable[[], Runtime]) -> None:
        self._runtime_of = runtime_of
        self._consumers: dict[str, Consumer] = {}
        # unregistered or replaced, and a batch still runs
        self._leaving: set[Consumer] = set()
        self._queue: deque[tuple[Consumer, Stream]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = 0
        self._one_redelivered = asyncio.Lock()

    def start(self, session: Session, registration: Registration) -> None:
        """Read the streams of a registration from now on, those that exist already included."""
        if not isinstance(registration.reader, StreamReader):
            return
        consumer = self._consumers.get(registration.id)
        if consumer is None or consumer.registration is not registration:
            self.stop(registration.id)
            consumer = Consumer(session, registration, registration.reader)
            status = self._known_status(registration.id)
            consumer.paused, consumer.ended = status == "PAUSED", status == "ABORTED"
            self._consumers[registration.id] = consumer
        self._spawn(self._look_at_all(consumer))

    def stop(self, registration_id: str) -> None:
        """Read no more; a batch that runs is finished and acknowledged."""
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
        """Let the other registrations look for entries of a stream that one which ended has not acknowledged."""
        for consumer in self._consumers.values():
            stream = consumer.streams.get(key)
            if stream is not None and stream.phase is Phase.IDLE and not stream.entries:
                stream.start_over()
                self._wake(consumer, key)

    def notice(self, registration_id: str, key: bytes) -> None:
        """Something was added to a stream."""
        consumer = self._consumers.get(registration_id)
        if consumer is not None:
            self._wake(consumer, key)

    def pause(self, registration_id: str, paused: bool) -> None:
        """Stop reading, or go on."""
        consumer = self._consumers.get(registration_id)
        if consumer is None:
            return
        consumer.paused = paused
        if not paused:
            self._spawn(self._look_at_all(consumer))

    def promoted(self) -> None:
        """The shard has become a primary: another one may have left entries unacknowledged."""
        for consumer in self._consumers.values():
            for stream in consumer.streams.values():
                if stream.phase is not Phase.RUNNING:  # that one knows what it runs
                    stream.start_over()
            self._spawn(self._look_at_all(consumer))

    def look_again(self) -> None:
        """Streams may have come that were not announced: with slots of another shard."""
        for consumer in self._consumers.values():
            for stream in consumer.streams.values():
                if stream.phase is Phase.IDLE and not stream.entries:  # another shard may have had it meanwhile
                    stream.start_over()
            self._spawn(self._look_at_all(consumer))

    async def _look_at_all(self, consumer: Consumer) -> None:
        pattern = consumer.reader.stream
        try:
            if not pattern.endswith("*"):
                self._wake(consumer, pattern.encode())
                return
            runtime = self._runtime_of()
            for keys in scan(runtime, pattern[:-1].translate(_GLOB) + "*"):
                for key, kind in zip(keys, runtime.execute_many([("TYPE", key) for key in keys]), strict=True):
                    if kind == b"stream":
                        self._wake(consumer, key)
                await asyncio.sleep(0)
        except GearsError as error:
            logger.error("streams of registration %s cannot be found: %s", consumer.registration.id, error)

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
        """Run one batch of a stream, if there is one, and see when its next comes."""
        stream.phase = Phase.RUNNING
        stream.again = False
        due = False
        try:
            if not consumer.stopped and not self._is_left(stream.key):
                due = self._read(consumer, stream) and await self._run(consumer, stream)
        except GearsError as error:
            self._lost(consumer, stream, error)
        finally:
            self._running -= 1
            if stream.phase is Phase.RUNNING:
                stream.phase = Phase.IDLE
            self._go_on(consumer, stream, due)

    def _go_on(self, consumer: Consumer, stream: Stream, due: bool) -> None:
        """After a stream's turn: queue it again, or forget it; the next in the queue have theirs."""
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
        """Whether a registration that has ended still runs a batch of the stream: it wakes the others afterwards."""
        streams = (consumer.streams.get(key) for consumer in self._leaving)
        return any(stream is not None and stream.phase is Phase.RUNNING for stream in streams)

    def _others(self, stream: Stream) -> list[Stream]:
        """The state of the same stream in other registrations that have read of it."""
        found = [consumer.streams.get(stream.key) for consumer in (*self._consumers.values(), *self._leaving)]
        return [other for other in found if other is not None and other is not stream and other.entries]

    def _lost(self, consumer: Consumer, stream: Stream, error: GearsError) -> None:
        """The stream was removed, has moved to another shard, or this one is a replica now."""
        logger.info("stream %r is not read any more: %s", stream.key, error)
        stream.start_over()
        stream.has_group = False
        # a group that was removed while its stream is still there is made anew
        stream.again = stream.again or str(error).startswith("NOGROUP")

    def _read(self, consumer: Consumer, stream: Stream) -> bool:
        """Fill the batch; whether it is to run now."""
        runtime, reader = self._runtime_of(), consumer.reader
        if not stream.has_group:
            if runtime.execute("TYPE", stream.key) != b"stream":
                return False
            (made,) = runtime.execute_many([("XGROUP", "CREATE", stream.key, GROUP, "0")])
            if not str(made).startswith("BUSYGROUP"):
                raise_on_error(made)
            stream.has_group = True
        while stream.source is not Source.NEW and not stream.entries:
            self._take_redelivered(stream, runtime.execute(*_read_command(stream, reader)))
        if stream.source is Source.NEW and len(stream.entries) < reader.batch:
            self._take_new(stream, runtime.execute(*_read_command(stream, reader)))
        return self._is_due(consumer, stream)

    def _is_due(self, consumer: Consumer, stream: Stream) -> bool:
        if len(stream.entries) >= consumer.reader.batch or (stream.entries and stream.source is not Source.NEW):
            return True
        if not stream.entries or not consumer.reader.duration_ms:
            return False
        left = stream.waiting_since + consumer.reader.duration_ms / 1000 - time.monotonic()
        if left <= 0:
            return True
        stream.stop_timer()
        stream.timer = self._runtime_of().loop.call_later(left, self._wake, consumer, stream.key)
        return False

    @staticmethod
    def _take_new(stream: Stream, reply: Reply) -> None:
        arrived = reply[0][1] if reply else []
        if arrived and not stream.entries:
            stream.waiting_since = time.monotonic()
        stream.entries += [(entry_id, fields) for entry_id, fields in arrived if fields is not None]

    def _take_redelivered(self, stream: Stream, reply: Reply) -> None:
        arrived = reply[0][1] if reply else []
        # the group's consumer is one for all registrations: what another of them works on is not left behind
        taken = {entry_id for other in self._others(stream) for entry_id, _ in other.entries}
        stream.entries += [(name, fields) for name, fields in arrived if fields is not None and name not in taken]
        gone = [entry_id for entry_id, fields in arrived if fields is None]
        if gone:  # trimmed or deleted while they were pending
            self._runtime_of().execute("XACK", stream.key, GROUP, *gone)
        if arrived:
            stream.cursor = arrived[-1][0]
        else:
            stream.source, stream.cursor = Source(stream.source + 1), b"0"

    async def _run(self, consumer: Consumer, stream: Stream) -> bool:
        """Run the batch and do with it what its outcome and the policy say; whether to go on at once."""
        batch = stream.entries[: consumer.reader.batch]
        if stream.source is Source.NEW:
            return await self._run_batch(consumer, stream, batch)
        self._running -= 1  # while it waits for those before it, new batches run
        self._dispatch()
        try:
            async with self._one_redelivered:
                return await self._run_again(consumer, stream, batch)
        finally:
            self._running += 1

    async def _run_again(self, consumer: Consumer, stream: Stream, batch: list[Entry]) -> bool:
        if consumer.stopped:
            return False
        if stream.source is Source.FIRST:
            self._claim(stream, batch, SECOND_CONSUMER)
        going_on = await self._run_batch(consumer, stream, batch)
        if stream.entries:  # not acknowledged, but no worker was lost either
            self._claim(stream, batch, CONSUMER)
        return going_on

    def _claim(self, stream: Stream, batch: list[Entry], consumer: str) -> None:
        ids = [entry_id for entry_id, _ in batch]
        self._runtime_of().execute("XCLAIM", stream.key, GROUP, consumer, 0, *ids, "JUSTID")

    async def _run_batch(self, consumer: Consumer, stream: Stream, batch: list[Entry]) -> bool:
        runtime, registration = self._runtime_of(), consumer.registration
        execution = Execution(runtime.ids.next(), consumer.session, registered=True)
        runtime.history.add_registered(registration.id, execution)
        runtime.settings.keep_fresh()
        limit = runtime.loop.call_later(runtime.job_seconds, execution.abort)
        began = time.perf_counter()
        try:
            if stream.source is Source.SECOND and consumer.reader.on_failed != "retry":
                execution.add_error(TWO_WORKERS_LOST)
                execution.finish()
                return self._settle(consumer, stream, batch, execution, 0)
            with runtime.watch.limited():
                await runtime.distributor.run(registration.plan(), execution, _records(stream.key, batch))
        finally:
            limit.cancel()
        return self._settle(consumer, stream, batch, execution, round((time.perf_counter() - began) * 1e6))

    def _settle(
        self,
        consumer: Consumer,
        stream: Stream,
        batch: list[Entry],
        execution: Execution,
        run_us: int,
    ) -> bool:
        registration = consumer.registration
        lag_ms = max(0, round(time.time() * 1000) - int(batch[0][0].partition(b"-")[0]))
        outcome = "ABORTED" if execution.aborted else "ERR" if execution.errors else "OK"
        # an error may quote text that cannot be encoded: the batch must be settled all the same
        failure = (execution.failure or "").encode("utf-8", "backslashreplace")
        numbers: tuple[Argument, ...] = (outcome, run_us, lag_ms, failure)
        if any(text.startswith("PAUSE") for text in execution.errors):
            consumer.paused = True
            self._report(registration, "PAUSED", numbers)
            return False
        if outcome != "OK" and consumer.reader.on_failed == "abort":
            consumer.ended = True
            self._report(registration, "ABORTED", numbers)
            return False
        if outcome != "OK" and consumer.reader.on_failed == "retry":
            if not consumer.ended:
                self._retry_later(consumer, stream)
            self._report(registration, "WAITING_FOR_RETRY_ON_FAILURE", numbers)
            return False
        return self._acknowledge(consumer, stream, batch, numbers)

    def _acknowledge(
        self, consumer: Consumer, stream: Stream, batch: list[Entry], numbers: tuple[Argument, ...]
    ) -> bool:
        """Acknowledge a batch, trim, report and read on, all in one round trip; whether more may be there."""
        del stream.entries[: len(batch)]
        ids = [entry_id for entry_id, _ in batch]
        commands: list[tuple[Argument, ...]] = [("XACK", stream.key, GROUP, *ids)]
        if consumer.reader.trim:
            commands.append(("XTRIM", stream.key, "MINID", self._first_needed(stream, ids[-1])))
        commands.append(("QA.STREAM", consumer.registration.id, "OK", *numbers))
        reads_on = stream.source is Source.NEW and not consumer.stopped and not stream.entries
        if reads_on:
            commands.append(_read_command(stream, consumer.reader))
        replies = self._runtime_of().execute_many(commands)
        if reads_on:
            self._take_new(stream, raise_on_error(replies.pop()))
        _check_report(replies.pop())
        for reply in replies:
            raise_on_error(reply)
        return bool(stream.entries) or not reads_on

    def _first_needed(self, stream: Stream, done: bytes) -> str:
        """The id before which a stream may be trimmed: other registrations may still work on earlier entries."""
        milliseconds, _, sequence = done.partition(b"-")
        needed = (int(milliseconds), int(sequence) + 1)
        for holder in (*self._others(stream), *((stream,) if stream.entries else ())):
            first_ms, _, first_sequence = holder.entries[0][0].partition(b"-")
            needed = min(needed, (int(first_ms), int(first_sequence)))
        return f"{needed[0]}-{needed[1]}"

    def _retry_later(self, consumer: Consumer, stream: Stream) -> None:
        def retry() -> None:
            stream.phase = Phase.IDLE
            self._wake(consumer, stream.key)

        stream.phase = Phase.RETRYING
        stream.timer = self._runtime_of().loop.call_later(consumer.reader.retry_seconds, retry)

    def _report(self, registration: Registration, status: str, numbers: tuple[Argument, ...]) -> None:
        (reply,) = self._runtime_of().execute_many([("QA.STREAM", registration.id, status, *numbers)])
        _check_report(reply)

    def _known_status(self, registration_id: str) -> str:
        """What the module knows of the registration from an earlier worker."""
        for entry in decode_reply(self._runtime_of().execute_own("RG.DUMPREGISTRATIONS")):
            values = dict(zip(entry[::2], entry[1::2], strict=False))
            if values.get("id") == registration_id:
                data = values["RegistrationData"]
                return str(dict(zip(data[::2], data[1::2], strict=False)).get("status", "OK"))
        return "OK"

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        # not in the context of a function that registers: what is read is not its caller's affair
        task = self._runtime_of().loop.create_task(_logged(work), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _check_report(reply: Reply) -> None:
    if isinstance(reply, Exception) and not str(reply).startswith("NOREG"):  # unregistered meanwhile
        logger.error("the module did not take the outcome of a batch: %s", reply)


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:  # of this package: the stream stands still until its next entry, the others go on
        logger.exception("a stream is not read any more: %s", error_line(error))


async def _records(key: bytes, batch: list[Entry]) -> AsyncIterator[Any]:
    name = decode_reply(key)
    for entry_id, fields in batch:
        yield stream_record(name, entry_id, fields)


def _read_command(stream: Stream, reader: StreamReader) -> tuple[Argument, ...]:
    wanted = reader.batch - len(stream.entries)
    start = b">" if stream.source is Source.NEW else stream.cursor
    return ("XREADGROUP", "GROUP", GROUP, CONSUMERS[stream.source], "COUNT", wanted, "STREAMS", stream.key, start)
