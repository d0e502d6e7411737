"""Pages of a web site: what is fetched, what is refused, and what a hostile site can do."""

from __future__ import annotations

import gzip
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest

from qa_cluster.cluster.fetching import robots, site
from qa_cluster.cluster.fetching.public_connections import is_public
from qa_cluster.cluster.fetching.site import Site, checked_url, file_of, is_same_host, name_of_page
from qa_cluster.cluster.fetching.sitemaps import parse_list, parse_sitemap
from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.sources.extracted import NoText
from tests.harness.figures import Figures
from tests.harness.web_site import PAGE, WebSite


@pytest.fixture
def web() -> Iterator[WebSite]:
    server = WebSite()
    yield server
    server.close()


def test_a_page_with_its_address_and_its_encoding(web: WebSite) -> None:
    web.page("/guide/", PAGE.encode("iso-8859-2"), "text/html; charset=iso-8859-2")
    with Site(allow_private=True) as fetched:
        page = fetched.fetch(f"{web.url}/guide/#part")
    assert (page.url, page.format) == (f"{web.url}/guide/", "html")
    file = file_of(page, name_of_page(page.url, with_host=False))
    assert (file.name, file.metadata, file.data.decode()) == ("guide/index.html", {"url": page.url}, PAGE)


def test_a_sitemap_and_the_sitemaps_that_it_names(web: WebSite) -> None:
    web.sitemap("/sitemap.xml", f"{web.url}/1.xml", f"{web.url}/2.xml.gz", f"{web.url}/1.xml", root="sitemapindex")
    web.sitemap("/1.xml", f"{web.url}/a", "http://other.example/b", f"{web.url}/a", "ftp://x", "http://[bad")
    web.sitemap("/2.xml", f"{web.url}/c")
    status, headers, body = web.replies["/2.xml"]
    web.replies["/2.xml.gz"] = (status, headers, gzip.compress(body))
    with Site(allow_private=True) as fetched:
        assert fetched.listed(f"{web.url}/sitemap.xml") == [f"{web.url}/a", f"{web.url}/c"]
        assert fetched.left_out == 3
    with Site(allow_private=True, max_pages=1) as fetched, pytest.raises(InvalidInput, match="more than 1 pages"):
        fetched.listed(f"{web.url}/sitemap.xml")
    web.sitemap("/loop.xml", f"{web.url}/loop.xml", root="sitemapindex")
    web.sitemap("/many.xml", *(f"{web.url}/{n}.xml" for n in range(site.MAX_SITEMAPS + 1)), root="sitemapindex")
    with Site(allow_private=True) as fetched:
        assert fetched.listed(f"{web.url}/loop.xml") == []
        with pytest.raises(InvalidInput, match="more than 100 sitemaps"):
            fetched.listed(f"{web.url}/many.xml")


@pytest.mark.parametrize("body", [b"", b"<html/>", b"no xml", b"<urlset>"])
def test_an_invalid_sitemap_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="not a sitemap"):
        parse_sitemap(body, "s")


def test_a_sitemap_expands_no_entities_and_reads_no_files() -> None:
    entities = '<!ENTITY a "http://x"><!ENTITY f SYSTEM "file:///etc/passwd">'
    places = "".join(f"<url><loc>{text}</loc></url>" for text in ("&a;", "&f;", "http://y/"))
    assert parse_sitemap(f"<!DOCTYPE u [{entities}]><urlset>{places}</urlset>".encode(), "s").urls == ["http://y/"]
    laughs = "".join(f'<!ENTITY a{n} "{f"&a{n + 1};" * 10}">' for n in range(9))
    with pytest.raises(InvalidInput, match="amplification"):
        parse_sitemap(f'<!DOCTYPE u [{laughs}<!ENTITY a9 "ha">]><urlset>&a0;</urlset>'.encode(), "s")


def test_a_list_of_addresses() -> None:
    assert parse_list(b"# all\nhttp://a/1\n\n https://b/2 \nhttp://a/1\n", "u") == ["http://a/1", "https://b/2"]
    for wrong in (b"file:///etc/passwd", b"a.html", b"http://a/" + b"x" * 3000):
        with pytest.raises(InvalidInput, match="is not an address"):
            parse_list(wrong, "u")


