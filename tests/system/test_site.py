"""`qa-cluster ingest --sync` of a site that changes: after each run, the documents match the pages.

The site has the files of an ordinary Sphinx build: pages with navigation, copies of the sources, scripts, an index, and
pages without text.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.clients.cluster_client import ClusterClient
from tests.harness.polling import eventually
from tests.harness.system import TOOL, System

pytestmark = pytest.mark.timeout(600)

BASE = "https://docs.example.org/manual/"
ROUNDS = 4
SECONDS = 60.0
_PAGE = """<!doctype html><html><head><title>{title} &mdash; Manual</title></head><body>
<div class="sphinxsidebar" role="navigation"><ul><li><a href="index.html">Manual</a></li></ul></div>
<div class="document"><div class="body" role="main"><section>{body}</section></div></div>
<div class="footer" role="contentinfo">Created using Sphinx.</div></body></html>"""
_TOPICS = ("anchor", "beacon", "compass", "davit", "ensign", "fender", "gangway", "halyard", "keel", "lantern", "mast")


class Site:
    """A built site; `pages` has the text of each page by its path without the suffix."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.numbers = iter(range(1000, 10_000))
        self.pages = {name: self.text(name) for name in (*_TOPICS, *(f"guide/{name}" for name in _TOPICS))}

    def text(self, name: str) -> str:
        """Make a new text for a page."""
        return f"The {name.rpartition('/')[2]} of the ship has number {next(self.numbers)}."

    def build(self) -> None:
        """Write the whole site again, as a site generator does."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, text in self.pages.items():
            title = name.rpartition("/")[2].title()
            self._write(f"{name}.html", _PAGE.format(title=title, body=f"<h1>{title}</h1><p>{text}</p>"))
            self._write(f"_sources/{name}.rst.txt", f"{title}\n=====\n\n{text}\n")
        for name in ("index", "search", "genindex", "guide/index"):
            self._write(f"{name}.html", _PAGE.format(title=name, body=""))
        for name in ("_static/doctools.js", "_static/readme.txt", "objects.inv", "searchindex.js", ".buildinfo"):
            self._write(name, "some words")

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def change(self) -> None:
        """Edit, delete, rename and add some pages."""
        edited, deleted, renamed = self.chance.sample(sorted(self.pages), 3)
        self.pages[edited] = self.text(edited)
        del self.pages[deleted]
        self.pages[f"guide/new/{renamed.rpartition('/')[2]}-{next(self.numbers)}"] = self.pages.pop(renamed)
        self.pages[f"added-{next(self.numbers)}"] = self.text("rope")

    def expected(self, prefix: str) -> dict[str, tuple[str, str]]:
        """The text and the address of each document."""
        return {f"{prefix}{name}.html": (text, f"{BASE}{name}.html") for name, text in self.pages.items()}


def stored(system: System, prefix: str) -> dict[str, tuple[str, str]]:
    """The last paragraph and the address of each stored document."""
    with ClusterClient(f"redis://127.0.0.1:{system.addresses[0][1]}") as client:
        documents = [client.get_document(entry.id) for entry in client.list_documents(prefix=prefix)]
    return {each.id: (each.text.strip().rpartition("\n")[2], each.metadata["url"]) for each in documents}


def options(site: Site, prefix: str) -> tuple[str, ...]:
    shared = ("--on-error", "skip", "--base-url", BASE, "--metadata", "product=ship", "--yes")
    return ("ingest", str(site.folder), "--prefix", prefix, "--sync", *shared)


def test_documents_match_the_pages_after_each_sync(system: System, tmp_path: Path) -> None:
    prefix, site = "site/", Site(tmp_path / "html", 1)
    for number in range(ROUNDS):
        site.build()
        done = system.cli(*options(site, prefix), "--json")
        report = json.loads(done.stdout)
        expected = site.expected(prefix)
        assert (report["stored"], len(report["skipped"])) == (len(expected), 4), done.stderr
        assert {each["reason"] for each in report["skipped"]} == {"contains no text (read as html)"}
        assert (report["deleted"], len(report["gone"])) == ((2, 2) if number else (0, 0))
        assert {Path(each["path"]).name for each in report["left_out"]} == {
            *("_sources", "_static", ".buildinfo", "objects.inv", "searchindex.js")
        }
        assert stored(system, prefix) == expected
        site.change()


def test_results_link_to_the_pages(service: System, tmp_path: Path) -> None:
    site = Site(tmp_path / "html", 3)
    site.build()
    service.cli(*options(site, "linked/"))
    address = f"http://127.0.0.1:{service.port}"
    question = urllib.parse.urlencode({"question": "Which number has the halyard?", "filter": "product=ship"})
    answers = fetched(f"{address}/qa?{question}")["answers"]
    assert answers and answers[0]["url"].startswith(BASE) and answers[0]["url"].endswith("/halyard.html")
    query = urllib.parse.urlencode({"q": "halyard", "filter": "product=ship"})
    assert {hit["url"].removeprefix(BASE) for hit in fetched(f"{address}/search?{query}")["hits"]} == {
        "halyard.html",
        "guide/halyard.html",
    }
    assert f"{BASE}halyard.html" in service.cli("search", "halyard", "--filter", "product=ship").stdout


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=SECONDS) as reply:
        return json.load(reply)


def test_a_killed_run_can_be_repeated(system: System, tmp_path: Path) -> None:
    """A run that is killed at any time deletes no document of an existing page, and the next run completes the work."""
    site = Site(tmp_path / "html", 4)
    for number in range(200):
        site.pages[f"many/{number}"] = site.text("plank")
    site.build()
    system.cli(*options(site, "killed/"))
    for delay in (0.6, 1.6):
        site.change()
        for number in range(200):
            site.pages[f"many/{number}"] = site.text("plank")
        site.build()
        command = [TOOL, *options(site, "killed/"), "--no-wait"]
        process = subprocess.Popen(command, env=system.environment, cwd=system.folder, stderr=subprocess.DEVNULL)
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        eventually(lambda: json.loads(system.cli("documents", "count", "--json").stdout)["waiting"] == 0, SECONDS)
        assert stored(system, "killed/").keys() >= site.expected("killed/").keys() - {
            name for name in site.expected("killed/") if "many" not in name
        }
        system.cli(*options(site, "killed/"))
        assert stored(system, "killed/") == site.expected("killed/")
