"""Pins, synonyms, feedback and unanswered questions, and their effects on cached answers."""

from __future__ import annotations

import pytest

from qa_cluster import keys
from qa_cluster.asking.editors.feedback import FeedbackLimits
from qa_cluster.asking.editors.guidance import MAX_PINS, check_synonyms
from qa_cluster.asking.engine import Engine
from qa_cluster.errors import InvalidInput, NotFound
from qa_cluster.types import Feedback, Pin, Synonyms
from tests.client.engines import ask, kept, opened, search, write
from tests.client.scripted_cluster import ScriptedCluster
from tests.client.scripted_functions import PARTITIONS

QUESTION = "Who wrote programs?"
PIN = Pin("who WROTE  programs", "Nobody did.", "faq", "FAQ", "https://docs.example/faq")


async def test_a_pin_comes_first_in_every_process_at_once(cluster: ScriptedCluster, engine: Engine) -> None:
    await write(engine, "Ada wrote programs.", "Bob wrote programs.")
    async with opened(cluster) as other:
        for each in (engine, other):
            assert (await ask(each, QUESTION, top_k=2)).answers[0].answer == "Ada"
            assert await kept(each, QUESTION, top_k=2) is not None
        await engine.guidance.put_pin(PIN)
        for each in (other, engine):
            found = await ask(each, QUESTION, top_k=2)
            assert [(answer.rank, answer.answer, answer.pinned) for answer in found.answers] == [
                (1, "Nobody did.", True),
                (2, "Ada", False),
            ]
            assert (found.answerable, found.answers[0].url) == (True, PIN.url)
            assert found.answers[0].confidence == "sure"
            cached = await kept(each, QUESTION, top_k=2)
            assert cached is not None and cached.answers == found.answers
            assert not (await ask(each, "Who wrote?")).answers[0].pinned
            assert not any(answer.pinned for answer in (await ask(each, QUESTION, doc_id=("doc 0",))).answers)
        await other.guidance.put_pin(Pin(QUESTION, "Eve."))
        assert (await ask(engine, QUESTION)).answers[0].answer == "Eve."
        await engine.guidance.delete_pin("WHO wrote programs")
        for each in (other, engine):
            assert not (await ask(each, QUESTION, top_k=2)).answers[0].pinned
    with pytest.raises(InvalidInput, match="a group must have 2 to 16"):
        await engine.guidance.set_synonyms(Synonyms(("car",)))
    with pytest.raises(NotFound, match="has no pin for"):
        await engine.guidance.delete_pin(QUESTION)


async def test_a_pin_answers_a_question_without_an_answer(engine: Engine) -> None:
    await engine.guidance.put_pin(PIN)
    found = await ask(engine, QUESTION)
    assert (found.answerable, [answer.answer for answer in found.answers]) == (True, ["Nobody did."])


async def test_the_number_and_the_size_of_pins_are_limited(cluster: ScriptedCluster, engine: Engine) -> None:
    for pin, words in (
        (Pin("", "a"), "question must have 1 to 1000"),
        (Pin("q", " "), "answer must have 1 to 4000"),
        (Pin("q", "a", url="javascript:x"), "url must start with http"),
    ):
        with pytest.raises(InvalidInput, match=words):
            await engine.guidance.put_pin(pin)
    key = keys.pins_key(keys.partition_of("default", PARTITIONS))
    many = [word for number in range(MAX_PINS) for word in (str(number), Pin(str(number), "a").to_json())]
    await cluster.at(key, "HSET", key, *many)
    with pytest.raises(InvalidInput, match="has 1000 pins, the limit is 1000"):
        await engine.guidance.put_pin(PIN)
    await engine.guidance.put_pin(Pin("5", "b"))
    assert len(await engine.guidance.pins()) == MAX_PINS


async def test_synonyms_find_sentences_and_invalidate_answers(cluster: ScriptedCluster, engine: Engine) -> None:
    await write(engine, "Ada wrote about automobiles.", "Eve wrote letters.")
    async with opened(cluster) as other:
        for each in (engine, other):
            assert [hit.document_id for hit in (await search(each, "cars")).hits] == []
            await ask(each, "Who wrote about cars?")
            assert await kept(each, "Who wrote about cars?") is not None
        await engine.guidance.set_synonyms(Synonyms(("car, automobile", "vm, virtual machine")))
        for each in (other, engine):
            found = await search(each, "cars")
            assert ([hit.document_id for hit in found.hits], found.terms) == (["doc 0"], ("car", "automobil"))
        assert await kept(other, "Who wrote about cars?") is None
        assert (await ask(other, "Who wrote about cars?")).answers[0].document_id == "doc 0"
        # a new sentence with only the synonym invalidates the answer
        assert await kept(other, "Who wrote about cars?") is not None
        await engine.documents.put("new", "Bob wrote about automobiles, automobiles and automobiles.")
        assert await kept(other, "Who wrote about cars?") is None
        await engine.guidance.set_synonyms(Synonyms())
        assert (await search(other, "cars")).hits == ()
        assert await engine.guidance.synonyms() == Synonyms()