def test_robots_txt_is_obeyed(web: WebSite) -> None:
    web.page("/robots.txt", "User-agent: *\nDisallow: /private", "text/plain")
    web.page("/private/a")
    web.page("/open")
    web.page("/moved", "", status=302, location="/private/a")
    with Site(allow_private=True) as fetched:
        for path in ("/private/a", "/moved"):
            with pytest.raises(InvalidInput, match=r"robots\.txt does not allow"):
                fetched.fetch(web.url + path)
        fetched.fetch(f"{web.url}/open")
    assert web.asked == ["/robots.txt", "/moved", "/open"]


@pytest.mark.parametrize(("status", "may"), [(404, True), (403, True), (500, False), (503, False)])
def test_missing_rules_allow_all_and_a_broken_server_allows_nothing(web: WebSite, status: int, may: bool) -> None:
    web.page("/robots.txt", "", status=status)
    web.page("/a")
    with Site(allow_private=True) as fetched:
        if may:
            assert fetched.fetch(f"{web.url}/a").data
        else:
            with pytest.raises(InvalidInput, match=f"status is {status}"):
                fetched.fetch(f"{web.url}/a")


ROBOTS = """
User-agent: other
Disallow: /

User-agent: QA-cluster
User-agent: more
Disallow: /*.pdf$
Disallow: /a/*/b
Allow: /a/x/b/ok   # a comment
Crawl-delay: 1000
"""


@pytest.mark.parametrize(
    ("path", "may"),
    [
        ("/", True), ("/f.pdf", False), ("/f.pdf?x", True), ("/a/x/b", False), ("/a/x/b/ok", True), ("/a/b", True),
        ("/a/x/y/b/c", False), ("/a.pdf.pdf", False),
    ],
)  # fmt: skip
def test_the_rules_of_robots_txt(path: str, may: bool) -> None:
    rules = robots.parse(ROBOTS, "qa-cluster")
    assert rules.allows(path) is may
    assert rules.delay == robots.MAX_DELAY_SECONDS


@pytest.mark.hostile
def test_hostile_rules_take_linear_time(figures: Figures) -> None:
    text = "User-agent: *\n" + "Disallow: /" + "*a" * 200_000 + "$\n" + "Disallow: /*a*b*c*d$\n" * 5000
    with figures.measured("rules of robots.txt with many stars", limit_seconds=2.0):
        assert robots.parse(text, "qa-cluster").allows("/" + "a" * 2000)


def test_redirects_stay_on_the_host_and_end(web: WebSite) -> None:
    web.page("/a", "", status=301, location="/b")
    web.page("/b", "x")
    web.page("/away", "", status=302, location="http://other.example/")
    web.page("/file", "", status=302, location="file:///etc/passwd")
    web.page("/user", "", status=302, location=web.url.replace("http://", "http://u:p@"))
    web.page("/loop", "", status=302, location="/loop")
    with Site(allow_private=True) as fetched:
        assert fetched.fetch(f"{web.url}/a").url == f"{web.url}/b"
        refused = {
            "/away": "another host",
            "/file": "not an address",
            "/user": "must not contain a user name",
            "/loop": "more than 5",
        }
        for path, message in refused.items():
            with pytest.raises(InvalidInput, match=message):
                fetched.fetch(web.url + path)


def test_pages_that_are_gone_broken_or_too_large(web: WebSite, monkeypatch: pytest.MonkeyPatch) -> None:
    web.page("/gone", status=410)
    web.page("/broken", status=500)
    web.page("/large", b"x" * 5000)
    web.page("/coded", b"x", **{"content-encoding": "br"})
    web.page("/short", b"x", **{"content-length": "100"})
    with Site(allow_private=True) as fetched:
        with pytest.raises(NoText, match="no longer has it"):
            fetched.fetch(f"{web.url}/gone")
        with pytest.raises(InputTooLong, match="more than 1000 bytes"):
            fetched.fetch(f"{web.url}/large", 1000)
        for path, message in (
            ("/broken", "status is 500"),
            ("/coded", "not requested"),
            ("/short", "cannot be fetched"),
        ):
            with pytest.raises(InvalidInput, match=message):
                fetched.fetch(web.url + path)
        with pytest.raises(InvalidInput, match="cannot be fetched"):
            fetched.fetch("http://127.0.0.1:1/")


