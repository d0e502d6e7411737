"""Reads HTML: the content of a page without navigation, footers, scripts and similar parts."""

from __future__ import annotations

import re
from typing import Any

from lxml import etree

from qa_cluster.errors import InvalidInput

from .extracted import Extracted, TextBuilder, clean
from .html_content import content_of, remove
from .tables import table_rows

_BLOCKS = frozenset(
    re.findall(
        r"\S+",
        "address article aside blockquote body center details dialog div dl dd dt fieldset figcaption figure footer "
        "form h1 h2 h3 h4 h5 h6 header hr html li main menu ol p pre section summary table tbody td tfoot th thead "
        "tr ul dir caption legend main hgroup listing xmp plaintext",
    )
)
# If a larger share of a page is left out, a remark says so.
MOST_LEFT_OUT = 0.5
# If the text of a page has fewer characters than this, and its largest list of links has more, the page is read with
# its lists of links.
_FEW_WORDS = 60
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_LISTS = ("ul", "ol", "menu", "dir")
_STARTS_LINE = _BLOCKS | {"br"}
_LABEL = re.compile(r"admonition-title|versionmodified|markdown-alert-title")
# The attribute with the position of an element in the source. Without it, the position is the element's line in the
# HTML.
PLACE = "data-line"
# The numbering of lists: from the HTML attribute `type` to the class that docutils writes.
_TYPES = {"a": "loweralpha", "A": "upperalpha", "i": "lowerroman", "I": "upperroman"}
_ROMAN = ((100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))
_POWERS = str.maketrans(
    "0123456789+-\u2212", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b\u207b"
)
_POWER = re.compile(r"[0-9+\u2212-]+")
_CODE_NUMBERS = re.compile(r"linenos?|gutter|copybtn")
_CHAPTER = re.compile(
    r"(?:(?:chapter|appendix|part|section)\s+[\dA-Z]{1,4}\.?|(?:\d{1,3}|[A-Z](?=\.))(?:\.\d{1,3})*\.?)\s+(?=\S)", re.I
)


def read(source: str) -> Extracted:
    """Return the text of an HTML page.

    The title of the text is a heading that `write` chooses. If `write` finds no such heading, the title is the page's
    ``<title>``.
    """
    root = parsed(source)
    named = root.find(".//title")
    title = clean(named.text or "") if named is not None else ""
    content = content_of(root)
    found = write(content.element, title)
    if content.links > _FEW_WORDS and len(found.text) < _FEW_WORDS:  # the page consists of links
        content = content_of(parsed(source), keeps_links=True)
        found = write(content.element, title)
    left_out = content.page_size - content.size
    if left_out <= content.page_size * MOST_LEFT_OUT:
        return found
    remark = f"{left_out} of its {content.page_size} characters were left out as navigation or similar parts"
    return found.remarked(remark)


def parsed(source: str) -> Any:
    """Parse a page or a part of a page, and return its root element.

    Raises:
        InvalidInput: the source contains no element.
    """
    parser = etree.HTMLParser(encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True)
    try:
        root = etree.fromstring(source.encode("utf-8", "replace"), parser)
    except etree.XMLSyntaxError as error:
        raise InvalidInput(f"is not HTML: {error}") from error
    if root is None:
        raise InvalidInput("is not HTML: it contains no element")
    return root


def write(content: Any, title: str, *, is_page: bool = True, unit: str = "line") -> Extracted:
    """Convert an element to text.

    `unit` is the unit of the places in the result (`Extracted.unit`); empty: the result has no places.

    The title is the first ``h1``. If `is_page` is true and the text starts with a heading of another level, this
    heading is the title instead. The number of a chapter is left out of the title. If no heading is the title, the
    title is `title`.
    """
    walker = _Walker(TextBuilder(unit), is_page)
    walker.walk(content)
    walker.flush()
    found = walker.builder.build()
    return found if found.title else walker.builder.build(title)


