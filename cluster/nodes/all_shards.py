"""Runs work on all shards in parallel: once, or repeatedly until it succeeds on every shard or the deadline passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import redis

from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, ModelError, from_reply
from qa_cluster.shard_functions import WARM_AGAIN_SECONDS

from .connect import ShardClient, shards_of
from .node import Node
from .polling import HEAVY_POLL_SECONDS

_THREADS = 16
# How long `until_all` waits for the end of a `Failure`. In this time, the worker retries twice.
_GIVE_UP_SECONDS = 2 * WARM_AGAIN_SECONDS + 2.0
_TEMPORARY = ("NOWORKER", "WORKERLOST", "OVERLOADED", "DEADLINE")
# redis-py removes the error code from the text of the errors that it knows.
_CODES = {redis.exceptions.OutOfMemoryError: "OOM", redis.exceptions.NoPermissionError: "NOPERM"}
_TEMPORARY_TYPES = (
    redis.exceptions.AskError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.BusyLoadingError,
)
# Receives one line about each step of the work.
OnStep = Callable[[str], None]
Result = TypeVar("Result")
# Work on one shard. It returns the problem that still prevents the work, or an empty string when the work is done.
Work = Callable[[Node, redis.Redis], str]


class Failure(str):
    """A problem that a worker reports, for example that it cannot run a model. The worker retries by itself.

    `until_all` gives up if the problem lasts longer than `_GIVE_UP_SECONDS`.
    """

    __slots__ = ()


@dataclass(frozen=True)
class ClusterOperation:
    """An operation on all shards of a cluster.

    Attributes:
        url: the address of the cluster.
        deadline: when the operation gives up, as a value of `time.monotonic`.
        on_step: see `OnStep`.
    """

    settings: Settings
    url: str
    deadline: float
    on_step: OnStep

    @classmethod
    def begin(cls, settings: Settings, url: str, seconds: float, on_step: OnStep) -> ClusterOperation:
        """Return an operation whose time limit of `seconds` starts now."""
        return cls(settings, url, time.monotonic() + seconds, on_step)


def until_all(operation: ClusterOperation, work: Work, what: str) -> None:
    """Do `work` on all shards in parallel, and repeat it until no shard has a problem.

    Each repetition does the work on all shards again. It first asks the cluster for its shards, because slots can move
    and replicas can be promoted meanwhile. After the deadline, or if a `Failure` lasts too long, raise ModelError if
    all problems are failures, else ClusterError. `what` is the start of the error message.
    """
    failing: dict[str, float] = {}
    while problems := on_all(operation, work):
        now = time.monotonic()
        failing = {address: failing.get(address, now) for address, found in problems.items() if type(found) is Failure}
        given_up = any(now - since > _GIVE_UP_SECONDS for since in failing.values())
        if given_up or now > operation.deadline:
            kind = ModelError if len(failing) == len(problems) else ClusterError
            raise kind(f"{what}: {in_words(problems)}" if what else in_words(problems))
        time.sleep(HEAVY_POLL_SECONDS)


def in_words(problems: dict[str, str]) -> str:
    """Return the problems as a text that states each problem once, with the shards that have it. The keys of `problems`
    are the addresses of the shards.
    """
    addresses: dict[str, list[str]] = {}
    for address, problem in problems.items():
        addresses.setdefault(problem, []).append(address)
    return "; ".join(f"shard{'s' * (len(on) > 1)} {', '.join(on)}: {problem}" for problem, on in addresses.items())


def on_all(operation: ClusterOperation, work: Work) -> dict[str, str]:
    """Do `work` on all shards in parallel. Return the problems by the address of the shard, without shards that have
    none.

    A temporary error, such as a lost connection, counts as a problem. A permanent error or a signal is raised after the
    work on all shards has ended.
    """
    with shards_of(operation.settings, operation.url) as shards:
        results = at_once(shards, partial(_attempt, work), operation.on_step)
        return {node.address: problem for (node, _), problem in zip(shards, results, strict=True) if problem}


def at_once(
    shards: Sequence[ShardClient], work: Callable[[Node, redis.Redis], Result], on_step: OnStep = lambda text: None
) -> list[Result]:
    """Do `work` on these shards in parallel. Return the results in the order of the shards.

    An error is raised after all work has ended.
    """
    with ThreadPoolExecutor(max_workers=max(1, min(len(shards), _THREADS))) as pool:
        running = [pool.submit(work, node, client) for node, client in shards]
        try:
            wait(running)
        except BaseException:  # a signal: the work must end before the caller undoes it or closes its connections
            on_step("interrupted: waiting until the work on the shards ends")
            wait(running)
            raise
    return [done.result() for done in running]


def _attempt(work: Work, node: Node, client: redis.Redis) -> str:
    try:
        return work(node, client)
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, *_TEMPORARY_TYPES) as error:
        return f"{type(error).__name__}: {error}"
    except redis.exceptions.ResponseError as error:
        if str(error).startswith(_TEMPORARY):
            return str(error)
        found = from_reply(f"{_CODES.get(type(error), '')} {error}".strip())
        raise type(found)(f"shard {node.address}: {found}") from error
