"""The trigger `qa.sentences`: returns the sentences of a document, so that clients need not read its stored form."""

from __future__ import annotations

from qa_cluster.documents.stored import parse_hits, read_hits
from qa_cluster.errors import InvalidInput, NotFound
from qa_cluster.gears.functions.calls import TriggerCall
from qa_cluster.gears.functions.shard.arguments import check_number
from qa_cluster.gears.functions.shard.slots import is_redirect
from qa_cluster.gears.shard.commands import ShardCommands
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import MAX_NAME_CHARS, PARAGRAPHS_PREFIX, paragraphs_key, parse_tagged
from qa_cluster.shard_functions import MAX_SHOWN_SENTENCES, SENTENCES_TRIGGER


async def on_sentences(shard: ShardCommands, call: TriggerCall) -> list[str]:
    """Trigger ``qa.sentences <doc>:{tag} [first [count]]``: return the texts of sentences in order, starting with
    number `first`.

    The numbers of sentences start at 0; `first` is 0 if it is missing. `count` is the maximum number of returned
    sentences. If `count` is missing, it is `MAX_SHOWN_SENTENCES`, which is also its limit. Returns no sentences if a
    ``SET`` has changed the text and the new text is not indexed yet.
    """
    wanted = list(call.arguments[:4])
    known = 1 <= len(wanted) <= 3 and isinstance(wanted[0], str) and len(wanted[0]) <= MAX_NAME_CHARS
    name = parse_tagged(f"{PARAGRAPHS_PREFIX}{wanted[0]}", PARAGRAPHS_PREFIX) if known else None
    if name is None:
        raise InvalidInput(
            f"{SENTENCES_TRIGGER} takes a document as in keys, <document>:{{tag}}, optionally the number of the first"
            f" sentence and the number of sentences, got {wanted!r}"[:300]
        )
    first = check_number(wanted[1], "the first sentence", 0, 10**9) if len(wanted) > 1 else 0
    most = MAX_SHOWN_SENTENCES
    count = check_number(wanted[2], "the number of sentences", 1, most) if len(wanted) > 2 else most
    try:
        found = parse_hits(shard.run_script(read_hits(*name, range(first, first + count), 0)))
    except GearsError as error:
        if not is_redirect(error):
            raise
        key = paragraphs_key(*name)[:200]
        raise NotFound(
            f"this shard does not have the slot of {key!r}, or the slot is migrating: ask its shard"
        ) from error
    if found is None:
        raise NotFound(f"no such document: {name[0][:100]!r}")
    return [placed.text for passage in found.passages for placed in passage]
