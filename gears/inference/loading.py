"""Keeps loaded models and scripts in memory, by reference. The loader thread loads objects. Any thread can get objects.

A reference is the module's number for the bytes of a stored model or script. The bytes of a reference never change, so
a loaded object stays valid. The module reports the deletion of an object.
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
    """Loaded objects by reference. `fetch` fetches the bytes of a reference from the shard and loads the object.

    `discard` is called with each dropped object.
    """

    def __init__(
        self, fetch: Callable[[int], T], loader: ThreadPoolExecutor, discard: Callable[[T], None] = lambda made: None
    ) -> None:
        self._fetch = fetch
        self._discard = discard
        self._loader = loader
        self._lock = threading.Lock()
        self._loading: dict[int, Future[T]] = {}
        self._ready: dict[int, T] = {}

    def ready(self, ref: int) -> T | None:
        """Return the object; None if it is not loaded."""
        return self._ready.get(ref)

    async def get(self, ref: int) -> T:
        """Return the loaded object. Fetch it from the shard if this worker does not have it."""
        found = self._ready.get(ref)
        return found if found is not None else await self.load(ref, partial(self._fetch, ref))

    async def load(self, ref: int, make: Callable[[], T]) -> T:
        """Return the object of `ref`: load it with `make`, or wait for a load of `ref` that is already running."""
        return await asyncio.shield(asyncio.wrap_future(self._begin(ref, make)))

    def get_blocking(self, ref: int) -> T:
        """Like `get`, for a thread that may block."""
        found = self._ready.get(ref)
        return found if found is not None else self._begin(ref, partial(self._fetch, ref)).result()

    def drop(self, ref: int) -> None:
        """Drop an object that the shard no longer has. If it is being loaded, drop it when the load has ended."""
        with self._lock:
            made = self._ready.pop(ref, None)
            self._loading.pop(ref, None)
        if made is not None:
            self._discard(made)

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
        except BaseException as error:  # all waiting callers must get the error, of any type
            with self._lock:
                if self._loading.get(ref) is loading:
                    del self._loading[ref]
            loading.set_exception(error)
            # breaks a cycle of error, traceback and frame, which would keep the refused bytes in memory
            del loading, make
            return
        with self._lock:
            is_wanted = self._loading.get(ref) is loading
            if is_wanted:
                self._ready[ref] = made
        loading.set_result(made)
        if not is_wanted:
            self._discard(made)
