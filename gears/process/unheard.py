"""Reports failures that nothing has asked for: of futures and coroutines that a function has started and forgotten."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ..shard.failures import error_line

logger = logging.getLogger(__name__)


def report_unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log one line where asyncio would print its own alarm; everything else goes to asyncio (its exception handler)."""
    error = context.get("exception")
    if isinstance(error, BaseException) and "was never retrieved" in str(context.get("message", "")):
        logger.warning("a function has started what failed, and has not awaited it: %s", error_line(error))
    else:
        loop.default_exception_handler(context)
