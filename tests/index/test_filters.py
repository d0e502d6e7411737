"""Filters and metadata in binary form: the index admits the same documents as Haystack's filters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.ranking.filters import Filter, chosen_by, moment_of, pack_fields

from .native_index import OK, NativeIndex

WORDS = ["de", "en", "", "draft", "2020-01-31", "2021-06-01T12:00:00Z", "2020-01-31T00:00:00+00:00"]
NUMBERS = [0, 1, 2019, 2020, 2021.5, -3]
FIELDS = ["year", "lang", "tags", "author.name", "done"]


def chosen(filters: Any, short: Sequence[str] = (), document_ids: Sequence[str] = ()) -> Filter:
    """The filter of a request that has one."""
    found = chosen_by(filters, short, document_ids)
    assert found is not None
    return found


def put(index: NativeIndex, name: str, metadata: dict[str, Any]) -> None:
    assert index.commit(index.begin(name, pack_fields(metadata))) == OK


def listed(index: NativeIndex, found: Filter) -> list[str]:
    return index.list(0, 10**6, 1000, found.packed)[0]


def comparable(value: Any) -> Any:
    """The key by which values are compared: the kind of the value, then the value."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, str):
        moment = moment_of(value)
        return ("text", value) if moment is None else ("date", moment)
    return ("number", float(value))


def values_of(metadata: Any, field: str) -> list[Any]:
    for name in field.split("."):
        metadata = metadata.get(name) if isinstance(metadata, dict) else None
    return [] if metadata is None else metadata if isinstance(metadata, list) else [metadata]


def is_null(metadata: Any, field: str) -> bool:
    """Whether a field is missing or null. An object is null if all its fields are null."""
    for name in field.split("."):
        metadata = metadata.get(name) if isinstance(metadata, dict) else None
    if isinstance(metadata, dict):
        return all(is_null(metadata, name) for name in metadata)
    return metadata is None


def admits(filters: dict[str, Any], metadata: dict[str, Any]) -> bool:
    """Whether Haystack's filters admit a document. An array satisfies a condition if one of its values does."""
    operator = filters["operator"]
    if operator in ("AND", "OR", "NOT"):
        inner = [admits(each, metadata) for each in filters["conditions"]]
        return {"AND": all(inner), "OR": any(inner), "NOT": not all(inner)}[operator]
    null = is_null(metadata, filters["field"].removeprefix("meta."))
    wanted = filters["value"]
    if operator in ("exists", "==", "!=") and (operator == "exists" or wanted is None):
        return null == (operator == "==" if operator != "exists" else not wanted)
    values = [comparable(value) for value in values_of(metadata, filters["field"].removeprefix("meta."))]
    if operator in ("in", "not in"):
        found = any(value in [comparable(each) for each in wanted if each is not None] for value in values)
        return (found or (null and None in wanted)) == (operator == "in")
    kind, limit = comparable(wanted)
    if operator in ("==", "!="):
        return ((kind, limit) in values) == (operator == "==")
    same = [value for own, value in values if own == kind]
    return any(
        {"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}[operator] for value in same
    )


def condition(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    if depth < 3 and chance.random() < 0.4:
        inner = [condition(chance, depth + 1) for _ in range(chance.choice([1, 2, 3]))]
        return {"operator": chance.choice(["AND", "OR", "NOT"]), "conditions": inner}
    field = chance.choice(["meta.", ""]) + chance.choice(FIELDS)
    operator = chance.choice(["==", "!=", "<", "<=", ">", ">=", "in", "not in", "exists"])
    if operator == "exists":
        return {"field": chance.choice(["author", field]), "operator": operator, "value": chance.random() < 0.5}
    dates = [word for word in WORDS if moment_of(word) is not None]
    ordered, others = [*NUMBERS, *dates], [*NUMBERS, *WORDS, True, False, None]
    if operator in ("in", "not in"):
        return {"field": field, "operator": operator, "value": chance.choices(others, k=chance.choice([0, 1, 3, 12]))}
    return {
        "field": field,
        "operator": operator,
        "value": chance.choice(ordered if "<" in operator or ">" in operator else others),
    }


def metadata_of(chance: random.Random) -> dict[str, Any]:
    value: Any = lambda: chance.choice([*NUMBERS, *WORDS, True, False])  # noqa: E731
    made: dict[str, Any] = {}
    for field in FIELDS:
        if chance.random() < 0.3:
            continue
        found = [value() for _ in range(chance.choice([0, 1, 3]))] if chance.random() < 0.3 else value()
        if "." in field:
            made["author"] = {"name": found, "nothing": None}
        else:
            made[field] = None if chance.random() < 0.1 else found
    return made


@pytest.mark.parametrize("seed", range(3))
def test_the_index_admits_the_same_documents_as_the_filter(index: NativeIndex, seed: int) -> None:
    chance = random.Random(seed)
    documents = {f"d{number}": metadata_of(chance) for number in range(120)}
    for name, metadata in documents.items():
        put(index, name, metadata)
    sizes = set()
    for _ in range(400):
        filters = condition(chance)
        expected = [name for name, metadata in documents.items() if admits(filters, metadata)]
        assert listed(index, chosen(filters)) == expected, filters
        sizes.add(len(expected))
    assert len(sizes) > 30


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("year>=2020", (">=", "year", 2020)),
        ("meta.year = 2020", ("==", "year", 2020)),
        ("year==-2.5", ("==", "year", -2.5)),
        ("lang=en,de", ("in", "lang", ["en", "de"])),
        ("lang!=en,de", ("not in", "lang", ["en", "de"])),
        ("lang!=en", ("!=", "lang", "en")),
        ("done=TRUE", ("==", "done", True)),
        ('title="a, \\"b\\""', ("==", "title", 'a, "b"')),
        ('year="2020"', ("==", "year", "2020")),
        ("published>2020-01-31", (">", "published", "2020-01-31")),
        ("id=a b,c", ("in", "", ["a b", "c"])),
        ("id=12", ("==", "", "12")),
        ("lang=", ("==", "lang", "")),
        ("formula=a=b", ("==", "formula", "a=b")),
        ("year=null", ("==", "year", None)),
        ("year!=null", ("!=", "year", None)),
        ('year="null"', ("==", "year", "null")),
        ("lang=null,en", ("OR", ["==", "lang", None], ["in", "lang", ["en"]])),
        ("lang!=en,NULL", ("AND", ["!=", "lang", None], ["not in", "lang", ["en"]])),
        ("lang=null,null", ("==", "lang", None)),
        ("id=null", ("==", "", "null")),
        ("id=1,null,true", ("in", "", ["1", "null", "true"])),
    ],
)
def test_the_short_form(short: str, long: tuple[Any, ...]) -> None:
    assert chosen(None, [short]).canonical == list(long)


