"""`qa-cluster jobs ..`: runs the workers for batches of requests, and lists, shows and cancels batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import typer

from qa_cluster.asking.connecting import target_of
from qa_cluster.batches.records import Batch, BatchLimits, is_batch_id
from qa_cluster.batches.store import BatchStore
from qa_cluster.config import Settings
from qa_cluster.errors import NotFound

from ...provision.batch_workers import BatchWorkers
from ...provision.batch_workers import work as work_until_stopped
from ...servers.local import cluster_url, with_cluster
from ...terminal import console, tables
from ..shared_options import Json, audit_of, load_settings

_Result = TypeVar("_Result")
BatchId = Annotated[str, typer.Argument(help="Id of the batch, batch_..; `qa-cluster jobs list` lists the ids.")]


def work(
    context: typer.Context,
    workers: Annotated[
        int,
        typer.Option(help="Number of worker processes; each runs the batches of one API key at a time.", min=1, max=64),
    ] = 2,
) -> None:
    """Run the batches that clients of the REST service create, until Ctrl-C.

    The command starts worker processes of rq, and a jobs server if the setting jobs_url is empty. The batches and their
    results are in the cluster: after a crash of a worker, of this command or of a shard, a worker resumes each batch
    after the last recorded line. You can run the command on several hosts.

    Example: qa-cluster jobs work --workers 4
    """
    loaded = load_settings(context)
    settings = with_cluster(loaded.settings)
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    url = cluster_url(loaded.settings)
    asyncio.run(work_until_stopped(BatchWorkers(type(loaded)(settings, loaded.sources), url, workers)))


def list_jobs(context: typer.Context, json: Json = False) -> None:
    """Show the batches of all API keys, the newest first.

    Example: qa-cluster jobs list
    """

    async def read(store: BatchStore) -> list[Batch]:
        found = [batch for owner in await store.owners() for batch in (await store.batches(owner))[0]]
        return sorted(found, key=lambda batch: (batch.created_at, batch.id), reverse=True)

    found = _with_store(with_cluster(load_settings(context).settings), read)
    if json:
        console.say_json({"object": "list", "data": [_shown(batch) for batch in found]})
    elif not found:
        console.say("no batches: clients create them with POST /v1/batches")
    else:
        tables.table([_row(batch) for batch in found], minor=("created", "endpoint"))


def show(context: typer.Context, id: BatchId, json: Json = False) -> None:
    """Show a batch: its state, its progress and the errors of its validation.

    Example: qa-cluster jobs show batch_0123456789abcdef01234567
    """
    batch = _with_store(with_cluster(load_settings(context).settings), lambda store: _find(store, id))
    if json:
        console.say_json(_shown(batch))
        return
    tables.table([_row(batch)], minor=("created", "endpoint"))
    for error in batch.errors:
        where = f"line {error['line']}: " if error.get("line") else ""
        console.error(f"{where}{error['message']}")


def cancel(context: typer.Context, id: BatchId) -> None:
    """Cancel a batch. Recorded results stay. Running requests stop without a result, and the remaining requests do not
    run.

    Example: qa-cluster jobs cancel batch_0123456789abcdef01234567
    """
    audit = audit_of(context)

    async def end(store: BatchStore) -> Batch:
        batch = await _find(store, id)
        return await store.cancel(batch.owner, batch.id)

    batch = _with_store(with_cluster(load_settings(context).settings), end)
    audit.note("batch.cancel", batch=batch.id, owner=batch.owner)
    console.say(f"batch {batch.id} is {batch.status}: {batch.done} of {batch.total} requests have results")


async def _find(store: BatchStore, batch_id: str) -> Batch:
    if not is_batch_id(batch_id):
        raise typer.BadParameter(f"{batch_id!r} is not the id of a batch: batch_ and 24 hex digits")
    for owner in await store.owners():
        try:
            return await store.batch(owner, batch_id)
        except NotFound:
            continue
    raise NotFound(f"no such batch: {batch_id!r}; `qa-cluster jobs list` lists all")


def _with_store(settings: Settings, work: Callable[[BatchStore], Awaitable[_Result]]) -> _Result:
    async def run() -> _Result:
        engine = await target_of(settings).open()
        try:
            return await work(BatchStore(engine.shards, BatchLimits.of(settings)))
        finally:
            await engine.aclose()

    return asyncio.run(run())


def _shown(batch: Batch) -> dict[str, Any]:
    return {**batch.to_dict(), "owner": batch.owner}


def _row(batch: Batch) -> dict[str, Any]:
    return {
        "id": batch.id,
        "key": batch.owner,
        "endpoint": batch.request.endpoint,
        "status": batch.status,
        "done": f"{batch.completed + batch.failed} of {batch.total}" if batch.total else "",
        "failed": batch.failed,
        "created": datetime.fromtimestamp(batch.created_at, UTC).strftime("%Y-%m-%d %H:%M"),
    }
