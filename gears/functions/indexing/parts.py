"""Sends a long document to its index in parts, so that the shard can serve other clients between the parts.

Until the last script (`index_document.lua`) commits the parts, the document is *open*, and questions do not find its
parts. If a worker dies, its parts stay open and the document stays pending. When the document is indexed again, the new
parts replace the open parts, because the index allows one open document for each id. The *place* of an open document is
the number by which the index knows it (docs/inverted-index.md).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

from qa_cluster.gears.shard.commands import ShardCommands
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import document_name, index_key

# The size of a part in bytes. A part has at most 3,000 words, and on a busy machine, the index needs up to 2
# microseconds for a new word. So a part blocks the shard for at most about 6 ms.
PART_BYTES = 16_384
# A document up to this size is sent as a whole, in one command with other documents.
MAX_WHOLE_BYTES = 65_536

# The errors of a document that is no longer open for this writer. The second message means that the key was created
# again, and another writer has opened the same document at the same place.
_GONE = re.compile("not open at this place|sentences so far, not")


def send(shard: ShardCommands, name: tuple[str, str], parts: Sequence[tuple[int, bytes]], fields: bytes) -> str | None:
    """Send the parts of a document; return the place of the open document in the index.

    `parts` are from `pack_parts`: the number of sentences in each part, and its bytes. `fields` are the packed values
    of the metadata (`pack_fields`). Returns None if the document was written or removed in the meantime. If the server
    refuses a part, the function discards the open parts and raises the error.
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
    """Discard the open parts of a document. Ignore an error of the server."""
    with contextlib.suppress(GearsError):
        shard.execute_many([("QA.INDEX.ABORT", *_in_index(name), place)])


def _in_index(name: tuple[str, str]) -> tuple[str, str]:
    """Return the key of the index that contains a document, and the document's name in this index."""
    document = document_name(name[0])
    return index_key(name[1], document.collection), document.rpartition("%/")[2]
