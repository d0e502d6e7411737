"""`qa-cluster ingest` of a web site, of standard input, and of files that git tracks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.command import Qa, needs_reader
from tests.harness.web_site import WebSite

pytestmark = [needs_reader, pytest.mark.timeout(300)]


@pytest.fixture
def web() -> Iterator[WebSite]:
    server = WebSite()
    yield server
    server.close()


def words(text: str) -> str:
    """The text of a message without the frame that the terminal shows."""
    return " ".join(text.replace("│", " ").split())


def listed(qa: Qa, prefix: str) -> list[str]:
    found = json.loads(qa("documents", "list", "--prefix", prefix, "--json").stdout)
    return sorted(entry["id"] for entry in found["data"])


def test_a_web_site_is_stored_and_synchronized(up: Qa, web: WebSite) -> None:
    web.page("/robots.txt", "User-agent: *\nDisallow: /private", "text/plain")
    for path in ("/", "/guide/a", "/guide/b", "/private/c"):
        web.page(path, f"<h1>Page {path}</h1><p>The fee is five euros.</p>")
    urls = [f"{web.url}{path}" for path in ("/", "/guide/a", "/guide/b", "/private/c")]
    web.sitemap("/sitemap.xml", *urls, "http://other.example/")
    command = ("ingest", "--sitemap", f"{web.url}/sitemap.xml", "--prefix", "site/", "--sync", "--yes")
    refused = up(*command, code=2)
    assert "which is not public (--allow-private" in words(refused.stderr)
    done = up(*command, "--allow-private", code=1)
    assert "3 documents stored, 1 skipped" in done.stdout and "1 address of other hosts left out" in done.stderr
    assert "robots.txt does not allow qa-cluster to fetch" in done.stderr
    assert listed(up, "site/") == ["site/guide/a", "site/guide/b", "site/index.html"]
    shown = json.loads(up("documents", "show", "site/guide/a", "--json").stdout)
    assert (shown["title"], shown["metadata"]["url"]) == ("Page /guide/a", f"{web.url}/guide/a")

    web.page("/guide/b", status=500)
    web.page("/guide/a", status=410)
    done = up(*command, "--allow-private", "--on-error", "skip")
    assert "1 document deleted" in done.stdout
    assert listed(up, "site/") == ["site/guide/b", "site/index.html"]


def test_a_list_of_addresses(up: Qa, web: WebSite) -> None:
    web.page("/a.md", "# Title\n\nWords here.", "text/markdown")
    (up.folder / "urls.txt").write_text(f"# pages\n{web.url}/a.md\n")
    up("ingest", "--urls", "urls.txt", "--allow-private", "--prefix", "list/")
    assert listed(up, "list/") == ["list/127.0.0.1/a.md"]
    (up.folder / "bad.txt").write_text("file:///etc/passwd\n")
    assert "is not an address" in up("ingest", "--urls", "bad.txt", code=2).stderr
    (up.folder / "none.txt").write_text("# none\n")
    assert "names no pages" in up("ingest", "--urls", "none.txt", code=2).stderr
    (up.folder / "two.txt").write_text(f"{web.url}/a.md\n{web.url}/b.md\n")
    assert "more than 1 pages" in words(up("ingest", "--urls", "two.txt", "--max-pages", "1", code=2).stderr)


@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        ("notes/a.md", b"# Notes\n\nIt is so.\n", ["in/notes/a.md"]),
        ("dump.jsonl", b'{"id": "x", "text": "One."}\n{"id": "y", "text": "Two."}\n', ["in/x", "in/y"]),
    ],
)
def test_standard_input(up: Qa, name: str, data: bytes, wanted: list[str]) -> None:
    with up.start("ingest", "-", "--name", name, "--prefix", "in/", stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        program.stdin.write(data.decode())
        program.stdin.close()
        assert program.wait(60) == 0
    assert set(wanted) <= set(listed(up, "in/"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-",), "--name"),
        (("urls", "--name", "a.md"), "--name"),
        (("-", "urls", "--name", "a.md"), "no other PATH"),
        (("-", "--name", "../a.md"), "is not the name of a file"),
        (("urls", "--sitemap", "http://a/"), "give only one of"),
        (("--sitemap", "http://a/", "--raw"), "--raw"),
        (("--sitemap", "http://a/", "--sync", "--prefix", "a/", "--adopt"), "--adopt"),
        (("--sitemap", "ftp://a/"), "is not an address"),
        (("--sitemap", "http://a/", "--exclude", "x"), "name a folder"),
        (("urls", "--allow-private"), "--allow-private"),
        (("urls", "--tracked"), "git cannot list its files"),
    ],
)
def test_wrong_use_is_refused(up: Qa, arguments: tuple[str, ...], said: str) -> None:
    (up.folder / "urls").mkdir(exist_ok=True)
    (up.folder / "urls" / "a.md").write_text("# A\n\nWords.\n")
    done = up("ingest", *arguments, code=1 if "--tracked" in arguments else 2)
    assert said in words(done.stdout + done.stderr)
