"""The page in a browser shows answers, guesses, documents and errors. The documents are hostile.

Chromium has to be installed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qa_cluster.documents.source_map import write_map
from tests.api.service_under_test import listening
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.browser import Browser, browser, program

HIT = "window.hit = 1"
HOSTILE = f'<img src=x onerror="{HIT}"><script>{HIT}</script>'
TEXT = (
    f"Guide\n\nIntroduction {HOSTILE}\n\nSteps\n\n1. Open the lid.\n2. Close the lid.\n\n"
    "Code\n\n    lid = open()\n    if lid:\n        close(lid)\n\nEnd\n\nAda wrote it."
)
HEADINGS = (("Guide",), ("Guide", "Steps"), ("Guide", "Code"), ("Guide", "Code", "End"))
DONE = (
    "document.getElementById('result').getAttribute('aria-busy') === 'false' && document.querySelector('#result > *')"
)
RESULT = "document.getElementById('result')"


def document() -> dict[str, Any]:
    sections = [(TEXT.index(f"{path[-1]}\n\n"), path) for path in HEADINGS]
    metadata = {"url": "https://docs.example.org/guide.html", "_source": write_map("guide.md", "markdown", 1, sections)}
    return {"text": TEXT, "title": "Guide", "metadata": metadata}


@pytest.mark.hostile
async def test_the_page_in_a_browser(cluster: ScriptedCluster) -> None:
    if program() is None:
        pytest.skip("Chromium is not installed")
    async with listening(cluster) as (_, client):
        evil = {"text": f"{HOSTILE} Mallory wrote it.", "title": HOSTILE, "metadata": {"url": f"javascript:{HIT}"}}
        for name, body in (("evil", evil), ("guide", document())):
            stored = await client.put(f"/documents/{name}", json=body)
            assert stored.is_success, stored.text
        await client.post("/collections", json={"name": "books"})
        await asyncio.to_thread(look, str(client.base_url).rstrip("/"))


def look(service: str) -> None:
    """Check the states of the page, one after the other."""
    with browser() as chromium:
        chromium.size(1000, 800)
        look_at_answers(chromium, service)
        look_at_typing(chromium, service)
        look_at_documents(chromium, service)
        look_at_others(chromium, service)
        assert chromium.run("window.hit") is None
        # the browser itself reports a 404 for the missing document
        assert [text for text in chromium.complaints if "404" not in text] == []
        assert [each for each in chromium.requests if not each.startswith((service, "about:", "data:"))] == []


def show(chromium: Browser, address: str) -> None:
    chromium.open(address)
    chromium.wait(DONE)


def look_at_answers(chromium: Browser, service: str) -> None:
    show(chromium, f"{service}/?question=Who+wrote+it%3F")
    assert chromium.run(f"{RESULT}.querySelectorAll('.answer .passage mark').length") == 1
    assert chromium.run(f"{RESULT}.querySelectorAll('img, script').length") == 0
    links = chromium.run(f"[...{RESULT}.querySelectorAll('a')].map((each) => each.href)")
    assert links and all(each.startswith((service, "https://docs.example.org/")) for each in links)
    found = "(await import('/page/found.js'))"
    answer = {"rank": 1, "passage_id": "a:1", "score": 0.6}
    answers = [answer, {**answer, "score": 0.2}, *[{**answer, "passage_id": "a:2", "score": 0.1}] * 2]
    kept = chromium.run(f"(async () => {found}.alternatives({answers}).map((each) => each.passage_id))()")
    assert kept == ["a:2"]
    for given, word in (("sure", "sure"), ("likely", "likely"), ("unsure", "unsure"), ("other", "unsure")):
        assert chromium.run(f"(async () => {found}.confidence_of({{ confidence: '{given}' }}))()") == word
    path = chromium.run(f"(async () => {found}.path_of({{ title: 'Guide', section: ['guide', 'Steps'] }}))()")
    assert path == "Guide \u203a Steps"


def look_at_typing(chromium: Browser, service: str) -> None:
    """Check that results appear while the user types, and that keys select a result."""
    rows = "[...document.querySelectorAll('#typed [role=option]')]"
    field = "document.getElementById('question')"
    show(chromium, f"{service}/")
    chromium.run(f"{field}.focus()")
    chromium.type("wro")
    chromium.wait(f"{rows}.length === 2")
    assert chromium.run(f"{field}.getAttribute('aria-expanded')") == "true"
    assert chromium.run("document.querySelectorAll('#typed mark').length") == 2
    assert chromium.run("document.querySelectorAll('#typed :is(img, script)').length") == 0
    links = chromium.run(f"{rows}.map((each) => each.href)")
    assert "https://docs.example.org/guide.html" in links
    assert all(each.startswith((service, "https://docs.example.org/")) for each in links)
    selected = f"{rows}.findIndex((each) => each.getAttribute('aria-selected') === 'true')"
    chosen = []
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        chromium.press(key)
        chosen.append(chromium.run(selected))
    assert chosen == [0, 1, -1, 1]
    assert chromium.run(f"{field}.getAttribute('aria-activedescendant') === {rows}[1].id")
    chromium.press("Escape")
    assert chromium.run(f"{rows}.length === 0 && {field}.value === 'wro' && document.activeElement === {field}")
    chromium.type("t")
    chromium.wait(f"{rows}.length === 2")
    here = chromium.run(f"{rows}.findIndex((each) => each.hasAttribute('data-here'))")
    for _ in range(here + 1):
        chromium.press("ArrowDown")
    chromium.press("Enter")
    chromium.wait("location.search.includes('document=evil')")
    assert chromium.run(f"{rows}.length") == 0
    # without a selected result, Enter asks the question
    chromium.wait(DONE)
    chromium.run(f"{field}.focus()")
    chromium.type("Who wrote it?")
    chromium.wait(f"{rows}.length > 0")
    chromium.press("Enter")
    chromium.wait("location.search.includes('question=Who')")
    assert chromium.run(f"{rows}.length") == 0


def look_at_documents(chromium: Browser, service: str) -> None:
    start = TEXT.index("Close")
    show(chromium, f"{service}/?document=guide&start={start}&end={start + 5}")
    shown = f"[...{RESULT}.querySelectorAll('.text > *')].map((each) => [each.localName, each.textContent])"
    assert chromium.run(shown) == [
        ["p", f"Introduction {HOSTILE}"],
        ["h4", "Steps"],
        ["p", "1. Open the lid."],
        ["p", "2. Close the lid."],
        ["h4", "Code"],
        ["pre", "lid = open()\nif lid:\n    close(lid)"],
        ["h5", "End"],
        ["p", "Ada wrote it."],
    ]
    assert chromium.run(f"{RESULT}.querySelector('mark').textContent") == "Close"
    assert chromium.run(f"{RESULT}.querySelectorAll('p.item').length") == 2
    assert chromium.run(f"{RESULT}.querySelector('a.own').href") == "https://docs.example.org/guide.html"
    outline = f"[...{RESULT}.querySelectorAll('.outline a')].map((each) => each.textContent)"
    assert chromium.run(outline) == ["Steps", "Code", "End"]
    assert chromium.run(f"{RESULT}.querySelectorAll('h2').length") == 1
    at = TEXT.index("Ada")
    passage = (
        "(async () => { const { small_headings } = await import('/page/headings.js');"
        " const { passage_of } = await import('/page/passage.js');"
        " const guide = await (await fetch('/documents/guide')).json();"
        f" return passage_of({{ start: {at}, end: {at + 3} }}, guide, small_headings(guide), 20)"
        ".map((each) => [each.localName, each.textContent]); })()"
    )
    assert chromium.run(passage) == [["h3", "End"], ["p", "Ada wrote it."]]
    show(chromium, f"{service}/?document=evil")
    assert chromium.run(f"{RESULT}.querySelector('h2').textContent") == HOSTILE
    assert chromium.run(f"{RESULT}.querySelectorAll('a, img, script').length") == 0


def look_at_others(chromium: Browser, service: str) -> None:
    show(chromium, f"{service}/?document=nothing")
    assert chromium.run(f"{RESULT}.querySelector('h2').textContent") == "Not found"
    assert chromium.run(f"{RESULT}.querySelector('details').open") is False
    assert "404" in chromium.run(f"{RESULT}.querySelector('details').textContent")
    show(chromium, f"{service}/")
    text = chromium.run(f"{RESULT}.textContent")
    assert "2 documents with" in text and "books" in text and HOSTILE in text
    assert chromium.run("getComputedStyle(document.querySelector('.keys')).display") != "none"
    chromium.size(390, 844, phone=True)
    assert chromium.run("getComputedStyle(document.querySelector('.keys')).display") == "none"
    assert chromium.run("document.documentElement.scrollWidth") <= 390
    cases = {
        ("One line.\nAnother.", 0, 3, 100): "One line.\nAnother.",
        ("First.\n\nSecond word here.\n\nThird.", 8, 14, 20): "Second word here.",
        ("First.\n\nSecond word here.\n\nThird.", 8, 14, 26): "First.\n\nSecond word here.",
        ("Title\n\nBody text.", 7, 11, 100): "Title\n\nBody text.",
        ("Body text.\n\nNext title", 0, 4, 100): "Body text.",
    }
    for (text, start, end, limit), cut in cases.items():
        call = f"(await import('/page/passage.js')).around({text!r}, {start}, {end}, {limit})"
        found = chromium.run(f"(async () => {call})()")
        assert text[found["from"] : found["to"]] == cut
    long = "word " * 200 + "answer" + " word" * 200
    call = (
        f"(await import('/page/passage.js')).around({long!r}, {long.index('answer')}, {long.index('answer') + 6}, 100)"
    )
    found = chromium.run(f"(async () => {call})()")
    part = long[found["from"] : found["to"]]
    assert "answer" in part and len(part) <= 106 and set(part.split()) == {"word", "answer"}
