"""Says before a passage where it stands: its document's title and section path, as tokens that are never an answer.

`Title > Section > Subsection |` stands between question and passage, in every window. Training and serving both build
it here, from the same tokens, so that a reader gets in use what it was trained on. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

MAX_PREFIX_TOKENS = 32
SEPARATOR = " > "
END = "|"


def prefix_ids(title: str, section: str, tokens_of: Callable[[str], Sequence[int]]) -> list[int]:
    """The token ids of a passage's prefix, at most `MAX_PREFIX_TOKENS`; none without a title and a section.

    A path that is too long loses its first sections, then the end of what is left: title and innermost section say
    most.

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
    """The text with single spaces, in a list; an empty list if there is none."""
    found = " ".join(text.split())
    return [found] if found else []
