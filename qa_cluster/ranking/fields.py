"""Adds the terms of a sentence's title, file name and section to the terms of the sentence.

The sentence that answers "Who wrote gzip?" may not contain "gzip", but the title of the manual does. So the terms of
these fields count for every sentence of the document or section. A term of a field counts less than an occurrence in
the sentence, and does not make the sentence longer. An index stores integer frequencies and one length per sentence, so
this module counts frequencies in quarters. For a frequency f and a length l, the index gets the frequency 4 f and the
length 4 l + 15 (`scaled_length`). BM25's saturated frequency is the same for both pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from qa_cluster.documents.source_map import read_map

from .terms import question_terms

# An occurrence in the sentence has the frequency 4, so a frequency of 3 is three quarters of an occurrence
# (docs/evaluation.md).
OCCURRENCE = 4
TITLE = 3
FILE = 3
SECTION = 3
# The maximum numbers of terms from a title, a file name, and the headings of a section. The innermost heading is used
# first.
MAX_TITLE_TERMS = 16
MAX_FILE_TERMS = 8
MAX_SECTION_TERMS = 24

_ENDING = re.compile(r"\.[A-Za-z0-9]{1,8}\Z")


def scaled_length(length: int) -> int:
    """Return the length to store with frequencies in quarters. The weights are the same as for whole frequencies."""
    return OCCURRENCE * length + 5 * (OCCURRENCE - 1)


def field_terms(title: str, file: str = "", section: Sequence[str] = ()) -> dict[str, int]:
    """Return the terms of a sentence's fields, with the frequency that each term adds, in quarters of an occurrence.

    `section` is the path of headings above the sentence, the outermost heading first. Empty fields add no terms.

    >>> field_terms("gzip(1) - compress files", "gzip/gzip.1.gz", ["Options", "-f"])
    {'gzip': 6, 'compress': 3, 'file': 3, 'option': 3}
    """
    found: dict[str, int] = {}
    for terms, weight in (
        (_terms(title, MAX_TITLE_TERMS), TITLE),
        (_terms(_stem(file), MAX_FILE_TERMS), FILE),
        (_terms("\n".join(reversed(section)), MAX_SECTION_TERMS), SECTION),
    ):
        for term in terms:
            found[term] = found.get(term, 0) + weight
    return found


def fields_of(title: str, metadata: Mapping[str, Any], starts: Sequence[int]) -> Iterator[dict[str, int]]:
    """Yield the terms of the fields for each sentence of a document, in the form of `field_terms`.

    `metadata` is the metadata of the document; its source map names the file and the sections. `starts` are the offsets
    of the sentences in the document, in code points.
    """
    source = read_map(metadata)
    section: tuple[str, ...] | None = None
    found: dict[str, int] = {}
    for start in starts:
        if (own := source.section_at(start)) != section:
            section, found = own, field_terms(title, source.file, own)
        yield found


def _stem(file: str) -> str:
    return _ENDING.sub("", file.removesuffix(".gz"))


@lru_cache(maxsize=4096)
def _terms(text: str, most: int) -> tuple[str, ...]:
    return tuple(question_terms(text, most)) if text else ()
