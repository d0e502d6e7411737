"""Builds the prefix of a passage: the title and the section path, as tokens that are never part of an answer.

In every window, `Title > Section > Subsection |` is between the question and the passage. Training and serving both use
this module, so a reader sees the same tokens as in its training. The functions do no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

MAX_PREFIX_TOKENS = 32
SEPARATOR = " > "
END = "|"


def prefix_ids(title: str, section: str, tokens_of: Callable[[str], Sequence[int]]) -> list[int]:
    """Return the token ids of a passage's prefix, at most `MAX_PREFIX_TOKENS`; empty if there is no title and no
    section.

    If the path is too long, its sections are removed, the outermost first. The title and the innermost section remain,
    because they are the most informative parts. If the title and the innermost section together are still too long, the
    end of `Title > Section` is cut off. The `|` at the end of the prefix always remains.

    Args:
        title: the title of the document; empty if the document has no title.
        section: the path of headings, the outermost first, joined by ` > `; empty if there is no heading.
        tokens_of: returns the ids of a text, without special tokens.
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
    """Return a list with the text, in which single spaces replace all white space. The list of a blank text is
    empty."""
    found = " ".join(text.split())
    return [found] if found else []
