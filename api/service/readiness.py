"""Checks whether every shard can answer questions, and names what is missing. Results are cached for one second.

The service is ready if every shard can answer, all slots are served, and all shards have the same model.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Any

from qa_cluster.asking.engine import Engine
from qa_cluster.asking.loaded_readers import manifest_in_use
from qa_cluster.errors import ModelError, QAError, ReplyError
from qa_cluster.hashtags import shard_tag
from qa_cluster.keys import manifest_key, model_key, tokenizer_key
from qa_cluster.reading.manifest import Manifest
from qa_cluster.routing.connection import ConnectionLost
from qa_cluster.shard_functions import QUESTION_FUNCTIONS, missing_functions
from qa_cluster.topology import Shard

from .lifespan import ServiceState
from .telemetry import parse_info

KEEP_SECONDS = 1.0
CHECK_TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class ShardReadiness:
    """The readiness of one shard.

    Attributes:
        shard: the name of the shard.
        model: the revision of the default reader; empty if it is not known.
        missing: what the shard lacks, such as a model or a ready worker, as texts for people. If it is empty, the shard
            is ready.
    """

    shard: str
    address: str
    ready: bool
    model: str
    missing: tuple[str, ...]


class Readiness:
    """Checks all shards, and caches the result for `KEEP_SECONDS`."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._kept: tuple[float, dict[str, Any]] | None = None
        self._lock = asyncio.Lock()

    async def verdict(self) -> dict[str, Any]:
        """Return the result as JSON-ready values: ``ready``, a ``detail`` for people, and the state of every shard."""
        async with self._lock:
            if self._kept is not None and time.monotonic() - self._kept[0] < KEEP_SECONDS:
                return self._kept[1]
            found = await self._ask()
            self._kept = (time.monotonic(), found)
            return found

    async def _ask(self) -> dict[str, Any]:
        try:
            engine = self._state.engine
        except QAError as error:
            return {"ready": False, "detail": str(error), "shards": []}
        shards = await asyncio.gather(*(_check(engine, shard) for shard in engine.shards.all))
        problems = [f"shard {item.address}: {', '.join(item.missing)}" for item in shards if not item.ready]
        if not engine.shards.topology.whole:
            problems.append("some slots of the cluster are not served")
        if len({item.model for item in shards if item.ready}) > 1:
            problems.append("the shards have different models")
        return {
            "ready": not problems,
            "detail": "; ".join(problems) or "every shard can answer",
            "cache_tracking": engine.freshness.ready,
            "shards": [asdict(item) for item in shards],
        }


async def _check(engine: Engine, shard: Shard) -> ShardReadiness:
    missing: list[str] = []
    revision = ""
    tag = shard_tag(engine.shards.topology.ranges_of(shard))
    commands: list[tuple[str | int, ...]] = [
        ("EXISTS", model_key(tag)),
        ("EXISTS", tokenizer_key(tag)),
        ("GET", manifest_key(tag)),
        ("RG.DUMPREGISTRATIONS",),
        ("INFO", "qa"),
    ]
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
            connection = await engine.shards.pool(shard.address).shared()
            replies = [await future for future in connection.send_many(commands)]
    except (QAError, TimeoutError) as error:
        return ShardReadiness(shard.name, str(shard.address), False, "", (str(error) or "no answer in time",))
    if lost := next((reply for reply in replies if isinstance(reply, ConnectionLost)), None):
        return ShardReadiness(shard.name, str(shard.address), False, "", (str(lost),))
    model, tokenizer, manifest, registrations, info = replies
    if (model, tokenizer) != (1, 1) or not isinstance(manifest, bytes):
        # While slots migrate, the keys of the reader may be on another shard. Then check the reader that the worker
        # uses.
        in_use = await _manifest_in_use(engine, shard)
        if in_use is not None:
            model, tokenizer, manifest = 1, 1, in_use
    if model != 1:
        missing.append("no model")
    if tokenizer != 1:
        missing.append("no tokenizer")
    try:
        revision = Manifest.from_json(manifest).revision if isinstance(manifest, bytes) else ""
    except ModelError as error:
        missing.append(str(error))
    if not revision:
        missing.append("no manifest")
    if isinstance(registrations, ReplyError):
        missing.append("the module is not loaded")
    elif lacking := missing_functions(registrations, QUESTION_FUNCTIONS):
        missing.append(lacking)
    fields = parse_info(info if isinstance(info, bytes) else str(info).encode())
    state = fields.get("qa_worker_state")
    if state != "ready" and not isinstance(registrations, ReplyError):
        missing.append(f"its worker is {state or 'unknown'}")
    return ShardReadiness(shard.name, str(shard.address), not missing, revision, tuple(missing))


async def _manifest_in_use(engine: Engine, shard: Shard) -> bytes | None:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
            return await manifest_in_use(engine.shards, shard)
    except (QAError, TimeoutError):
        return None
