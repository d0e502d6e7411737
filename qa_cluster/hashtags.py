"""Short constant strings, one per slot, that hash to the slot. A key with such a string as its hash tag is in the slot.

RedisGears' ``hashtag()`` returns strings of the same kind.

>>> hashtag_for_slot(0)
'06S'
"""

from __future__ import annotations

import itertools
import string
from binascii import crc_hqx
from functools import cache

from .errors import InvalidInput
from .keys import SLOTS

_ALPHABET = (string.digits + string.ascii_uppercase + string.ascii_lowercase).encode()  # in the order of the bytes
_LONGEST = 3  # three characters are enough for all slots

# If c is the CRC of a prefix, the CRC of the prefix and one more byte is (c << 8) ^ crc((c >> 8) ^ byte). The low byte
# of c << 8 is 0. So after each prefix, only one last byte can give the low byte of the wanted slot. This saves a
# starting worker from trying all 238,000 strings.
_BYTE_SUMS = tuple(crc_hqx(bytes([byte]), 0) for byte in range(256))


@cache
def hashtag_for_slot(number: int) -> str:
    """Return the first string that hashes to slot `number`.

    Shorter strings come first. Strings of the same length are in the order of their bytes.
    """
    if not 0 <= number < SLOTS:
        raise InvalidInput(f"slot {number} is out of range: 0 to {SLOTS - 1}")
    fitting = [(byte, total) for byte, total in enumerate(_BYTE_SUMS) if (total ^ number) & 0xFF == 0]
    for length in range(_LONGEST):
        for beginning in map(bytes, itertools.product(_ALPHABET, repeat=length)):
            checksum = crc_hqx(beginning, 0)
            high, rest = checksum >> 8, checksum << 8
            found = [high ^ byte for byte, total in fitting if (total ^ rest) % SLOTS == number]
            if last := min((byte for byte in found if byte in _ALPHABET), default=None):
                return (beginning + bytes([last])).decode()
    raise AssertionError(f"no string of up to {_LONGEST} characters hashes to slot {number}")


def shard_tag(slot_ranges: list[tuple[int, int]]) -> str:
    """Return the hash tag of a shard that owns `slot_ranges`: the tag of its lowest slot.

    >>> shard_tag([(5461, 10922), (0, 3)])
    '06S'
    """
    if not slot_ranges:
        raise InvalidInput("the shard owns no slots: it has no hash tag")
    return hashtag_for_slot(min(first for first, _ in slot_ranges))
