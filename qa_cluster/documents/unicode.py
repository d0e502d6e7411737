"""Whether a text can be stored, and how the name of a file becomes such a text."""

from __future__ import annotations

import os
from pathlib import Path


def is_unicode(text: str) -> bool:
    """Whether a string can be encoded: it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def name_of(path: str | Path) -> str:
    r"""The path of a file as text that can be stored: bytes that are not UTF-8 are written as escapes.

    >>> name_of(os.fsdecode(b"caf\xe9.txt"))
    'caf\\xe9.txt'
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")
