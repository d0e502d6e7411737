"""Shards and workers are killed or hang while clients ask with `coverage=partial`: the other shards answer.

On a busy host, no shard is left out.

`make hostile ARGS='-s tests/system/test_partial_answers.py'` prints the waits. The long form has 1,000 questions over
ten kills of shards and ten kills of workers: `make test-cluster`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import quote

import pytest
import redis

from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.errors import QAError
from tests.harness.figures import Figures
from tests.harness.polling import eventually
from tests.harness.processes import lives
from tests.harness.programs import binary_or_skip, chosen_servers
from tests.harness.system import SMALL_BATCHES, System
from tests.system.test_shard_down import id_on

pytestmark = pytest.mark.hostile

ASKERS = 4
# A question that waits for a starting worker, or for its deadline of 10 s, takes longer.
SLOWEST_SECONDS = 5.0
# The limit for a question at the time of the signal, which waits for about 0.3 s, or longer on a busy machine.
FIRST_SECONDS = 3.0
# The module replaces a hung worker after 10 s, and a service detects a hung server as down after 5 s.
HUNG_WORKER_SECONDS, HUNG_SHARD_SECONDS = 13.0, 8.0
BUSY_PROCESSES, BUSY_SECONDS = 4, 10.0


@dataclass(frozen=True, order=True)
class Wait:
    """One question: its duration and its start after the last signal, in seconds, and fields of its answer."""

    seconds: float
    after_harm: float
    partial: bool
    timings: str = ""

    def __str__(self) -> str:
        partial = "partial" if self.partial else "whole"
        asked = f"asked {self.after_harm * 1e3:.0f} ms after the harm"
        return f"{self.seconds * 1e3:.0f} ms ({partial}, {asked}, {self.timings})"


@dataclass
class Seen:
    """All outcomes: the statuses and durations of the answers, and the faults."""

    statuses: Counter[int] = field(default_factory=Counter)
    waits: list[Wait] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def partial(self) -> int:
        """The number of partial answers."""
        return sum(wait.partial for wait in self.waits)

    @property
    def first(self) -> list[float]:
        """The sorted waits after a signal, for questions that were running then or started within 1 s."""
        return sorted(wait.seconds + min(wait.after_harm, 0) for wait in self.waits if wait.after_harm < 1)


class Askers:
    """Threads that send new questions to the service, one after the other, until they are stopped."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.seen = Seen()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(ASKERS)]
        self._begun = time.monotonic()
        self.harmed = self._begun - 1000

    def __enter__(self) -> Askers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    @property
    def count(self) -> int:
        return self.seen.statuses.total()

    def _ask(self, asker: int) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            question = f"Who wrote program {asker} {number}?"
            begun = time.monotonic()
            try:
                status, _, body = self.system.http(f"/qa?question={quote(question)}", seconds=60)
            except OSError as error:
                self.seen.faults.append(f"{question} {error!r}")
                continue
            waited, found = time.monotonic() - begun, json.loads(body)
            self.seen.statuses[status] += 1
            partial = status == 200 and found["index"]["partial"]
            self.seen.waits.append(Wait(waited, begun - self.harmed, partial, str(found.get("timings_ms"))))
            if status != 200:
                self.seen.faults.append(
                    f"{begun - self._begun:.2f} s: {status} after {waited:.2f} s: {found['detail']}"
                )
                continue
            index = found["index"]
            if index["partial"] != bool(index["missing"]) or index["partial"] != (index["shards_answered"] < 3):
                self.seen.faults.append(f"{question} is not marked: {index}")
            elif not found["answers"] and len(index["missing"]) < 2:
                self.seen.faults.append(f"{question} has no answer, though another shard has one: {index}")
            time.sleep(0.02)


@pytest.fixture(scope="module", params=chosen_servers())
def system(request: pytest.FixtureRequest) -> Iterator[System]:
    """A separate system, because its shards are killed. Each shard has a document that answers all questions."""
    with System(binary_or_skip(request.param), **SMALL_BATCHES) as made:
        made.start_service()
        with ClusterClient(made.url) as client:
            for number, name in enumerate(("Ada", "Bob", "Cyd")):
                client.put_document(id_on(number), f"{name} wrote the program.")
        yield made


def harm(askers: Askers, pid: int, how: signal.Signals) -> None:
    """Send a signal to a process and record the time."""
    askers.harmed = time.monotonic()
    os.kill(pid, how)


Harm = Callable[[System, int, Askers, int], None]


def kill_worker(system: System, number: int, askers: Askers, questions: int) -> None:
    """Kill a shard's worker; wait until its successor is ready and `questions` more questions are answered."""
    node, before = system.nodes[number], askers.count
    victim = system.worker_pid(node)
    harm(askers, victim, signal.SIGKILL)
    eventually(lambda: askers.count >= before + questions, 120)

    def back() -> bool:
        info = system.info(node)
        return info["qa_worker_pid"] != victim and info["qa_worker_state"] == "ready"

    eventually(back)


