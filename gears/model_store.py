"""The models of the shard in this worker: fetched by reference, compiled off the loop, warmed, run through the batcher.

A reference names one model's very bytes, so a compiled model never goes stale; the module tells when one is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from qa_cluster.errors import QAError

from . import backends
from .batcher import BATCH_SIZES, LENGTH_STEP, Batcher, ServedModel
from .failures import GearsError, error_line
from .tensors import Array

if TYPE_CHECKING:
    from .runtime import Runtime

logger = logging.getLogger(__name__)
KEY_TRUST_SECONDS = 1.0
# what a single question needs first; the rest is warmed when nothing waits
_FIRST_SHAPES = ((1, 32), (1, 48), (1, 64), (4, 48), (8, 48))
_WARM_LENGTHS = range(LENGTH_STEP, 129, LENGTH_STEP)


class ModelStore:
    """Compiled models by reference."""

    def __init__(
        self, runtime_of: Callable[[], Runtime], batcher: Batcher, *, threads: Callable[[], int], max_batch_tokens: int
    ) -> None:
        self.batcher = batcher
        self._runtime_of = runtime_of
        self._threads = threads
        self._max_tokens = max_batch_tokens
        self._models: dict[int, asyncio.Future[ServedModel]] = {}
        self._keys: dict[str, tuple[float, int]] = {}
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="load")

    def reference(self, key: str) -> int:
        """The reference of the model at `key`; GearsError when there is none. Trusted for a second."""
        known = self._keys.get(key)
        now = time.monotonic()
        if known is not None and now - known[0] < KEY_TRUST_SECONDS:
            return known[1]
        try:
            reply = self._runtime_of().execute("QA.MODELREF", key)
        except GearsError as error:
            self._keys.pop(key, None)
            raise GearsError(f"given key do not contain RedisAI model: {key} ({error})") from error
        if len(self._keys) > 1000:
            self._keys.clear()
        self._keys[key] = (now, int(reply[0]))
        return int(reply[0])

    async def get(self, ref: int) -> ServedModel:
        """The compiled model; loaded from the shard if this worker does not have it."""
        loading = self._models.get(ref)
        if loading is None:
            backend, device, blob = self._runtime_of().execute("QA.MODEL", ref)
            loading = self._begin(ref, backend.decode(), device.decode(), blob)
        return await asyncio.shield(loading)

    async def load(self, ref: int, backend: str, device: str, blob: bytes) -> ServedModel:
        """Compile a model that is being stored."""
        loading = self._models.get(ref)
        if loading is None:
            loading = self._begin(ref, backend, device, blob)
        return await asyncio.shield(loading)

    def ready(self, ref: int) -> ServedModel | None:
        """The compiled model if it is here already."""
        loading = self._models.get(ref)
        if loading is None or not loading.done() or loading.cancelled() or loading.exception() is not None:
            return None
        return loading.result()

    async def run(self, ref: int, arrays: Sequence[Array]) -> list[Array]:
        """Run a model."""
        model = self.ready(ref) or await self.get(ref)
        return await self.batcher.submit(model, arrays)

    def drop(self, ref: int) -> None:
        """The shard no longer has these bytes."""
        self._models.pop(ref, None)
        self._keys = {key: entry for key, entry in self._keys.items() if entry[1] != ref}

    async def load_all(self) -> None:
        """Load every model of the shard, at start; one that cannot be loaded is reported and left for later."""
        runtime = self._runtime_of()
        for key, _tag in runtime.execute("AI._MODELSCAN"):
            name = key.decode("utf-8", "replace")
            try:
                await self.get(int(runtime.execute("QA.MODELREF", key)[0]))
            except (QAError, GearsError) as error:
                logger.warning("model %s is not loaded: %s", name, error_line(error))

    def _begin(self, ref: int, backend: str, device: str, blob: bytes) -> asyncio.Future[ServedModel]:
        loop = asyncio.get_running_loop()
        loading = loop.run_in_executor(self._loader, self._compile, ref, backend, device, blob, self._threads())
        self._models[ref] = loading

        def loaded(outcome: asyncio.Future[ServedModel]) -> None:
            failed = outcome.cancelled() or outcome.exception() is not None
            if failed and self._models.get(ref) is outcome:
                del self._models[ref]
            elif not failed:
                self._warm_later(outcome.result())

        loading.add_done_callback(loaded)
        return loading

    def _compile(self, ref: int, backend: str, device: str, blob: bytes, threads: int) -> ServedModel:
        started = time.perf_counter()
        model = ServedModel(ref, backends.load_model(backend, device, blob, threads))
        if model.is_token_model:
            for rows, length in _FIRST_SHAPES:
                self._warm(model, rows, length)
        kind = "token model" if model.is_token_model else "model"
        took_ms = (time.perf_counter() - started) * 1000
        logger.info("%s %d (%d bytes, %d threads) is loaded, %.0f ms", kind, ref, len(blob), threads, took_ms)
        return model

    def _warm_later(self, model: ServedModel) -> None:
        """Run the other usual shapes once, each when nothing waits: a shape's first run compiles its kernels."""
        if not model.is_token_model:
            return
        shapes = [(rows, length) for rows in BATCH_SIZES for length in _WARM_LENGTHS]
        shapes = [(rows, length) for rows, length in shapes if rows * length <= self._max_tokens]
        for rows, length in sorted(shapes, key=lambda shape: shape[0] * shape[1]):
            if (rows, length) not in _FIRST_SHAPES:
                self.batcher.when_idle(partial(self._warm_quietly, model, rows, length))

    def _warm_quietly(self, model: ServedModel, rows: int, length: int) -> None:
        if self.ready(model.ref) is not model:
            return
        try:
            self._warm(model, rows, length)
        except Exception as error:  # a model may have a length limit below the usual shapes
            logger.info("model %d does not take %d x %d tokens: %s", model.ref, rows, length, error_line(error))

    @staticmethod
    def _warm(model: ServedModel, rows: int, length: int) -> None:
        arrays = []
        for port in model.compiled.inputs:
            fill = 1 if port.name == "attention_mask" else 0
            arrays.append(np.full((rows, length), fill, dtype=port.dtype))
        model.compiled.run(arrays)
