"""Logs the errors of futures and coroutines that a function has started but never awaited."""

from __future__ import annotations

import logging

from ...shard.failures import error_line

_NEVER = "was never retrieved"


class _OneLine(logging.Filter):
    """Turns asyncio's report of an unawaited error into a warning of one line. Other log records do not change.

    It filters the logger instead of one event loop, because functions create their own loops (`asyncio.run` in a
    thread).
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and _NEVER in str(record.msg).partition("\n")[0]:
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
            record.msg = "a function has started work that failed, and has not awaited it: %s"
            record.args, record.exc_info = (error_line(error),), None
        return True


_FILTER = _OneLine()


def log_unawaited_errors() -> None:
    """From now on, log one line for each unawaited error, on every event loop."""
    logging.getLogger("asyncio").addFilter(_FILTER)
