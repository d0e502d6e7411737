"""Sends a long document to its index in parts; the shard serves other clients between the parts.

Questions do not find the parts before the last script commits them (`index_document.lua`). A worker that dies leaves
its parts open. They are dropped when the document, which is still pending, is indexed again: an index holds one open
document of an id.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

from qa_cluster.gears.shard.commands import ShardCommands
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import document_name, index_key

# A new word costs an index up to 2 microseconds on a busy machine, and a part of this size has at most 3,000.
PART_BYTES = 16_384
# A shorter document goes in one command, with other documents.
MAX_WHOLE_BYTES = 65_536

# In the second case another writer has begun the same document, at the same place of a recreated key.
_GONE = re.compile("not open at this place|sentences so far, not")


def send(shard: ShardCommands, name: tuple[str, str], parts: Sequence[tuple[int, bytes]], fields: bytes) -> str | None:
    """The place at which the index has the document; None if it was written or removed meanwhile.

    `parts` are from `pack_parts`. An error of the server is raised after the open parts have been dropped.
    """
    key, document = _in_index(name)
    (place,) = shard.execute_many([("QA.INDEX.BEGIN", key, document, fields)])
    sent = 0
    for count, part in parts:
        try:
            shard.execute_many([("QA.INDEX.ADD", key, document, place, sent, part)])
        except GearsError as error:
            if _GONE.search(str(error)):
                return None
            drop(shard, name, str(place))
            raise
        sent += count
    return str(place)


def drop(shard: ShardCommands, name: tuple[str, str], place: str) -> None:
    """Drop the open parts of a document, if the index can be reached."""
    with contextlib.suppress(GearsError):
        shard.execute_many([("QA.INDEX.ABORT", *_in_index(name), place)])


def _in_index(name: tuple[str, str]) -> tuple[str, str]:
    """The key of the index that has a document, and the document's name there."""
    document = document_name(name[0])
    return index_key(name[1], document.collection), document.rpartition("%/")[2]
