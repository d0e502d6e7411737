"""Reports the failure of a function: the error that scripts raise and see, and its forms on the wire.

The failure of a script is reported as the list of its traceback's lines (`traceback_text`), that of a job as one line
that starts with a code (`error_line`). Frames of this package are left out: authors of functions look for their own.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from qa_cluster.errors import QAError

_PACKAGE = str(Path(__file__).parents[1])
_OWN_FUNCTIONS = str(Path(__file__).parents[1] / "functions")
MAX_ERROR_TEXT = 8192


class GearsError(Exception):
    """A call of the gears interface failed; the text is the server's, or says what was wrong."""


class FlatError(GearsError):
    """An error of a function that is shown as its text only (`flat_error`)."""


class ErrorStyle:
    """Whether errors of records show their tracebacks: `PythonAttemptTraceback`."""

    tracebacks = True


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if not f.filename.startswith(_PACKAGE) or f.filename.startswith(_OWN_FUNCTIONS)]


def traceback_text(error: BaseException) -> str:
    """The traceback as the repr of a list of lines, as clients of RedisGears read it back."""
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(_frames(error))]
    lines += traceback.format_exception_only(type(error), error)
    return repr(lines)[:MAX_ERROR_TEXT]


def error_text(error: BaseException) -> str:
    """The error of a record, as the results of a run show it."""
    if isinstance(error, FlatError):
        return str(error)[:MAX_ERROR_TEXT]
    if ErrorStyle.tracebacks:
        return traceback_text(error)
    return f"Error type: {type(error)}, Value: {error}"[:MAX_ERROR_TEXT]


def error_line(error: BaseException) -> str:
    """The failure as one line that starts with a code.

    >>> error_line(ValueError("no such sentence"))
    'ERR ValueError: no such sentence'
    """
    if isinstance(error, QAError):
        return error.resp()[:MAX_ERROR_TEXT]
    text = " ".join(str(error).split())
    if isinstance(error, GearsError):
        return (text if _has_code(text) else f"ERR {text}")[:MAX_ERROR_TEXT]
    line = f"ERR {type(error).__name__}: {text}" if text else f"ERR {type(error).__name__}"
    frames = _frames(error) if error.__traceback__ is not None else []
    if frames:
        line += f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})"
    return line[:MAX_ERROR_TEXT]


def _has_code(text: str) -> bool:
    """Whether `text` already starts with an error code: one upper-case word followed by more."""
    first, separator, _ = text.partition(" ")
    return bool(separator) and first.isalpha() and first.isupper()
