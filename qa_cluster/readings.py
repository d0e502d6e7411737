"""The replies of `qa.read`: per sentence what it answered, as the shard's functions write and cache it, or an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from qa_cluster.assembly import Reading
from qa_cluster.connection import ReplyError
from qa_cluster.errors import ClusterError, NotFound, from_reply
from qa_cluster.keys import SentenceRef, parse_sentence

_REDIRECTS = ("MOVED ", "ASK ", "TRYAGAIN ", "CLUSTERDOWN ")


def parse_readings(sentences: Sequence[str], replies: Sequence[Any]) -> list[Reading | None]:
    """One reading per sentence key; None where the sentence is gone.

    A sentence that has moved to another shard, or is on its way, raises the redirection, any other failure of one fails
    all.
    """
    if len(replies) != len(sentences):
        raise ClusterError(f"a shard was asked for {len(sentences)} sentences and answered {len(replies)}")
    return [_parse(parse_sentence(name), reply) for name, reply in zip(sentences, replies, strict=True)]


def _parse(sentence: SentenceRef, reply: Any) -> Reading | None:
    text = str(reply) if isinstance(reply, ReplyError) else _error_text(reply)
    if text is not None:
        if text.startswith(_REDIRECTS):
            raise ReplyError(text)
        error = from_reply(text)
        if isinstance(error, NotFound):
            return None
        raise error
    try:
        value = orjson.loads(reply)
        return Reading(
            sentence=sentence,
            answer=value["answer"],
            score=value["score"],
            start=value["start"],
            end=value["end"],
            version=value["document_version"],
            context=value["sentence"],
            context_start=value["sentence_start"],
            model=value["model"]["revision"],
            cached=value["cache"] == "shard",
            truncated=value["truncated"],
        )
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ClusterError(f"a shard's answer for sentence {sentence} cannot be read: {error!r}") from error


def _error_text(reply: Any) -> str | None:
    """The text of an error that came as a string ``-CODE text``."""
    return reply[1:].decode("utf-8", "replace") if isinstance(reply, bytes) and reply.startswith(b"-") else None
