"""Feedback on the page and in the widget: a browser clicks, and the service stores the replies.

Chromium has to be installed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qa_cluster.evaluation.feedback_export import examples_of
from qa_cluster.types import Feedback
from tests.api.service_under_test import listening
from tests.api.test_page_browser import DONE, RESULT, show
from tests.api.test_widget import FOCUS, OPTIONS, ROOT_OF, site
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.browser import Browser, browser, program
from tests.harness.ports import free_port

ADA, BOB, COLD = "Ada wrote the program.", "Bob wrote the programs.", "Cold winter."
QUESTION = "Who wrote the program?"
PAGE_BOX, WIDGET_BOX = f"{RESULT}.querySelector('.feedback')", f"{ROOT_OF}.querySelector('.feedback')"


def named(box: str, name: str) -> str:
    """JavaScript for the button in `box` with the text `name`."""
    return f"[...{box}.querySelectorAll('button')].find((each) => each.textContent.includes({name!r}))"


def said(chromium: Browser, box: str) -> None:
    chromium.wait(f"{box}.textContent === 'Thank you.'")


async def test_replies_of_the_page_and_of_the_widget_are_stored(cluster: ScriptedCluster) -> None:
    if program() is None:
        pytest.skip("Chromium is not installed")
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    async with listening(cluster, cors_origins=origin) as (_, client):
        for name, text in (("ada", ADA), ("bob", BOB), ("cold", COLD)):
            stored = await client.put(f"/documents/{name}", json={"text": text, "title": name.title()})
            assert stored.is_success, stored.text
        service = str(client.base_url).rstrip("/")
        page = f'<!doctype html><title>x</title><body><script src="{service}/widget.js"></script>'
        policy = f"default-src 'none'; script-src {service}; connect-src {service}; require-trusted-types-for 'script'"
        with site(page, policy, port), browser() as chromium:
            chromium.size(1000, 800)
            await asyncio.to_thread(reply_on_the_page, chromium, service)
            await asyncio.to_thread(reply_in_the_widget, chromium, f"{origin}/")
            assert chromium.complaints == []
        found: list[dict[str, Any]] = [each["feedback"] for each in (await client.get("/feedback")).json()["data"]]
    shown = {"question": QUESTION, "document_id": "ada", "answer": "Ada", "context": ADA}
    better = {"better_document_id": "bob", "better_answer": "Bob", "better_context": BOB}
    replies = [shown | {"verdict": "right"}, shown | {"verdict": "wrong"}, shown | better | {"verdict": "better"}]
    place = {"better_document_id": "cold", "better_answer": "winter", "better_context": COLD}
    nowhere = {"question": "Cold winter?", "verdict": "better", **place}
    given = [{name: text for name, text in each.items() if text} for each in found]
    assert given == [*replies, nowhere, *replies]
    examples = examples_of(Feedback(**each) for each in found)
    assert {(each.context, each.answers) for each in examples if each.question == QUESTION} == {
        (ADA, ()),
        (BOB, ("Bob",)),
    }


def reply_on_the_page(chromium: Browser, service: str) -> None:
    """Reply "right" and "wrong" with the mouse, and "better" with the keyboard only."""
    for name in ("Yes", "No"):
        show(chromium, f"{service}/?question={QUESTION.replace(' ', '+')}")
        chromium.click(named(PAGE_BOX, name))
        said(chromium, PAGE_BOX)
    show(chromium, f"{service}/?question={QUESTION.replace(' ', '+')}")
    chromium.run(f"{named(PAGE_BOX, 'Another passage')}.focus()")
    chromium.press("Enter")
    chromium.wait(f"{PAGE_BOX}.querySelectorAll('.places button').length === 2")
    assert chromium.run(f"document.activeElement === {PAGE_BOX}.querySelector('.places button')")
    while BOB not in chromium.run("document.activeElement.textContent"):
        chromium.press("Tab")
    chromium.press("Enter")
    chromium.wait(f"{PAGE_BOX}.querySelector('textarea')")
    assert chromium.run(f"document.activeElement === {PAGE_BOX}.querySelector('textarea')")
    chromium.run("document.activeElement.select()")
    chromium.type("Robert")
    chromium.press("Tab")
    chromium.press("Enter")
    chromium.wait(f"{PAGE_BOX}.querySelector('[role=alert]').textContent.includes('do not change them')")
    chromium.run("document.activeElement.select()")
    chromium.type("Bob")
    chromium.press("Tab")
    chromium.press("Enter")
    said(chromium, PAGE_BOX)
    # a question without an answer
    show(chromium, f"{service}/?question=Cold+winter%3F")
    chromium.wait(DONE)
    chromium.click(named(PAGE_BOX, "Show the right passage"))
    chromium.wait(f"{PAGE_BOX}.querySelector('.places button')")
    chromium.click(named(PAGE_BOX, COLD))
    chromium.wait(f"{PAGE_BOX}.querySelector('textarea')")
    chromium.run(f"{PAGE_BOX}.querySelector('textarea').select()")
    chromium.type("winter")
    chromium.click(named(PAGE_BOX, "Send"))
    said(chromium, PAGE_BOX)


def reply_in_the_widget(chromium: Browser, address: str) -> None:
    """Reply "right", "wrong" and "better" with the mouse."""
    for name in ("Yes", "No", "Another passage"):
        chromium.open(address)
        chromium.press("/")
        chromium.type(QUESTION)
        chromium.wait(f"{OPTIONS}.length > 1")
        chromium.press("Enter")
        chromium.wait(named(WIDGET_BOX, name))
        chromium.click(named(WIDGET_BOX, name))
        if name == "Another passage":
            chromium.wait(f"{WIDGET_BOX}.querySelectorAll('.places button').length === 2")
            assert chromium.run(f"{FOCUS}.closest('.places') !== null")
            chromium.click(named(WIDGET_BOX, BOB))
            chromium.wait(f"{WIDGET_BOX}.querySelector('textarea')")
            chromium.run(f"{WIDGET_BOX}.querySelector('textarea').select()")
            chromium.type("Bob")
            chromium.click(named(WIDGET_BOX, "Send"))
        said(chromium, WIDGET_BOX)
