"""The HTML tree that the readers of this folder build, and its conversion to text."""

from __future__ import annotations

from typing import Any

from lxml import etree

from ..extracted import Extracted
from ..html import PLACE, write


def new_body() -> Any:
    """Return the root of a new tree."""
    return etree.Element("body")


def add(target: Any, tag: str, text: str | None = None, *, at: int = 0) -> Any:
    """Add an element with a text at the end of `target`, and return the element.

    `at` is its position in the source (a line, page or row), counted from 1; 0 if it is unknown.
    """
    element = etree.SubElement(target, tag)
    if text:
        add_text(element, text)
    if at:
        element.set(PLACE, str(at))
    return element


def add_text(target: Any, text: str | None) -> None:
    """Add text at the end of an element. Characters that XML forbids become spaces."""
    if not text:
        return
    if not text.isprintable():
        text = "".join(character if character.isprintable() or _is_xml(character) else " " for character in text)
    if len(target):
        target[-1].tail = (target[-1].tail or "") + text
    else:
        target.text = (target.text or "") + text


def _is_xml(character: str) -> bool:
    code = ord(character)
    return code in (9, 10, 13) or (code >= 32 and not 0xD800 <= code < 0xE000 and code & 0xFFFE != 0xFFFE)


def place(root: Any, at: int) -> None:
    """Set the position in the source to `at`, counted from 1, for an element and all elements in it."""
    for element in root.iter("*"):
        element.set(PLACE, str(at))


def lower_headings(root: Any) -> None:
    """Lower each heading by one level, so that ``h1`` becomes ``h2``; ``h6`` stays.

    The highest level is for the document's title, which is not in the tree.
    """
    for level in range(5, 0, -1):
        for heading in [*root.iter(f"h{level}")]:
            heading.tag = f"h{level + 1}"


def with_headers(root: Any) -> Any:
    """Make the first row of each table its header row, unless the table has headers or only one row.

    Return `root`, which this function changes.
    """
    for table in root.iter("table"):
        rows = [row for row in table.iter("tr") if next(row.iterancestors("table")) is table]
        if len(rows) > 1 and next(table.iter("th"), None) is None:
            for cell in rows[0]:
                cell.tag = "th"
    return root


def written(root: Any, title: str, *, unit: str = "") -> Extracted:
    """Convert a tree to text. `unit` is the unit of the positions in the tree, as in `html.write`.

    The title of the text is the first ``h1``. Without an ``h1``, it is `title`. If `title` is empty, too, the title is
    the text of the first heading, which also stays a heading.
    """
    found = write(root, title, is_page=False, unit=unit)
    return found if found.title or not found.sections else found.named(found.sections[0].path[0])
