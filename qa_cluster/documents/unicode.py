"""Whether a text can be stored."""

from __future__ import annotations


def is_unicode(text: str) -> bool:
    """Whether a string can be encoded: it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
