"""Runs background jobs, such as `prepare`, with rq: a separate jobs server and one worker process.

rq does not support clusters, so the jobs server is outside the cluster. A client that can write to an rq queue decides
which functions the worker calls, and the worker knows the password of the cluster. Therefore:

- The jobs server that this module starts listens on a unix socket of this user and, if configured, on loopback. It
  requires the cluster's password.
- If the setting `jobs_url` names a different jobs server, that server must be on loopback, use TLS, or be on a unix
  socket. If the cluster has a password, a server that is not on a unix socket must have one, too.
- Arguments are JSON, never pickles.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from qa_cluster.config import LoadedSettings, Settings
from qa_cluster.errors import ClusterError, ConfigError, DeadlineExceeded
from qa_cluster.routing.cluster_address import credentials_of

from ..nodes.polling import POLL_SECONDS
from ..servers import server_process
from ..servers.processes import ProcessRef, python_module, spawn, stop_all
from ..servers.server_process import ServerSpec, find_program
from ..servers.state import data_folder, locked

if TYPE_CHECKING:  # most commands find no jobs server and need no import of rq
    from rq import Queue
    from rq.job import Job

QUEUE = "qa-cluster"
WORKER_MODULE = "qa_cluster.cluster.provision.jobs_worker"
_RESULT_SECONDS = 7 * 86_400
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class JobReport:
    """A background job, as `qa-cluster status` shows it.

    Attributes:
        what: the name of the work, such as `prepare`.
        progress: how far the job is, as text; empty if the job has not recorded it.
        error: the last line of the error; empty if the job has not failed.
    """

    id: str
    what: str
    state: str
    progress: str
    error: str


def directory(settings: Settings) -> Path:
    """Return the folder of the jobs server and its worker.

    The path of the folder is part of the worker's command line, and so identifies the worker process.
    """
    return data_folder(settings) / "jobs"


def start(loaded: LoadedSettings) -> None:
    """Start the jobs server (only if `jobs_url` is empty) and the worker, if they are not running, and wait until the
    worker is ready. Raises ClusterError or DeadlineExceeded if the worker does not become ready.
    """
    settings = loaded.settings
    folder = directory(settings)
    with locked(folder.parent):
        start_server(settings)
        if _worker(folder) is not None:
            return
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        pid = spawn(
            python_module(WORKER_MODULE, str(folder)),
            log=folder / "worker.log",
            environment={**os.environ, **loaded.environment(), "QA_DATA_DIR": str(folder.parent)},
        )
        (folder / "worker.pid").write_text(str(pid))
        _wait_for_worker(settings, ProcessRef(pid, str(folder), "jobs worker"))


def start_server(settings: Settings) -> None:
    """Start the jobs server if `jobs_url` is empty and no server runs with the password of the cluster.

    If the jobs server runs with a different password, stop its worker and restart the server. The server keeps its
    jobs.
    """
    if settings.jobs_url:
        return
    spec = _spec(settings, find_program(settings.server))
    if server_process.running(spec) is not None:
        if _requires_password(spec):
            return
        _stop(settings)
    server_process.start(spec, settings.start_timeout_ms / 1000)


def _requires_password(spec: ServerSpec) -> bool:
    """Return whether a running server accepts the password of `spec`.

    If `spec` has a password, the server must also refuse clients without a password.
    """
    if not _admits(spec):
        return False
    return not spec.password or not _admits(replace(spec, password=""))


def _admits(spec: ServerSpec) -> bool:
    with server_process.connect(spec, _TIMEOUT_SECONDS) as client:
        return _refusal(client) is None


def _refusal(client: redis.Redis) -> str | None:
    """Return the error with which the server of `client` refuses the login; None if the server accepts the login.

    Retries are off, because redis-py retries a refused login for seconds.
    """
    retry = client.get_retry()
    client.set_retry(Retry(NoBackoff(), 0))
    try:
        client.time()  # not PING, because a server that cannot write to its disk refuses PING
    except redis.exceptions.AuthenticationError as error:
        return str(error).rstrip(".")
    finally:
        if retry is not None:
            client.set_retry(retry)
    return None


def stop(settings: Settings) -> list[str]:
    """Stop the jobs worker, then the jobs server. Return the names of the processes that were running."""
    folder = directory(settings)
    if not folder.is_dir():
        return []
    with locked(folder.parent):
        return _stop(settings)


def _stop(settings: Settings) -> list[str]:
    found = [_worker(directory(settings)), server_process.running(_spec(settings, ""))]
    stopped = [process for process in found if process is not None]
    for process in stopped:
        stop_all([process], settings.stop_timeout_ms / 1000)
    return [process.name for process in stopped]


def enqueue(settings: Settings, function: str, what: str, *arguments: str | bool, timeout_seconds: float) -> str:
    """Queue a job that calls `function` (a dotted name) with `arguments`. Return the id of the job. `what` is the name
    of the job in `qa-cluster status`. The job fails if it runs longer than `timeout_seconds`.
    """
    with connection(settings) as client:
        job = queue(client).enqueue_call(
            function,
            args=arguments,
            timeout=int(timeout_seconds),
            result_ttl=_RESULT_SECONDS,
            failure_ttl=_RESULT_SECONDS,
            description=what,
        )
        return str(job.id)


def progress(settings: Settings) -> list[JobReport]:
    """Return the running, ended and queued jobs. Return an empty list if `jobs_url` is empty and the jobs server of the
    data folder is not running.
    """
    if not settings.jobs_url and server_process.running(_spec(settings, "")) is None:
        return []
    from rq.job import Job
    from rq.serializers import JSONSerializer

    with connection(settings) as client:
        jobs = queue(client)
        # A job passes through the lists in this order. So a job that changes its state meanwhile is found in a later
        # list.
        queued = [*jobs.get_job_ids(), *jobs.intermediate_queue.get_job_ids()]
        registries = (jobs.started_job_registry, jobs.finished_job_registry, jobs.failed_job_registry)
        started = [id for registry in registries for id in registry.get_job_ids()]
        ids = dict.fromkeys([*started, *queued])
        found = Job.fetch_many(list(ids), connection=client, serializer=JSONSerializer)
        return [_report(job) for job in found if job is not None]


def connection(settings: Settings) -> redis.Redis:
    """Return a client of the jobs server.

    Raises ConfigError if `jobs_url` is not allowed. Raises ClusterError if the server refuses the login.
    """
    client = _client_of(settings)
    if (refusal := _refusal(client)) is not None:
        client.close()
        raise ClusterError(
            f"the jobs server refused the login: {refusal}; "
            + (
                "set its password in 'jobs_url'"
                if settings.jobs_url
                else "its password is not the cluster's ('cluster_password'); `qa-cluster prepare"
                " --background` restarts it with the password of the cluster, and keeps its jobs"
            )
        )
    return client


def _client_of(settings: Settings) -> redis.Redis:
    if not settings.jobs_url:
        return server_process.connect(_spec(settings, ""), _TIMEOUT_SECONDS)
    parts = urlsplit(settings.jobs_url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ConfigError(
            f"setting 'jobs_url' has the scheme {parts.scheme!r}: it must be redis://host:port, rediss://host:port or"
            " unix:///path"
        )
    if parts.scheme == "redis" and parts.hostname not in _LOOPBACK:
        raise ConfigError(
            f"setting 'jobs_url' names the host {parts.hostname!r}, which is not loopback: use TLS (rediss://)"
        )
    if parts.scheme != "unix" and not parts.password and credentials_of(settings)[1]:
        raise ConfigError(
            "setting 'jobs_url' has no password, but the cluster has one. A client of the jobs server controls its"
            " worker, which knows this password. Use a server that requires a password:"
            f" {parts.scheme}://:password@host:port"
        )
    return redis.Redis.from_url(settings.jobs_url, socket_timeout=_TIMEOUT_SECONDS)


def queue(client: redis.Redis, name: str = QUEUE) -> Queue:
    """Return the queue with this name on the jobs server of `client`."""
    from rq import Queue
    from rq.serializers import JSONSerializer

    return Queue(name, connection=client, serializer=JSONSerializer)


def _spec(settings: Settings, program: str) -> ServerSpec:
    """Return the parameters of the jobs server of the data folder. If the cluster has a password, the jobs server
    requires the same password. `program` is the server program; it may be empty if the server is not started.
    """
    _, password = credentials_of(settings)
    return ServerSpec(directory(settings), program, settings.jobs_port, cluster=False, password=password)


def _worker(folder: Path) -> ProcessRef | None:
    try:
        pid = int((folder / "worker.pid").read_text())
    except (OSError, ValueError):
        return None
    process = ProcessRef(pid, f"{WORKER_MODULE} {folder}", "jobs worker")
    return process if process.is_running() else None


def _wait_for_worker(settings: Settings, process: ProcessRef) -> None:
    deadline = time.monotonic() + settings.start_timeout_ms / 1000
    log = directory(settings) / "worker.log"
    with connection(settings) as client:
        while not client.scard(f"rq:workers:{QUEUE}"):
            if not process.is_running():
                raise ClusterError(f"the jobs worker ended during its start:\n{server_process.log_tail(log)}")
            if time.monotonic() > deadline:
                stop_all([process], timeout_seconds=1.0)
                raise DeadlineExceeded(
                    f"the jobs worker was not ready within start_timeout_ms:\n{server_process.log_tail(log)}"
                )
            time.sleep(POLL_SECONDS)


def _report(job: Job) -> JobReport:
    from rq.job import JobStatus

    status = job.get_status(refresh=True)
    result = job.latest_result() if status is JobStatus.FAILED else None
    lines = (result.exc_string or "").strip().splitlines() if result else []
    return JobReport(
        id=job.id,
        what=job.description or "",
        state=str(status.value),
        progress=str(job.meta.get("progress", "")),
        error=lines[-1] if lines else "",
    )
