"""Sends a long document to its index in parts, between which the shard serves others.

Nobody finds the parts before the last script commits them (`index_document.lua`). What a worker leaves behind when it
dies goes when its document, which still waits, is indexed again: an index holds one open document of an id.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import document_name, index_key

# A new word costs an index up to 2 microseconds on a busy machine, and a part of this size has 3,000 at most.
PART_BYTES = 16_384
# What is not longer goes in one command, with other documents.
MAX_WHOLE_BYTES = 65_536

# In the second case another writer has begun the same document, at the same place of a key that was made anew.
_GONE = re.compile("not open at this place|sentences so far, not")


def send(name: tuple[str, str], parts: Sequence[tuple[int, bytes]], fields: bytes) -> str | None:
    """The place at which the index has the document; None if it was written or removed meanwhile.

    `parts` are from `pack_parts`. An error of the server is raised, and what it has of the document is dropped.
    """
    key, document = _in_index(name)
    (place,) = rg.execute_many([("QA.INDEX.BEGIN", key, document, fields)])
    sent = 0
    for count, part in parts:
        try:
            rg.execute_many([("QA.INDEX.ADD", key, document, place, sent, part)])
        except rg.error as error:
            if _GONE.search(str(error)):
                return None
            drop(name, str(place))
            raise
        sent += count
    return str(place)


def drop(name: tuple[str, str], place: str) -> None:
    """Drop what the index has of a document, if it can be reached."""
    with contextlib.suppress(rg.error):
        rg.execute_many([("QA.INDEX.ABORT", *_in_index(name), place)])


def _in_index(name: tuple[str, str]) -> tuple[str, str]:
    """The key of the index that has a document, and the document's name there."""
    document = document_name(name[0])
    return index_key(name[1], document.collection), document.rpartition("%/")[2]
