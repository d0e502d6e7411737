"""Runs the open batches of one owner, the oldest first, and records the results of their lines.

An *owner* is an API key, or all clients without a key. A *worker* in this file is a process of rq, not the worker of a
shard.

A worker has the lease of an owner while it runs the owner's batches. One atomic script records results. It first checks
that the worker still has the lease, and that the number of recorded lines is the number that the worker expects. So
each line has exactly one result, even if a worker dies, or continues after another worker has replaced it. A new worker
resumes after the last recorded line. Lines run concurrently, but their results are recorded in the order of the lines.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import monotonic, time

from qa_cluster.asking.engine import Engine
from qa_cluster.batches.lines import InputLine, LineCheck, read_lines, read_request
from qa_cluster.batches.records import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    EXPIRED,
    FAILED,
    IN_PROGRESS,
    PART_BYTES,
    VALIDATING,
    Batch,
)
from qa_cluster.batches.store import LEASE_MS, BatchStore, StoreFull
from qa_cluster.errors import NotFound, QAError
from qa_cluster.routing.on_behalf import bulk_work, work_for

from .answering import BatchAnswers, LineResult, expired_line

RECORD_SECONDS = 0.5
_RECORD_LINES = 200
_RENEW_SECONDS = LEASE_MS / 1000 / 4
# Maximum number of lines without a recorded result, running or done, as a multiple of the concurrency.
_WINDOW = 4

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Line:
    """A line of the input file whose result is not recorded yet.

    Attributes:
        end: the offset in the input file after the line, in bytes.
        task: answers the request in the line; it may have ended.
    """

    end: int
    task: asyncio.Task[LineResult]


class OwnerBatches:
    """Runs the batches of one owner in one worker. Setting `stopping` ends the work after the requests that are running
    now.
    """

    def __init__(self, engine: Engine, store: BatchStore, owner: str) -> None:
        self._engine = engine
        self._store = store
        self._owner = owner
        self._token = secrets.token_hex(16)
        self._renewed = 0.0
        self.stopping = asyncio.Event()

    async def run(self, seconds: float) -> bool:
        """Run batches for about `seconds`.

        Return False if the owner had no open batch, or if another worker has the lease.
        """
        if not await self._store.claim(self._owner, self._token):
            return False
        work_for("" if self._owner == "anonymous" else self._owner)
        until = monotonic() + seconds
        found = False
        try:
            with bulk_work():
                while monotonic() < until and not self.stopping.is_set():
                    batches = await self._store.open_batches(self._owner)
                    if not batches:
                        break
                    found = True
                    await self._advance(batches[0], until)
        except QAError as error:  # such as a lost lease, or a shard that is down: the next worker resumes
            _log.warning("the batches of %s are resumed later: %s", self._owner, error)
        finally:
            await self._release()
        return found

    async def _release(self) -> None:
        try:
            await self._store.release(self._owner, self._token)
        except QAError as error:
            _log.warning("the lease for the batches of %s ends after %d ms: %s", self._owner, LEASE_MS, error)

    async def _advance(self, batch: Batch, until: float) -> None:
        """Move a batch to its next state: validate it, run its lines until the time `until`, or end it.

        `until` is on the clock of `time.monotonic`. If the input file is missing or the results exceed a limit, the
        batch fails.
        """
        try:
            if batch.status == VALIDATING:
                batch = await self._validate(batch)
            if batch.status == IN_PROGRESS:
                batch = await self._run_lines(batch, until)
            if batch.status == CANCELLING:
                await self._store.end(batch, self._token, CANCELLED)
                _log.info("batch %s is cancelled with %d of %d lines", batch.id, batch.done, batch.total)
        except StoreFull as error:
            await self._fail(batch, "storage_limit_exceeded", str(error))
        except NotFound as error:
            await self._fail(batch, "file_missing", str(error))

    async def _fail(self, batch: Batch, code: str, message: str) -> None:
        _log.warning("batch %s failed: %s", batch.id, message)
        errors = [{"code": code, "line": None, "message": message, "param": None}]
        await self._store.end(batch, self._token, FAILED, errors)

    async def _lines(self, batch: Batch) -> AsyncIterator[InputLine]:
        """Yield the lines of the input, starting with the first line that is not done."""
        file = await self._store.file(self._owner, batch.request.input_file_id)
        part, skip = divmod(batch.offset, PART_BYTES)
        parts = self._store.read_parts(self._owner, file, part)
        async for line in read_lines(parts, skip, part * PART_BYTES):
            yield line

    async def _validate(self, batch: Batch) -> Batch:
        """Check all lines before the first line runs, and return the batch, which has then started or failed.

        If a client cancels the batch meanwhile, stop the check.
        """
        check = LineCheck(batch.request.endpoint, self._store.limits.lines)
        status = batch.status
        async for line in self._lines(batch):
            check.add(line)
            if check.ended:
                break
            if self._is_due():
                status = await self._renew(batch)
                if status != VALIDATING:
                    return await self._store.batch(self._owner, batch.id)
        check.end()
        if check.errors:
            await self._store.end(batch, self._token, FAILED, check.errors)
            _log.info("batch %s failed: %d lines are invalid", batch.id, len(check.errors))
        else:
            await self._store.start(batch, self._token, check.total)
        return await self._store.batch(self._owner, batch.id)

    async def _run_lines(self, batch: Batch, until: float) -> Batch:
        """Run lines until the file has no more lines, the time `until` is reached, or `stopping` is set. Return the
        updated batch.

        `until` is on the clock of `time.monotonic`. Also return if the batch is no longer in progress, for example
        because a client has cancelled it. After the batch has expired, the remaining lines do not run, but get lines in
        the error file.
        """
        most = self._store.limits.concurrency
        answers = BatchAnswers(self._engine, self._owner, batch.request.endpoint, self._store.limits.retry_seconds)
        places = asyncio.Semaphore(await answers.concurrency(most))
        lines = aiter(self._lines(batch))
        window: deque[_Line] = deque()
        read_all = expired = False
        recorded_at = monotonic()
        try:
            while True:
                stops = monotonic() >= until or self.stopping.is_set()
                while not read_all and not stops and len(window) < most * _WINDOW:
                    line = await anext(lines, None)
                    if line is None:
                        read_all = True
                        break
                    expired = expired or time() >= batch.expires_at
                    work = _answer(line, batch, answers, places, expired=expired)
                    window.append(_Line(line.end, asyncio.create_task(work)))
                if not window:
                    break
                await asyncio.wait([window[0].task], timeout=RECORD_SECONDS)
                ready = _ready(window)
                full = ready >= _RECORD_LINES or ready == len(window) or ready >= most * _WINDOW // 2
                if ready and (full or monotonic() - recorded_at >= RECORD_SECONDS):
                    batch = await self._record(batch, window, ready)
                    recorded_at = monotonic()
                elif self._is_due():
                    status = await self._renew(batch)
                    batch = batch if status == batch.status else await self._store.batch(self._owner, batch.id)
                if batch.status != IN_PROGRESS:
                    return batch
        finally:
            for each in window:
                each.task.cancel()
            await asyncio.gather(*(each.task for each in window), return_exceptions=True)
        if read_all:
            await self._store.end(batch, self._token, EXPIRED if expired else COMPLETED)
            _log.info("batch %s has ended: %d good, %d failed", batch.id, batch.completed, batch.failed)
            return await self._store.batch(self._owner, batch.id)
        return batch

    async def _record(self, batch: Batch, window: deque[_Line], ready: int) -> Batch:
        """Remove the first `ready` lines from the window and record their results. Return the updated batch."""
        some = [window.popleft() for _ in range(ready)]
        results: dict[bool, list[bytes]] = {True: [], False: []}
        for line in some:
            result = line.task.result()
            results[result.good].append(result.text)
        batch = await self._store.record(
            batch, self._token, done=batch.done + ready, offset=some[-1].end, results=results
        )
        self._renewed = monotonic()
        return batch

    def _is_due(self) -> bool:
        return monotonic() - self._renewed >= _RENEW_SECONDS

    async def _renew(self, batch: Batch) -> str:
        """Renew the lease, and return the stored status of the batch, which a client may have changed."""
        recorded = await self._store.renew(batch, self._token)
        self._renewed = monotonic()
        return recorded.status


def _ready(window: deque[_Line]) -> int:
    """Return the number of successive lines at the start of the window that have a result, at most `_RECORD_LINES`."""
    count = 0
    for line in window:
        if not line.task.done() or count >= _RECORD_LINES:
            break
        count += 1
    return count


async def _answer(
    line: InputLine, batch: Batch, answers: BatchAnswers, places: asyncio.Semaphore, *, expired: bool
) -> LineResult:
    request = read_request(line, batch.request.endpoint)
    if expired:
        return LineResult(False, expired_line(request.custom_id))
    async with places:
        return await answers.answer(request)
