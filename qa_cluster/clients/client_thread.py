"""Runs the asynchronous client of the cluster in a thread, for the synchronous client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError as FutureCancelled
from typing import Any, Self, TypeVar

from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError

from .async_cluster_client import AsyncClusterClient
from .submitting import Submissions

CLOSE_SECONDS = 10.0
CLOSE_POLL_SECONDS = 0.02

_Result = TypeVar("_Result")


def _others() -> set[asyncio.Task[Any]]:
    """Return the tasks of this loop, without the current task."""
    current = asyncio.current_task()
    return {task for task in asyncio.all_tasks() if task is not current}


async def _cancelled_ended(until: float) -> None:
    """Wait until cancelled tasks have ended; ClusterError names a task that still runs at `until` (the loop's time).

    A task whose `asyncio.timeout` expires counts as cancelled only for a moment, so each round collects the tasks
    again.
    """
    while tasks := {task for task in _others() if task.cancelling()}:
        if asyncio.get_running_loop().time() > until:
            raise ClusterError(f"closing the client: {tasks.pop().get_name()} did not end in {CLOSE_SECONDS:g} s")
        await asyncio.wait(tasks, timeout=CLOSE_POLL_SECONDS)


class ClientThread:
    """Opens and closes a client, and runs its calls in the loop of a background thread."""

    def __init__(self, cluster: str | Settings) -> None:
        self._client = AsyncClusterClient(cluster)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._submissions = Submissions()

    def open(self) -> Self:
        """Connect to the cluster; raise ClusterError if the cluster cannot be reached or is not set up."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="qa-cluster-client", daemon=True)
            self._thread.start()
            try:
                self._run(self._client.open())
            except BaseException:
                self.close()
                raise
        return self

    def close(self) -> None:
        """Close all connections and end the thread. Unfinished submitted questions are cancelled or fail."""
        self._submissions.cancel()
        if self._loop is None or self._thread is None:
            return
        loop = self._loop
        try:
            self._run(self._shut())
        finally:
            self._loop = None
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            self._thread = None
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            self._submissions.close()

    async def _shut(self) -> None:
        """Close the client and end every task of the loop, because a task that is left in a stopped loop never ends."""
        clock = asyncio.get_running_loop()
        await _cancelled_ended(clock.time() + CLOSE_SECONDS)
        await self._client.aclose()
        until = clock.time() + CLOSE_SECONDS
        while tasks := _others():
            for task in tasks:
                task.cancel()
            await _cancelled_ended(until)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        if self._loop is None:
            work.close()
            raise ClusterError("the client is not open: use it in a `with` block")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except FutureCancelled as error:
            raise ClusterError("the client was closed during the call") from error
        except BaseException:  # such as KeyboardInterrupt in the calling thread
            future.cancel()
            raise
