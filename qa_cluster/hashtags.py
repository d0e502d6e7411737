"""Short constant strings that hash to a given slot: how a key is pinned to a shard, as RedisGears' ``hashtag()`` did.

>>> hashtag_for_slot(0)
'06S'
"""

from __future__ import annotations

import itertools
import string
from functools import cache

from .errors import InvalidInput
from .keys import SLOTS, slot

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase


@cache
def _table() -> tuple[str, ...]:
    """For every slot, the first string, shortest first, that hashes to it; three characters suffice for all slots."""
    found: dict[int, str] = {}
    for length in (1, 2, 3):
        for letters in itertools.product(_ALPHABET, repeat=length):
            tag = "".join(letters)
            found.setdefault(slot(tag), tag)
    return tuple(found[number] for number in range(SLOTS))


def hashtag_for_slot(number: int) -> str:
    """The constant string that hashes to slot `number`."""
    if not 0 <= number < SLOTS:
        raise InvalidInput(f"slot {number} is out of range: 0 to {SLOTS - 1}")
    return _table()[number]


def shard_tag(slot_ranges: list[tuple[int, int]]) -> str:
    """The hash tag of a shard that owns `slot_ranges`: the one of its lowest slot.

    >>> shard_tag([(5461, 10922), (0, 3)])
    '06S'
    """
    if not slot_ranges:
        raise InvalidInput("the shard owns no slots: it has no hash tag")
    return hashtag_for_slot(min(first for first, _ in slot_ranges))
