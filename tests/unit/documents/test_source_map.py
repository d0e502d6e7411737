"""The source map of a document can be read after it was written, and its size is limited."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_cluster.documents.metadata_limits import MAX_METADATA_BYTES, canonical_metadata
from qa_cluster.documents.source_map import FIELD, NO_MAP, filter_metadata, read_map, shown_metadata, write_map
from qa_cluster.types import Source

paths = st.lists(st.sampled_from(["a", "b", "é"]), max_size=4)
starts = st.lists(st.integers(0, 10_000), unique=True, max_size=20).map(sorted)


@given(starts, st.data())
def test_a_map_is_read_as_it_was_written(at: list[int], data: st.DataObject) -> None:
    sections = [(start, data.draw(paths)) for start in at]
    places = [(start, data.draw(st.integers(1, 100_000))) for start in at]
    written = json.loads(json.dumps(write_map("f.rst", "rst", 1, sections, unit="line", places=places)))
    found = read_map({FIELD: written})
    for start, path in sections:
        assert found.section_at(start) == tuple(path)
    for start, number in places:
        assert found.number_at(start) == number
        assert found.source_at(start) == Source("f.rst", line=number)
    if at and at[0]:
        assert found.section_at(0) == ()
        assert found.source_at(0) == Source("f.rst")


def test_a_large_map_is_thinned_out_and_stays_right() -> None:
    sections = [(n * 100, [f"Chapter {n // 50}", f"Section {n}", f"-option-{n} <value>"]) for n in range(5000)]
    places = [(n * 10, n * 3 + 1) for n in range(50_000)]
    written = write_map("f", "text", 1, sections, unit="line", places=places)
    assert len(canonical_metadata({FIELD: written}, "of a test")) < MAX_METADATA_BYTES
    found = read_map({FIELD: written})
    assert found.section_at(4999 * 100) == ("Chapter 99",)
    assert 0 <= 3 * 40_000 + 1 - (found.number_at(400_000) or 0) < 100


@pytest.mark.parametrize(
    "value",
    [
        *(None, "a web page", 3, [], {"file": 3}, {"sections": 7}, {"unit": "line", "places": 5}),
        *({"sections": [each]} for each in ([-1, 0, "a"], [0, 1, "a"], ["x"], [0, 0, 5])),
        *({"unit": "line", "places": each} for each in ("!", "AQ==", "/////////w==")),
    ],
)
def test_an_invalid_map_counts_as_empty(value: Any) -> None:
    assert read_map({FIELD: value}) == NO_MAP
    assert read_map({}) == NO_MAP


def test_answers_show_metadata_without_the_map_and_filters_know_file_and_format() -> None:
    metadata = {"lang": "en", FIELD: write_map("f.rst", "rst", 1, [(0, ["A"])])}
    assert shown_metadata(metadata) == {"lang": "en"}
    assert filter_metadata(metadata) == {"lang": "en", FIELD: {"file": "f.rst", "format": "rst"}}
    assert filter_metadata({"lang": "en"}) == {"lang": "en"}
