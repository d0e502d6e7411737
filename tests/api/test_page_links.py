"""Links of the page, run by Node with a minimal document: a result links only to a web address."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.harness.programs import ROOT

PAGE = ROOT / "api" / "page"
SCRIPT = """
globalThis.sessionStorage = { getItem: () => null, setItem() {}, removeItem() {} };
globalThis.document = { createElement: (name) => ({ name, attributes: {}, children: [],
  setAttribute(k, v) { this.attributes[k] = v; }, append(...c) { this.children.push(...c); } }) };
const { link_to, link_to_text, show_document } = await import("./documents.mjs");
const found = JSON.parse(process.argv[2]);
const stored = { id: "a", title: "A", text: "T.", sentences: 1, version: "v", metadata: { url: found.url } };
globalThis.fetch = async () => ({ ok: true, json: async () => stored });
const shown = await show_document(new URLSearchParams({ document: "a" }));
console.log(JSON.stringify([link_to(found, "c"), link_to_text(found, "c"), shown]));
"""


@pytest.fixture
def shown(tmp_path: Path) -> Any:
    """A function that runs the page's functions for a result with a URL."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    for name in ("key", "dom", "documents", "found", "headings", "messages", "passage", "states"):
        text = (PAGE / f"{name}.js").read_text()
        (tmp_path / f"{name}.mjs").write_text(re.sub(r'"/page/(\w+)\.js"', r'"./\1.mjs"', text))
    (tmp_path / "run.mjs").write_text(SCRIPT)

    def run(url: object) -> tuple[Any, Any, str]:
        found = {"document_id": "a", "document_version": "v", "title": "A", "section": ["B"], "start": 1, "end": 2}
        done = subprocess.run(
            [node, "run.mjs", json.dumps({**found, "url": url})],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        link, text, document = json.loads(done.stdout)
        return link, text, json.dumps(document)

    return run


def test_a_result_links_to_its_own_page_and_to_its_stored_text(shown: Any) -> None:
    url = "https://docs.example.org/a.html"
    link, text, document = shown(url)
    assert link["attributes"] == {"href": url, "rel": "noopener noreferrer"} and link["children"] == ["A \u203a B"]
    assert text["children"][1]["attributes"]["href"] == "/?document=a&version=v&start=1&end=2&collection=c"
    assert f'"href": "{url}"' in document


@pytest.mark.hostile
@pytest.mark.parametrize(
    "url", ["", None, 5, "javascript:alert(1)", "data:text/html,x", "//evil.example", " https:", "http://[", "https://"]
)
def test_other_urls_than_web_addresses_are_not_links(shown: Any, url: object) -> None:
    link, text, document = shown(url)
    assert link["attributes"]["href"].startswith("/?document=a&") and "data-here" in link["attributes"]
    assert text is None
    assert "href" not in document
