"""Cuts a document into the passages that get vectors: whole sentences of one section, up to a budget of tokens.

A section is cut into as few passages as the budget allows. These passages get about equal lengths, because a short rest
at the end of a section would be a poor passage. A sentence that exceeds the budget is a passage of its own, and the
encoder ignores its end. Every sentence is in exactly one passage. The functions do no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from qa_cluster.documents.source_map import SourceMap
from qa_cluster.reading.prefix import SEPARATOR


@dataclass(frozen=True, slots=True)
class CutPassage:
    """The sentences of a passage, and the path of headings above these sentences.

    Attributes:
        first: the number of the passage's first sentence in the document, from 0.
        sentences: the number of sentences in the passage.
        section: the path of headings, in the form that `prefix_ids` takes.
    """

    first: int
    sentences: int
    section: str


def cut_document(
    lengths: Sequence[int], starts: Sequence[int], source_map: SourceMap, budget_of: Callable[[str], int]
) -> list[CutPassage]:
    """Return the passages of a document, in order.

    Args:
        lengths: the number of tokens of each sentence.
        starts: the first code point of each sentence.
        source_map: says which headings are above each code point.
        budget_of: returns the token budget for the sentences of a passage under a path of headings.
    """
    found: list[CutPassage] = []
    for first, end, section in _sections(starts, source_map):
        for begin, count in cut_section(lengths[first:end], budget_of(section)):
            found.append(CutPassage(first + begin, count, section))
    return found


def cut_section(lengths: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Return, for each passage, the number of its first sentence in the section, from 0, and its number of sentences.

    `lengths` has the number of tokens of each sentence of the section, and `budget` is the token budget of a passage.

    >>> cut_section([40, 40, 40, 40], 128)
    [(0, 2), (2, 2)]
    >>> cut_section([10, 500, 10], 128)
    [(0, 1), (1, 1), (2, 1)]
    """
    passages = _filled(lengths, budget)
    low, high = 0, budget
    # Find the smallest budget that needs no more passages than the full budget. With the smallest budget, the lengths
    # of the passages are about equal.
    while low < high:
        middle = (low + high) // 2
        if len(_filled(lengths, middle)) > len(passages):
            low = middle + 1
        else:
            high = middle
    return _filled(lengths, high)


def _filled(lengths: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Return the passages that result if each passage gets as many sentences as the budget of tokens allows.

    The arguments and the result have the form of `cut_section`.
    """
    found: list[tuple[int, int]] = []
    first = tokens = 0
    for number, length in enumerate(lengths):
        if number > first and tokens + length > budget:
            found.append((first, number - first))
            first, tokens = number, 0
        tokens += length
    if first < len(lengths):
        found.append((first, len(lengths) - first))
    return found


def _sections(starts: Sequence[int], source_map: SourceMap) -> Iterator[tuple[int, int, str]]:
    """Yield each section: the number of its first sentence, the number after its last sentence, its path of headings.

    A section is a row of consecutive sentences under the same path of headings. The path is empty if there is no
    heading.
    """
    first, section = 0, ""
    for number, start in enumerate(starts):
        path = SEPARATOR.join(source_map.section_at(start))
        if number and path != section:
            yield first, number, section
            first = number
        section = path
    if starts:
        yield first, len(starts), section