def test_a_page_that_arrives_slowly_ends(web: WebSite, monkeypatch: pytest.MonkeyPatch) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(200):
            try:
                handler.wfile.write(b"x")
            except OSError:
                return
            time.sleep(0.05)

    web.replies["/slow"] = drip
    monkeypatch.setattr(site, "PAGE_SECONDS", 0.5)
    with Site(allow_private=True) as fetched, pytest.raises(InvalidInput, match=r"did not arrive in 0\.5 s"):
        fetched.fetch(f"{web.url}/slow")


# ---- addresses ----


PRIVATE = """
127.0.0.1 10.1.2.3 192.168.0.1 172.16.0.1 169.254.169.254 0.0.0.0 100.64.0.1 224.0.0.1 255.255.255.255 192.0.2.1
::1 :: fe80::1 fe80::1%eth0 fc00::1 ff02::1 ::ffff:127.0.0.1 2002:7f00:1:: 2001:0:7f00:1:: 64:ff9b::7f00:1
64:ff9b::a00:1
"""


@pytest.mark.parametrize("address", PRIVATE.split())
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "127.1", "[::ffff:7f00:1]"]
)
def test_private_hosts_are_refused_however_they_are_written(web: WebSite, host: str) -> None:
    port = web.url.rpartition(":")[2]
    with Site() as fetched, pytest.raises(InvalidInput, match=r"not public|cannot be fetched|not an address"):
        fetched.fetch(f"http://{host}:{port}/a")
    assert web.asked == []


def test_a_name_that_changes_its_address_does_not_pass(web: WebSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the first look-up returns a public address, a later look-up a private address."""
    port = int(web.url.rpartition(":")[2])
    looked_up: list[str] = []
    connected: list[str] = []
    answers = iter(["93.184.216.34", "127.0.0.1", "127.0.0.1"])

    def look_up(host: str, *more: Any, **options: Any) -> list[Any]:
        looked_up.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    def connect(address: tuple[str, int], *more: Any, **options: Any) -> socket.socket:
        connected.append(address[0])
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", connect)
    with Site() as fetched:
        with pytest.raises(InvalidInput, match="no network"):
            fetched.fetch(f"http://rebind.example:{port}/a")
        with pytest.raises(InvalidInput, match=r"has the address 127\.0\.0\.1, which is not public"):
            fetched.fetch(f"http://rebind.example:{port}/a")
    # the connection goes to the address that was checked: the name is not looked up again
    assert (looked_up, connected) == (["rebind.example"] * 2, ["93.184.216.34"])
    assert web.asked == []


def test_a_name_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, 1, 6, "", (address, 80)) for address in ("93.184.216.34", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with Site() as fetched, pytest.raises(InvalidInput, match=r"10\.0\.0\.1, which is not public"):
        fetched.fetch("http://both.example/")


def test_no_proxy_is_used(web: WebSite, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    web.page("/a")
    with Site(allow_private=True) as fetched:
        assert fetched.fetch(f"{web.url}/a").data


@pytest.mark.parametrize("url", ["ftp://a/", "http:///x", "/a", "", "http://a:99999/", "javascript:x"])
def test_invalid_addresses_of_pages(url: str) -> None:
    with pytest.raises(InvalidInput, match="is not an address"):
        checked_url(url)


@pytest.mark.parametrize("user", ["u", "u:secret"])
def test_an_address_has_no_user(user: str) -> None:
    with pytest.raises(InvalidInput, match=r"'pages\.test': an address must not contain a user name") as refused:
        checked_url(f"http://{user}@pages.test/")
    assert "secret" not in str(refused.value)


def test_the_same_host() -> None:
    def same(one: str, other: str) -> bool:
        return is_same_host(httpx.URL(one), httpx.URL(other))

    assert same("http://a.example/", "https://A.example/b") and same("http://a:80", "http://a")
    assert not same("http://a.example", "http://a.example:8080") and not same("http://a", "http://b")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://a/", "index.html"), ("http://a", "index.html"), ("http://a/x/../y", "y"), ("http://a/%2e%2e/y", "y"),
        ("http://a/b%5Cc", "b_c"), ("http://a/b%00c", "b_c"), ("http://a//x//", "x/index.html"),
        ("http://a/?q=1", "index.html?q=1"),
        ("http://a/caf%C3%A9.html", "café.html"), ("http://a/..%2f..%2fetc", "etc"),
    ],
)  # fmt: skip
def test_names_of_pages(url: str, name: str) -> None:
    found = name_of_page(url, with_host=False)
    assert found == name
    assert file_of(site.FetchedPage(url, b""), found).name == name
