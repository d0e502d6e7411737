"""The words of a role of Sphinx or MyST: what its text would read as on a page."""

from __future__ import annotations

import re

_TITLED = re.compile(r"\A(.+?)\s*<[^<>]+>\Z", re.DOTALL)
_BRACES = re.compile(r"\{([^{}]*)\}")
_NUMBERED = {"pep": "PEP ", "rfc": "RFC ", "issue": "#", "pr": "#", "pull": "#", "gh": "#", "ticket": "#", "cve": "CVE-"}
_PATHS = frozenset(("doc", "download"))


def words_of_role(name: str, text: str) -> str:
    """The words of ``:name:`text```.

    >>> words_of_role("meth", "~flask.Flask.run"), words_of_role("ref", "the page <label>"), words_of_role("pep", "8")
    ('run', 'the page', 'PEP 8')
    """
    base = name.rpartition(":")[2].lower()
    titled = _TITLED.match(text)
    if titled:
        return titled[1].lstrip("!")
    if base in _NUMBERED:
        return _NUMBERED[base] + text.removeprefix(_NUMBERED[base].strip()).strip()
    if text.startswith("~"):
        return text[1:].rpartition(".")[2]
    if base in _PATHS:
        return text.rstrip("/").rpartition("/")[2]
    if base in ("file", "samp"):
        return _BRACES.sub(r"\1", text)
    if base == "menuselection":
        return text.replace("-->", ">")
    return text.lstrip("!")
