"""Checks of a server after any input: while it is busy, and after all clients have left."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any

import redis

from tests.fuzz.client import PATIENCE_SECONDS, Finding
from tests.harness.polling import eventually
from tests.harness.processes import descendants
from tests.harness.servers import Server

REPORTS = ("ERROR: AddressSanitizer", "runtime error:", "ASSERTION FAILED", "BUG REPORT", "Guru Meditation")
PING_SECONDS = 10.0  # on a busy machine a server may be slow for seconds
CHILDREN = ("rdb_bgsave_in_progress", "aof_rewrite_in_progress")
# The tolerance for growth since the first measurement. Growth with the number of commands exceeds it.
MORE_MEMORY = 384 * 1024  # the first thousands of cases use up to 220 KiB, later cases use no more
MORE_DESCRIPTORS = 3
UNREGISTERED_ID_BYTES = 96  # ids of removed registrations; a server remembers the newest 10,000


@dataclass(frozen=True)
class Rest:
    """The resources of an idle, empty server."""

    memory: int
    descriptors: int
    threads: int
    processes: int
    models: int


def check_alive(server: Server) -> None:
    """Checks that the server runs, answers quickly and reports no fault."""
    output = server.output()
    if report := next((report for report in REPORTS if report in output), None):
        raise Finding(f"the server's output has a report: {report}")
    if server.process is None or server.process.poll() is not None:
        raise Finding(f"the server has ended with {server.process and server.process.returncode}")
    with server.client(socket_timeout=PATIENCE_SECONDS, encoding_errors="backslashreplace") as client:
        try:
            client.execute_command("CLIENT", "UNPAUSE")
            started = time.monotonic()
            client.ping()
        except redis.TimeoutError as error:
            raise Finding(f"no reply to PING within {PATIENCE_SECONDS} s") from error
        if (took := time.monotonic() - started) > PING_SECONDS:
            raise Finding(f"PING took {took:.1f} s")


def check_idle(server: Server) -> None:
    """Checks, after all clients have left, that no client is connected or blocked, and that no job runs."""
    try:
        eventually(lambda: not leftovers(server), PATIENCE_SECONDS, ignore=redis.RedisError)
    except AssertionError as error:
        raise Finding(f"all clients have left, but {leftovers(server)}") from error


def leftovers(server: Server) -> str:
    """The resources that an idle server must not have."""
    with server.client(encoding_errors="backslashreplace") as client:
        fields = client.info("everything")
        own = {str(client.client_id()), str(server.observer.client_id())}
        others = [c for c in client.client_list() if c["user"] != "qa-worker" and c["id"] not in own]
    counts = {name: int(fields[f"qa_{name}"]) for name in ("queued_clients", "queued_events", "in_flight")}
    counts["blocked_clients"] = max(0, int(fields["blocked_clients"]) - int(fields["qa_worker_links"]))
    counts["clients"] = len(others)
    counts |= {name: int(fields[name]) for name in CHILDREN}  # a child process of the server must not remain either
    found = {name: count for name, count in counts.items() if count}
    if fields["qa_worker_state"] != "ready":
        found["worker that is " + str(fields["qa_worker_state"])] = 1
    return f"{found} {others}" if found else ""


def check_reload(server: Server) -> None:
    """Checks that saving and loading do not change the data."""
    for _ in range(3):
        with server.client(socket_timeout=PATIENCE_SECONDS, encoding_errors="backslashreplace") as client:
            before = [client.execute_command("DEBUG", "DIGEST") for _ in range(2)]
            keys = client.keys("*")
            client.execute_command("DEBUG", "RELOAD")
            after = client.execute_command("DEBUG", "DIGEST")
        if before[0] != before[1]:
            time.sleep(0.1)  # the worker was still writing data
        elif before[0] == after:
            return
    raise Finding(f"DEBUG RELOAD changed the data, of which the keys were {keys}")


def rest_of(server: Server) -> Rest:
    """Empties the server and measures its resources several times, because timers, buffers and connections change."""
    with server.client(socket_timeout=PATIENCE_SECONDS, encoding_errors="backslashreplace") as client:
        client.execute_command("FLUSHALL", "SYNC")
        client.execute_command("SCRIPT", "FLUSH", "SYNC")
    check_idle(server)
    process = Path("/proc") / str(server.pid)
    looks, processes, descriptors = [], [], []
    with server.client(encoding_errors="backslashreplace") as client:
        for _ in range(5):
            time.sleep(0.1)
            # a worker must run, because a server without a worker has fewer resources
            eventually(lambda: descendants(server.pid), PATIENCE_SECONDS)
            memory, fields = client.info("memory"), client.info("everything")
            processes.append(len(descendants(server.pid)))
            remembered = int(fields["qa_unregistered_ids"]) * UNREGISTERED_ID_BYTES
            looks.append(int(memory["used_memory"]) - buffers(memory) - remembered)
            # The median: a starting worker has links that the server has not counted yet, and connections that close
            # between both measurements are counted but no longer exist
            descriptors.append(len(os.listdir(process / "fd")) - int(fields["connected_clients"]))
    return Rest(
        memory=min(looks),
        descriptors=median_low(descriptors),
        threads=own_threads(process),
        processes=min(processes),
        models=int(fields.get("qa_models", 0)),
    )


def keep_log(name: str, lines: Iterable[str], servers: Iterable[Server]) -> Path:
    """Writes a file with the last commands and the servers' logs, for a finding."""
    where = Path(tempfile.gettempdir()) / f"qa-{name}-{time.time_ns()}.log"
    parts = list(lines)
    for server in servers:
        parts.append(f"---- server {server.port}")
        files = (server.log, server.directory / "stderr.log")
        parts += [path.read_text(errors="replace") for path in files if path.exists()]
    where.write_text("\n".join(parts))
    return where


def own_threads(process: Path) -> int:
    """The number of threads, except the allocator's threads, which may start at any time."""
    names = [(task / "comm").read_text() for task in (process / "task").iterdir()]
    return sum("jemalloc" not in name for name in names)


def buffers(memory: dict[str, Any]) -> int:
    """The memory of buffers that the server may allocate and free at any time."""
    names = ("mem_clients_normal", "mem_aof_buffer", "used_memory_scripts_eval", "used_memory_vm_total")
    return sum(int(memory.get(name, 0)) for name in names[:3])


def check_rest(first: Rest, server: Server) -> Rest:
    """Checks that an idle server's resources have not grown since the first measurement; returns the new measurement.

    It repeats the measurement, because a busy machine may free the resources of a replaced worker seconds later.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while grown := _grown(first, now := rest_of(server)):
        if time.monotonic() > until:
            raise Finding(f"{', '.join(grown)} grew: at first {first}, now {now}, open {_open_descriptors(server)}")
    return now


def _grown(first: Rest, now: Rest) -> list[str]:
    more = {
        "memory": now.memory - first.memory - MORE_MEMORY,
        "descriptors": now.descriptors - first.descriptors - MORE_DESCRIPTORS,
        "threads": now.threads - first.threads,
        "processes": now.processes - 1,  # the worker
        "models": now.models - first.models,
    }
    return [name for name, excess in more.items() if excess > 0]


def _open_descriptors(server: Server) -> list[str]:
    found = []
    for descriptor in (Path("/proc") / str(server.pid) / "fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(f"{descriptor.name}: {descriptor.readlink()}")
    return sorted(found)