class _Walker:
    """Walks through the elements of a page, and writes each block of text when the block ends."""

    def __init__(self, builder: TextBuilder, is_page: bool) -> None:
        self._is_page = is_page
        self.builder = builder
        self._words: list[str] = []
        self._at = 0
        self._lead = ""  # precedes the next paragraph: `Note:`
        self._marker: str | None = None  # the mark of a list item that has no text yet
        self._depth = 0
        self._entries = 0
        self._level = 0  # the level of the last heading
        self._term: list[str] = []
        self._term_at = 0

    def walk(self, element: Any) -> None:
        """Write the text of an element and of its children. Words after the last block wait for `flush`."""
        self._add(element.text, element)
        for child in element:
            if isinstance(child.tag, str):
                self._element(child, child.tag.lower())
            self._add(child.tail, child)

    def _add(self, text: str | None, element: Any) -> None:
        if text and (self._words or text.strip()):
            self._words.append(text)
            self._at = self._at or _line(element)

    def _element(self, element: Any, name: str) -> None:
        if name == "sup":
            self._words.append(_power(element))
            return
        if name not in _STARTS_LINE:
            if _LABEL.search(element.get("class") or ""):
                self._words.append(_lead(clean(_text(element))) + " ")
                return
            self.walk(element)
            return
        if name == "br":
            self._words.append(" ")
            return
        if name == "p" and _LABEL.search(element.get("class") or ""):
            self.flush()
            self._lead = _lead(clean(_text(element)))
            return
        self.flush()
        if name in _HEADINGS or (name == "p" and element.get("class") == "rubric"):
            level = _HEADINGS.get(name) or self._level + 1  # a rubric is one level below the last heading
            self._level = _HEADINGS.get(name, self._level)
            self._heading(element, level)
        elif name in ("pre", "listing", "xmp"):
            self._code(element)
        elif name in _LISTS:
            self._list(element, name)
        elif name == "dl":
            self._definitions(element)
        elif name == "table":
            self._table(element)
        elif name == "dt":  # without a list around it, as in Markdown's definitions
            self._write_lead()
            self._term, self._term_at = [_text(element)], _line(element)
        else:
            self.walk(element)
            self.flush()

    def _heading(self, element: Any, level: int) -> None:
        text = clean(_text(element))
        if not text or self._marker is not None:
            self._words.append(text)
            return
        self.builder.end_entries(0)
        if not self.builder.title and (level == 1 or (self._is_page and self.builder.is_empty)):
            self.builder.heading(0, text, _line(element))
            numbered = _CHAPTER.match(text)
            self.builder.title = text[numbered.end() :] if numbered else text
        else:
            self.builder.heading(max(1, level), text, _line(element))

    def _code(self, element: Any) -> None:
        self._write_lead()
        self.builder.code(_text(element), _line(element))

    def _list(self, element: Any, name: str) -> None:
        self._write_lead()
        self._depth += 1
        kind = _TYPES.get(element.get("type") or "") or (element.get("class") or "")
        number = int(start) if (start := element.get("start") or "1").isdecimal() and len(start) < 6 else 1
        for child in element:
            if not isinstance(child.tag, str):
                continue
            if child.tag.lower() == "li":
                self._marker = f"{_number(number, kind)}." if name == "ol" else "-"
                number += 1
            self.walk(child)
            self.flush()
            self._marker = None
        self._depth -= 1

    def _definitions(self, element: Any) -> None:
        self._write_lead()
        self._entries += 1
        for child in element.iterchildren("dt", "dd", "div"):
            for part in child.iterchildren("dt", "dd") if child.tag == "div" else (child,):
                if part.tag == "dt":
                    if not self._term:
                        self.builder.end_entries(self._entries)
                    self._term.append(_text(part))
                    self._term_at = self._term_at or _line(part)
                else:
                    self.walk(part)
                    self.flush()
        self._write_term()
        self._entries -= 1
        self.builder.end_entries(self._entries + 1)

    def _table(self, element: Any) -> None:
        self._write_lead()
        rows = [row for row in element.iter("tr") if next(row.iterancestors("table")) is element]
        cells = [[cell for cell in row if cell.tag in ("td", "th")] for row in rows]
        if _is_layout(element, cells):
            for row in cells:
                for cell in row:
                    self.walk(cell)
                    self.flush()
            return
        caption = element.find("caption")
        if caption is not None:
            self.builder.paragraph(_text(caption), _line(caption))
        inner = _taken_out(element)
        for found in table_rows(cells, _text):
            at = 0 if found.first is None else _line(found.first)
            if found.is_named and not any(found.headers):
                name, *values = found.cells
                self.builder.definition(name, ", ".join(filter(None, map(clean, values))), at)
            else:
                self.builder.row(found.cells, found.headers, at)
        for table in inner:
            self._table(table)

    def _write_term(self, text: str = "", at: int = 0) -> None:
        terms, self._term = self._term, []
        self._term_at, before = 0, self._term_at
        self.builder.entry(self._entries, ", ".join(filter(None, map(clean, terms))), text, before or at)

    def _write_lead(self) -> None:
        """Before a block starts, write the collected words, and the open term even if it has no definition yet."""
        self.flush()
        if self._term:
            self._write_term()
        self._marker = None

    def flush(self) -> None:
        """Write the collected words: as the definition of the open term, as a list item, or as a paragraph.

        Without words, write nothing.
        """
        text, at = clean("".join(self._words)), self._at
        self._words, self._at = [], 0
        if not text:
            return
        if self._lead:
            text, self._lead = f"{self._lead} {text}", ""
        if self._term:
            self._write_term(text, at)
        elif self._marker is not None:
            self.builder.item(text, at, self._marker, self._depth - 1)
            self._marker = None
        else:
            self.builder.paragraph(text, at)


