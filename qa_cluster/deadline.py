"""Limits the time of a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from qa_cluster.errors import DeadlineExceeded


@asynccontextmanager
async def deadline(seconds: float, late: str) -> AsyncIterator[None]:
    """Cancel the block of the ``async with``, and raise DeadlineExceeded, if the block takes longer than `seconds`.

    `late` is the text of the error.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise DeadlineExceeded(late) from error
