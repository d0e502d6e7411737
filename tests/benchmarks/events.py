"""Events per second: writes that each start a function, compared with the same writes that start no function.

A writer sends pipelines of a hundred commands over one connection. The clock stops when every function has run; an idle
function shows the cost of starting a function; the others show the additional cost of reading the value and writing a
key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.clusters import ready_shards

from .report import Report, median
from .resp_load import Request, encode, pipeline, run_resp_load

EVENTS = 20_000
DEPTH = 100
PATIENCE_SECONDS = 120.0
VALUE = b"x" * 64


@dataclass(frozen=True)
class Registration:
    """A registration to measure: its script, and its share of the usual number of events."""

    name: str
    script: str
    streams: int = 0
    share: float = 1.0

    @property
    def prefix(self) -> str:
        """The prefix of its keys."""
        return self.name.replace(" ", "_").replace(",", "") + ":"


def _keys(name: str, function: str, options: str = "") -> Registration:
    reader = f'GB("KeysReader").foreach({function})'
    script = f'{reader}.register("{{prefix}}*", eventTypes=["set"], mode="async_local"{options})'
    return Registration(name, script)


def _stream(name: str, batch: int, streams: int = 1, share: float = 1.0) -> Registration:
    reader = 'GB("StreamReader").foreach(lambda record: None)'
    script = f'{reader}.register("{{prefix}}*", batch={batch}, mode="async_local")'
    return Registration(name, script, streams, share)


REGISTRATIONS = (
    _keys("SET, key only", "lambda record: None", ", readValue=False"),
    _keys("SET, value read", "lambda record: None"),
    _keys("SET, value read, a key written", 'lambda record: execute("INCR", "written")'),
    _stream("XADD, batches of 1", 1, share=0.25),
    _stream("XADD, batches of 1, 16 streams", 1, streams=16, share=0.5),
    _stream("XADD, batches of 100", 100),
)


def run(report: Report, binary: Path, rounds: int, events: int = EVENTS) -> None:
    """Rounds of each registration, each compared with the same writes to keys that no registration matches."""
    rows = []
    with ready_shards(binary, 1) as (server,), server.client() as client:
        for registration in REGISTRATIONS:
            count = max(int(events * registration.share) // DEPTH, 1) * DEPTH
            reply = client.execute_command("RG.PYEXECUTE", registration.script.format(prefix=registration.prefix))
            if reply != "OK":
                raise RuntimeError(f"registering for {registration.name!r} answered {reply!r}")
            plain, written, run_ = [], [], []
            for _ in range(rounds):
                plain.append(count / _write(server.port, registration, "plain:", count))
                started = time.perf_counter()
                written.append(count / _write(server.port, registration, registration.prefix, count))
                _wait_until_run(client, registration, count)
                run_.append(count / (time.perf_counter() - started))
                client.flushall()
            for found in client.execute_command("RG.DUMPREGISTRATIONS"):
                client.execute_command("RG.UNREGISTER", found[1])
            ratios = [a / b for a, b in zip(run_, plain, strict=True)]
            cells = (median(plain, 0), median(written, 0), median(run_, 0), median(ratios, 2) + " ×")
            rows.append([registration.name, str(count), *cells])
    report.table(
        "Events per second",
        ["", "events", "plain writes/s", "writes/s with it", "functions: events/s", "against plain"],
        rows,
        f"one writer, pipelines of {DEPTH}; plain: no registration matches the keys; events/s: until all functions have"
        f" run; values of {len(VALUE)} bytes; one shard, no persistence; medians of {rounds} rounds [least–most]",
    )


def _write(port: int, registration: Registration, prefix: str, count: int) -> float:
    """Write to keys below `prefix`; returns the seconds until all writes were acknowledged."""
    load = run_resp_load(port, _requests(registration, prefix, count), max_seconds=PATIENCE_SECONDS)
    return load.seconds


def _requests(registration: Registration, prefix: str, count: int) -> Iterator[Request]:
    for first in range(0, count, DEPTH):
        numbers = range(first, first + DEPTH)
        if registration.streams:
            keys = [f"{prefix}{number % registration.streams}" for number in numbers]
            commands: Sequence[bytes] = [encode("XADD", key, "*", "value", VALUE) for key in keys]
        else:
            commands = [encode("SET", f"{prefix}{number}", VALUE) for number in numbers]
        yield (pipeline(commands),)


def _wait_until_run(client: Any, registration: Registration, count: int) -> None:
    """Wait until the functions have run for all events; RuntimeError when one fails or they take too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        (found,) = client.execute_command("RG.DUMPREGISTRATIONS")
        flat = found[found.index("RegistrationData") + 1]
        state = dict(zip(flat[::2], flat[1::2], strict=True))
        if int(state["numFailures"]):
            raise RuntimeError(f"{registration.name}: {state['numFailures']} failed, the last: {state['lastError']}")
        if registration.streams:
            # the worker trims what a batch has read once its function has run
            if not any(client.xlen(f"{registration.prefix}{number}") for number in range(registration.streams)):
                return
        elif int(state["numSuccess"]) % count == 0 and int(state["numSuccess"]):
            return
        time.sleep(0.005)
    raise RuntimeError(f"{registration.name}: not all of {count} functions have run within {PATIENCE_SECONDS:.0f} s")
