"""Lets a shard read the contexts that a request contains, with the trigger `qa.pipeline`. The shards take turns.

Any shard can read any context. If a shard is down, busy or without the model, the next shard is asked.
"""

from __future__ import annotations

from math import inf
from typing import Any

import orjson

from qa_cluster.deadline import deadline
from qa_cluster.errors import (
    ClusterError,
    ModelError,
    NotFound,
    NoWorker,
    QAError,
    QueueFull,
    ReplyError,
    from_reply,
)
from qa_cluster.huggingface.request import PipelineRequest
from qa_cluster.routing.connection import ConnectionLost
from qa_cluster.routing.shards import Shards, shard_facts, without_function
from qa_cluster.shard_functions import NOT_REGISTERED, PIPELINE_TRIGGER
from qa_cluster.topology import Shard
from qa_cluster.tracing import step

# Error replies of a server that is starting, failing over or has lost its cluster.
_UNREADY = frozenset({"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "TRYAGAIN", "UNBLOCKED"})
# After these errors, the next shard is asked. WorkerLost is not in the list: the request may have killed the worker,
# and could kill the next worker, too.
_PASSED_ON = (ClusterError, ModelError, NoWorker, NotFound, QueueFull)


class RemotePipeline:
    """Reads contexts on the shards of one cluster.

    At most `most` requests are in flight. One more request raises QueueFull.

    >>> pipeline = RemotePipeline(shards)
    >>> model, results = await pipeline.read("", parse_request(body, PipelineLimits()), timeout_seconds=10)
    """

    def __init__(self, shards: Shards, *, most: int = 32) -> None:
        self._shards = shards
        self._most = most
        self._in_flight = 0
        self._turn = 0

    async def read(self, model: str, request: PipelineRequest, *, timeout_seconds: float) -> tuple[str, list[Any]]:
        """Read the pairs (a question and a context) of a request; return the reader's name, and one result per pair.

        Args:
            model: an id or ``id@revision``; empty: the default model.

        Raises:
            NotFound: no shard has the model.
            QueueFull: `most` requests are already in flight, or the shards are busy.
            DeadlineExceeded: the time limit was reached; the shard stops reading.
        """
        if self._in_flight >= self._most:
            raise QueueFull(
                f"{self._most} requests with contexts are in flight, which is the limit (pipeline_max_requests)"
            )
        self._in_flight += 1
        late = f"the {len(request.samples)} pairs were not read in {timeout_seconds * 1000:g} ms (timeout)"
        try:
            async with deadline(timeout_seconds, late):
                command = (PIPELINE_TRIGGER, model, request.to_json())
                return _parse(await self._shards.retrying(lambda: self._round(command), inf))
        finally:
            self._in_flight -= 1

    async def _round(self, command: tuple[str, str, bytes]) -> Any:
        """Ask the shards one after the other, and return the first reply.

        After an error that is not in `_PASSED_ON`, no other shard is asked, and this error is raised. If all shards
        fail, raise the error of the first shard that could be reached. If no shard could be reached, raise the error of
        the last shard.
        """
        shards = self._shards.up or self._shards.all
        first = self._turn % len(shards)
        self._turn += 1
        reason: QAError | None = None
        for shard in (*shards[first:], *shards[:first]):
            try:
                return await self._ask(shard, command)
            except _PASSED_ON as error:
                if reason is None or isinstance(reason, ConnectionLost):
                    reason = error
        raise reason or ClusterError("the cluster has no shard")

    async def _ask(self, shard: Shard, command: tuple[str, str, bytes]) -> Any:
        try:
            with step(PIPELINE_TRIGGER, is_call=True) as call:
                if call is not None:
                    call.note(shard_facts(shard))
                return await self._shards.execute_on(shard, "RG.TRIGGER", *command, blocking=True)
        except ReplyError as error:
            if NOT_REGISTERED in str(error):
                raise without_function(shard, PIPELINE_TRIGGER) from error
            kind = ClusterError if error.code in _UNREADY else from_reply
            raise kind(str(error)) from error


def _parse(reply: Any) -> tuple[str, list[Any]]:
    try:
        found = orjson.loads(reply[0])
        return found["model"], found["results"]
    except (orjson.JSONDecodeError, IndexError, KeyError, TypeError) as error:
        raise ClusterError(f"a shard's reply to {PIPELINE_TRIGGER} cannot be read: {error!r}") from error
