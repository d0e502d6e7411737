"""Converts the error of a record or script to the forms that clients of RedisGears expect."""

from __future__ import annotations

import traceback

from ...shard.failures import MAX_ERROR_TEXT, GearsError, shown_frames


class FlatError(GearsError):
    """The error that RedisGears' function `flat_error` makes for a script. Clients see its text without a traceback."""


class ErrorStyle:
    """Whether errors of records show their tracebacks (RedisGears' setting `PythonAttemptTraceback`)."""

    tracebacks = True


def traceback_text(error: BaseException) -> str:
    """Return the traceback as the repr of a list of lines, which clients of RedisGears parse.

    The text is cut after `MAX_ERROR_TEXT` characters.
    """
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(shown_frames(error))]
    lines += traceback.format_exception_only(type(error), error)
    return repr(lines)[:MAX_ERROR_TEXT]


def error_text(error: BaseException) -> str:
    """Return the error of a record in the form for the results of a run.

    The form is a traceback (`traceback_text`), unless the error is a `FlatError` or `ErrorStyle.tracebacks` is False.
    """
    if isinstance(error, FlatError):
        return str(error)[:MAX_ERROR_TEXT]
    if ErrorStyle.tracebacks:
        return traceback_text(error)
    return f"Error type: {type(error)}, Value: {error}"[:MAX_ERROR_TEXT]
