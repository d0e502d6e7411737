"""API keys on the page, run by Node with a minimal document: the page sends no key before the user enters one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.programs import ROOT

PAGE = ROOT / "api" / "page"
SCRIPT = """
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


def test_the_page_sends_its_key_until_the_service_refuses_the_key(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    for name in ("key", "dom"):
        text = (PAGE / f"{name}.js").read_text()
        (tmp_path / f"{name}.mjs").write_text(re.sub(r'"/page/(\w+)\.js"', r'"./\1.mjs"', text))
    (tmp_path / "run.mjs").write_text(SCRIPT)
    done = subprocess.run([node, "run.mjs"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
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
