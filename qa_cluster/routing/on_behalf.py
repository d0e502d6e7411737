"""For whom the work of a task is done, so that shards and services can put those in turn.

A process asks the shards for many: a service for the holders of API keys, all as one ACL user. The shards tell clients
of one user apart by their names (`CLIENT SETNAME`), so the connection that works for somebody carries their name
meanwhile. A name that begins with ``bulk:`` makes it bulk work there, which goes on beside that of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

CLIENT_NAME = "qa-cluster"
_asker: ContextVar[str] = ContextVar("asker", default="")
_bulk: ContextVar[bool] = ContextVar("bulk", default=False)


def work_for(asker: str) -> None:
    """From here on this task, and those that it starts, work for `asker`, the id of an API key; empty: nobody."""
    _asker.set(asker)


def asker() -> str:
    """Whom this task works for; empty: nobody in particular."""
    return _asker.get()


@contextmanager
def bulk_work() -> Iterator[None]:
    """Within the block, this task and those that it starts do bulk work."""
    token = _bulk.set(True)
    try:
        yield
    finally:
        _bulk.reset(token)


def connection_name() -> str:
    """The name under which a shard gets the commands of this task."""
    name = f"{CLIENT_NAME}:{_asker.get()}" if _asker.get() else CLIENT_NAME
    return f"bulk:{name}" if _bulk.get() else name
