"""Keeps models and scripts by reference: the loading thread makes them, and any thread finds them.

A reference names one object's very bytes, so what was made of it never goes stale; the module says when it is gone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


class LoadedByRef(Generic[T]):
    """What has been loaded; `fetch` asks the shard for the source of a reference and makes it."""

    def __init__(self, fetch: Callable[[int], T], loader: ThreadPoolExecutor) -> None:
        self._fetch = fetch
        self._loader = loader
        self._lock = threading.Lock()
        self._loading: dict[int, Future[T]] = {}
        self._ready: dict[int, T] = {}

    def ready(self, ref: int) -> T | None:
        """What is loaded already."""
        return self._ready.get(ref)

    async def get(self, ref: int) -> T:
        """The loaded object; fetched from the shard if this worker does not have it."""
        found = self._ready.get(ref)
        return found if found is not None else await self.load(ref, partial(self._fetch, ref))

    async def load(self, ref: int, make: Callable[[], T]) -> T:
        """Make an object that is being stored, or wait for the one that is being made."""
        return await asyncio.shield(asyncio.wrap_future(self._begin(ref, make)))

    def get_blocking(self, ref: int) -> T:
        """As `get`, for a thread that may wait."""
        found = self._ready.get(ref)
        return found if found is not None else self._begin(ref, partial(self._fetch, ref)).result()

    def drop(self, ref: int) -> None:
        """The shard no longer has it."""
        with self._lock:
            self._ready.pop(ref, None)
            self._loading.pop(ref, None)

    def _begin(self, ref: int, make: Callable[[], T]) -> Future[T]:
        with self._lock:
            loading = self._loading.get(ref)
            if loading is not None:
                return loading
            loading = Future()
            self._loading[ref] = loading
        self._loader.submit(self._make, ref, make, loading)
        return loading

    def _make(self, ref: int, make: Callable[[], T], loading: Future[T]) -> None:
        try:
            made = make()
        except BaseException as error:  # all that wait must get it, whatever it is
            with self._lock:
                if self._loading.get(ref) is loading:
                    del self._loading[ref]
            loading.set_exception(error)
            # error, traceback and this frame would keep each other, and the bytes of what was refused, alive
            del loading, make
            return
        with self._lock:
            if self._loading.get(ref) is loading:
                self._ready[ref] = made
        loading.set_result(made)
