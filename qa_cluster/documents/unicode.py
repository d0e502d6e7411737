"""Checks whether a text can be stored, and converts file names to such texts."""

from __future__ import annotations

import os
from pathlib import Path


def is_unicode(text: str) -> bool:
    """Return whether a string can be encoded as UTF-8, that is, whether it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def name_of(path: str | Path) -> str:
    r"""Return the path of a file as text that can be stored. Bytes that are not UTF-8 are written as escapes.

    >>> name_of(os.fsdecode(b"caf\xe9.txt"))
    'caf\\xe9.txt'
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")
