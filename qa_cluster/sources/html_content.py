"""Finds the content of an HTML page, without the parts that every page of its site repeats."""

from __future__ import annotations

import re
from typing import Any

_DROPPED = frozenset(
    re.findall(
        r"\S+",
        "script style noscript template svg iframe object embed canvas audio video button select input textarea nav "
        "head datalist map area dialog menu math",
    )
)
_ROLES = frozenset(["navigation", "banner", "contentinfo", "search", "menu", "menubar", "complementary", "toolbar"])
# Words of classes and ids; `toc` also as a part, as in `table-of-contents`.
_BOILERPLATE = re.compile(
    r"(?:^|[\s_-])(?:nav(?:bar|header|footer|igation|link|links)?|side-?bar\w*|sphinxsidebar\w*|related|footer|site-?header"
    r"|breadcrumbs?|bread_crumbs|toc(?:tree-wrapper|tree|list|base|box)?|table-of-contents|contents-local|headerlink|anchor-?link"
    r"|menu|skip-?link|skip-to\S*|cookie\S*|pagination|pager|share|social|advert\S*|clearer|prev-next|language-?switcher"
    r"|search-?(?:box|form)|copyright-footer|backlinks?|back-to-top|lot|lof|noprint|visually-hidden|sr-only)(?:$|[\s_-])",
    re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"(?:prev(?:ious)?|next|up|home|back|index|top|<<+|>>+|[\u00ab\u00bb\u2190\u2192])(?: page)?\Z", re.IGNORECASE
)
_MIN_SHARE = 0.4


def content_of(root: Any) -> Any:
    """Return the element with the content, without boilerplate."""
    body = root.find("body") if root.find("body") is not None else root
    for element in list(body.iter()):
        if (
            element is not body
            and isinstance(element.tag, str)
            and element.getparent() is not None
            and _is_dropped(element)
        ):
            _remove(element)
    whole = _size(body)
    for path in (".//main", './/*[@role="main"]', ".//article"):
        found = body.findall(path)
        if len(found) == 1 and _size(found[0]) >= whole * _MIN_SHARE:
            return found[0]
    return body


def _is_dropped(element: Any) -> bool:
    name = element.tag.lower()
    if name in _DROPPED or element.get("role") in _ROLES or element.get("hidden") is not None:
        return True
    if name in ("header", "footer"):
        return next(element.iter("h1", "h2", "p"), None) is None or name == "footer"
    if name in ("html", "body", "main", "article", "section", "h1", "h2", "h3", "h4", "h5", "h6", "dt", "dd", "pre"):
        return False
    marks = f"{element.get('class') or ''} {element.get('id') or ''}"
    if marks.strip() and _BOILERPLATE.search(marks):
        return next(element.iter("h1"), None) is None or _links_share(element) > 0.3
    return name in ("ul", "ol", "table", "dl", "p", "div") and _is_list_of_links(element)


def _is_list_of_links(element: Any) -> bool:
    """Whether an element consists only of short links, as menus and tables of contents do."""
    links = [link for link in element.iter("a") if link.get("href")]
    goes_on = any(_GOES_ON.match("".join(link.itertext()).strip()) for link in links)
    if len(links) < (2 if goes_on else 4) or next(element.iter("h1", "h2", "pre"), None) is not None:
        return False
    return _links_share(element) > 0.85


def _links_share(element: Any) -> float:
    inside = sum(_size(link) for link in element.iter("a") if link.get("href"))
    return inside / max(1, _size(element))


def _size(element: Any) -> int:
    return sum(len(text.strip()) for text in element.itertext() if isinstance(text, str))


def _remove(element: Any) -> None:
    """Remove an element; the text after it stays."""
    parent, tail = element.getparent(), element.tail
    if tail:
        before = element.getprevious()
        if before is not None:
            before.tail = (before.tail or "") + tail
        else:
            parent.text = (parent.text or "") + tail
    parent.remove(element)
