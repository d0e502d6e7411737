"""Deletes cached answers whose keys do not have the form of the current `qa.answer-keys` setting."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from qa_cluster.documents.stored import drop_answers
from qa_cluster.errors import InvalidInput
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import parse_answer_key, sentence_answer_list_key

from .postponed import PostponedWork

NAMES_PER_STEP = 200


class ForeignAnswers:
    """Deletes *foreign* answers: cached answers whose keys do not have the form of the current setting and secret.

    For example, the key has the text of the question, but the setting says that keys have digests.
    """

    def __init__(self, shard: ShardContext, postponed: PostponedWork) -> None:
        self._commands = shard.commands
        self._names = shard.names
        self._postponed = postponed

    async def delete(self, tags: Collection[str]) -> int:
        """Delete the foreign answers in the partitions `tags`; return the number of deleted answers.

        The method finds the answers in each partition's list of cached answers. If the slot of a partition is
        migrating, the work on the partition is postponed.
        """
        deleted = 0
        for tag in tags:
            try:
                for names in self._listed(tag):
                    if foreign := [name for name in names if self._is_foreign(name)]:
                        deleted += self.delete_named(tag, foreign)
                    await asyncio.sleep(0)
            except GearsError as error:
                if not self._postponed.if_migrating(tag, error):
                    raise
        return deleted

    def delete_named(self, tag: str, names: Collection[str]) -> int:
        """Delete cached answers of a partition by their keys `names`, and their entries in the partition's lists of
        answers. Return the number of deleted answers.
        """
        return int(self._commands.run_script(drop_answers(tag, tuple(names))))

    def _is_foreign(self, key: str) -> bool:
        try:
            return not self._names.is_current(parse_answer_key(key)[1])
        except InvalidInput:
            return False

    def _listed(self, tag: str) -> Iterator[list[str]]:
        """Yield the keys in a partition's list of cached answers, at most `NAMES_PER_STEP` keys at a time."""
        cursor = "0"
        while True:
            cursor, found = self._commands.execute(
                "ZSCAN", sentence_answer_list_key(tag), cursor, "COUNT", NAMES_PER_STEP
            )
            names = [name for name in found[::2] if isinstance(name, str)]
            for first in range(0, len(names), NAMES_PER_STEP):  # ZSCAN returns a small sorted set as a whole
                yield names[first : first + NAMES_PER_STEP]
            if str(cursor) == "0":
                return
