"""Cached answers equal fresh answers while documents, slots and primaries change at random."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from qa_cluster import keys
from qa_cluster.asking.connecting import Target
from qa_cluster.asking.engine import Engine, EngineOptions
from qa_cluster.asking.freshness import CHECK_SECONDS, LEASE_SECONDS
from qa_cluster.documents.stored import check_document
from qa_cluster.errors import NotFound, QAError
from qa_cluster.routing.connection import Login
from qa_cluster.topology import Address
from tests.client.engines import ask
from tests.functions.running_shards import PARTITIONS
from tests.harness.chance_texts import QUESTIONS, text
from tests.harness.polling import eventually_async

from .changes import Changes
from .replicated import Replicated, replicated

pytestmark = pytest.mark.cluster

STEPS = int(os.environ.get("QA_TEST_INTERLEAVINGS", "1000"))
SEED = int(os.environ.get("QA_TEST_SEED", "1"))
DOCUMENTS = 60
PATIENCE_SECONDS = 120.0
# Sweeps and new topologies of services continue for a while after all servers agree on a change.
SETTLING_SECONDS = 3.0

Answer = tuple[list[tuple[str, str, str, int]], float]


@pytest.fixture
def shards(server_binary: Path) -> Iterator[Replicated]:
    """A separate cluster, because the test moves its slots."""
    # a long timeout: a server that is slow on a busy machine must not cause a failover
    with replicated(server_binary, {"cluster-node-timeout": 4000}) as found:
        yield found


async def answer(engine: Engine, question: str, cache: str) -> tuple[Answer, str]:
    """The contents of an answer, and its cache."""
    result = await ask(engine, question, cache=cache, top_k=5, retriever_k=3, no_answer=False, timeout=PATIENCE_SECONDS)
    found = [(a.answer, a.document_id, a.document_version, a.start) for a in result.answers]
    return (found, round(result.no_answer_score, 3)), result.cache.tier


@dataclass
class Steps:
    """Random steps with two services of one cluster: changes, and questions with a comparison of answers."""

    services: tuple[Engine, Engine]
    changes: Changes
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    stale: list[str] = field(default_factory=list)
    change: asyncio.Task[None] | None = None
    kind: str = ""
    settled_at: float = 0.0
    waiting: set[str] = field(default_factory=set)
    asked: str = QUESTIONS[0]
    kept: list[str] = field(default_factory=list)

    @property
    def some_service(self) -> Engine:
        return self.chance.choice(self.services)

    async def one(self, number: int) -> None:
        """Make a random step."""
        if self.change is not None and self.change.done():
            await self.end_change()
            await self._write_what_is_kept(number)
            return
        if self.change is None and self.chance.random() < 1 / 50:
            await self._begin_change()
            return
        action, name = self.chance.random(), f"doc {self.chance.randrange(DOCUMENTS * 4 // 3)}"
        if action < 0.04:
            await self._put(name)
        elif action < 0.06:
            # The event of a plain write may be lost with its server (docs/design/writing-documents.md).
            await (self._put(name) if self.kind in ("failover", "kill") else self._set(name))
        elif action < 0.08:
            await self._remove(name)
        elif self.kind != "kill" and action < (0.4 if self.kind == "failover" else 0.1):
            question = self.chance.choice(QUESTIONS)
            await answer(self.services[0], question, "use")
            await self._write_and_ask(number, name, question, self.services)
        else:
            if action < 0.8:
                self.asked = self.chance.choice(QUESTIONS)
            else:
                self.counts["question again"] += 1
            await self._ask(number, self.asked)

    async def _begin_change(self) -> None:
        """Start a change after both services have cached answers. Some changes are complete before the next step."""
        self.kept = self.chance.sample(QUESTIONS, 3)
        for question in self.kept:
            for service in self.services:
                await answer(service, question, "use")
        change = self.changes.next()
        self.kind = change.__name__
        self.counts[self.kind] += 1
        self.change = asyncio.create_task(asyncio.to_thread(change))
        if self.chance.random() < 0.5:
            await self.change

    async def end_change(self) -> None:
        """Wait for the end of the current change."""
        if self.change is not None:
            await self.change
            self.change, self.kind = None, ""
            self.settled_at = time.monotonic() + SETTLING_SECONDS

    async def _put(self, name: str) -> None:
        wait = self.chance.random() < 0.7
        self.counts["put" if wait else "put without waiting"] += 1
        await self.some_service.documents.put(name, text(self.chance), wait=wait, timeout=PATIENCE_SECONDS)
        if not wait:
            self.waiting.add(name)

    async def _set(self, name: str) -> None:
        """Write or remove a text with plain commands; cached answers stay until the shard's function has run."""
        key = keys.paragraphs_key(check_document(name, "").name, self.services[0].documents.tag_of(name))
        if self.chance.random() < 0.7:
            self.counts["plain SET"] += 1
            await self.some_service.shards.execute(key, "SET", key, text(self.chance))
        else:
            self.counts["plain DEL"] += 1
            await self.some_service.shards.execute(key, "DEL", key)
        await eventually_async(lambda: self._noticed(name), PATIENCE_SECONDS)
        self.waiting.add(name)

    async def _noticed(self, name: str) -> bool:
        """Whether the record of a document matches its text."""
        try:
            stored = await self.services[0].documents.get(name)
        except NotFound:
            return True
        except QAError:
            return False
        return stored.version == check_document(name, stored.text).version

    async def _remove(self, name: str) -> None:
        with suppress(NotFound):
            await self.some_service.documents.delete(name, timeout=PATIENCE_SECONDS)
            self.counts["removal"] += 1

    async def _indexed(self, name: str) -> bool:
        try:
            return bool((await self.services[0].documents.get(name)).tokenized)
        except NotFound:
            return True
        except QAError:
            return False

    async def _moving(self) -> bool:
        """Whether a change or a pending document may affect the next questions."""
        self.waiting -= {name for name in list(self.waiting) if await self._indexed(name)}
        return self.change is not None or time.monotonic() < self.settled_at or bool(self.waiting)

    async def _ask(self, number: int, question: str) -> None:
        """Compare an answer with a fresh answer, or during a change with fresh answers before and after it."""
        moving, during = await self._moving(), self.kind
        before = (await answer(self.some_service, question, "off"))[0] if moving else None
        service = self.some_service
        given, tier = await answer(service, question, "use")
        after = (await answer(self.some_service, question, "off"))[0]
        self.counts[f"question: {tier}"] += 1
        self.counts["question during a change"] += bool(during)
        if given == after:
            return
        if before is not None and before != after:
            self.counts["question while its answer changed"] += 1
            return
        await self._note(service, question, f"step {number}, during {during}: {tier} {given}, fresh {before} {after}")

    async def _write_what_is_kept(self, number: int) -> None:
        """After a change, write to one of its partitions, and at once ask the questions that were cached before."""
        tag = self.chance.choice(self.changes.tags)
        names = (f"doc {n}" for n in range(1000))
        inside = (name for name in names if keys.partition_of(name, PARTITIONS) == tag)
        for question in self.kept:
            await self._write_and_ask(number, next(inside), question, self.services)

    async def _write_and_ask(self, number: int, name: str, question: str, services: tuple[Engine, Engine]) -> None:
        """Write a sentence through the second service that changes an answer of the first service, and ask at once.

        Between the two compared questions, only pending documents and lost writes of a killed primary can change.
        """
        self.counts["question right after a write"] += 1
        during, (keeper, writer) = self.kind, services
        await self._moving()
        verb, noun = question.removeprefix("Who ").removesuffix("?").split(" the ")
        # this sentence ranks above all others
        told = f"{noun}, {noun}: Person{self.chance.randrange(1000)} {verb} {noun}."
        await writer.documents.put(name, told, timeout=PATIENCE_SECONDS)
        given, tier = await answer(keeper, question, "use")
        fresh = (await answer(writer, question, "off"))[0]
        if not self.waiting and given != fresh and during == "failover":
            # after a failover, a service needs some time to detect that its server was demoted
            self.counts["not yet noticed in a failover"] += 1
            await asyncio.sleep(CHECK_SECONDS + LEASE_SECONDS)
            given, tier = await answer(keeper, question, "use")
            fresh = (await answer(writer, question, "off"))[0]
        if not self.waiting and given != fresh:
            await self._note(keeper, question, f"step {number}, write during {during}: {tier} {given}, fresh {fresh}")
        with suppress(NotFound):
            await writer.documents.delete(name, timeout=PATIENCE_SECONDS)

    async def _note(self, service: Engine, question: str, what: str) -> None:
        """Record a stale answer, and whether the service still returns it."""
        again, tier = await answer(service, question, "use")
        self.stale.append(f"{question} {what}; asked again: {tier} {again}")


