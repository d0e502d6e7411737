"""The native module and Python have the same limits."""

from __future__ import annotations

import re
from functools import cache

import pytest

from qa_cluster.ranking import filters, terms, watching
from qa_cluster.shard_functions import MAX_RANK_COUNT
from tests.harness.programs import ROOT

# `NAME = 12` in an enum; `#define NAME 12` or `#define NAME ((1LL << 53) - 1)`
IN_ENUM = re.compile(r"\b([A-Z_]+) = (\d+)[,; ]")
DEFINED = re.compile(r"^#define ([A-Z_]+) (?:(\d+)|\(\(1LL << (\d+)\) - 1\))(?= |$)", re.MULTILINE)


@cache
def native() -> dict[str, int]:
    """The limits of the index and of its commands."""
    found: dict[str, int] = {}
    for name in ("index/index.h", "index/fields.c", "corpus/cmd_index_read.c", "corpus/cmd_index_watch.c"):
        text = (ROOT / "native" / name).read_text()
        found |= {limit: int(number) for limit, number in IN_ENUM.findall(text)}
        for limit, number, bits in DEFINED.findall(text):
            found[limit] = int(number) if number else (1 << int(bits)) - 1
    return found


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (watching.MAX_TERM_BYTES, "INDEX_MAX_TERM"),
        (watching.MOST, "MAX_NUMBER"),
        (filters.MAX_FILTER_BYTES, "MAX_FILTER_BYTES"),
        (filters.MAX_NODES, "INDEX_MAX_FILTER_NODES"),
        (filters.MAX_DEPTH, "INDEX_MAX_FILTER_DEPTH"),
        (filters.MAX_VALUES, "INDEX_MAX_FILTER_VALUES"),
        (filters.MAX_FIELDS_BYTES, "INDEX_MAX_FIELDS"),
        (filters.MAX_FIELDS, "MAX_FIELDS"),
        (terms.MAX_QUESTION_TERMS, "INDEX_MAX_QUESTION_TERMS"),
    ],
)
def test_limits_of_the_index(ours: int, name: str) -> None:
    assert ours == native()[name]


def test_every_ranking_can_be_watched() -> None:
    """Each sentence of a ranking may belong to another document."""
    assert min(native()["INDEX_MAX_HITS"], native()["INDEX_MAX_WATCHED_DOCUMENTS"]) >= MAX_RANK_COUNT
