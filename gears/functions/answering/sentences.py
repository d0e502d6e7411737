"""Shows the sentences of a document to clients that know nothing of how they are stored: the trigger `qa.sentences`."""

from __future__ import annotations

from typing import Any

from qa_cluster.documents.stored import parse_hits, read_hits
from qa_cluster.errors import InvalidInput, NotFound
from qa_cluster.gears.functions.answering.arguments import check_number
from qa_cluster.gears.functions.shard import slots
from qa_cluster.gears.functions.shard.calls import run_script
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import MAX_NAME_CHARS, PARAGRAPHS_PREFIX, paragraphs_key, parse_tagged
from qa_cluster.shard_functions import MAX_SHOWN_SENTENCES, SENTENCES_TRIGGER


async def on_sentences(arguments: list[Any]) -> list[str]:
    """Trigger ``qa.sentences <doc>:{tag} [first [count]]``: the texts of its sentences, in order, from `first` on.

    Sentences of a text that has just been changed by a plain ``SET`` are left out.
    """
    wanted = arguments[1:5]
    known = 1 <= len(wanted) <= 3 and isinstance(wanted[0], str) and len(wanted[0]) <= MAX_NAME_CHARS
    name = parse_tagged(f"{PARAGRAPHS_PREFIX}{wanted[0]}", PARAGRAPHS_PREFIX) if known else None
    if name is None:
        raise InvalidInput(
            f"{SENTENCES_TRIGGER} takes a document as it stands in keys, <document>:{{tag}}, perhaps the number of a"
            f" sentence and how many, got {wanted!r}"[:300]
        )
    first = check_number(wanted[1], "the first sentence", 0, 10**9) if len(wanted) > 1 else 0
    most = MAX_SHOWN_SENTENCES
    count = check_number(wanted[2], "the number of sentences", 1, most) if len(wanted) > 2 else most
    try:
        found = parse_hits(run_script(read_hits(*name, range(first, first + count), 0)))
    except rg.error as error:
        if not slots.is_redirect(error):
            raise
        place = paragraphs_key(*name)
        raise NotFound(f"this shard does not have the slot of {place[:200]!r}, or it moves: ask its shard") from error
    if found is None:
        raise NotFound(f"no such document: {name[0][:100]!r}")
    return [placed.text for passage in found.passages for placed in passage]
