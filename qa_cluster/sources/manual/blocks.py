"""Collects the words of a block of a manual page and writes the block.

A block is a paragraph, an entry with its tag, a list item, or code.

The tag of an entry is the term that the entry explains, such as an option.
"""

from __future__ import annotations

import re

from ..extracted import TextBuilder, clean
from .lines import JOIN

# Tags that are only the marks of list items.
_BULLETS = frozenset(["•", "-", "*", "+", "o", "–", "—", "○", "□", "·", "●"])
_NUMBER = re.compile(r"\(?(?:\d{1,3}|[a-z]|[ivx]{1,4})[.)]\Z|\[\d{1,3}\]\Z")
_JOINS = re.compile(rf"(?<![ \t])[ \t]*+(?:{JOIN}[ \t]*+)++")
_MAX_TAGS = 12


def joined(words: list[str], between: str = " ") -> str:
    """Join words to one text, with `between` after each word except the last.

    Where a mark (`JOIN`) is between two words, the words are joined without `between` and without spaces.
    """
    return _JOINS.sub("", between.join(words)) if any(JOIN in word for word in words) else between.join(words)


class Blocks:
    """The current block: its words, its tags and its indentation.

    The argument `at` of a method is the number of the line in the source, counted from 1.
    """

    def __init__(self, builder: TextBuilder) -> None:
        self._builder = builder
        self._words: list[str] = []
        self._tags: list[str] = []
        self._at = 0
        self._depth = 0
        self.is_literal = False

    @property
    def pending(self) -> str:
        """The text of the block so far."""
        return clean(joined(self._words))

    def add(self, text: str, at: int) -> None:
        """Add words to the block; in literal text, a line."""
        self._at = self._at or at
        self._words.append(text)

    def indent(self, by: int) -> None:
        """Start (`by` is 1) or end (-1) an indentation."""
        self.flush()
        self._depth = max(0, self._depth + by)
        if by < 0:
            self._builder.end_entries(self._depth + 1)

    def paragraph(self) -> None:
        """Write the block, and start a paragraph that belongs to no tag of the current or a deeper indentation."""
        self.flush()
        self._builder.end_entries(self._depth)

    def line_break(self) -> None:
        """Start a new line. The text so far becomes a paragraph; a tag without text waits for its text."""
        if any(word.strip() for word in self._words):
            self.flush()

    def close(self) -> None:
        """Write the block, and end all indentations and entries, because the section ends."""
        self.flush()
        self._depth = 0
        self._builder.end_entries(0)

    def begin_tag(self) -> None:
        """Prepare for a tag.

        A previous tag that has no text yet gets the same text as the new tag, unless the previous tag is only the mark
        of a list item.
        """
        if any(word.strip() for word in self._words) or len(self._tags) >= _MAX_TAGS or self._is_mark():
            self.flush()

    def further_tag(self) -> None:
        """Prepare for one more tag of the text that follows, in addition to the previous tag."""
        if any(word.strip() for word in self._words):
            self.flush()

    def tag(self, text: str, at: int) -> None:
        """Add a tag to the next paragraph. A paragraph may have several tags; empty tags are left out."""
        self._at = self._at or at
        text = clean(joined([text]))
        if text:
            self._tags.append(text)

    def _is_mark(self) -> bool:
        return len(self._tags) == 1 and (self._tags[0] in _BULLETS or _NUMBER.match(self._tags[0]) is not None)

    def literal(self, is_literal: bool) -> None:
        """Start or end literal text, whose lines are written as code."""
        if is_literal != self.is_literal:
            if any(word.strip() for word in self._words):
                self.flush()
            self.is_literal = is_literal

    def flush(self) -> None:
        """Write the block, if it has words or tags, and start an empty block at the same indentation."""
        words, tags, at = self._words, self._tags, self._at
        is_mark = self._is_mark()
        self._words, self._tags, self._at = [], [], 0
        if self.is_literal:
            if tags:
                self._builder.entry(self._depth, ", ".join(tags), "", at)
            self._builder.code(joined(words, "\n"), at)
            return
        text = joined(words)
        if is_mark:
            self._builder.end_entries(self._depth)
            self._builder.item(text, at, "-" if tags[0] in _BULLETS else tags[0], self._depth)
        elif tags:
            self._builder.entry(self._depth, ", ".join(tags), text, at)
        else:
            self._builder.paragraph(text, at)
