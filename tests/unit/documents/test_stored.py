"""Limits and versions of documents."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_cluster.documents import stored
from qa_cluster.documents.metadata_limits import MAX_METADATA_BYTES
from qa_cluster.documents.stored import check_document
from qa_cluster.errors import InputTooLong, InvalidInput


def nested(depth: int) -> dict[str, Any]:
    """An object with this number of levels."""
    return {"a": nested(depth - 1)} if depth > 1 else {"a": 1}


def endless() -> dict[str, Any]:
    """An object that contains itself."""
    found: dict[str, Any] = {}
    found["a"] = [found]
    return found


def test_metadata_of_32_levels_and_numbers_of_64_bits_are_accepted() -> None:
    check_document("a", "x", "", {"least": -(2**63), "most": 2**64 - 1, "float": 1e300, "flag": True})
    check_document("a", "x", "", nested(32))


def test_a_document_at_every_limit_is_accepted() -> None:
    check_document(
        "é" * (stored.MAX_ID_BYTES // 2),
        "x" * stored.MAX_TEXT_LENGTH,
        "t" * stored.MAX_TITLE_BYTES,
        {"a": "m" * (MAX_METADATA_BYTES - len('{"a":""}'))},
    )


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        (("", "x"), InvalidInput, "document id"),
        ((1, "x"), InvalidInput, "got 1"),
        (("a\ud800", "x"), InvalidInput, "Unicode"),
        (("é" * 257, "x"), InputTooLong, "514 bytes, the limit is 512"),
        (("a", 3), InvalidInput, "text of document 'a' must be a string, got int"),
        (("a", "\udfff"), InvalidInput, "text of document 'a' is not valid Unicode"),
        (("a", "x" * 5_000_001), InputTooLong, "5000001 code points, the limit is 5000000"),
        (("a", "x", "t" * 4097), InputTooLong, "4097 bytes, the limit is 4096"),
        (("a", "x", None), InvalidInput, "title"),
        (("a", "x", "", []), InvalidInput, "metadata of document 'a' must be an object, got list"),
        (("a", "x", "", {"a": object()}), InvalidInput, "not JSON"),
        (("a", "x", "", {"a": 2**64}), InvalidInput, "number 18446744073709551616, the limit is 64 bits"),
        (("a", "x", "", {"a": [{"b": -(10**5000)}]}), InvalidInput, "number of 16610 bits, the limit is 64 bits"),
        (("a", "x", "", nested(33)), InvalidInput, "nested more than 32 deep, the limit"),
        (("a", "x", "", endless()), InvalidInput, "nested more than 32 deep, the limit"),
        (("a", "x", "", {"a": float("nan")}), InvalidInput, "not JSON"),
        (("a", "x", "", {"a": "\ud800"}), InvalidInput, "not JSON"),
        (("a", "x", "", {"a": "m" * 70_000}), InputTooLong, "70008 bytes as JSON, the limit is 65536"),
    ],
)
def test_bad_documents_are_refused_with_value_and_limit(values: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        check_document(*values)


@given(*([st.text(max_size=5)] * 4))
def test_the_version_tells_title_and_text_apart(title: str, text: str, other_title: str, other_text: str) -> None:
    same = stored.document_version(title, "{}", text) == stored.document_version(other_title, "{}", other_text)
    assert same == ((title, text) == (other_title, other_text))


def test_the_order_of_metadata_does_not_matter() -> None:
    first = check_document("a", "x", "", {"b": 1, "a": {"d": 1, "c": "é"}})
    second = check_document("a", "x", "", {"a": {"c": "é", "d": 1}, "b": 1})
    assert first.version == second.version
    assert first.metadata == '{"a":{"c":"é","d":1},"b":1}'
