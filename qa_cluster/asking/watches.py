"""Questions whose answers are kept: the indexes watch them, and drop each with the first write that may change it.

``docs/index.md`` says what an index watches. An answer is valid while its question is watched by every partition, by
the tokens that were given out for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from qa_cluster.errors import QAError
from qa_cluster.keys import index_key, partition_tags
from qa_cluster.ranking.bm25 import Ranking
from qa_cluster.ranking.filters import Filter
from qa_cluster.ranking.shard_ranking import Command
from qa_cluster.ranking.watching import watch_commands
from qa_cluster.routing.shards import Shards

# The shards begin to count before the service does, and neither may keep an answer that is not watched any more.
SLACK_SECONDS = 60

_log = logging.getLogger(__name__)


class Watches:
    """The watched questions of one cluster. What cannot be watched is not kept; it is never an error."""

    def __init__(self, shards: Shards, partitions: int, ttl_seconds: int, drift: float) -> None:
        self._shards = shards
        self.partitions = partitions
        self._ttl_ms = (ttl_seconds + SLACK_SECONDS) * 1000
        self._drift = drift
        self._complaint = ""

    async def watch(
        self, digest: str, ranking: Ranking, asked: int, chosen: Filter | None = None
    ) -> Mapping[str, int] | None:
        """Have an answer's question watched: a token for each partition, or None when something has just changed.

        Args:
            digest: the name of the answer.
            ranking: what it is made from.
            asked, chosen: see `watch_commands`.
        """
        commands = watch_commands(ranking, asked, chosen, name=digest, ttl_ms=self._ttl_ms, drift=self._drift)
        return await self._tokens(commands) if commands.keys() == set(partition_tags(self.partitions)) else None

    async def tokens(self, digest: str) -> Mapping[str, int] | None:
        """The tokens by which all partitions watch the question now; None when one does not."""
        tags = partition_tags(self.partitions)
        return await self._tokens({tag: ("QA.INDEX.WATCHED", index_key(tag), digest) for tag in tags})

    async def _tokens(self, commands: Mapping[str, Command]) -> Mapping[str, int] | None:
        try:
            replies: list[Any] = await self._shards.execute_many(
                [(index_key(tag), command) for tag, command in commands.items()]
            )
        except QAError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.warning("answers are not kept: %s", error)
            return None
        self._complaint = ""
        return dict(zip(commands, replies, strict=True)) if all(replies) else None
