"""Computes the web addresses of a site's pages from the paths of their source files."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

from qa_cluster.errors import InvalidInput

from .files import without_gz

# The page of `a/b.rst` is `a/b.html` in the style html, `a/b/` in dirhtml, and `a/b.rst` in file.
STYLES = ("html", "dirhtml", "file")
# The formats of sources from which site generators make pages.
_SOURCES = ("rst", "markdown", "ipynb")
_HTML = (".html", ".htm", ".xhtml")
_INDEX = "index"


@dataclass(frozen=True, slots=True)
class PageAddresses:
    """Computes addresses below the base address `base`, which ends with a slash, in a style of `STYLES`.

    >>> site = PageAddresses.below("https://docs.example.org/guide")
    >>> site.of("first steps.md", "markdown"), site.of("api/index.html", "html"), site.of("a.pdf", "pdf")
    ('https://docs.example.org/guide/first%20steps.html', 'https://docs.example.org/guide/api/', \
    'https://docs.example.org/guide/a.pdf')
    """

    base: str
    style: str = STYLES[0]

    @classmethod
    def below(cls, base: str, style: str = STYLES[0]) -> PageAddresses:
        """Return the addresses below `base` in the style `style`; InvalidInput if either is wrong.

        If `base` has no slash at its end, a slash is added.
        """
        try:
            parts = urlsplit(base)
            host = parts.hostname
        except ValueError:
            parts, host = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or not base.isprintable():
            raise InvalidInput(f"{base!r} is not the address of a folder, such as https://docs.example.org/guide/")
        if style not in STYLES:
            raise InvalidInput(f"{style!r} is not one of {', '.join(STYLES)}")
        return cls(base if base.endswith("/") else f"{base}/", style)

    def of(self, path: str, format: str) -> str:
        """Return the address of the page of a file.

        The page `index` of a folder has the address of the folder, except in the style ``file``. This applies to HTML
        files, and to files from which site generators make pages.

        Args:
            path: the path of the file within the folder that the user named. An ending ``.gz`` is ignored.
            format: the format of the file, one of `sources.formats.FORMATS`.
        """
        folder, slash, name = without_gz(path).rpartition("/")
        stem, dot, ending = name.rpartition(".")
        is_source = format in _SOURCES and bool(dot)
        if self.style != "file" and (is_source or f".{ending.lower()}" in _HTML):
            if stem == _INDEX:
                name = ""
            elif is_source:
                name = f"{stem}/" if self.style == "dirhtml" else f"{stem}.html"
        return self.base + quote((folder + slash + name).encode("utf-8", "surrogateescape"))

    def join(self, own: str) -> str:
        """Return the address `own`, which a file states for itself, as an absolute address.

        A relative address is resolved against the base address.
        """
        return urljoin(self.base, own)
