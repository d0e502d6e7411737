"""The error of the gears interface, and the conversion of errors to one line that starts with a code.

The line of an unexpected exception (neither `QAError` nor `GearsError`) also names one frame, because the author of a
function searches for the code that failed. The named frame is the last frame in qa-cluster's own functions
(`gears/functions`) or outside of `gears/`, such as in a user's script.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from qa_cluster.errors import QAError

_PACKAGE = str(Path(__file__).parents[1])
_OWN_FUNCTIONS = str(Path(__file__).parents[1] / "functions")
MAX_ERROR_TEXT = 8192


class GearsError(Exception):
    """A call of the gears interface failed. The text is the server's error line, or says why the call failed."""


def shown_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an error's traceback that are shown to the author of a function.

    These are the frames in qa-cluster's own functions (`gears/functions`) and outside of `gears/`.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if not f.filename.startswith(_PACKAGE) or f.filename.startswith(_OWN_FUNCTIONS)]


def error_line(error: BaseException) -> str:
    """Return an error as one line that starts with a code.

    >>> error_line(ValueError("no such sentence"))
    'ERR ValueError: no such sentence'
    """
    if isinstance(error, QAError):
        return error.resp()[:MAX_ERROR_TEXT]
    text = " ".join(str(error).split())
    if isinstance(error, GearsError):
        return (text if _has_code(text) else f"ERR {text}")[:MAX_ERROR_TEXT]
    line = f"ERR {type(error).__name__}: {text}" if text else f"ERR {type(error).__name__}"
    frames = shown_frames(error) if error.__traceback__ is not None else []
    if frames:
        line += f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})"
    return line[:MAX_ERROR_TEXT]


def _has_code(text: str) -> bool:
    """Return whether `text` already starts with an error code: an upper-case word before other words."""
    first, separator, _ = text.partition(" ")
    return bool(separator) and first.isalpha() and first.isupper()