def test_several_conditions_must_all_hold() -> None:
    assert chosen(None, ["a=1", "b<2"]).canonical == ["AND", ["==", "a", 1], ["<", "b", 2]]
    all_three = chosen({"field": "b", "operator": ">", "value": 2}, ["a=1", "c=3"], ["y", "x", "y"])
    short = ["AND", ["==", "a", 1], ["==", "c", 3]]
    assert all_three.canonical == ["AND", ["in", "", ["x", "y"]], [">", "b", 2], short]
    assert chosen_by() is None


def test_documents_are_named_as_in_their_keys(index: NativeIndex) -> None:
    for name in ("50%25 %7Bdraft%7D", "other"):
        put(index, name, {})
    assert listed(index, chosen(None, (), ["50% {draft}"])) == ["50%25 %7Bdraft%7D"]
    assert listed(index, chosen(None, ['id="50% {draft}"'])) == ["50%25 %7Bdraft%7D"]
    date = {"field": "id", "operator": "in", "value": ["2020-01-31"]}
    put(index, "2020-01-31", {})
    assert listed(index, chosen(date)) == ["2020-01-31"]


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ([], "filters must be an object"),
        ({}, "filters/operator must be one of"),
        ({"operator": "XOR", "conditions": []}, "got 'XOR'"),
        ({"operator": "AND"}, "filters/conditions must be a non-empty list for AND"),
        ({"operator": "OR", "conditions": []}, "non-empty list for OR"),
        (
            {"operator": "AND", "conditions": [{"operator": "AND", "conditions": [7]}]},
            "filters/conditions/0/conditions/0 must",
        ),
        ({"operator": "AND", "conditions": [], "field": "x"}, "unknown member 'field'"),
        ({"operator": "==", "value": 1}, "filters/field must be a string"),
        ({"field": "", "operator": "==", "value": 1}, "must be id or have 1 to 255 bytes"),
        ({"field": "x" * 256, "operator": "==", "value": 1}, "must be id or have 1 to 255 bytes"),
        ({"field": "x", "operator": "=="}, "filters/value is missing"),
        ({"field": "x", "operator": ">", "value": None}, "must be a number or a date for >, got null"),
        ({"field": "id", "operator": "==", "value": None}, "must be a document's id, got null"),
        ({"field": "id", "operator": "in", "value": ["a", None]}, "must be a document's id, got null"),
        ({"field": "id", "operator": "exists"}, "must be a document's id, got null"),
        ({"field": "x", "operator": "exists", "value": None}, "must be true or false for 'exists', got NoneType"),
        ({"field": "x", "operator": "==", "value": {}}, "got dict"),
        ({"field": "x", "operator": "in", "value": "a"}, "must be a list for 'in'"),
        ({"field": "x", "operator": "in", "value": [[1]]}, "got list"),
        ({"field": "x", "operator": "<", "value": "soon"}, "must be a number or a date"),
        ({"field": "x", "operator": ">", "value": True}, "must be a number or a date"),
        ({"field": "id", "operator": ">", "value": "a"}, "must be a number or a date"),
        ({"field": "id", "operator": "==", "value": 5}, "must be a document's id"),
        ({"field": "x", "operator": "==", "value": "a" * 1025}, "a text of at most 1024 bytes"),
        ({"field": "x", "operator": "==", "value": float("nan")}, "must be a finite number"),
        ({"field": "x", "operator": "==", "value": 10**400}, "must be a finite number"),
        ({"field": "x", "operator": "==", "value": "\ud800"}, "lone surrogate"),
    ],
)
def test_errors_in_a_filter_name_their_place(filters: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words.replace("(", r"\(")):
        chosen(filters)


