"""Fetches web pages, one after the other.

The module fetches only pages that `robots.txt` allows, only from hosts that the user has given, and only within limits
of size, time and number.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import httpx

from qa_cluster.documents.given_files import GivenFile
from qa_cluster.documents.source_map import URL
from qa_cluster.errors import InvalidInput
from qa_cluster.sources import decoding
from qa_cluster.sources.extracted import NoText
from qa_cluster.sources.process.extractor import MAX_FILE_BYTES

from . import robots
from .limited import limited_parts
from .public_connections import transport
from .sitemaps import MAX_SITEMAP_BYTES, parse_sitemap

AGENT = "qa-cluster"
MAX_PAGES = 10_000
MAX_SITEMAPS = 100
MAX_REDIRECTS = 5
# The time limit for one page in seconds, from the connection to the last byte.
PAGE_SECONDS = 60.0
_NETWORK_SECONDS = 15.0
_REDIRECTS = (301, 302, 303, 307, 308)
_GONE = (404, 410)
_MAX_PORT = 65_535
_DEFAULT_PORTS = {"http": 80, "https": 443}
# The format of each media type. If a media type is not listed here, the name and the contents of the page determine the
# format.
_FORMATS = {
    "text/html": "html",
    "application/xhtml+xml": "html",
    "text/markdown": "markdown",
    "application/pdf": "pdf",
    "application/epub+zip": "epub",
    "message/rfc822": "eml",
}
_INDEX = "index.html"


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """A page that was fetched.

    Attributes:
        url: the address of the page after redirects.
        format: the format of the media type; empty if `_FORMATS` does not have this media type.
        charset: the encoding of the text that the response names; empty if it names none.
    """

    url: str
    data: bytes
    format: str = ""
    charset: str = ""


@dataclass
class Site:
    """Fetches pages from hosts that the user has given.

    Args:
        allow_private: whether addresses of private networks and of this machine are allowed.
        max_pages: the maximum number of pages. More pages are an error. If the remaining pages were left out without
            an error, the user would take the stored part of the site for the whole site.
        left_out: the number of addresses on other hosts that `listed` has left out.
    """

    allow_private: bool = False
    max_pages: int = 1000
    left_out: int = 0
    _robots: dict[str, robots.Robots] = field(default_factory=dict)
    _last: float = 0.0

    def __post_init__(self) -> None:
        self._client = httpx.Client(
            transport=transport(allow_private=self.allow_private),
            timeout=_NETWORK_SECONDS,
            trust_env=False,
            headers={"user-agent": f"{AGENT}/0.1", "accept-encoding": "identity"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def listed(self, sitemap: str) -> list[str]:
        """Return the addresses of the pages that a sitemap lists, itself or in other sitemaps that it names. Only pages
        on the host of the sitemap are returned.

        Raises:
            InvalidInput: a sitemap cannot be read, or there are too many sitemaps or pages.
        """
        start = checked_url(sitemap)
        waiting, seen = [sitemap], {sitemap}
        pages: dict[str, None] = {}
        while waiting:
            found = parse_sitemap(self.fetch(waiting.pop(0), MAX_SITEMAP_BYTES).data, sitemap)
            own = [url for url in found.urls if self._is_on(url, start)]
            self.left_out += len(found.urls) - len(own)
            if found.is_index:
                waiting += [url for url in own if url not in seen]
                seen.update(own)
            else:
                pages |= dict.fromkeys(own)
            if len(seen) > MAX_SITEMAPS:
                raise InvalidInput(f"{sitemap}: names more than {MAX_SITEMAPS} sitemaps, the limit")
            self.check_count(len(pages), sitemap)
        return list(pages)

    def check_count(self, count: int, where: str) -> None:
        """Raise InvalidInput if `count` exceeds `max_pages`. `where` names the source of the pages in the error."""
        if count > self.max_pages:
            raise InvalidInput(
                f"{where}: has more than {self.max_pages} pages: raise --max-pages (at most {MAX_PAGES})"
            )

    @staticmethod
    def _is_on(url: str, start: httpx.URL) -> bool:
        try:
            return is_same_host(checked_url(url), start)
        except InvalidInput:
            return False

    def fetch(self, url: str, limit: int = MAX_FILE_BYTES) -> FetchedPage:
        """Return a page, after redirects on the same host.

        Raises:
            NoText: the site no longer has the page (status 404 or 410).
            InvalidInput: the page cannot be fetched, or `robots.txt` forbids it.
            InputTooLong: the page has more than `limit` bytes.
        """
        start = current = checked_url(url)
        for _ in range(MAX_REDIRECTS + 1):
            rules = self._rules(current)
            if not rules.allows(current.raw_path.decode("ascii")):
                raise InvalidInput(f"{url}: robots.txt does not allow {AGENT} to fetch {_shown(current)}")
            time.sleep(max(0.0, self._last + rules.delay - time.monotonic()))
            self._last = time.monotonic()
            found = self._get(current, limit)
            if isinstance(found, FetchedPage):
                return found
            current = found
            if not is_same_host(current, start):
                raise InvalidInput(f"{url}: is redirected to another host, {_shown(current)}")
        raise InvalidInput(f"{url}: is redirected more than {MAX_REDIRECTS} times")

    def _rules(self, url: httpx.URL) -> robots.Robots:
        """Return the rules of `robots.txt` for the scheme, host and port of an address. The rules are fetched only
        once.
        """
        origin = f"{url.scheme}://{url.netloc.decode('ascii')}"
        if origin not in self._robots:
            self._robots[origin] = self._fetched_rules(httpx.URL(f"{origin}/robots.txt"))
        return self._robots[origin]

    def _fetched_rules(self, url: httpx.URL) -> robots.Robots:
        start = current = url
        for _ in range(MAX_REDIRECTS + 1):
            try:
                found = self._get(current, robots.MAX_ROBOTS_BYTES)
            except NoText:
                return robots.Robots()
            except _Refused as error:
                if 400 <= error.status < 500:
                    return robots.Robots()
                raise
            if isinstance(found, FetchedPage):
                return robots.parse(decoding.decode(found.data) if found.data else "", AGENT)
            current = found
            if not is_same_host(current, start):
                break
        raise InvalidInput(f"{url}: the redirects do not end on this host, so the rules of the site are unknown")

    def _get(self, url: httpx.URL, limit: int) -> FetchedPage | httpx.URL:
        """Return the page at an address, or, if the response is a redirect, the address to which it leads. `limit` is
        the maximum size of the page in bytes. Raises the errors of `fetch`.
        """
        shown, started = _shown(url), time.monotonic()
        try:
            with self._client.stream("GET", url) as response:
                if response.status_code in _REDIRECTS:
                    return checked_url(str(url.join(response.headers.get("location", ""))))
                if response.status_code in _GONE:
                    raise NoText(f"{shown}: the site no longer has it (status {response.status_code})")
                if response.status_code != 200:
                    raise _Refused(shown, response.status_code)
                if response.headers.get("content-encoding", "identity").lower() not in ("identity", "gzip", "x-gzip"):
                    raise InvalidInput(f"{shown}: the response has a content encoding that was not requested")
                parts = limited_parts(response, shown, max_bytes=limit, started=started, seconds=PAGE_SECONDS)
                content = b"".join(parts)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise InvalidInput(f"{shown}: cannot be fetched: {error or type(error).__name__}") from error
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return FetchedPage(shown, content, _FORMATS.get(media_type, ""), response.charset_encoding or "")


class _Refused(InvalidInput):
    """The error for a response with any status except 200, the redirects, 404 and 410."""

    def __init__(self, url: str, status: int) -> None:
        super().__init__(f"{url}: cannot be fetched: the status is {status}")
        self.status = status


def checked_url(url: str) -> httpx.URL:
    """Return an address of http or https without its fragment. Raises InvalidInput for other addresses, and for
    addresses with a user name or a password.
    """
    try:
        found = httpx.URL(url)
        host, port = found.host, found.port or 0
    except (httpx.InvalidURL, TypeError, ValueError, UnicodeError) as error:
        raise InvalidInput(f"{url[:200]!r} is not an address: {error}") from error
    if found.userinfo:
        raise InvalidInput(f"{host[:200]!r}: an address must not contain a user name or a password")
    if found.scheme not in _DEFAULT_PORTS or not host or port > _MAX_PORT or not url.isprintable():
        raise InvalidInput(f"{url[:200]!r} is not an address of a page: it must start with http:// or https://")
    return found.copy_with(fragment=None)


def is_same_host(one: httpx.URL, other: httpx.URL) -> bool:
    """Return whether two addresses have the same host and port. The default ports count as equal: port 80 of an http
    address equals port 443 of an https address.
    """

    def port(url: httpx.URL) -> int:
        given = url.port or _DEFAULT_PORTS[url.scheme]
        return 0 if given == _DEFAULT_PORTS[url.scheme] else given

    return (one.host.lower(), port(one)) == (other.host.lower(), port(other))


def _shown(url: httpx.URL) -> str:
    return str(url)[:500]


def name_of_page(url: str, *, with_host: bool) -> str:
    """Return the id of a page: the path and query of its address, and with `with_host` also the host.

    >>> name_of_page("https://a.example/guide/", with_host=False)
    'guide/index.html'
    >>> name_of_page("https://a.example/b?c=1", with_host=True)
    'a.example/b?c=1'
    """
    found = httpx.URL(url)
    parts = [part for part in found.path.split("/")[1:] if part not in ("", ".", "..")]
    if found.path.endswith("/") or not parts:
        parts.append(_INDEX)
    path = "/".join(([found.host] if with_host else []) + parts)
    query = found.query.decode("ascii")
    name = f"{path}?{query}" if query else path
    return "".join(character if character.isprintable() and character != "\\" else "_" for character in name)


def file_of(page: FetchedPage, name: str) -> GivenFile:
    """Return a page as a file whose metadata has the address of the page. `name` becomes the name of the file.

    If the response names an encoding other than UTF-8, convert HTML, Markdown and pages of an unknown format to UTF-8.
    Other formats, such as PDF, and gzipped pages stay unchanged.
    """
    data = page.data
    if page.charset and (page.format in ("html", "markdown") or not page.format) and not decoding.is_gzip(data):
        text = decoding.decode_as(data, page.charset) if page.charset.lower() not in ("utf-8", "utf8") else None
        data = data if text is None else text.encode("utf-8", "replace")
    return GivenFile.named(name, data, origin=page.url, metadata={URL: page.url})
