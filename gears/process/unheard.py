"""Reports failures that nothing has asked for: of futures and coroutines that a function has started and forgotten."""

from __future__ import annotations

import logging

from ..shard.failures import error_line

_NEVER = "was never retrieved"


class _InOneLine(logging.Filter):
    """Makes a warning of one line of asyncio's alarm; everything else stays as it is.

    At the logger and not at a loop, because functions make loops of their own (`asyncio.run` in a thread).
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and _NEVER in str(record.msg).partition("\n")[0]:
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
            record.msg = "a function has started what failed, and has not awaited it: %s"
            record.args, record.exc_info = (error_line(error),), None
        return True


_FILTER = _InOneLine()


def report_unheard() -> None:
    """From now on, log one line where asyncio would print its own alarm, whatever loop it comes from."""
    logging.getLogger("asyncio").addFilter(_FILTER)
