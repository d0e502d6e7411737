"""Modules of the page, run by Node with a minimal document: API keys, and links of results."""

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
KEY_SCRIPT = """
const stored = new Map();
globalThis.sessionStorage = { getItem: (k) => stored.get(k) ?? null, setItem: (k, v) => stored.set(k, v),
  removeItem: (k) => stored.delete(k) };
globalThis.document = { createElement: (name) => ({ name, attributes: {}, children: [], listeners: {}, value: "",
  setAttribute(k, v) { this.attributes[k] = v; }, append(...c) { this.children.push(...c); },
  addEventListener(e, f) { this.listeners[e] = f; } }) };
const sent = [];
globalThis.fetch = (path, options) => { sent.push(options.headers ?? {}); };
const { ask_service, key_form, when_given } = await import("./key.mjs");
let given = 0;
when_given(() => { given += 1; });
ask_service("/qa", { headers: { accept: "x" } });
const asked = key_form({ status: 401, detail: "needs a key" });
const form = asked.children[2];
form.children[1].value = " qac_a_b ";
form.listeners.submit({ preventDefault() {} });
ask_service("/qa", { headers: { accept: "x" } });
const forbidden = key_form({ status: 403, detail: "it may search only" });
ask_service("/search");
const refused = key_form({ status: 401, detail: "no such key" });
ask_service("/search");
const said = (part) => [asked, forbidden, refused].map((each) => each.children[part].children[0]);
console.log(JSON.stringify({ sent, given, titles: said(0), texts: said(1), type: form.children[1].attributes.type }));
"""
LINK_SCRIPT = """
globalThis.sessionStorage = { getItem: () => null, setItem() {}, removeItem() {} };
globalThis.document = { createElement: (name) => ({ name, attributes: {}, children: [],
  setAttribute(k, v) { this.attributes[k] = v; }, append(...c) { this.children.push(...c); } }) };
const { link_to, link_to_text, show_document } = await import("./documents.mjs");
const all = [];
for (const url of JSON.parse(process.argv[2])) {
  const found = { document_id: "a", document_version: "v", title: "A", section: ["B"], start: 1, end: 2, url };
  const stored = { id: "a", title: "A", text: "T.", sentences: 1, version: "v", metadata: { url } };
  globalThis.fetch = async () => ({ ok: true, json: async () => stored });
  const shown = await show_document(new URLSearchParams({ document: "a" }));
  all.push([link_to(found, "c"), link_to_text(found, "c"), shown]);
}
console.log(JSON.stringify(all));
"""


def run(folder: Path, script: str, *arguments: str) -> Any:
    """Run a script with the page's modules next to it; return the JSON that it prints."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    for module in PAGE.glob("*.js"):
        text = re.sub(r'"/page/(\w+)\.js"', r'"./\1.mjs"', module.read_text())
        (folder / module.with_suffix(".mjs").name).write_text(text)
    (folder / "run.mjs").write_text(script)
    command = [node, "run.mjs", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_page_sends_its_key_until_the_service_refuses_the_key(tmp_path: Path) -> None:
    found = run(tmp_path, KEY_SCRIPT)
    key = {"authorization": "Bearer qac_a_b"}
    assert found["sent"] == [{"accept": "x"}, {"accept": "x", **key}, key, {}]
    assert (found["given"], found["type"]) == (1, "password")
    assert found["titles"] == [
        "This service requires an API key",
        "The key does not allow this request",
        "The key was not accepted",
    ]
    kept = " This page keeps the key until you close the tab."
    assert [text.removesuffix(kept) for text in found["texts"]] == [
        "Its operator can create one with “qa-cluster keys create”.",
        "It may search only.",
        "No such key.",
    ]


def test_requests_of_the_page_have_the_key_except_on_open_routes() -> None:
    calls = [
        (path.name, call)
        for path in sorted(PAGE.glob("*.js"))
        if path.name != "widget.js"  # the widget has its key in its script tag
        for call in re.findall(r"(?<!\w)fetch\(([^)]*)\)", path.read_text())
    ]
    assert [call for call in calls if call[1] != '"/readyz"'] == [("key.js", "path, { ...options, headers }")]


@pytest.mark.hostile
def test_a_result_links_to_its_stored_text_and_only_to_web_addresses(tmp_path: Path) -> None:
    url = "https://docs.example.org/a.html"
    others = (
        "",
        None,
        5,
        "javascript:alert(1)",
        "data:text/html,x",
        "//evil.example",
        " https:",
        "http://[",
        "https://",
    )
    (link, text, document), *refused = run(tmp_path, LINK_SCRIPT, json.dumps([url, *others]))
    assert link["attributes"] == {"href": url, "rel": "noopener noreferrer"} and link["children"] == ["A \u203a B"]
    assert text["children"][1]["attributes"]["href"] == "/?document=a&version=v&start=1&end=2&collection=c"
    assert f'"href": "{url}"' in json.dumps(document)
    for other, (link, text, document) in zip(others, refused, strict=True):
        assert link["attributes"]["href"].startswith("/?document=a&") and "data-here" in link["attributes"], other
        assert text is None and "href" not in json.dumps(document), other
