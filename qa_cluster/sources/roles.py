"""Converts a role of Sphinx or MyST to the words that appear on a page."""

from __future__ import annotations

import re

_TITLED = re.compile(r"\A(.+?)(?<!\s)\s*+<[^<>]++>\Z", re.DOTALL)
_BRACES = re.compile(r"\{([^{}]*)\}")
_NUMBERED = {
    "pep": "PEP ",
    "rfc": "RFC ",
    "issue": "#",
    "pr": "#",
    "pull": "#",
    "gh": "#",
    "ticket": "#",
    "cve": "CVE-",
}
_PATHS = frozenset(("doc", "download"))


def words_of_role(name: str, text: str) -> str:
    """Return the words that ``:name:`text``` shows.

    >>> words_of_role("meth", "~flask.Flask.run"), words_of_role("ref", "the page <label>"), words_of_role("pep", "8")
    ('run', 'the page', 'PEP 8')
    """
    base = name.rpartition(":")[2].lower()
    titled = _TITLED.match(text)
    if titled:
        words = titled[1]
    elif base in _NUMBERED:
        words = _NUMBERED[base] + text.removeprefix(_NUMBERED[base].strip()).strip()
    elif text.startswith("~"):
        words = text[1:].rpartition(".")[2]
    elif base in _PATHS:
        words = text.rstrip("/").rpartition("/")[2]
    elif base in ("file", "samp"):
        words = _BRACES.sub(r"\1", text)
    else:
        words = text.replace("-->", ">") if base == "menuselection" else text
    return words.lstrip("!")
