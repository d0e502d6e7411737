"""Answers submitted questions in the background of the service.

The cluster stores a question before the service acknowledges it. If this process ends, a later poll of the result makes
another process answer the question. After an error that a retry may resolve (503), the question stays pending: this
process retries it for `RETRY_SECONDS`, and the next poll after that starts it again. Any other error is the result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from time import monotonic

import orjson

from qa_cluster.access.records import ApiKey
from qa_cluster.asking.answers.caching import CacheMiss
from qa_cluster.asking.answers.submissions import CLAIMED, LOST, MAX_TRIES, RENEW_SECONDS, RUNNING, Submission
from qa_cluster.asking.asker import Outcome
from qa_cluster.errors import QAError, QueueFull, WorkerLost
from qa_cluster.routing.admission import Admission
from qa_cluster.routing.on_behalf import work_for

from ..description.schemas import ask_options
from ..http.error_map import HttpProblem, problem
from ..http.messages import JSON
from ..service.lifespan import ServiceState

# The limits of submitted questions in this process: how many it answers at the same time, and how many it has in total.
ANSWERS_AT_ONCE = 16
MAX_HELD = 1024
RETRY_SECONDS = 30.0
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.5, 5.0
# The time limit for releasing all questions when the service stops.
STOP_SECONDS = 2.0
_INSTANCE = "/qa"

_log = logging.getLogger(__name__)


class BackgroundAnswers:
    """Answers submitted questions in this process, and stores their results."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._turns = Admission(ANSWERS_AT_ONCE, MAX_HELD)
        self._limited: dict[str, asyncio.Semaphore] = {}
        self._tasks: dict[asyncio.Task[None], tuple[str, str]] = {}
        self._begun: dict[asyncio.Task[None], float] = {}
        state.on_stop.append(self.stop)
        state.metrics.registry.gauge(
            "qa_submitted_questions", "Submitted questions that this process answers", lambda: len(self._tasks)
        )
        state.metrics.registry.gauge(
            "qa_submitted_questions_oldest_seconds",
            "Seconds since this process received the oldest submitted question that it still answers; 0 if it answers"
            " no submitted question",
            lambda: monotonic() - min(self._begun.values()) if self._begun else 0.0,
        )

    async def submit(self, key: ApiKey, request_id: str, question: bytes) -> tuple[str, float]:
        """Store a question and start to answer it. `question` is the JSON of the question and its options.

        Returns:
            the id of the submission, and the time when it expires, in seconds since 1970.

        Raises:
            QueueFull: this process has no capacity.
            LimitReached: the key has too many questions and results.
        """
        options = self._state.options
        if len(self._tasks) >= MAX_HELD:
            raise QueueFull(f"the service is at its limit of {MAX_HELD} submitted questions: try again later")
        name, expires = await self._state.engine.submissions.submit(
            key.id,
            question,
            request_id,
            keep_seconds=options.async_result_ttl_seconds,
            most=options.async_results_max,
        )
        self._count("submitted")
        self._start(key, name, question, request_id)
        return name, expires

    async def poll(self, key: ApiKey, name: str) -> Submission:
        """Return a submission of a key, pending or done.

        If no process answers the question, this process starts to answer it, unless it has no capacity. If `MAX_TRIES`
        processes have ended while they answered the question, the result is an error.
        """
        submissions = self._state.engine.submissions
        found = await submissions.claim(key.id, name, only_read=len(self._tasks) >= MAX_HELD)
        if found.state == LOST:
            self._count("lost")
            error = WorkerLost(f"{MAX_TRIES} processes of the service ended while they answered this question")
            await self._finish(key, name, _failure(error, found.request_id))
            return await submissions.claim(key.id, name, only_read=True)
        if found.state == CLAIMED:
            self._count("resumed")
            self._start(key, name, found.question, found.request_id)
            return Submission(RUNNING, found.seconds_left, detail="another process has ended: the question is retried")
        return found

    async def remove(self, key: ApiKey, name: str) -> bool:
        """Delete a submission. If this process is answering it, stop the work. Return False if the submission does not
        exist.
        """
        removed = await self._state.engine.submissions.remove(key.id, name)
        for task, held in list(self._tasks.items()):
            if held == (key.id, name):
                task.cancel()
        return removed

    async def stop(self) -> None:
        """Stop answering, and release all questions, so that other processes can continue at once."""
        tasks = dict(self._tasks)
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        await asyncio.wait(tasks)
        releases = (self._release(owner, name, "the service has stopped") for owner, name in tasks.values())
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await asyncio.gather(*releases)
        except TimeoutError:
            _log.warning("%d submitted questions were not released, so their leases must expire", len(tasks))

    def _start(self, key: ApiKey, name: str, question: bytes, request_id: str) -> None:
        task = asyncio.create_task(self._hold(key, name, question, request_id), name=f"submission {name}")
        self._tasks[task] = (key.id, name)
        self._begun[task] = monotonic()
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._begun.pop(task, None)

    def _count(self, outcome: str) -> None:
        self._state.metrics.submissions.inc(outcome)

    async def _hold(self, key: ApiKey, name: str, question: bytes, request_id: str) -> None:
        """Answer a question and store its result. Meanwhile, renew the lease, with which this process reserves the
        question.
        """
        work_for(key.id)
        renewing = asyncio.create_task(self._renew(key, name))
        try:
            response = await self._response(key, question, request_id)
            if isinstance(response, QAError):
                await self._release(key.id, name, str(response))
                self._count("postponed")
            else:
                await self._finish(key, name, response)
                self._count("answered" if response[0] == HTTPStatus.OK else "failed")
        except QAError as error:
            _log.warning("the result of submitted question %s is not stored, so it is answered again: %s", name, error)
        finally:
            renewing.cancel()

    async def _response(self, key: ApiKey, question: bytes, request_id: str) -> tuple[int, bytes, bytes] | QAError:
        """Return the response to a question, or the error if a later retry may resolve it.

        After an error with status 503, retry the question for `RETRY_SECONDS` before the error is returned. A response
        is its status, the JSON of its headers, and its body.
        """
        until, pause = monotonic() + RETRY_SECONDS, FIRST_PAUSE_SECONDS
        while True:
            try:
                outcome = await self._ask(key, question)
            except CacheMiss as error:
                return _failure(HttpProblem("cache-miss", str(error)), request_id)
            except QAError as error:
                if error.http_status != 503:
                    return _failure(error, request_id)
                if monotonic() + pause > until:
                    return error
            except Exception as error:  # any other error is the result of the question
                return _failure(error, request_id)
            else:
                metrics = self._state.metrics
                metrics.question(outcome.cache, outcome.timings, outcome.answerable)
                metrics.partial.inc("qa", by=outcome.partial)
                headers = {"content-type": JSON.decode(), "etag": outcome.etag}
                return 200, orjson.dumps(headers), outcome.encode(request_id)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)

    async def _ask(self, key: ApiKey, question: bytes) -> Outcome:
        values = orjson.loads(question)
        options = ask_options(values, self._state.options.coverage)
        async with self._limit(key), self._turns.turn(self._state.options.async_result_ttl_seconds):
            return await self._state.engine.asker.ask(values["question"], options)

    @asynccontextmanager
    async def _limit(self, key: ApiKey) -> AsyncIterator[None]:
        """Limit how many questions of a key run at the same time, by the key's limit `concurrent`."""
        if key.limits.concurrent is None:
            yield
            return
        async with self._limited.setdefault(key.id, asyncio.Semaphore(key.limits.concurrent)):
            yield

    async def _renew(self, key: ApiKey, name: str) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self._state.engine.submissions.renew(key.id, name)
            except QAError as error:
                _log.warning("the lease of submitted question %s is not renewed: %s", name, error)

    async def _finish(self, key: ApiKey, name: str, response: tuple[int, bytes, bytes]) -> None:
        keep = self._state.options.async_result_ttl_seconds
        await self._state.engine.submissions.finish(key.id, name, response, keep_seconds=keep)

    async def _release(self, owner: str, name: str, reason: str) -> None:
        try:
            await self._state.engine.submissions.release(owner, name, reason)
        except QAError as error:
            _log.warning("submitted question %s is not released, so its lease must expire: %s", name, error)


def _failure(error: BaseException, request_id: str) -> tuple[int, bytes, bytes]:
    """Return the response that reports an error: its status, the JSON of its headers, and its body.

    A 503 becomes a 500, because a 503 would ask the client to poll again.
    """
    status, headers, body = problem(error, request_id=request_id, instance=_INSTANCE)
    if status == 503:
        status = 500
        body = orjson.dumps({**orjson.loads(body), "status": status})
    kept = {name.decode(): value.decode() for name, value in headers if name == b"content-type"}
    return status, orjson.dumps(kept), body
