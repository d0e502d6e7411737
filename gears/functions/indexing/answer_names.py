"""Drops cached answers whose names are of another kind than this worker gives (`qa.answer-keys`): texts, or digests."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from qa_cluster.documents.stored import drop_answers
from qa_cluster.errors import InvalidInput
from qa_cluster.gears.functions.indexing import late
from qa_cluster.gears.functions.shard import naming
from qa_cluster.gears.functions.shard.calls import run_script
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import parse_answer_key, sentence_answer_list_key

NAMES_PER_STEP = 200


def is_foreign(key: str) -> bool:
    """Whether this is the key of an answer with a name that this worker would not give."""
    try:
        return not naming.is_ours(parse_answer_key(key)[1])
    except InvalidInput:
        return False


async def drop_foreign(tags: Collection[str]) -> int:
    """Drop them from the lists of these partitions; return how many values there were."""
    dropped = 0
    for tag in tags:
        try:
            for names in _kept(tag):
                if foreign := [name for name in names if is_foreign(name)]:
                    dropped += drop(tag, foreign)
                await asyncio.sleep(0)
        except rg.error as error:
            if not late.is_moving(tag, error):
                raise
    return dropped


def drop(tag: str, names: Collection[str]) -> int:
    """Drop answers of a partition, and every mention of them."""
    return int(run_script(drop_answers(tag, tuple(names))))


def _kept(tag: str) -> Iterator[list[str]]:
    """The names in a partition's list of cached answers."""
    cursor = "0"
    while True:
        cursor, found = rg.execute("ZSCAN", sentence_answer_list_key(tag), cursor, "COUNT", NAMES_PER_STEP)
        names = [name for name in found[::2] if isinstance(name, str)]
        for first in range(0, len(names), NAMES_PER_STEP):  # a small set comes whole, whatever its size
            yield names[first : first + NAMES_PER_STEP]
        if str(cursor) == "0":
            return
