"""Reading sentences with their neighbours: the text, the answers, and the cached answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from qa_cluster import keys
from qa_cluster.documents.sentences import split_sentences
from qa_cluster.documents.source_map import write_map
from qa_cluster.reading.manifest import Manifest
from qa_cluster.reading.tokenization import TextTokens, pack_tokens
from tests.harness.polling import eventually

from .running_shards import MODEL, SECONDS, Shards, sentence_name, tag

pytestmark = pytest.mark.one_server("the worker computes the readings")

MANIFEST_TEXT = (MODEL / "manifest.json").read_text()
MANIFEST = json.loads(MANIFEST_TEXT)
BUDGET = 64
CURIE = "Marie Curie was a physicist.\nShe was born in Warsaw.  She discovered radium 😀 in Paris. Later she died."
BIRTH = "Where was Marie Curie born?"


@pytest.fixture(scope="module")
def reading_alone(shards: Shards) -> Iterator[Shards]:
    """The cluster. After the tests, it reads sentences without context again."""
    shards.put("curie", CURIE, "Curie")
    shards.wait_tokenized("curie")
    set_context(shards, 0)
    yield shards
    set_context(shards, MANIFEST["context_tokens"])


@pytest.fixture
def context(reading_alone: Shards) -> Shards:
    """The cluster, reading with neighbours."""
    set_context(reading_alone, BUDGET)
    return reading_alone


def set_context(shards: Shards, budget: int) -> None:
    change(shards, context_tokens=budget)


def change(shards: Shards, **changes: object) -> str:
    """Change fields of the manifest on all shards; return the new reading revision."""
    text = json.dumps({**MANIFEST, **changes})
    shards.write_manifest(text if json.loads(text) != MANIFEST else MANIFEST_TEXT)
    expected = Manifest.from_json(text).reading_revision

    def is_applied() -> bool:
        shown = [Manifest.from_json(shards.on(node, "RG.TRIGGER", "qa.reader")[0]) for node in shards.nodes]
        return all(manifest.reading_revision == expected for manifest in shown)

    eventually(is_applied, SECONDS)

    def old_answers_are_deleted() -> bool:
        answer = shards.ask("curie", 3, "What did she do?")
        return answer is not None and answer["reading_revision"] == expected

    eventually(old_answers_are_deleted, SECONDS)
    return expected


def read(shards: Shards, question: str, *names: str) -> list[dict[str, Any]]:
    replies = shards.on(shards.node_of(names[0]), "RG.TRIGGER", "qa.read", "", question, *names)
    return [json.loads(reply) for reply in replies]


def test_another_context_setting_never_returns_earlier_cached_answers(reading_alone: Shards) -> None:
    name = sentence_name("curie", 0)
    (alone,) = read(reading_alone, BIRTH, name)
    assert alone["answer"] not in CURIE[29:]
    assert "context" not in alone
    revision = change(reading_alone, context_tokens=BUDGET)
    (wide,) = read(reading_alone, BIRTH, name)
    assert (wide["cache"], wide["reading_revision"], wide["model"]["revision"]) == (
        "miss",
        revision,
        MANIFEST["revision"],
    )
    assert "Warsaw" in wide["answer"]
    (again,) = read(reading_alone, BIRTH, name)
    assert again == {**wide, "cache": "shard"}
    set_context(reading_alone, 0)
    (back,) = read(reading_alone, BIRTH, name)
    assert {**back, "created": 0} == {**alone, "created": 0}
    assert back["cache"] == "miss"


def test_another_reading_revision_never_returns_earlier_cached_answers(reading_alone: Shards) -> None:
    set_context(reading_alone, 0)
    name, question = sentence_name("curie", 0), "Who was a physicist?"
    (long,) = read(reading_alone, question, name)
    assert len(long["answer"].split()) > 1
    change(reading_alone, context_tokens=0, max_answer_tokens=1)
    (short,) = read(reading_alone, question, name)
    assert (short["cache"], len(short["answer"].split())) == ("miss", 1)
    set_context(reading_alone, 0)


def test_a_span_can_be_in_a_neighbour_and_all_offsets_are_in_the_document(context: Shards) -> None:
    places = split_sentences(CURIE)
    for i, (start, end) in enumerate(places):
        answer = context.ask("curie", i, BIRTH)
        assert answer is not None
        assert (answer["sentence"], answer["sentence_start"], answer["sentence_end"]) == (CURIE[start:end], start, end)
        assert answer["context_start"] == 0
        assert answer["context"] == CURIE.replace("\n", " ")
        assert CURIE[answer["start"] : answer["end"]] == answer["answer"]
        assert "Warsaw" in answer["answer"]
        assert [answer["start"], answer["end"], answer["score"], 1] == answer["spans"][0]
        for found_start, found_end, _, holder in answer["spans"]:
            assert places[holder][0] <= found_start < found_end <= places[holder][1]
        assert (answer["windows"], answer["truncated"]) == (1, False)


def test_sentences_of_one_passage_give_the_same_spans(context: Shards) -> None:
    names = [sentence_name("curie", i) for i in range(4)]
    first = read(context, "What did Marie Curie discover?", names[2])
    others = read(context, "What did Marie Curie discover?", *names[:2], names[3])
    assert [answer["cache"] for answer in first + others] == ["miss"] * 4
    assert [answer["sentence_index"] for answer in first + others] == [2, 0, 1, 3]
    assert {json.dumps(answer["spans"]) for answer in first + others} == {json.dumps(first[0]["spans"])}


def test_missing_and_foreign_tokens_are_computed(context: Shards) -> None:
    context.put("copy", CURIE, "Curie")
    context.wait_tokenized("copy")
    expected = context.ask("copy", 2, BIRTH)
    key = keys.tokens_key("copy", tag("copy"))
    ones = np.ones(7, dtype=np.int32)
    foreign = pack_tokens([TextTokens(ones, 0 * ones, ones)] * 4, fingerprint=7)
    assert expected is not None
    for blocks in ({}, {"0": foreign}, {"1": foreign}):
        context.client.delete(key)
        if blocks:
            context.client.hset(key, mapping=blocks)  # type: ignore[arg-type]
        question = BIRTH.replace(" ", " " * (2 + len(blocks)))
        found = context.ask("copy", 2, question)
        assert found is not None
        assert (found["spans"], found["context"]) == (expected["spans"], expected["context"])


def test_only_neighbours_that_fit_the_budget_are_read(context: Shards) -> None:
    long = "The list names " + ", ".join(f"item {number}" for number in range(40)) + "."
    text = f"Bears sleep in winter. {long} Wolves hunt in packs. Foxes eat mice."
    context.put("long", text)
    context.wait_tokenized("long")
    read_for = {i: context.ask("long", i, "Who hunts in packs?") for i in range(4)}
    assert "context" not in (read_for[1] or {})
    assert "context" not in (read_for[0] or {})
    for i in (2, 3):
        answer = read_for[i]
        assert answer is not None
        assert answer["context"] == "Wolves hunt in packs. Foxes eat mice."
        assert text[answer["context_start"] :] == answer["context"]
        assert text[answer["start"] : answer["end"]] == answer["answer"] == "Wolves"


def test_sentences_without_a_document_are_read_alone(context: Shards) -> None:
    key = keys.sentence_key("loose ones", tag("loose ones"))
    context.client.hset(key, mapping={"0": "The moon orbits the Earth.", "1": "The Earth orbits the sun."})
    answer = context.ask("loose ones", 1, "What does the Earth orbit?")
    assert answer is not None
    assert "context" not in answer
    assert answer["answer"] in "The Earth orbits the sun."


def test_a_changed_neighbour_makes_another_version(context: Shards) -> None:
    context.put("changing context", "Ada was born in London. She wrote programs.")
    context.wait_tokenized("changing context")
    assert "London" in (context.ask("changing context", 1, "Where was Ada born?") or {})["answer"]
    context.put("changing context", "Ada was born in Dublin. She wrote programs.")
    context.wait_tokenized("changing context")
    assert "Dublin" in (context.ask("changing context", 1, "Where was Ada born?") or {})["answer"]


def test_a_reader_trained_on_sections_gets_the_sections_of_the_sentence(reading_alone: Shards) -> None:
    text = "The default is 30. It is a number."
    sections = {"_source": write_map("a.rst", "rst", 1, [(0, ["Settings", "CONN_MAX_AGE"])])}
    for name, metadata in (("plain", None), ("in sections", sections)):
        reading_alone.put(name, text, "Django", metadata)
        reading_alone.wait_tokenized(name)

    def scores() -> list[float]:
        answers = [
            reading_alone.ask(name, 0, "What is the default of CONN_MAX_AGE?") for name in ("plain", "in sections")
        ]
        return [answer["score"] for answer in answers if answer is not None]

    change(reading_alone, context_tokens=BUDGET, passage_prefix=False)
    alike = scores()
    assert alike[0] == alike[1]
    change(reading_alone, context_tokens=BUDGET, passage_prefix=True)
    apart = scores()
    assert apart[0] != apart[1] and alike[0] not in apart
