"""Whether a text can be stored at all."""

from __future__ import annotations


def is_unicode(text: str) -> bool:
    """Whether a string can be encoded, that is, holds no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
