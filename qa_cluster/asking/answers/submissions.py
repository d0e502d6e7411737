"""Submitted questions, which are answered later: the cluster stores a question, and then its result for a limited time.

All submissions of one owner (an API key) are on one shard. The process that answers a question is the *holder* of the
question. The holder has a lease, and renews the lease while it works. If the holder ends, the lease expires, and the
next process that reads the submission becomes the holder. The question itself may have crashed its holders. Therefore,
after `MAX_TRIES` expired leases, the next holder gets the state `LOST` and does not try the question again.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from math import ceil

from qa_cluster.errors import LimitReached
from qa_cluster.keys import submission_key, submissions_key
from qa_cluster.routing.shards import Shards
from qa_cluster.scripts.calls import ScriptCall

LEASE_SECONDS = 15.0
RENEW_SECONDS = 5.0
MAX_TRIES = 3
MISSING, DONE, RUNNING, CLAIMED, LOST = "missing", "done", "running", "claimed", "lost"
_ID = re.compile(r"[0-9a-f]{32}\Z")


@dataclass(frozen=True, slots=True)
class Submission:
    """The state of a submission when a process reads it.

    Attributes:
        state: one of the constants `MISSING`, `DONE`, `RUNNING`, `CLAIMED` and `LOST`. `RUNNING`: the submission has
            no result yet, and this call did not change its holder. `CLAIMED`: this process is now its holder. `LOST`:
            this process is now its holder, but must not try the question again.
        seconds_left: the time until the submission expires, in seconds.
        question: the question as it was submitted, for `CLAIMED` and `LOST`.
        request_id: the id of the request that submitted it, for `CLAIMED` and `LOST`.
        detail: the last error, for `RUNNING`.
        response: the status, the headers and the body of the response, for `DONE`.
    """

    state: str
    seconds_left: float = 0.0
    question: bytes = b""
    request_id: str = ""
    detail: str = ""
    response: tuple[int, bytes, bytes] | None = None


class SubmittedQuestions:
    """Reads and changes the submissions of one cluster, for one process.

    In all methods, `owner` is the id of the API key with which the question was submitted; empty: the request had no
    API key. `name` is the id of the submission.

    >>> submissions = SubmittedQuestions(shards)
    >>> name, _ = await submissions.submit("0123456789ab", b"{..}", "r1", keep_seconds=3600, most=1000)
    >>> (await submissions.claim("0123456789ab", name)).state
    'running'
    """

    def __init__(self, shards: Shards, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._shards = shards
        self._lease_ms = ceil(lease_seconds * 1000)
        self._holder = os.urandom(8).hex()

    async def submit(
        self, owner: str, question: bytes, request_id: str, *, keep_seconds: float, most: int
    ) -> tuple[str, float]:
        """Store a question, with this process as its holder.

        If the question gets no result, the submission expires after `keep_seconds`. `request_id` is the id of the
        request that submits the question.

        Returns:
            the id of the submission, and the time when it expires, in seconds since 1970.

        Raises:
            LimitReached: the owner already has `most` submitted questions and results.
        """
        name = secrets.token_hex(16)
        arguments = (name, ceil(keep_seconds * 1000), most, question, request_id, self._holder, self._lease_ms)
        accepted, number = await self._shards.run(ScriptCall("submit_question", _keys(owner, name), arguments))
        if accepted:
            return name, number / 1000
        seconds = max(1, ceil(number / 1000))
        error = LimitReached(
            f"{f'key {owner}' if owner else 'this service'} has {most} submitted questions and results, the limit"
            f" (async_results_max): delete results that you have read, or try again in {seconds} s"
        )
        error.retry_after_seconds = seconds
        raise error

    async def claim(self, owner: str, name: str, *, only_read: bool = False) -> Submission:
        """Read a submission.

        If the submission has no result, its lease has expired and `only_read` is false, this process becomes its
        holder.
        """
        if not _ID.match(name):
            return Submission(MISSING)
        arguments = ("" if only_read else self._holder, self._lease_ms, MAX_TRIES)
        reply = await self._shards.run(ScriptCall("claim_question", (submission_key(owner, name),), arguments))
        state, left = _text(reply[0]), max(0, reply[1]) / 1000
        if state == DONE:
            return Submission(state, left, response=(int(reply[2]), _bytes(reply[3]), _bytes(reply[4])))
        if state == RUNNING:
            return Submission(state, left, detail=_text(reply[2]))
        if state in (CLAIMED, LOST):
            return Submission(state, left, _bytes(reply[2]), _text(reply[3]))
        return Submission(MISSING)

    async def renew(self, owner: str, name: str) -> bool:
        """Renew the lease; return false if this process is no longer the holder."""
        return await self._settle(owner, name, "renew", self._holder, self._lease_ms)

    async def release(self, owner: str, name: str, reason: str) -> bool:
        """Give up the lease, so that any process can become the holder. This try does not count towards `MAX_TRIES`.

        `reason` is shown to clients that wait for the result. Return false if this process is no longer the holder.
        """
        return await self._settle(owner, name, "release", self._holder, reason)

    async def finish(self, owner: str, name: str, response: tuple[int, bytes, bytes], *, keep_seconds: float) -> bool:
        """Store the response; return false if the submission has expired or is already finished.

        This process need not be the holder: if two processes answer, the first response is stored. `response` has the
        status, the headers and the body. The submission then expires after `keep_seconds`.
        """
        return await self._settle(owner, name, "finish", self._holder, name, ceil(keep_seconds * 1000), *response)

    async def remove(self, owner: str, name: str) -> bool:
        """Delete a submission; return false if it does not exist."""
        if not _ID.match(name):
            return False
        return bool(await self._shards.run(ScriptCall("remove_question", _keys(owner, name), (name,))))

    async def _settle(self, owner: str, name: str, *arguments: str | bytes | int) -> bool:
        return bool(await self._shards.run(ScriptCall("settle_question", _keys(owner, name), arguments)))


def _keys(owner: str, name: str) -> tuple[str, str]:
    return submissions_key(owner), submission_key(owner, name)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _text(value: object) -> str:
    return _bytes(value).decode()