@pytest.mark.parametrize(
    ("groups", "weight", "words"),
    [
        (("car",), 0.5, "a group must have 2 to 16"),
        (("car, the", "x, ?"), 0.5, "has no searchable word"),
        (("car, van",), 0.0, "weight must be above 0"),
        (tuple(f"a{number}, b" for number in range(1001)), 0.5, "1001 groups, the limit is 1000"),
    ],
)
def test_an_error_names_invalid_synonyms(groups: tuple[str, ...], weight: float, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_synonyms(Synonyms(groups, weight))


async def test_the_number_of_feedback_records_is_limited_and_feedback_is_checked(cluster: ScriptedCluster) -> None:
    async with opened(cluster, feedback=FeedbackLimits(3, 1, 0)) as engine:
        for number in range(5):
            await engine.feedback.add(Feedback(f"Who {number}?", "right", "a", "Ada", "Ada wrote it."))
        found = await engine.feedback.all()
        assert [entry.feedback.question for entry in found] == ["Who 2?", "Who 3?", "Who 4?"]
        key = keys.feedback_key(keys.partition_of("default", PARTITIONS))
        assert 0 < await cluster.at(key, "TTL", key) <= 86_400
        for feedback, words in (
            (Feedback("q", "maybe"), "verdict must be one of right, wrong, better, got 'maybe'"),
            (Feedback("q", "better"), "better_answer must have 1 to 2000"),
            (Feedback("q", "right", "a", "Eve", "Ada wrote it."), "answer must be a part of context"),
            (Feedback("q", "right", comment="x" * 2001), "comment must have 0 to 2000"),
        ):
            with pytest.raises(InvalidInput, match=words):
                await engine.feedback.add(feedback)
        with pytest.raises(NotFound, match="no such collection"):
            await engine.feedback.add(Feedback("q", "right"), "none")
    async with opened(cluster, feedback=FeedbackLimits(0, 1, 0)) as engine:
        with pytest.raises(InvalidInput, match="feedback_entries is 0"):
            await engine.feedback.add(Feedback("q", "right"))


async def test_unanswered_questions_are_counted_over_processes(cluster: ScriptedCluster) -> None:
    limits = FeedbackLimits(1, 1, 2)
    async with opened(cluster, feedback=limits) as engine, opened(cluster, feedback=limits) as other:
        await write(engine, "Ada wrote programs.")
        await ask(engine, QUESTION)
        for _ in range(3):
            await ask(engine, "Where is Rome?", cache="off")
        await engine.unanswered.flush()
        await ask(engine, "where is ROME", cache="off")
        await ask(other, "Where is Rome?", cache="off")
        for each in (engine, other):
            await each.unanswered.flush()
        (found,) = [each for each in await engine.unanswered.all() if "ome" in each.question.lower()]
        assert (found.count, found.score) == (5, 0.0)
        for number in range(4):
            await ask(engine, f"Where is place{number}?", cache="off")
            await engine.unanswered.flush()
        assert len(await engine.unanswered.all()) == 2
    async with opened(cluster, feedback=FeedbackLimits(1, 1, 0)) as engine:
        await ask(engine, "Where is Paris?", cache="off")
        await engine.unanswered.flush()
        assert all("Paris" not in each.question for each in await engine.unanswered.all())


async def test_deleting_a_collection_deletes_its_guidance(cluster: ScriptedCluster, engine: Engine) -> None:
    await engine.collections.create("books")
    await engine.documents.put("a", "Ada wrote programs.", collection="books")
    await engine.guidance.put_pin(PIN, "books")
    await engine.guidance.set_synonyms(Synonyms(("car, van",)), "books")
    await engine.feedback.add(Feedback("q", "right"), "books")
    await ask(engine, "Where is Rome?", collection="books")
    await engine.unanswered.flush()
    tag = keys.partition_of("books", PARTITIONS)
    names = [of(tag, "books") for of in (keys.pins_key, keys.synonyms_key, keys.feedback_key, keys.unanswered_key)]
    assert [await cluster.at(name, "EXISTS", name) for name in names] == [1, 1, 1, 1]
    assert (await ask(engine, QUESTION, collection="books")).answers[0].pinned
    assert not any(answer.pinned for answer in (await ask(engine, QUESTION)).answers)
    assert (await engine.collection_removal.run("books", seconds=60)).complete
    assert [await cluster.at(name, "EXISTS", name) for name in names] == [0, 0, 0, 0]