@pytest.mark.parametrize("text", ["", "year", ">=3", "year>null", "id!=", "year>=1,2", 'lang="en', "=", "id>a"])
def test_errors_in_the_short_form(text: str) -> None:
    with pytest.raises(InvalidInput):
        chosen(None, [text])


def test_limits_equal_the_limits_of_the_index(index: NativeIndex) -> None:
    one: dict[str, Any] = {"field": "x", "operator": "==", "value": 1}
    most = {"operator": "AND", "conditions": [one] * 255}
    assert listed(index, chosen(most)) == []
    deep = one
    for _ in range(31):
        deep = {"operator": "NOT", "conditions": [deep]}
    assert listed(index, chosen(deep)) == []
    for filters in (
        {"operator": "AND", "conditions": [one] * 256},
        {"operator": "NOT", "conditions": [deep]},
        {"field": "x", "operator": "in", "value": [1] * 10_001},
        {"field": "x", "operator": "in", "value": ["y" * 100] * 1000},
        {"operator": "AND", "conditions": [{"field": "x", "operator": "in", "value": [None, 1]}] * 86},
    ):
        with pytest.raises(InputTooLong):
            chosen(filters)
    assert listed(index, chosen(None, ["x=1"] * 255)) == []
    assert listed(index, chosen({"operator": "AND", "conditions": [one] * 253}, (), ["d"])) == []
    for both in (
        lambda: chosen(None, ["x=1"] * 256),
        lambda: chosen({"operator": "AND", "conditions": [one] * 254}, (), ["d"]),
        lambda: chosen(deep, (), ["d"]),
        lambda: chosen({"operator": "NOT", "conditions": [one] * 255}),
        lambda: chosen(
            {"field": "x", "operator": "in", "value": ["y" * 600] * 100},
            (),
            [f"{number}{'z' * 600}" for number in range(100)],
        ),
    ):
        with pytest.raises(InputTooLong):
            both()


def test_null_is_a_missing_field_and_nothing_else(index: NativeIndex) -> None:
    put(index, "none", {})
    put(index, "null", {"x": None, "xy": 1})
    put(index, "within", {"x": {"y": 1}})
    put(index, "empty object", {"x": {}})
    for number, value in enumerate(["", 0, False, [], [None], "x" * 5000, [[1]], "2020-01-31"]):
        put(index, f"value {number}", {"x": value})
    lacking = ["none", "null", "empty object"]
    assert listed(index, chosen(None, ["x=null"])) == lacking
    assert listed(index, chosen({"field": "meta.x", "operator": "==", "value": None})) == lacking
    assert listed(index, chosen({"field": "x", "operator": "exists", "value": False})) == lacking
    others = ["within", *(f"value {number}" for number in range(8))]
    assert listed(index, chosen(None, ["x!=null"])) == others
    assert listed(index, chosen({"field": "x", "operator": "exists"})) == others
    assert listed(index, chosen(None, ["x.y!=null"])) == ["within"]
    assert listed(index, chosen(None, ["x=null,0"])) == [*lacking, "value 1"]
    assert listed(index, chosen(None, ["x!=null,0"])) == [name for name in others if name != "value 1"]
    assert listed(index, chosen(None, ["x!=0"])) == [
        name for name in [*lacking[:2], "within", lacking[2], *others[1:]] if name != "value 1"
    ]


def test_values_that_cannot_be_filtered_are_ignored(index: NativeIndex) -> None:
    odd = {
        "none": None,
        "list": [1, [2], {}, None, "ok"],
        "long": "x" * 1025,
        "": 1,
        "n" * 256: 1,
        "inf": 10**400,
        "fine": 1,
    }
    put(index, "d", odd)
    for name, value, expected in (
        ("list", 1, ["d"]),
        ("list", "ok", ["d"]),
        ("list", 2, []),
        ("fine", 1, ["d"]),
        ("long", "x" * 1024, []),
    ):
        filters = {"field": name, "operator": "==", "value": value}
        assert listed(index, chosen(filters)) == expected, name


