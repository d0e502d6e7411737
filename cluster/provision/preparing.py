"""Runs `qa-cluster prepare`: starts the storing of missing tokens and vectors on all shards, and waits for the end.

Each shard records its progress in a key (`keys.progress_key`), which this module reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import redis
from rq import get_current_job

from qa_cluster import keys
from qa_cluster.config import Settings, load
from qa_cluster.errors import ClusterError, DeadlineExceeded

from ..nodes.connect import shards_of
from ..nodes.node import command
from ..nodes.polling import HEAVY_POLL_SECONDS
from ..servers.local import with_cluster
from .inspection import pairs

JOB_FUNCTION = "qa_cluster.cluster.provision.preparing.background"
_SCRIPT = (
    "from qa_cluster.gears.scripts.own_functions import start_preparing;"
    " start_preparing(force={force}, collection={collection!r})"
)


@dataclass(frozen=True, slots=True)
class PreparedDocuments:
    """The result of `prepare`.

    Attributes:
        counts: the sums over all shards. `done` of `total` documents are finished with their tokens, and `embedded` of
            `to_embed` documents with their vectors. `sentences` is the number of tokenized sentences. `failed` is the
            number of failed documents.
        failures: the first failed documents of each shard, with the reasons.
    """

    counts: Mapping[str, int]
    failures: tuple[str, ...] = ()


def prepare(
    settings: Settings, *, force: bool, collection: str = "", on_progress: Callable[[int, int], None]
) -> PreparedDocuments:
    """Store the missing tokens (with `force`, all tokens) and the missing vectors on every shard, and wait for the end.

    Args:
        collection: the collection to prepare; empty for all collections.
        on_progress: receives the number of completed steps and the total. A document has one step for its tokens and
            one for its vectors.
    """
    deadline = time.monotonic() + settings.pretokenize_timeout_ms / 1000
    with shards_of(settings, settings.cluster_url) as shards:
        watched = [(keys.progress_key(node.tag), client) for node, client in shards]
        before = [_progress(key, client).get("started") for key, client in watched]
        reply = command(shards[0][1], "RG.PYEXECUTE", _SCRIPT.format(force=force, collection=collection))
        if isinstance(reply, list) and len(reply) == 2 and reply[1]:
            raise ClusterError(f"the preparation could not be started: {_first(reply[1])}")
        return _follow(settings, watched, before, deadline, on_progress)


def background(force: bool, collection: str = "") -> dict[str, int]:
    """Run `prepare` as a background job with the settings of the jobs worker. Return `PreparedDocuments.counts`.

    The job records its progress in rq, where `qa-cluster status` reads it.
    """
    job: Any = get_current_job()

    def show(done: int, total: int) -> None:
        if job is not None:  # None outside of rq
            job.meta["progress"] = f"{done} of {total} steps"
            job.save_meta()

    made = prepare(with_cluster(load().settings), force=force, collection=collection, on_progress=show)
    return dict(made.counts)


def _follow(
    settings: Settings,
    watched: list[tuple[str, redis.Redis]],
    before: list[Any],
    deadline: float,
    on_progress: Callable[[int, int], None],
) -> PreparedDocuments:
    patience = settings.start_timeout_ms / 1000
    last: list[dict[str, Any]] = []
    progressed = time.monotonic()
    while True:
        found = [_progress(key, client) for key, client in watched]
        # Ignore the progress of an earlier `prepare`.
        current = [row if row.get("started") != old else {} for row, old in zip(found, before, strict=True)]
        sums = {
            name: sum(int(row.get(name, 0)) for row in current)
            for name in ("done", "total", "sentences", "failed", "embedded", "to_embed")
        }
        on_progress(sums["done"] + sums["embedded"], sums["total"] + sums["to_embed"])
        if all(row.get("state") == "done" for row in current):
            named = (name for row in current for name in orjson.loads(row.get("failures", "[]")))
            return PreparedDocuments(sums, tuple(named))
        if current != last:
            last, progressed = current, time.monotonic()
        now = time.monotonic()
        late = now > deadline
        if late or (all(current) and now - progressed > patience):
            reason = "at the time limit (pretokenize_timeout_ms)" if late else f"without progress for {patience:.0f} s"
            raise DeadlineExceeded(
                f"the preparation stopped at {sums['done']} of {sums['total']} documents with tokens and"
                f" {sums['embedded']} of {sums['to_embed']} with vectors, {reason}: see `qa-cluster status` and the"
                " server logs. The same command resumes it"
            )
        time.sleep(HEAVY_POLL_SECONDS)


def _progress(key: str, client: redis.Redis) -> dict[str, Any]:
    return pairs(client.hgetall(key))


def _first(errors: Any) -> str:
    text = errors[0] if isinstance(errors, list) and errors else errors
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
