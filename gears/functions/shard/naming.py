"""How the keys of cached answers name their questions: by the text, or by a digest (`qa.answer-keys`).

A digest is keyed with what the servers of the cluster share, so nobody who reads names of keys, but has not that key,
can try out questions. A worker knows setting and key from its start on; another worker with others begins by dropping
the answers whose names it would not give (`is_ours`): no client would ever get them.
"""

from __future__ import annotations

from dataclasses import dataclass

from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import digest_name, parse_digest_name
from qa_cluster.shard_functions import ANSWER_KEYS_SETTING, DIGEST

_DIGEST_BYTES = 16
_MARK_BYTES = 4


@dataclass
class _Naming:
    """Whether names are digests, and what they have in common; None: not known yet."""

    mark: str | None = None


def _mark() -> str:
    """What the digests of this key have in common; empty if names are texts."""
    naming = state.of(_Naming)
    if naming.mark is None:
        by_digest = rg.server_setting(ANSWER_KEYS_SETTING) == DIGEST
        naming.mark = rg.keyed_digest("the names of answers", _MARK_BYTES) if by_digest else ""
    return naming.mark


def name_of(question: str) -> str:
    """The question as the name of its answers has it."""
    mark = _mark()
    return digest_name(mark, rg.keyed_digest(f"question {question}", _DIGEST_BYTES)) if mark else question


def is_ours(name: str) -> bool:
    """Whether this worker would give an answer this name, the part of the key that stands for the question."""
    return (parse_digest_name(name) or "") == _mark()


def is_digest(name: str) -> bool:
    """Whether a client that asks by this name has read it in a list of keys: it is no question."""
    return bool(_mark()) and parse_digest_name(name) is not None
