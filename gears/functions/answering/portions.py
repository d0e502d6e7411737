"""Lets long work pass in portions: a short question that comes meanwhile waits for one of them, not for all.

The shard's queue puts users in turn, but what it has handed out is one piece of work: reading 256 sentences, or an
article. So that is done a portion at a time, all such work together in one lane. A portion is about two batches, or,
while short questions come, one sentence: a run that has begun cannot be interrupted, and who asks one question after
the other always meets one that has just begun.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from qa_cluster.gears.functions.state import state
from qa_cluster.waves import WAVES

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


@dataclass
class _Lane:
    """Who holds `turn` reads a portion; `short_at` is when the last short question came."""

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
    async with state.of(_Lane).turn:
        yield size()
