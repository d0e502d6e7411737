"""Sends a long document to its index in parts; the shard serves other clients between the parts.

Questions do not find the parts before the last script commits them (`index_document.lua`). If a worker dies, its parts
stay open. The document stays pending, and when it is indexed again, the index replaces these parts: it allows one open
document for each id.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

from qa_cluster.gears.shard.commands import ShardCommands
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import document_name, index_key

# A new word takes the index up to 2 microseconds on a busy machine. A part of this size has at most 3,000 words.
PART_BYTES = 16_384
# A document up to this size is sent as a whole, in one command with other documents.
MAX_WHOLE_BYTES = 65_536

# The second error means: the key was recreated, and another writer has opened the same document at the same place.
_GONE = re.compile("not open at this place|sentences so far, not")


def send(shard: ShardCommands, name: tuple[str, str], parts: Sequence[tuple[int, bytes]], fields: bytes) -> str | None:
    """Send the parts (from `pack_parts`); return the place of the open document in the index.

    None: the document was written or removed meanwhile. If the server refuses a part, the open parts are dropped before
    the error is raised.
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
