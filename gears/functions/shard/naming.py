"""The names of questions in the keys of cached answers: the text, or a digest (`qa.answer-keys`).

The digest depends on a secret of the cluster's servers. So a client that can list keys, but does not have the secret,
cannot test guessed questions against the names. A worker reads the setting and the secret at its start. After a change
of the setting or the secret, no question finds the answers with previous names any more, and the worker deletes these
answers (`is_current`).
"""

from __future__ import annotations

from functools import cached_property

from qa_cluster.gears.shard.commands import ShardCommands
from qa_cluster.keys import digest_name, parse_digest_name
from qa_cluster.shard_functions import ANSWER_KEYS_SETTING, DIGEST

_DIGEST_BYTES = 16
_MARK_BYTES = 4


class AnswerNames:
    """Makes the names of questions in the keys of answers."""

    def __init__(self, shard: ShardCommands) -> None:
        self._shard = shard

    @cached_property
    def _mark(self) -> str:
        """The common part of all digest names with this secret; empty if names are texts."""
        by_digest = self._shard.setting(ANSWER_KEYS_SETTING) == DIGEST
        return self._shard.keyed_digest("the names of answers", _MARK_BYTES) if by_digest else ""

    def name_of(self, question: str) -> str:
        """Return the name of a question in the keys of its answers."""
        if not self._mark:
            return question
        return digest_name(self._mark, self._shard.keyed_digest(f"question {question}", _DIGEST_BYTES))

    def is_current(self, name: str) -> bool:
        """Return whether the name has the current form: a text, or a digest with the current secret."""
        return (parse_digest_name(name) or "") == self._mark

    def is_digest(self, name: str) -> bool:
        """Return whether the name is a digest and not a question, on a shard whose keys have digests.

        A client can know a digest only from a list of keys, so the worker does not read the digest as a question.
        """
        return bool(self._mark) and parse_digest_name(name) is not None
