"""Finds the content of an HTML page, without the parts that repeat on every page of its site."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from lxml import etree

_DROPPED = frozenset(
    re.findall(
        r"\S+",
        "script style noscript template svg iframe object embed canvas audio video button select input textarea nav "
        "head datalist map area dialog menu math",
    )
)
_INVISIBLE = frozenset(["script", "style", "noscript", "template", "head"])
_ROLES = frozenset(["navigation", "banner", "contentinfo", "search", "menu", "menubar", "complementary", "toolbar"])
# Classes and ids that page generators use only for boilerplate.
_BOILERPLATE = re.compile(
    r"(?:^|\s)(?:nav-?(?:bar|header|footer|igation|links?)[\w-]*|(?:main|site|page|top|global|primary)[-_]?nav\S*|sphinxsidebar\w*"
    r"|site-?header|footer|(?:site|page|sphinx)-?footer\S*|breadcrumbs?\S*|bread_crumbs|toc(?:tree-wrapper|tree|list|base|box)"
    r"|table-of-contents|contents-local|headerlink|anchor-?link|skip-?link\S*|skip-to\S*|cookie-?(?:banner|bar|consent|law|notice|popup)\S*"
    r"|pagination|pager|advert\S*|clearer|prev-next|language-?switcher|search-?(?:box|form)|copyright-footer|backlinks?"
    r"|back-to-top|noprint|visually-hidden|sr-only)(?:$|\s)",
    re.IGNORECASE,
)
# Words that occur in the names of boilerplate and of content: `share` and `share-capital`.
_HINT = re.compile(
    r"(?:^|[\s_-])(?:nav|lo[ft]|side-?bar\w*|related|breadcrumbs?|toc|menu|cookie\S*|share|social|footer|pagination|pager)"
    r"(?:$|[\s_-])",
    re.IGNORECASE,
)
# An element whose class or id matches `_HINT` is boilerplate if it has fewer characters than this outside of links,
# unless it has a heading ``h1`` or ``h2``.
_MIN_CONTENT = 40
_GOES_ON = re.compile(
    r"(?:prev(?:ious)?|next|up|home|back|index|top|<<+|>>+|[\u00ab\u00bb\u2190\u2192])(?: page)?\Z", re.IGNORECASE
)
_MIN_SHARE = 0.4
_LISTS_OF_LINKS = ("ul", "ol", "table", "dl", "p", "div")


# The length limit of a link text that leads to another page of a series.
_MAX_STEP = 60
_H1, _H2, _P, _PRE = 1, 2, 4, 8
_BITS = {"h1": _H1, "h2": _H2, "p": _P, "pre": _PRE}


@dataclass(frozen=True, slots=True)
class Content:
    """The element with the content of a page, without boilerplate.

    Attributes:
        size: the number of characters of the content. The white space around each piece of text between two tags does
            not count.
        page_size: the number of characters of the whole page, counted in the same way.
        links: the number of characters of the largest list of links on the page; 0 if it has no such list.
    """

    element: Any
    size: int
    page_size: int
    links: int


def content_of(root: Any, *, keeps_links: bool = False) -> Content:
    """Remove the boilerplate from the tree of a page and return the content of the page.

    `root` is the root element, which this function changes. With `keeps_links`, lists of links are kept.
    """
    body = root.find("body") if root.find("body") is not None else root
    dropped, page_size, links = _dropped(body, keeps_links)
    remove(dropped)
    whole = _size(body)
    for path in (".//main", './/*[@role="main"]', ".//article"):
        found = body.findall(path)
        if len(found) == 1 and (size := _size(found[0])) >= whole * _MIN_SHARE:
            return Content(found[0], size, page_size, links)
    return Content(body, whole, page_size, links)


@dataclass(slots=True)
class _Contents:
    """Statistics of an element and everything inside it.

    Attributes:
        size: the number of characters, counted as in `Content`.
        links: the number of links.
        linked: the number of characters in links.
        is_step: whether a link leads to another page of a series, such as `next`.
        tags: the kinds of elements, as bits of `_BITS`.
        words: the whole text while it is short, otherwise None.
    """

    size: int = 0
    links: int = 0
    linked: int = 0
    is_step: bool = False
    tags: int = 0
    words: str | None = ""

    def add_text(self, text: str | None) -> None:
        """Add a text that is directly in the element."""
        if text:
            self.size += len(text.strip())
            self._join(text)

    def add_element(self, name: str, element: Any) -> None:
        """Add the element itself, after everything inside it."""
        self.tags |= _BITS.get(name, 0)
        if name == "a" and element.get("href"):
            self.links += 1
            self.linked += self.size
            self.is_step |= self.words is not None and _GOES_ON.match(self.words.strip()) is not None

    def add_contents(self, inner: _Contents) -> None:
        """Add the contents of a child."""
        self.size += inner.size
        self.links += inner.links
        self.linked += inner.linked
        self.is_step |= inner.is_step
        self.tags |= inner.tags
        self._join(inner.words)

    def _join(self, text: str | None) -> None:
        joined = None if text is None or self.words is None else self.words + text
        self.words = joined if joined is None or len(joined) <= _MAX_STEP else None

    @property
    def links_share(self) -> float:
        """The share of characters that are in links."""
        return self.linked / max(1, self.size)


def _dropped(body: Any, keeps_links: bool) -> tuple[set[Any], int, int]:
    """Return the elements that are boilerplate, the size of the page, and the size of the largest list of links.

    Lists of links are boilerplate unless `keeps_links` is true.
    Sizes are numbers of characters that a browser shows. One walk counts what each element contains; a separate walk
    for each element would take quadratic time in a deep tree.
    """
    dropped: set[Any] = set()
    links = 0
    opened: list[_Contents] = []
    for event, element in etree.iterwalk(body, events=("start", "end")):
        if event == "start":
            opened.append(_Contents())
            opened[-1].add_text(element.text)
            continue
        contents = opened.pop()
        name = element.tag.lower()
        contents.add_element(name, element)
        if opened:
            if _is_dropped(name, element, contents):
                dropped.add(element)
            elif name in _LISTS_OF_LINKS and _is_list_of_links(contents):
                links = max(links, contents.size)
                if not keeps_links:
                    dropped.add(element)
            if name not in _INVISIBLE:
                opened[-1].add_contents(contents)
            opened[-1].add_text(element.tail)
    return dropped, contents.size, links


def _is_dropped(name: str, element: Any, contents: _Contents) -> bool:
    if name in _DROPPED or element.get("role") in _ROLES or element.get("hidden") is not None:
        return True
    if name in ("header", "footer"):
        return name == "footer" or not contents.tags & (_H1 | _H2 | _P)
    if name in ("html", "body", "main", "article", "section", "h1", "h2", "h3", "h4", "h5", "h6", "dt", "dd", "pre"):
        return False
    marks = f"{element.get('class') or ''} {element.get('id') or ''}"
    if marks.strip():
        if _BOILERPLATE.search(marks):
            return not contents.tags & _H1 or contents.links_share > 0.3
        if _HINT.search(marks) and (contents.links_share > 0.3 or contents.size - contents.linked < _MIN_CONTENT):
            return not contents.tags & (_H1 | _H2)
    return False


def _is_list_of_links(contents: _Contents) -> bool:
    """Return whether an element consists mainly of links, like a menu or a table of contents."""
    if contents.links < (2 if contents.is_step else 4) or contents.tags & (_H1 | _H2 | _PRE):
        return False
    return contents.links_share > 0.85


def _size(element: Any) -> int:
    return sum(len(text.strip()) for text in element.itertext() if isinstance(text, str))


def remove(dropped: Collection[Any]) -> None:
    """Remove elements from their parents.

    The text after each element stays. The time is linear in the number of all children of these parents.
    """
    parents, dropped = dict.fromkeys(element.getparent() for element in dropped), set(dropped)
    for parent in parents:
        before, tails = None, [parent.text or ""]
        for child in list(parent):
            if child in dropped:
                tails.append(child.tail or "")
                parent.remove(child)
                continue
            _set_text(parent, before, tails)
            before, tails = child, [child.tail or ""]
        _set_text(parent, before, tails)


def _set_text(parent: Any, before: Any, parts: list[str]) -> None:
    """Set the text after the element `before`. If `before` is None, set the text at the start of `parent`.

    The first of `parts` is the present text. The other parts are the texts after removed elements; if there are no
    other parts, nothing changes. The parts are joined once, which takes linear time.
    """
    if len(parts) > 1:
        if before is None:
            parent.text = "".join(parts) or None
        else:
            before.tail = "".join(parts) or None
