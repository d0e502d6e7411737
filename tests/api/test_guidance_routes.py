"""`/pins`, `/synonyms`, `/feedback` and `/unanswered`, and their clients."""

from __future__ import annotations

import pytest

from qa_cluster.client import Feedback, NotFound, Pin, Synonyms
from tests.api.service_under_test import assert_problem, rest_client, serving
from tests.client.scripted_cluster import ScriptedCluster

QUESTION = "Who wrote it?"


async def test_a_pin_is_shown_by_every_service_at_once(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client, serving(cluster) as other:
        await client.put("/documents/a", json={"text": "Ada wrote it."})
        for each in (client, other, other):
            assert not (await each.get("/qa", params={"question": QUESTION})).json()["answers"][0]["pinned"]
        pin = {"question": "who wrote IT", "answer": "Eve.", "url": "https://docs.example/"}
        made = await client.put("/pins", json=pin)
        assert (made.status_code, made.json()["answer"]) == (201, "Eve.")
        for each in (other, client, other):
            found = (await each.get("/qa", params={"question": QUESTION})).json()
            assert [(one["answer"], one["pinned"], one["rank"]) for one in found["answers"]] == [
                ("Eve.", True, 1),
                ("Ada", False, 2),
            ]
        assert (await other.put("/pins", json=pin | {"answer": "Bob."})).status_code == 200
        assert (await client.get("/qa", params={"question": QUESTION})).json()["answers"][0]["answer"] == "Bob."
        assert [one["answer"] for one in (await client.get("/pins")).json()["data"]] == ["Bob."]
        assert (await client.delete("/pins", params={"question": QUESTION})).status_code == 204
        for each in (other, client):
            assert not (await each.get("/qa", params={"question": QUESTION})).json()["answers"][0]["pinned"]
        gone = await client.delete("/pins", params={"question": QUESTION})
        assert_problem(gone, 404, "not-found", "has no pin")


async def test_the_rest_client_has_all_guidance_calls(cluster: ScriptedCluster) -> None:
    async with rest_client(cluster) as (app, client):
        await client.create_collection("books")
        await client.put_document("a", "Ada wrote about automobiles.", collection="books")
        pin = Pin("Who wrote it?", "Eve.", "a", "T", "https://docs.example/")
        await client.put_pin(pin, collection="books")
        assert (await client.pins("books"), await client.pins()) == ((pin,), ())
        assert (await client.ask(QUESTION, collection="books")).answers[0].pinned
        await client.set_synonyms(Synonyms(("car, automobile",), 0.7), collection="books")
        assert await client.synonyms("books") == Synonyms(("car, automobile",), 0.7)
        assert len((await client.search("cars", collection="books")).hits) == 1
        feedback = Feedback(QUESTION, "wrong", "a", "Ada", "Ada wrote about automobiles.")
        name = await client.send_feedback(feedback, collection="books")
        (entry,) = await client.feedback("books")
        assert (entry.id, entry.feedback) == (name, feedback)
        await client.ask("Where is Rome?", collection="books")
        await app.state.engine.unanswered.flush()
        assert [each.question for each in await client.unanswered_questions("books")] == ["Where is Rome?"]
        await client.set_synonyms(Synonyms(), collection="books")
        await client.delete_pin(QUESTION, collection="books")
        with pytest.raises(NotFound, match="has no pin"):
            await client.delete_pin(QUESTION, collection="books")
