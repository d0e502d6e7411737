"""Runs batches (`POST /v1/batches`): worker processes of rq, and a loop that queues the owners of open batches.

An *owner* is an API key with its batches, or all clients without an API key together. The cluster stores the batches
and, for each owner, the lease of the worker that runs the owner's batches.

The *jobs server* is the Redis or Valkey server with the queue of rq (see the module `jobs`). A job in the queue only
says "run the batches of this owner now". So jobs may be lost or duplicated: while an owner has an open batch and no
worker has the lease, the loop queues the owner again. The REST service does not write to the queue, because a client of
the queue decides which functions the workers call.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping
from time import monotonic

import redis

from qa_cluster.asking.connecting import target_of
from qa_cluster.batches.records import BatchLimits
from qa_cluster.batches.store import BatchStore
from qa_cluster.config import LoadedSettings, Settings
from qa_cluster.errors import QAError

from ..servers.processes import python_module, tethered
from ..servers.state import locked
from . import jobs

BATCH_QUEUE = "qa-cluster-batches"
JOB_FUNCTION = "qa_cluster.api.batches.job.run"
POLL_SECONDS = 1.0
# The loop waits this long before it queues an owner again, because a worker needs time to get the owner's lease.
_CLAIM_SECONDS = 5.0
_PRUNE_SECONDS = 60.0
_RESTART_SECONDS = 1.0
# A job starts requests for a minute. Then it waits for its running requests, which it retries for `batch_retry_s`. This
# margin covers everything except the retries.
_JOB_MARGIN_SECONDS = 600

_log = logging.getLogger(__name__)


class BatchWorkers:
    """Runs `count` worker processes of rq for the cluster at `url`, and replaces workers that ended. On Linux, all
    workers end with this process.
    """

    def __init__(self, loaded: LoadedSettings, url: str, count: int) -> None:
        self._settings = loaded.settings
        self._folder = jobs.directory(loaded.settings)
        self._environment: Mapping[str, str] = {
            **os.environ,
            **loaded.environment(),
            "QA_DATA_DIR": str(self._folder.parent),
            "QA_CLUSTER_URL": url,
        }
        self._running: list[subprocess.Popen[bytes] | None] = [None] * count
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Start the jobs server if `jobs_url` is empty and the server is not running (`jobs.start_server`). Then run
        the workers until `stopping` is set.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(self._folder.parent):
            jobs.start_server(self._settings)
        try:
            await asyncio.gather(self._keep_running(), self._dispatch())
        finally:
            await asyncio.to_thread(self._stop)

    async def _keep_running(self) -> None:
        while not self.stopping.is_set():
            for number, process in enumerate(self._running):
                if process is None or process.poll() is not None:
                    if process is not None:
                        _log.warning(
                            "worker %d has ended with status %d, starting another", process.pid, process.returncode
                        )
                    argv = python_module(jobs.WORKER_MODULE, str(self._folder), BATCH_QUEUE)
                    self._running[number] = subprocess.Popen(
                        tethered(argv, signal.SIGTERM), env=self._environment, stdin=subprocess.DEVNULL
                    )
            await self._pause(_RESTART_SECONDS)

    async def _dispatch(self) -> None:
        """Queue the owners with open batches, and delete expired batches, until `stopping` is set. While the cluster
        cannot be reached, log a warning and try again.
        """
        said = ""
        while not self.stopping.is_set():
            try:
                engine = await target_of(self._settings).open()
                try:
                    said = ""
                    await self._poll(BatchStore(engine.shards, BatchLimits.of(self._settings)))
                finally:
                    await engine.aclose()
            except (QAError, redis.exceptions.RedisError) as error:
                if str(error) != said:
                    said = str(error)
                    _log.warning("no batches are started now, retrying: %s", error)
                await self._pause(POLL_SECONDS)

    async def _poll(self, store: BatchStore) -> None:
        asked: dict[str, float] = {}
        pruned_at = 0.0
        with jobs.connection(self._settings) as client:
            while not self.stopping.is_set():
                owners = await store.owners()
                found = await asyncio.gather(*map(store.has_work, owners), return_exceptions=True)
                waiting = [owner for owner, has_work in zip(owners, found, strict=True) if has_work is True]
                due = [owner for owner in waiting if monotonic() - asked.get(owner, -_CLAIM_SECONDS) >= _CLAIM_SECONDS]
                if due:
                    await asyncio.to_thread(_enqueue, self._settings, client, due)
                    asked |= dict.fromkeys(due, monotonic())
                if monotonic() - pruned_at >= _PRUNE_SECONDS:
                    pruned_at = monotonic()
                    for owner in owners:
                        await store.prune(owner)
                await self._pause(POLL_SECONDS)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return

    def _stop(self) -> None:
        """Stop the workers. A worker that does not end within `stop_timeout_ms` is killed, and a later worker resumes
        its batches.
        """
        running = [process for process in self._running if process is not None and process.poll() is None]
        for process in running:
            process.terminate()
        until = monotonic() + self._settings.stop_timeout_ms / 1000
        for process in running:
            try:
                process.wait(max(0.1, until - monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _enqueue(settings: Settings, client: redis.Redis, owners: list[str]) -> None:
    """Queue a job for each owner in `owners` that has no queued job."""
    queue = jobs.queue(client, BATCH_QUEUE)
    queued = {str(job_id).rpartition("-")[0] for job_id in queue.get_job_ids()}
    for owner in owners:
        name = f"batches-{owner}"
        if name not in queued:
            queue.enqueue_call(
                JOB_FUNCTION,
                args=(owner,),
                job_id=f"{name}-{secrets.token_hex(4)}",
                timeout=settings.batch_retry_s + _JOB_MARGIN_SECONDS,
                result_ttl=0,
                failure_ttl=3600,
                description=f"batches of {owner}",
            )


async def work(workers: BatchWorkers) -> None:
    """Run the workers until SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, workers.stopping.set)
    await workers.run()
