"""Runs submitted calls in the background: at most `MAX_SUBMITTED`, of which `CONCURRENCY` run at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from qa_cluster.errors import ClusterError, QueueFull

CONCURRENCY = 32
MAX_SUBMITTED = 10_000

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class AsyncSubmissions:
    """Runs submitted calls in the running event loop.

    >>> submissions = AsyncSubmissions()
    >>> answers = await asyncio.gather(*(submissions.submit(ask, question) for question in questions))
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._turns = asyncio.Semaphore(CONCURRENCY)

    def submit(
        self,
        work: Callable[_Given, Coroutine[Any, Any, _Result]],
        *args: _Given.args,
        **kwargs: _Given.kwargs,
    ) -> asyncio.Future[_Result]:
        """Start `work` as soon as fewer than `CONCURRENCY` calls run, and return its future.

        Raises QueueFull if `MAX_SUBMITTED` calls are unfinished.
        """
        _check(len(self._tasks))

        async def run() -> _Result:
            async with self._turns:
                return await work(*args, **kwargs)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancel all unfinished calls."""
        for task in set(self._tasks):
            task.cancel()

    async def aclose(self) -> None:
        """Cancel all unfinished calls, and wait until they have ended."""
        self.cancel()
        if tasks := set(self._tasks):
            await asyncio.wait(tasks)


class Submissions:
    """Runs submitted calls in threads. The threads start with the first call.

    >>> submissions = Submissions()
    >>> answers = [future.result() for future in [submissions.submit(ask, question) for question in questions]]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._unfinished = 0
        self._closing = False

    def submit(self, work: Callable[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs) -> Future[_Result]:
        """Run `work` when a thread is free, and return its future.

        Raises QueueFull if `MAX_SUBMITTED` calls are unfinished.
        """

        def run() -> _Result:
            try:
                return work(*args, **kwargs)
            except RuntimeError as error:  # the connections were closed
                if self._closing:
                    raise ClusterError("the client was closed during the call") from error
                raise

        with self._lock:
            _check(self._unfinished)
            if self._threads is None:
                self._closing = False
                self._threads = ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="qa-cluster-submit")
            future = self._threads.submit(run)
            self._unfinished += 1
        future.add_done_callback(self._end)
        return future

    def cancel(self) -> None:
        """Cancel the calls that have not started. Running calls fail when their connections are closed."""
        self._closing = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Cancel the calls that have not started, and wait for the running calls."""
        self.cancel()
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()

    def _end(self, future: Future[Any]) -> None:
        with self._lock:
            self._unfinished -= 1


def _check(unfinished: int) -> None:
    if unfinished >= MAX_SUBMITTED:
        raise QueueFull(
            f"{unfinished} submitted questions have no result yet, which is the limit of a client: wait for some of the"
            " futures"
        )
