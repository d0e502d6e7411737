"""Stores feedback on answers, and logs questions without an answer or with an unsure answer.

Each collection has two streams in one partition: one for feedback, and one for these questions. Both streams have a
maximum number of entries. Feedback also has a maximum age.

A process collects unanswered questions in memory and stores them after `FLUSH_SECONDS`, so no answer is delayed. If a
question is repeated, the process replaces its own entry with a new entry and a higher count. `UnansweredLog.all` adds
up the entries of all processes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qa_cluster.errors import InvalidInput, QAError
from qa_cluster.keys import DEFAULT_COLLECTION, Partitioning, feedback_key, unanswered_key
from qa_cluster.routing.shards import Shards
from qa_cluster.types import Feedback, FeedbackEntry, UnansweredQuestion

from ..collections import Collections
from ..questions import fold, normalize

VERDICTS = RIGHT, WRONG, BETTER = "right", "wrong", "better"
MAX_QUESTION_CHARS = 1000
MAX_ANSWER_CHARS = 2000
MAX_CONTEXT_CHARS = 8000
MAX_ID_BYTES = 512
MAX_COMMENT_CHARS = 2000
FLUSH_SECONDS = 2.0
PAGE_ENTRIES = 500
# The maximum numbers of questions in the memory of a process. `MAX_PENDING` limits the questions that are not stored
# yet. `MAX_REMEMBERED` limits the stored questions whose entries this process can replace.
MAX_PENDING = 1000
MAX_REMEMBERED = 10_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FeedbackLimits:
    """The limits of both streams of a collection.

    Attributes:
        feedback_entries: the maximum number of feedback entries; 0: feedback is refused.
        feedback_days: when feedback is added, entries that are more than this number of days old are deleted. All
            feedback is deleted if none is added for this time.
        unanswered_entries: the maximum number of entries for questions without an answer or with an unsure answer; 0:
            these questions are not stored.
    """

    feedback_entries: int = 10_000
    feedback_days: int = 180
    unanswered_entries: int = 1000


class FeedbackStore:
    """The feedback of one cluster."""

    def __init__(
        self, shards: Shards, collections: Collections, partitions: Partitioning, limits: FeedbackLimits
    ) -> None:
        self._shards = shards
        self._collections = collections
        self._partitions = partitions
        self._limits = limits

    def _key(self, collection: str) -> str:
        return feedback_key(self._partitions.tag_of(collection), collection)

    async def add(self, feedback: Feedback, collection: str = DEFAULT_COLLECTION) -> str:
        """Store feedback and return its id. The oldest entries are deleted if the stream exceeds its limits.

        Raises:
            InvalidInput: a field is invalid, or the limit `feedback_entries` is 0.
            NotFound: the collection does not exist.
        """
        feedback = check_feedback(feedback)
        if not self._limits.feedback_entries:
            raise InvalidInput("this service stores no feedback (feedback_entries is 0)")
        await self._collections.check(collection)
        key, seconds = self._key(collection), self._limits.feedback_days * 86_400
        oldest = max(0, int((time.time() - seconds) * 1000))
        added: bytes
        added, _, _ = await self._shards.execute_many(
            [
                (key, ("XADD", key, "MAXLEN", self._limits.feedback_entries, "*", "entry", feedback.to_json())),
                (key, ("XTRIM", key, "MINID", f"{oldest}-0")),
                (key, ("EXPIRE", key, seconds)),
            ]
        )
        return added.decode()

    async def all(self, collection: str = DEFAULT_COLLECTION) -> tuple[FeedbackEntry, ...]:
        """Return all feedback of a collection, the oldest first."""
        await self._collections.check(collection)
        key = self._key(collection)
        found = []
        for name, raw in await read_stream(self._shards, key):
            given = Feedback.from_json(raw)
            found.append(FeedbackEntry(name, int(name.partition("-")[0]) // 1000, given))
        return tuple(found)


def check_feedback(feedback: Feedback) -> Feedback:
    """Return the feedback with its question normalised; InvalidInput names the invalid field."""
    question = normalize(feedback.question)
    if feedback.verdict not in VERDICTS:
        raise InvalidInput(
            f"verdict must be one of {', '.join(VERDICTS)}, got {feedback.verdict[:40]!r}", place="verdict"
        )
    needs_better = int(feedback.verdict == BETTER)
    for name, value, low, high in (
        ("question", question, 1, MAX_QUESTION_CHARS),
        ("document_id", feedback.document_id, 0, MAX_ID_BYTES),
        ("answer", feedback.answer, 0, MAX_ANSWER_CHARS),
        ("context", feedback.context, 0, MAX_CONTEXT_CHARS),
        ("better_document_id", feedback.better_document_id, 0, MAX_ID_BYTES),
        ("better_answer", feedback.better_answer, needs_better, MAX_ANSWER_CHARS),
        ("better_context", feedback.better_context, 0, MAX_CONTEXT_CHARS),
        ("comment", feedback.comment, 0, MAX_COMMENT_CHARS),
    ):
        if not low <= len(value) <= high:
            raise InvalidInput(f"{name} must have {low} to {high} characters, got {len(value)}", place=name)
    for answer, context in (("answer", "context"), ("better_answer", "better_context")):
        if (text := getattr(feedback, context)) and getattr(feedback, answer) not in text:
            raise InvalidInput(f"{answer} must be a part of {context}", place=answer)
    return replace(feedback, question=question)


class UnansweredLog:
    """Logs the questions that got no answer or an unsure answer."""

    def __init__(
        self, shards: Shards, collections: Collections, partitions: Partitioning, limits: FeedbackLimits
    ) -> None:
        self._shards = shards
        self._collections = collections
        self._partitions = partitions
        self._entries = limits.unanswered_entries
        self._pending: dict[tuple[str, str], UnansweredQuestion] = {}
        self._stored: OrderedDict[tuple[str, str], tuple[str, UnansweredQuestion]] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._complaint = ""

    def note(self, question: str, collection: str, score: float | None) -> None:
        """Count a question. `score` is the score of its unsure answer; None if it has no answer.

        This method never blocks and never raises an error. While `MAX_PENDING` different questions wait to be stored,
        other questions are not counted.
        """
        if not self._entries:
            return
        name, now = (collection, fold(question)), int(time.time())
        known = self._pending.get(name)
        if known is None and len(self._pending) >= MAX_PENDING:
            return
        count = 1 if known is None else known.count + 1
        self._pending[name] = UnansweredQuestion(question, count, 0.0 if score is None else round(score, 4), now, now)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush_later(), name="unanswered questions")

    async def _flush_later(self) -> None:
        await asyncio.sleep(FLUSH_SECONDS)
        await self.flush()

    async def flush(self) -> None:
        """Store the questions that were counted since the last call.

        If a write fails, the error is logged, and the rest of these questions is discarded.
        """
        pending, self._pending = self._pending, {}
        try:
            for name, found in pending.items():
                await self._store(name, found)
        except QAError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.warning("unanswered questions are not stored: %s", error)

    async def _store(self, name: tuple[str, str], found: UnansweredQuestion) -> None:
        key = unanswered_key(self._partitions.tag_of(name[0]), name[0])
        earlier, known = self._stored.pop(name, ("", found))
        if earlier:
            found = replace(found, count=known.count + found.count, first=known.first)
        words = ("XADD", key, "MAXLEN", self._entries, "*", "entry", found.to_json())
        commands: list[tuple[str, tuple[str | int | bytes, ...]]] = [(key, words)]
        if earlier:
            commands.append((key, ("XDEL", key, earlier)))
        replies = await self._shards.execute_many(commands)
        self._stored[name] = (replies[0].decode(), found)
        if len(self._stored) > MAX_REMEMBERED:
            self._stored.popitem(last=False)

    async def all(self, collection: str = DEFAULT_COLLECTION) -> tuple[UnansweredQuestion, ...]:
        """Return the logged questions of a collection, the most frequent first.

        Questions with equal results of `questions.fold` are one entry, with the sum of their counts.
        """
        await self._collections.check(collection)
        key = unanswered_key(self._partitions.tag_of(collection), collection)
        sums: dict[str, UnansweredQuestion] = {}
        for _, raw in await read_stream(self._shards, key):
            found = UnansweredQuestion.from_json(raw)
            name = fold(found.question)
            known = sums.get(name)
            if known is not None:
                found = replace(found, count=known.count + found.count, first=min(known.first, found.first))
            sums[name] = found
        return tuple(sorted(sums.values(), key=lambda each: (-each.count, -each.last)))

    async def aclose(self) -> None:
        """Store the pending questions."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._pending:
            await self.flush()