def kill_shard(system: System, number: int, askers: Askers, questions: int) -> None:
    """Kill a shard's server, wait until `questions` more questions are answered, and restart the server."""
    pid, before = system.server_pid(number), askers.count
    system.may_end()
    harm(askers, pid, signal.SIGKILL)
    eventually(lambda: askers.count >= before + questions, 120)
    with suppress(ProcessLookupError):
        eventually(lambda: not lives(pid))
    system.cli("up")
    system.watch()
    eventually(system.whole, 120, ignore=(redis.RedisError, QAError))


def hang(pid: int, askers: Askers, questions: int, seconds: float) -> None:
    """Stop a process for at least `questions` answered questions and `seconds` seconds."""
    before, until = askers.count, time.monotonic() + seconds
    harm(askers, pid, signal.SIGSTOP)
    try:
        eventually(lambda: askers.count >= before + questions and time.monotonic() > until, 120)
    finally:
        with suppress(ProcessLookupError):  # the module has replaced the process
            os.kill(pid, signal.SIGCONT)


def hang_worker(system: System, number: int, askers: Askers, questions: int) -> None:
    """Stop the worker of a shard until the module replaces it."""
    hang(system.worker_pid(system.nodes[number]), askers, questions, HUNG_WORKER_SECONDS)
    eventually(lambda: system.info(system.nodes[number])["qa_worker_state"] == "ready")


def hang_shard(system: System, number: int, askers: Askers, questions: int) -> None:
    """Stop the server of a shard until the service has detected it as down."""
    hang(system.server_pid(number), askers, questions, HUNG_SHARD_SECONDS)
    eventually(system.whole, 120, ignore=(redis.RedisError, QAError))


@contextmanager
def busy_host(processes: int) -> Iterator[None]:
    """Run processes that only use processor time."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def described(seen: Seen, what: str) -> float:
    """Print the outcomes, check that no question failed, and return the longest wait in seconds."""
    waits = sorted(seen.waits)
    median, most, *longest = waits[len(waits) // 2], waits[len(waits) * 99 // 100], *reversed(waits[-5:])
    print(
        f"\n{what}: {dict(seen.statuses)}, {seen.partial} partial, median {median.seconds * 1e3:.0f} ms, 99 %"
        f" {most.seconds * 1e3:.0f} ms, {len(seen.faults)} faults; longest: {', '.join(map(str, longest))}"
    )
    if first := seen.first:
        print(f"first {len(first)}: median {first[len(first) // 2] * 1e3:.0f} ms, longest {first[-1] * 1e3:.0f} ms")
    assert not seen.faults, "\n".join(seen.faults[:20])
    return waits[-1].seconds


def assert_answered(seen: Seen, what: str, figures: Figures) -> None:
    longest = described(seen, what)
    assert seen.partial, "no answer was partial"
    figures.record_wait(f"{what}: longest wait", longest, SLOWEST_SECONDS)
    figures.record_wait(f"{what}: longest wait of the first questions", seen.first[-1], FIRST_SECONDS)


@pytest.mark.parametrize(
    ("what", "harm"),
    [
        ("killed worker", kill_worker),
        ("killed shard", kill_shard),
        ("hung worker", hang_worker),
        ("hung shard", hang_shard),
    ],
)
def test_no_question_waits_for_a_shard_that_cannot_answer(
    system: System, figures: Figures, what: str, harm: Harm
) -> None:
    with Askers(system) as askers:
        eventually(lambda: askers.count >= 10)
        harm(system, 1, askers, 50)
    assert_answered(askers.seen, what, figures)


def test_a_busy_host_makes_no_answer_partial(system: System, figures: Figures) -> None:
    with busy_host(BUSY_PROCESSES), Askers(system) as askers:
        time.sleep(BUSY_SECONDS)
        eventually(lambda: askers.count >= 50, 120)
    described(askers.seen, "a busy host")
    figures.record(f"{BUSY_PROCESSES} busy processes: partial answers", askers.seen.partial, "answers", 0)


@pytest.mark.cluster
@pytest.mark.timeout(3600)
def test_a_thousand_questions_over_ten_kills_of_shards_and_ten_of_workers(system: System, figures: Figures) -> None:
    order = [kill_shard, kill_worker] * 10
    random.Random(37).shuffle(order)
    with Askers(system) as askers:
        for turn, kill in enumerate(order):
            kill(system, turn % 3, askers, 50)
    assert askers.count >= 1000
    assert_answered(askers.seen, "ten killed shards and ten killed workers", figures)
