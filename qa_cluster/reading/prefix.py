"""Makes the prefix of a passage: title and section path of its document, as tokens that are never an answer.

`Title > Section > Subsection |` is between question and passage in every window. Training and serving both make it
here, from the same tokens, so that a reader reads what it was trained on. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

MAX_PREFIX_TOKENS = 32
SEPARATOR = " > "
END = "|"


def prefix_ids(title: str, section: str, tokens_of: Callable[[str], Sequence[int]]) -> list[int]:
    """The token ids of a passage's prefix, at most `MAX_PREFIX_TOKENS`; empty without title and section.

    A path that is too long loses its first sections, then its end: the title and the innermost section are the most
    informative parts.

    Args:
        section: the path of headings, outermost first, joined by ` > `.
        tokens_of: the ids of a text, without special tokens.
    """
    parts = [*_parts(title), *(part for heading in section.split(SEPARATOR) for part in _parts(heading))]
    if not parts:
        return []
    end = list(tokens_of(END))
    room = MAX_PREFIX_TOKENS - len(end)
    first = 1 if _parts(title) else 0
    path = list(tokens_of(SEPARATOR.join(parts)))
    while len(path) > room and len(parts) > first + 1:
        del parts[first]
        path = list(tokens_of(SEPARATOR.join(parts)))
    return path[:room] + end


def _parts(text: str) -> list[str]:
    """The text with single spaces, in a list; an empty list for an empty text."""
    found = " ".join(text.split())
    return [found] if found else []