async def read_stream(shards: Shards, key: str) -> list[tuple[str, bytes]]:
    """Return the ids and values of all entries of a stream, the oldest first."""
    found: list[tuple[str, bytes]] = []
    start = "-"
    while True:
        page: Sequence[Any] = await shards.execute(key, "XRANGE", key, start, "+", "COUNT", PAGE_ENTRIES) or ()
        found += [(name.decode(), dict(zip(flat[::2], flat[1::2], strict=True))[b"entry"]) for name, flat in page]
        if len(page) < PAGE_ENTRIES:
            return found
        start = f"({found[-1][0]}"


async def restore_stream(shards: Shards, key: str, entries: Mapping[str, bytes]) -> None:
    """Add to a stream those of `entries` (ids and values) that the stream lacks. The stream stays sorted by ids."""
    present = dict(await read_stream(shards, key))
    if entries.keys() <= present.keys():
        return
    ttl = await shards.execute(key, "TTL", key)
    # A stream accepts new entries only at its end, so the whole stream is written again under a different name.
    other = f"{key}:restored"
    await shards.execute(other, "DEL", other)
    for name, raw in sorted({**entries, **present}.items(), key=lambda item: tuple(map(int, item[0].split("-")))):
        await shards.execute(other, "XADD", other, name, "entry", raw)
    if ttl > 0:
        await shards.execute(other, "EXPIRE", other, ttl)
    await shards.execute(key, "RENAME", other, key)
