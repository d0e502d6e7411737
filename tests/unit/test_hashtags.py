"""The hash tag of a slot is the first string that hashes to the slot, ordered by length and then by bytes."""

from __future__ import annotations

import string
from itertools import product

import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.hashtags import hashtag_for_slot, shard_tag
from qa_cluster.keys import SLOTS, slot


@pytest.fixture(scope="module")
def first_tags() -> dict[int, str]:
    """The tag of each slot, found by trying all strings in order."""
    letters = sorted(string.ascii_letters + string.digits)
    found: dict[int, str] = {}
    for length in (1, 2, 3):
        for tag in map("".join, product(letters, repeat=length)):
            found.setdefault(slot(tag), tag)
    return found


def test_the_tag_is_the_first_string_that_hashes_to_the_slot(first_tags: dict[int, str]) -> None:
    numbers = [*range(0, SLOTS, 31), *range(0, SLOTS, 256), *range(255, SLOTS, 256)]
    assert [hashtag_for_slot(number) for number in numbers] == [first_tags[number] for number in numbers]


@pytest.mark.parametrize("number", [-1, SLOTS])
def test_every_slot_has_a_tag(number: int) -> None:
    with pytest.raises(InvalidInput, match=f"slot {number} is out of range: 0 to 16383"):
        hashtag_for_slot(number)


def test_a_shard_has_the_tag_of_its_lowest_slot() -> None:
    assert shard_tag([(5461, 10922), (3, 7)]) == hashtag_for_slot(3)
    with pytest.raises(InvalidInput, match="no slots"):
        shard_tag([])
