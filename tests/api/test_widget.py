"""The widget: its file, and its use in a browser on a page of another origin with a strict policy.

The page is the example of docs/integrations/widget.md. The documents in the cluster are hostile.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from qa_cluster.access.records import ASK, SCOPES, SEARCH, new_key
from qa_cluster.api.routes.page import widget_script
from tests.api.keyed_requests import bearer
from tests.api.service_under_test import listening, serving
from tests.client.engines import opened
from tests.client.scripted_cluster import ScriptedCluster
from tests.docs.blocks import ROOT, blocks
from tests.harness.browser import Browser, browser, program
from tests.harness.ports import free_port

MAX_BYTES = 36 * 1024
DOCUMENT = "integrations/widget.md"
HIT = "window.hit = 1"
HOSTILE = f'<img src=x onerror="{HIT}"><script>{HIT}</script>'
ROOT_OF = "document.querySelector('qa-cluster-search').shadowRoot"
DIALOG = f"{ROOT_OF}.querySelector('dialog')"
OPTIONS = f"[...{ROOT_OF}.querySelectorAll('[role=option]')]"
FOCUS = f"{ROOT_OF}.activeElement"


def example() -> str:
    """The HTML of the example in the document."""
    text = (ROOT / "docs" / DOCUMENT).read_text()
    (page,) = (block.text for block in blocks(DOCUMENT, text) if block.text.startswith("<!doctype"))
    return page


async def test_the_script_is_small_and_is_cached_by_version(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        script = await client.get("/widget.js")
        assert script.headers["content-type"].startswith("text/javascript")
        assert len(script.content) <= MAX_BYTES
        assert script.headers["cache-control"] == "public, max-age=3600"
        assert script.headers["cross-origin-resource-policy"] == "cross-origin"
        assert "origin" in script.headers["vary"].lower()
        version = script.headers["etag"].strip('"')
        pinned = await client.get("/widget.js", params={"v": version})
        assert "immutable" in pinned.headers["cache-control"] and pinned.content == script.content
        old = await client.get("/widget.js", params={"v": "0" * 16})
        assert "immutable" not in old.headers["cache-control"] and old.content == script.content
        unchanged = await client.get("/widget.js", headers={"if-none-match": script.headers["etag"]})
        assert (unchanged.status_code, unchanged.content) == (304, b"")
        foreign = {"origin": "https://docs.example", "sec-fetch-site": "cross-site"}
        assert (await client.get("/widget.js", headers=foreign)).status_code == 200


def test_the_script_respects_a_strict_policy() -> None:
    script = widget_script()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|import\(", script)
    assert not re.search(r"setAttribute\(.style|\.style\b|<style|https?://", script)
    assert not re.search(r"^(?:import|export) ", script, re.MULTILINE)


@contextmanager
def site(page: str, policy: str, port: int) -> Iterator[None]:
    """Run a web server with one page on `port`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/" else 204)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-security-policy", policy)
            self.end_headers()
            if self.path == "/":
                self.wfile.write(page.encode())

        def log_message(self, format: str, *values: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@asynccontextmanager
async def hostile_service(cluster: ScriptedCluster, origin: str) -> AsyncIterator[tuple[str, str]]:
    """A service with hostile documents that allows `origin`: its address, and a key to ask and search."""
    async with opened(cluster) as engine:
        owner, owner_text = new_key("owner", SCOPES, now=1_795_000_000)
        reader, reader_text = new_key("site", (ASK, SEARCH), now=1_795_000_000)
        await engine.api_keys.add(owner)
        await engine.api_keys.add(reader)
        async with listening(cluster, cors_origins=origin) as (_, client):
            for name, text, url in (
                ("evil", f"{HOSTILE} Mallory wrote it.", f"javascript:{HIT}"),
                ("good", "Ada wrote it. Bob read it.", "https://docs.example.org/good.html"),
            ):
                body = {"text": text, "title": f"{HOSTILE} {name}", "metadata": {"url": url}}
                stored = await client.put(f"/documents/{name}", json=body, headers=bearer(owner_text))
                assert stored.is_success, stored.text
            yield str(client.base_url).rstrip("/"), reader_text


@pytest.mark.hostile
async def test_the_example_works_under_a_strict_policy(cluster: ScriptedCluster) -> None:
    if program() is None:
        pytest.skip("Chromium is not installed")
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    async with hostile_service(cluster, origin) as (service, key):
        page = example().replace("https://qa.example.org", service).replace("qac_...", key)
        policy = f"default-src 'none'; script-src {service}; connect-src {service}; require-trusted-types-for 'script'"
        with site(page, policy, port), browser() as chromium:
            await asyncio.to_thread(use, chromium, f"{origin}/", service)
            await asyncio.to_thread(refused, chromium, f"http://localhost:{port}/")


def use(chromium: Browser, address: str, service: str) -> None:
    """Use the widget as a visitor does."""
    chromium.size(1000, 800)
    chromium.open(address)
    assert chromium.run(f"{ROOT_OF}.querySelector('.open span').textContent") == "Search the manual"
    assert not chromium.run(f"{DIALOG}.open")
    chromium.press("/")
    assert chromium.run(f"{DIALOG}.open && {FOCUS}.getAttribute('role') === 'combobox' && {FOCUS}.value === ''")
    # results while typing
    chromium.type("wrot")
    chromium.wait(f"{OPTIONS}.length === 3")
    chromium.type("e")
    chromium.wait(f"{OPTIONS}.length === 3 && {OPTIONS}[0].textContent === 'Ask wrote'")
    assert chromium.run(f"{FOCUS}.getAttribute('aria-expanded')") == "true"
    links = dict(
        chromium.run(f"{OPTIONS}.slice(1).map((each) => [each.querySelector('.path').textContent, each.href])")
    )
    assert set(links) == {f"{HOSTILE} evil", f"{HOSTILE} good"}
    assert links[f"{HOSTILE} good"] == "https://docs.example.org/good.html"
    assert links[f"{HOSTILE} evil"].startswith(f"{service}/?document=evil&")
    # arrow keys wrap around
    selected = f"{OPTIONS}.findIndex((each) => each.getAttribute('aria-selected') === 'true')"
    assert chromium.run(selected) == 0
    chromium.press("ArrowDown")
    assert chromium.run(selected) == 1
    assert chromium.run(f"{FOCUS}.getAttribute('aria-activedescendant') === {OPTIONS}[1].id")
    chromium.press("ArrowUp")
    chromium.press("ArrowUp")
    assert chromium.run(selected) == 2
    chromium.press("ArrowDown")
    # the answer
    chromium.type(" it, and who did?")
    chromium.press("Enter")
    chromium.wait(f"{ROOT_OF}.querySelector('.answer .found')")
    assert chromium.run(f"{ROOT_OF}.querySelector('.answer .found').textContent") in ("Ada", "img")
    assert chromium.run(f"{ROOT_OF}.querySelectorAll('.answers mark').length") >= 1
    use_keys(chromium)
    # no script of a document has run, and no request went to another host
    assert chromium.run("window.hit") is None
    assert chromium.run(f"{ROOT_OF}.querySelectorAll('img, script, style, [style]').length") == 0
    assert chromium.complaints == []
    elsewhere = [each for each in chromium.requests if not each.startswith((address, service, "about:", "data:"))]
    assert elsewhere == []


def use_keys(chromium: Browser) -> None:
    """Move the focus, close and open the dialog, and change the colours."""
    # the focus stays in the dialog
    visited = []
    for _ in range(12):
        chromium.press("Tab")
        visited.append(chromium.run(f"document.activeElement.localName + ' ' + ({FOCUS} ? {FOCUS}.localName : '')"))
    assert {each.split(" ")[0] for each in visited} == {"qa-cluster-search"}
    assert {"qa-cluster-search input", "qa-cluster-search button", "qa-cluster-search a"} <= set(visited)
    # Esc closes the dialog, Ctrl-K opens and closes it
    chromium.press("Escape")
    chromium.wait(f"!{DIALOG}.open")
    chromium.press("k", control=True)
    assert chromium.run(f"{DIALOG}.open")
    chromium.press("k", control=True)
    assert not chromium.run(f"{DIALOG}.open")
    # dark mode
    colour = f"getComputedStyle({DIALOG}).backgroundColor"
    light = chromium.run(colour)
    chromium.size(390, 844, dark=True, phone=True)
    assert chromium.run(colour) != light
    assert chromium.run(f"getComputedStyle({ROOT_OF}.querySelector('.hints')).display") == "none"


def refused(chromium: Browser, address: str) -> None:
    """Check that the widget on a site that is not allowed shows an error with its cause."""
    chromium.size(1000, 800)
    chromium.open(address)
    chromium.press("/")
    chromium.type("wrote")
    chromium.wait(f"{ROOT_OF}.querySelector('.wrong')")
    assert "cannot be reached" in chromium.run(f"{ROOT_OF}.querySelector('.wrong h2').textContent")
    assert "cors_origins" in chromium.run(f"{ROOT_OF}.querySelector('.wrong details').textContent")


def test_the_document_names_the_options_of_the_script_tag() -> None:
    rows = re.findall(r"^\| `data-([a-z]+)` \|", (ROOT / "docs" / DOCUMENT).read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(set(re.findall(r"given\.([a-z]+)", widget_script())))
