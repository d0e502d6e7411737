"""Records which user a task works for, so that shards and services can share their capacity fairly.

A service works for many holders of API keys, but all its connections have the same ACL user. So the shards distinguish
the holders by the names of connections (`CLIENT SETNAME`). While a connection works for a holder, its name contains the
id of the holder's API key. A name that starts with ``bulk:`` marks bulk work: work for which no user waits, such as a
batch. The shards queue bulk work separately.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

CLIENT_NAME = "qa-cluster"
_asker: ContextVar[str] = ContextVar("asker", default="")
_bulk: ContextVar[bool] = ContextVar("bulk", default=False)


def work_for(asker: str) -> None:
    """Let this task, and the tasks that it starts, work for `asker`, the id of an API key.

    An empty `asker` means no particular user.
    """
    _asker.set(asker)


def asker() -> str:
    """Return the asker of this task: the id of an API key. An empty text means no particular user."""
    return _asker.get()


@contextmanager
def bulk_work() -> Iterator[None]:
    """Let this task, and the tasks that it starts in the block, do bulk work until the end of the block."""
    token = _bulk.set(True)
    try:
        yield
    finally:
        _bulk.reset(token)


def connection_name() -> str:
    """Return the connection name under which a shard receives the commands of this task."""
    name = f"{CLIENT_NAME}:{_asker.get()}" if _asker.get() else CLIENT_NAME
    return f"bulk:{name}" if _bulk.get() else name
