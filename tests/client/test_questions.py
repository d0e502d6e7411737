"""The normal form, the options and the cache names of questions."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest

from qa_cluster.api.description.schemas import ask_fields, search_fields
from qa_cluster.asking.questions import SAME_ANSWER, AskLimits, Question, check_question, fold, normalize
from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.integrations.kafka.handlers import QUESTION_TYPES
from qa_cluster.options.questions import AskArguments, AskOptions, SearchArguments, SearchOptions, ask_options
from qa_cluster.reading.plan import ReadingPlan, StageOptions
from tests.client.scripted_functions import manifest

LIMITS = AskLimits()
OPTIONS = {field.name for field in fields(AskOptions)}


def plan(revision: str = "r") -> ReadingPlan:
    return ReadingPlan((StageOptions(waves=(1, 3, 8)).stage(manifest(revision), 16, stops_early=True),))


def name(text: str, revision: str = "r", **options: object) -> str:
    question = check_question(text, AskOptions(**options), LIMITS)  # type: ignore[arg-type]
    return question.digest(plan(revision))


def test_normal_form_is_nfc_with_single_spaces() -> None:
    assert normalize("  Cafe\u0301 \t\n au\u00a0lait? ") == "Café au lait?"


def test_the_cache_name_ignores_case_but_reading_does_not() -> None:
    question = check_question("Who IS she ?!", AskOptions(), LIMITS)
    assert question == Question("Who IS she ?!", "who is she", AskOptions(), 8, 10.0)


@pytest.mark.parametrize("other", ["who wrote it", "WHO  wrote it?!", " Who wrote it..."])
def test_the_same_question_has_one_name(other: str) -> None:
    assert name("Who wrote it?") == name(other)


OTHERS: dict[str, object] = {
    "top_k": 4,
    "min_score": 0.5,
    "retriever_k": 9,
    "collection": "books",
    "doc_id": ("a",),
    "filters": {"field": "meta.year", "operator": "==", "value": 2020},
    "filter": ("year>=2020",),
    "waves": False,
    "timeout": 5,
    "cache": "refresh",
    "coverage": "partial",
    "no_answer": False,
}
"""A non-default value for each option. In the name, the plan replaces `model`, `plan` and `retriever`."""


@pytest.mark.parametrize("option", sorted(OPTIONS - {"model", "plan", "retriever"}))
def test_every_option_that_changes_answers_is_in_the_name(option: str) -> None:
    same = name("Who?") == name("Who?", **{option: OTHERS[option]})
    assert same == (option in SAME_ANSWER)


def test_a_new_option_is_in_the_name() -> None:
    @dataclass(frozen=True)
    class NewOptions(AskOptions):
        colour: str = "red"

    def named(options: AskOptions) -> str:
        return check_question("Who?", options, LIMITS).digest(plan())

    assert named(NewOptions()) != named(NewOptions(colour="blue"))


def in_requests(options: set[str]) -> set[str]:
    """The options' names in requests: the service has `timeout_ms`, the clients have `timeout` in seconds."""
    return {"timeout_ms" if name == "timeout" else name for name in options}


def test_clients_and_service_accept_every_option() -> None:
    assert set(AskArguments.__annotations__) == OPTIONS
    assert {field.name for field in ask_fields(LIMITS)} == in_requests(OPTIONS) | {"question"}


def test_the_kafka_adapter_checks_the_types_of_the_service() -> None:
    words = {"string": "a string", "integer": "an integer", "number": "a number", "boolean": "a Boolean"}
    words["object"] = "an object"
    wanted = {
        field.name: "a string or an array of strings" if field.repeated else words[field.kind]
        for field in ask_fields(LIMITS)
    }
    assert {name: what for name, (_, what) in QUESTION_TYPES.items()} == wanted


def test_clients_and_service_accept_every_option_of_a_search() -> None:
    options = {field.name for field in fields(SearchOptions)}
    assert set(SearchArguments.__annotations__) == options
    assert {field.name for field in search_fields(LIMITS)} == in_requests(options) | {"query"}


def test_an_option_that_is_not_given_has_its_default() -> None:
    assert ask_options({"top_k": None, "doc_id": None, "model": None}) == AskOptions()
    assert ask_options({"doc_id": ["a", "b"]}).doc_id == ("a", "b")


def test_names_depend_on_the_effective_options() -> None:
    assert name("Who?") != name("Who?", revision="other")
    assert name("Who?", model="a") == name("Who?", model="a@r")
    assert name("Who?", retriever_k=LIMITS.retriever_k) == name("Who?")
    assert name("Who?", doc_id=("a", "b")) == name("Who?", doc_id=("b", "a", "b"))


@pytest.mark.parametrize("text", ["", "  ", "?!", None, 5, ["x"], "a\x00b", "a\ud800"])
def test_invalid_questions_are_refused(text: object) -> None:
    with pytest.raises(InvalidInput, match="question"):
        check_question(text, AskOptions(), LIMITS)


def test_a_long_question_is_refused_with_both_lengths() -> None:
    with pytest.raises(InputTooLong, match="1001 characters, the limit is 1000"):
        check_question("x" * 1001, AskOptions(), LIMITS)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"top_k": 0}, "top_k"),
        ({"top_k": 21}, "top_k"),
        ({"min_score": float("nan")}, "min_score"),
        ({"retriever_k": 65}, "retriever_k"),
        ({"timeout": 0}, "timeout"),
        ({"cache": "maybe"}, "cache"),
        ({"coverage": "most"}, "coverage"),
        ({"doc_id": ("",)}, "doc_id"),
        ({"doc_id": ("x" * 513,)}, "doc_id"),
        ({"model": "x" * 513}, "model must have 1 to 512 bytes, got 513"),
        ({"doc_id": ("x",) * 101}, "doc_id"),
    ],
)
def test_the_error_names_an_option_that_is_out_of_range(options: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        check_question("Who?", AskOptions(**options), LIMITS)  # type: ignore[arg-type]


def test_folding_never_makes_a_question_empty() -> None:
    assert fold("?") == "?"
