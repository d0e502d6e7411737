"""Lets long work pass in portions: a short question that comes meanwhile waits for one of them, not for all.

The shard's queue puts users in turn, but what it has handed out is one piece of work: reading 256 sentences, or an
article. So that is done a portion at a time, all such work together in one lane. A portion is about two batches, or,
while short questions come, one sentence: a run that has begun cannot be interrupted, and a client that asks one
question after the other always meets one that has just begun.

Where several runs go on at the same time (`qa.inference-workers`, `qa.threads-per-queue`) so many portions do, or the
others would have nothing to do; one while short questions come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.reading.plan import WAVES

SHORT_SENTENCES = max(WAVES)
"""What a question reads at once at most; a request for more is long work."""
SHARED_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Portion:
    """How much is read before others have their turn."""

    sentences: int
    tokens: int


ALONE = Portion(32, 1024)
SHARED = Portion(1, 128)


def _runs() -> asyncio.Semaphore:
    """One for each run that goes on at the same time, as the module counts them for what the worker has ahead."""
    found = [rg.server_setting(name) for name in ("qa.threads-per-queue", "qa.inference-workers")]
    threads, workers = (max(1, int(text)) if text.isdigit() else 1 for text in found)
    return asyncio.Semaphore(threads * workers)


@dataclass
class _Lane:
    """Who holds one of `runs`, and beside short questions `turn`, reads a portion.

    Attributes:
        short_at: when the last short question came.
    """

    runs: asyncio.Semaphore = field(default_factory=_runs)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    short_at: float = -SHARED_SECONDS


def note_short() -> None:
    """A short question has come: from now on, and for a while, portions are small."""
    state.of(_Lane).short_at = time.monotonic()


def size() -> Portion:
    """How large a portion may be now."""
    return SHARED if time.monotonic() - state.of(_Lane).short_at < SHARED_SECONDS else ALONE


@asynccontextmanager
async def turn() -> AsyncIterator[Portion]:
    """Wait for a turn, first come, first served, and take a portion."""
    lane = state.of(_Lane)
    async with lane.runs:
        if (portion := size()) is ALONE:
            yield portion
            return
        async with lane.turn:
            yield size()
