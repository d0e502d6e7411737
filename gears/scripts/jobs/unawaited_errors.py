"""Logs the errors of futures and coroutines that a function has started and not awaited."""

from __future__ import annotations

import logging

from ...shard.failures import error_line

_NEVER = "was never retrieved"


class _OneLine(logging.Filter):
    """Converts asyncio's report of an unawaited error to a warning of one line. Does not change other log records.

    The filter is on the logger, not on one event loop, because functions create other loops (`asyncio.run` in a
    thread).
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and _NEVER in str(record.msg).partition("\n")[0]:
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
            record.msg = "a function has started work and not awaited it, and the work failed: %s"
            record.args, record.exc_info = (error_line(error),), None
        return True


_FILTER = _OneLine()


def log_unawaited_errors() -> None:
    """Start to log one line for each unawaited error, on every event loop."""
    logging.getLogger("asyncio").addFilter(_FILTER)
