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

# When a key is made anew its places begin anew, too: then another document may be at this one.
_GONE = re.compile("no document is open|sentences so far, not")


def send(name: tuple[str, str], parts: Sequence[tuple[int, bytes]], fields: bytes) -> str | None:
    """The place at which the index has the document; None if it was written or removed meanwhile.

    `parts` are from `pack_parts`. An error of the server is raised, and what it has of the document is dropped.
    """
    document = document_name(name[0])
    key = index_key(name[1], document.collection)
    (place,) = rg.execute_many([("QA.INDEX.BEGIN", key, document.rpartition("%/")[2], fields)])
    sent = 0
    for count, part in parts:
        try:
            rg.execute_many([("QA.INDEX.ADD", key, place, sent, part)])
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
        rg.execute_many([("QA.INDEX.ABORT", index_key(name[1], document_name(name[0]).collection), place)])
