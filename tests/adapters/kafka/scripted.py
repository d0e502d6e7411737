"""A scripted client of qa-cluster. Its answer is the question itself, and a test can make it wait or fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from qa_cluster.client import AskResult, NotFound, WriteResult
from qa_cluster.types import CacheUse, Index, Model, Timings, Usage

Before = Callable[[str, int], Awaitable[None]]


async def at_once(text: str, attempt: int) -> None:
    """Do not wait before the answer."""


class ScriptedClient:
    """Calls `before`, which may raise or wait, with the question or the document id and the number of the attempt."""

    def __init__(self, before: Before = at_once, padding: int = 0) -> None:
        self._before = before
        self._padding = padding
        self.attempts: Counter[str] = Counter()
        self.options: dict[str, Mapping[str, Any]] = {}
        self.most = self._now = 0
        self.documents: dict[str, str] = {}
        self.writes: list[tuple[str, str]] = []

    async def _attempt(self, text: str) -> None:
        self.attempts[text] += 1
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await self._before(text, self.attempts[text])
        finally:
            self._now -= 1

    async def ask(self, question: str, **options: Any) -> AskResult:
        self.options[question] = options
        await self._attempt(question)
        return AskResult(
            id="qa_1",
            created=1,
            question=question + "x" * self._padding,
            normalized_question=question,
            model=Model("tiny", "1", "float32"),
            answerable=False,
            no_answer_score=1.0,
            answers=(),
            cache=CacheUse("miss", "none", 0, 0),
            index=Index("1", 1, 1),
            usage=Usage(0, 0, 0, 0, False),
            timings_ms=Timings(),
        )

    async def put_document(
        self, id: str, text: str, title: str | None, metadata: Any, *, collection: str, wait: bool
    ) -> WriteResult:
        await self._attempt(id)
        assert wait
        changed = self.documents.get(id) != text
        self.documents[id] = text
        self.writes.append((id, text))
        return WriteResult(id, "v", changed, changed, True)

    async def delete_document(self, id: str, *, collection: str) -> None:
        await self._attempt(id)
        self.writes.append((id, ""))
        if self.documents.pop(id, None) is None:
            raise NotFound(f"no such document: {id!r}")


def gate() -> tuple[asyncio.Event, Before]:
    """An event, and a `before` that waits for the event."""
    opened = asyncio.Event()

    async def wait(text: str, attempt: int) -> None:
        await opened.wait()

    return opened, wait