def test_many_and_deep_fields_keep_within_the_limits(index: NativeIndex) -> None:
    deep: dict[str, Any] = {"end": 1}
    for _ in range(2000):
        deep = {"a": deep}
    put(index, "many", {f"field{number}": number for number in range(400)} | {"deep": deep})
    put(index, "large", {f"field{number}": ["x" * 1000] * 20 for number in range(40)})
    put(index, "twice", {"a.b": 1, "a": {"b": 2}})
    assert listed(index, chosen(None, ["field255=255"])) == ["many"]
    assert listed(index, chosen(None, ["field256=256"])) == []
    assert listed(index, chosen(None, ["a.b=1"])) == ["twice"]


@pytest.mark.parametrize(
    "written",
    [
        "2031-03-07T08:09:10.5Z",
        "2031-03-07t08:09:10.500000000z",
        "2031-03-07 08:09:10.5",
        "2031-03-07T08:09:10.50000000099Z",
        "2031-03-07T10:09:10,5+02",
        "2031-03-07T10:09:10.5+0200",
        "2031-03-07T05:39:10.5\u221202:30",
        "20310307T080910.5Z",
        "20310307t100910.5+02",
        "2031-W10-5T08:09:10.5Z",
        "2031W105T080910.5",
    ],
)
def test_every_form_of_a_time_is_the_same_moment(index: NativeIndex, written: str) -> None:
    assert moment_of(written) == (1930608000 + 8 * 3600 + 9 * 60 + 10, 500_000_000)
    put(index, "document", {"seen": written})
    for condition in (
        "seen=2031-03-07T08:09:10.5Z",
        "seen>2031-03-07T08:09:10.499999999Z",
        "seen<2031-03-07T08:09:11Z",
    ):
        assert listed(index, chosen(None, [condition])) == ["document"]
    assert listed(index, chosen({"field": "seen", "operator": "<=", "value": written})) == ["document"]
    assert listed(index, chosen({"field": "seen", "operator": "!=", "value": written})) == []


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("1970-01-01T24:00", 86_400),
        ("1970-W01-5", 86_400),
        ("1970-01-01T00:00:60Z", 60),
        ("1969-12-31T23:59:59", -1),
        ("19700101T0100+01", 0),
        ("9999-12-31T23:59:59-23:59", 253402387139),
        ("0001-01-01T00:00:00+23:59", -62135683140),
    ],
)
def test_rare_times(written: str, seconds: int) -> None:
    assert moment_of(written) == (seconds, 0)


@pytest.mark.parametrize(
    "text",
    [
        "20310307",
        "2031-02-29",
        "2031-03-07T25:00",
        "2031-03-07T08:60",
        "2031-03-07T08:09:10.Z",
        "2031-03-07T08:09+2",
        "2031-3-7",
        "2031-03-07 noon",
        "2031-W54-1",
        "2031-W10",
        "2031-03-07T08:09:61Z",
        "2031-03-07Z",
        "0000-01-01",
        "2031-03-07T24:00:00.1",
        "\u0662\u0660\u0663\u0661-03-07",
        "2031-03-07\n",
    ],
)
def test_invalid_times_are_text_in_documents_and_filters(index: NativeIndex, text: str) -> None:
    assert moment_of(text) is None
    put(index, "document", {"seen": text})
    assert listed(index, chosen({"field": "seen", "operator": "==", "value": text})) == ["document"]
    with pytest.raises(InvalidInput, match="must be a number or a date"):
        chosen({"field": "seen", "operator": ">", "value": text})


def test_times_within_a_second_have_an_order(index: NativeIndex) -> None:
    fractions = ["", ".000000001", ".1", ".100000001", ".25", ".9", ".999999999"]
    times = [f"{year}-12-31T23:59:59{fraction}Z" for year in ("1890", "2031") for fraction in fractions]
    for time in times:
        put(index, time, {"seen": time})
    for place, time in enumerate(times):
        for operator, expected in (
            ("<", times[:place]),
            ("<=", times[: place + 1]),
            (">", times[place + 1 :]),
            (">=", times[place:]),
            ("==", [time]),
        ):
            condition = {"field": "seen", "operator": operator, "value": time}
            assert listed(index, chosen(condition)) == expected
    many = {"field": "seen", "operator": "in", "value": [*times[1::2], *map(str, range(20))]}
    assert listed(index, chosen(many)) == times[1::2]
