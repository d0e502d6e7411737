"""Functions for scripts: they register qa-cluster's own functions, and prepare all documents.

To prepare a document means to store its tokens and its vectors (`gears/functions/embedding/prepare.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from ..shard.failures import GearsError
from .host.executions import as_worker
from .interface.builder import GearsBuilder
from .interface.runtime import current_runtime
from .registrations.script_source import running_script
from .registrations.sessions import own_registration


def register_all() -> None:
    """Register every own function on every shard. The script of the session `qa-functions` only calls this function.

    With ``UPGRADE``, a second call replaces the registrations and changes nothing else.
    """
    script, runtime = running_script(), current_runtime()
    if script is None:
        raise GearsError("register_all can only be called by a script")
    for function in runtime.functions.by_name.values():
        registration = own_registration(runtime.host.ids.next_dated(), function)
        script.session.registrations[registration.id] = registration


def prepare(*, force: bool = False, collection: str = "") -> None:
    """Make the running script prepare all documents on all shards, and wait for the end.

    The result of each shard is a JSON object with the shard's final progress.

    Without `force`, documents that already have tokens from the default reader's tokenizer get no new tokens. With or
    without `force`, only missing vectors are computed. With a `collection`, documents of other collections are skipped.
    """
    _on_all_shards(partial(_run, force=force, collection=collection))


def start_preparing(*, force: bool = False, collection: str = "") -> None:
    """Like `prepare`, but do not wait for the end: each shard prepares its documents in the background.

    The result of each shard is the shard's id. On each shard, the hash `progress:{h}` shows the progress, where ``h``
    is the hash tag of the shard.
    """
    _on_all_shards(partial(_start, force=force, collection=collection))


def _on_all_shards(function: Callable[[str], Awaitable[str]]) -> None:
    GearsBuilder("ShardsIDReader").map(function).run(convertToStr=False)


async def _run(shard_id: str, *, force: bool, collection: str) -> str:
    runtime = current_runtime()
    work = runtime.functions.preparation.run(shard_id, force=force, collection=collection)
    done: str = await runtime.host.await_on_loop(as_worker(work))
    return done


async def _start(shard_id: str, *, force: bool, collection: str) -> str:
    runtime = current_runtime()
    work = runtime.functions.preparation.start(shard_id, force=force, collection=collection)
    started: str = await runtime.host.await_on_loop(as_worker(work))
    return started