def _number(number: int, kind: str) -> str:
    """Format the number of a list item. `kind` is a text that contains the numbering of the list.

    The known numberings are the values of `_TYPES`. A list of any other kind has decimal numbers.

    >>> _number(3, "upperalpha simple"), _number(9, "lowerroman"), _number(12, "")
    ('C', 'ix', '12')
    """
    if "alpha" in kind and 0 < number <= 26:
        written = chr(ord("a") + number - 1)
    elif "roman" in kind and 0 < number < 400:
        written = ""
        for value, letters in _ROMAN:
            written += letters * (number // value)
            number %= value
    else:
        return str(number)
    return written.upper() if "upper" in kind else written


def _lead(text: str) -> str:
    return text if text.endswith((":", ".", "!", "?")) else f"{text}:"


def _line(element: Any) -> int:
    written = element.get(PLACE)
    return int(written) if written else element.sourceline or 0


def _text(element: Any) -> str:
    """Return all text of an element. Block elements inside are separated; line numbers of code are left out."""
    parts: list[str] = [element.text or ""]
    for child in element:
        if isinstance(child.tag, str) and not _CODE_NUMBERS.search(child.get("class") or ""):
            name = child.tag.lower()
            inner = "\n" if name == "br" else _power(child) if name == "sup" else _text(child)
            parts.append(f" {inner} " if name in _BLOCKS else inner)
        parts.append(child.tail or "")
    return "".join(parts)


def _power(element: Any) -> str:
    """Return the text of a superscript. Exponents become superscript digits; the number of a footnote is left out."""
    text = _text(element)
    if next((link for link in element.iter("a") if (link.get("href") or "").startswith("#")), None) is not None:
        return ""
    return text.strip().translate(_POWERS) if _POWER.fullmatch(text.strip()) else text


def _taken_out(table: Any) -> list[Any]:
    """Remove nested tables from the cells of a table, and return the nested tables.

    The caller writes the nested tables after the table.
    """
    inner = [found for found in table.iterdescendants("table") if next(found.iterancestors("table")) is table]
    for found in inner:
        found.tail = f" {found.tail or ''}"  # a table separates the words around it
    remove(inner)
    return inner


def _is_layout(table: Any, cells: list[list[Any]]) -> bool:
    """Return whether a table only positions its contents. `cells` has the cells of each row.

    Such a table has one column or the role `presentation`, or its cells contain blocks that data cells do not contain,
    such as headings.
    """
    if all(len(row) < 2 for row in cells) or table.get("role") == "presentation":
        return True
    is_named = len(cells) > 1 and len(cells[0]) > 1 and all(cell.tag == "th" for cell in cells[0])
    blocks = ("h1", "h2", "h3", "h4", "pre") if is_named else ("h1", "h2", "h3", "h4", "table", "pre", "dl", "ul", "ol")
    return any(
        next(cell.iter(*blocks), None) is not None or (not is_named and len(list(cell.iter("p"))) > 2)
        for row in cells
        for cell in row
    )