@asynccontextmanager
async def services(shards: Replicated) -> AsyncIterator[tuple[Engine, Engine]]:
    """The engines of two services whose cached answers tolerate no drift."""
    target = Target(
        [Address("127.0.0.1", server.port) for server in shards.servers], Login(), EngineOptions(answer_drift=0.0)
    )
    first = await target.open()
    try:
        second = await target.open()
        try:
            yield first, second
        finally:
            await second.aclose()
    finally:
        await first.aclose()


@pytest.mark.timeout(6 * 3600)
async def test_no_answer_is_stale_while_documents_slots_and_primaries_change(shards: Replicated) -> None:
    """`QA_TEST_INTERLEAVINGS` is the number of steps, and `QA_TEST_SEED` is the random seed."""
    chance, begun = random.Random(SEED), time.monotonic()
    async with services(shards) as engines:
        steps = Steps(engines, Changes(shards, random.Random(SEED)), chance)
        for number in range(DOCUMENTS):
            await engines[0].documents.put(f"doc {number}", text(chance), wait=number == DOCUMENTS - 1)
        try:
            for number in range(STEPS):
                await steps.one(number)
        except BaseException:
            print("\n".join(f"--- port {server.port}\n{server.output()}" for server in shards.servers))
            raise
        finally:
            await steps.end_change()
            counts = ", ".join(f"{name} {count}" for name, count in sorted(steps.counts.items()))
            print(f"\n{STEPS} steps in {time.monotonic() - begun:.0f} s: {counts}; stale {len(steps.stale)}")
        assert not steps.stale, "\n".join(steps.stale)
        assert steps.counts["question: near"] > STEPS / 20
