"""Reads the addresses in sitemaps (https://www.sitemaps.org) and in lists of addresses."""

from __future__ import annotations

from dataclasses import dataclass

from lxml import etree

from qa_cluster.errors import InvalidInput
from qa_cluster.sources import decoding

MAX_SITEMAP_BYTES = 50 * 1024 * 1024
MAX_URL_CHARS = 2048


@dataclass(frozen=True, slots=True)
class Sitemap:
    """The addresses in a sitemap, without duplicates.

    Attributes:
        is_index: whether the sitemap lists other sitemaps instead of pages.
    """

    urls: list[str]
    is_index: bool


def parse_sitemap(data: bytes, where: str) -> Sitemap:
    """Return the addresses of a sitemap, which may be gzipped, without addresses of more than `MAX_URL_CHARS`
    characters. `where` names the sitemap in errors. Raises InvalidInput if `data` is not a sitemap.
    """
    if decoding.is_gzip(data):
        data = decoding.gunzip(data, MAX_SITEMAP_BYTES)
    try:
        root = etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False))
    except etree.XMLSyntaxError as error:
        raise InvalidInput(f"{where}: not a sitemap: {error}"[:300]) from error
    name = etree.QName(root).localname
    if name not in ("urlset", "sitemapindex"):
        raise InvalidInput(f"{where}: not a sitemap: its root element is {name[:50]!r}")
    found = [(element.text or "").strip() for element in root.iterfind("./{*}*/{*}loc")]
    return Sitemap(list(dict.fromkeys(url for url in found if 0 < len(url) <= MAX_URL_CHARS)), name == "sitemapindex")


def parse_list(data: bytes, where: str) -> list[str]:
    """Return the addresses of a file with one address on each line; lines that start with ``#`` are comments.

    Empty lines and duplicates are left out. Raises InvalidInput if a line does not start with http:// or https://, or
    has more than `MAX_URL_CHARS` characters. `where` names the file in the error.
    """
    lines = [line.strip() for line in decoding.decode(data).splitlines()] if data else []
    found = [line for line in lines if line and not line.startswith("#")]
    for url in found:
        if not url.startswith(("http://", "https://")) or len(url) > MAX_URL_CHARS:
            raise InvalidInput(f"{where}: {url[:100]!r} is not an address of at most {MAX_URL_CHARS} characters")
    return list(dict.fromkeys(found))
