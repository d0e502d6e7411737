"""Holds the models of the shard: compiles them outside the event loop, warms them, and runs them in queues.

Without `qa.inference-workers`, this process compiles and runs the models. Otherwise only the inference workers do
(`workers`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from qa_cluster.errors import InferenceFailed, QAError
from qa_cluster.reading.manifest import LENGTH_STEP

from ..shard.failures import GearsError, error_line
from ..shard.host import Host
from ..shard.link import raise_on_error
from ..shard.memory import check_fits, is_exhaustion, too_large
from .backends.base import CompiledModel, RuntimeLimits, blank_inputs
from .backends.choose import load_model
from .devices import Devices
from .loading import LoadedByRef
from .model_file import RUNTIME_COPIES, fetch, temporary_model_file
from .served import Batching, ServedModel, WaitLimit
from .tensors import Array
from .token_batches import BATCH_SIZES
from .workers.pool import InferenceWorkers, WorkerCounts
from .workers.remote import RemoteModel

logger = logging.getLogger(__name__)
# the shapes that a single question needs first; the other shapes are warmed when the device is idle
_FIRST_SHAPES = ((1, 32), (1, 48), (1, 64), (4, 48), (8, 48))
_WARM_LENGTHS = range(LENGTH_STEP, 129, LENGTH_STEP)


class ModelStore:
    """Compiled models by reference. With `workers`, these processes load and run the models.

    `loader` is the thread that compiles models.
    """

    def __init__(
        self,
        host: Host,
        devices: Devices,
        *,
        limits: Callable[[], RuntimeLimits],
        max_batch_tokens: int,
        workers: InferenceWorkers | None = None,
    ) -> None:
        self.devices = devices
        self._workers = workers
        self._host = host
        self._limits = limits
        self._max_tokens = max_batch_tokens
        self.loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="load")
        self._models = LoadedByRef(self._fetch, self.loader)

    @property
    def worker_counts(self) -> WorkerCounts:
        """The counts of the inference workers; zeros if models run in this process."""
        return self._workers.counts if self._workers is not None else WorkerCounts()

    async def get(self, ref: int) -> ServedModel:
        """Return the compiled model. Load it from the shard if this worker does not have it."""
        return await self._models.get(ref)

    def get_blocking(self, ref: int) -> ServedModel:
        """Like `get`, for a thread that may block."""
        return self._models.get_blocking(ref)

    async def load(self, ref: int, backend: str, device: str, size: int) -> ServedModel:
        """Compile a model that is being stored."""
        return await self._models.load(ref, partial(self._fetch_file, ref, backend, device, size))

    async def compile(self, ref: int, backend: str, device: str, blob: bytes) -> ServedModel:
        """Compile a model that no key of this shard stores."""
        return await self._models.load(ref, lambda: self._compile(ref, backend, device, [blob], len(blob)))

    async def warm(self, model: ServedModel, shapes: Sequence[tuple[int, int]]) -> None:
        """Run a token model once in each shape (rows x tokens), in turn with other work of the device.

        InferenceFailed if a run fails.
        """
        queue = self.devices.of(model.device)
        for rows, length in shapes:
            if rows * length <= self._max_tokens and (rows, length) not in model.warmed:
                await queue.call(partial(self._warm_asked, model, rows, length))

    def ready(self, ref: int) -> ServedModel | None:
        """Return the compiled model if it is already loaded."""
        return self._models.ready(ref)

    async def run(self, ref: int, arrays: Sequence[Array]) -> list[Array]:
        """Run a model."""
        return await self.run_loaded(self._models.ready(ref) or await self._models.get(ref), arrays)

    async def run_loaded(self, model: ServedModel, arrays: Sequence[Array]) -> list[Array]:
        """Run a compiled model, even if no key stores it any more."""
        outputs, _ = await self.devices.of(model.device).run(model, arrays)
        return outputs

    async def run_batched(
        self, ref: int, arrays: Sequence[Array], batching: Batching | None, limit: WaitLimit | None
    ) -> tuple[list[Array], int]:
        """Run a model by its batching options, if it has any. Return the outputs and the microseconds of the run."""
        model = self._models.ready(ref) or await self._models.get(ref)
        return await self.devices.of(model.device).run(model, arrays, batching, limit)

    def run_blocking(self, ref: int, arrays: Sequence[Array]) -> list[Array]:
        """Run a model on its device and wait for it. Any thread may call this."""
        model = self._models.get_blocking(ref)
        checked = model.check(arrays)
        return self.devices.of(model.device).call_blocking(lambda: model.compiled.run(checked))

    def drop(self, ref: int) -> None:
        """Drop a model whose bytes the shard no longer has."""
        self._models.drop(ref)

    async def load_all(self) -> None:
        """Load every model of the shard, at the start of the worker. Log models that cannot be loaded."""
        for key, _tag in self._host.execute("AI._MODELSCAN"):
            name = key.decode("utf-8", "replace")
            try:
                # after READONLY, a replica serves the keys of its primary: its models are warm before a promotion
                replies = self._host.execute_many([("READONLY",), ("QA.MODELREF", key), ("READWRITE",)])
                await self.get(int(raise_on_error(replies[1])[0]))
            except (QAError, GearsError) as error:
                logger.warning("model %s is not loaded: %s", name, error_line(error))

    def _fetch(self, ref: int) -> ServedModel:
        backend, device, size = self._host.links.link().execute("QA.MODEL", ref)
        return self._fetch_file(ref, backend.decode(), device.decode(), size)

    def _fetch_file(self, ref: int, backend: str, device: str, size: int) -> ServedModel:
        return self._compile(ref, backend, device, fetch(self._host.links.link(), ref, size), size)

    def _compile(self, ref: int, backend: str, device: str, parts: Iterable[bytes], size: int) -> ServedModel:
        started = time.perf_counter()
        check_fits("model", size, RUNTIME_COPIES)
        name = device.upper()
        self.devices.of(name)
        limits = self._limits()
        try:
            model = ServedModel(ref, self._loaded(backend, name, parts, limits), name)
            if model.is_token_model:
                for rows, length in _FIRST_SHAPES:
                    if rows == 1 or rows * length <= self._max_tokens:  # a longer row runs alone
                        self._warm(model, rows, length)
        except Exception as error:  # runtimes have no exception type of their own for lack of memory
            if is_exhaustion(error):
                raise too_large("model", size, RUNTIME_COPIES) from error
            raise
        kind = "token model" if model.is_token_model else "model"
        took_ms = (time.perf_counter() - started) * 1000
        logger.info("%s %d (%d bytes, %d threads) is loaded, %.0f ms", kind, ref, size, limits.threads, took_ms)
        self._warm_later(model)
        return model

    def _loaded(self, backend: str, device: str, parts: Iterable[bytes], limits: RuntimeLimits) -> CompiledModel:
        if self._workers is not None:
            return self._workers.load(backend, device, parts, limits)
        with temporary_model_file(parts) as file:
            return load_model(backend, device, file, limits)

    def _warm_later(self, model: ServedModel) -> None:
        """Run each of the other usual shapes once while the device is idle: a first run compiles kernels."""
        if not model.is_token_model:
            return
        shapes = [(rows, length) for rows in BATCH_SIZES for length in _WARM_LENGTHS]
        shapes = [(rows, length) for rows, length in shapes if rows * length <= self._max_tokens]
        queue = self.devices.of(model.device)
        for rows, length in sorted(shapes, key=lambda shape: shape[0] * shape[1]):
            if (rows, length) not in _FIRST_SHAPES:
                queue.when_idle(partial(self._warm_when_idle, model, rows, length))

    def _warm_when_idle(self, model: ServedModel, rows: int, length: int) -> None:
        if self.ready(model.ref) is model and (rows, length) not in model.warmed:
            self._warm_quietly(model, rows, length)

    def _warm_quietly(self, model: ServedModel, rows: int, length: int) -> None:
        try:
            self._warm(model, rows, length)
        except Exception as error:  # a model may have a lower limit of its length
            logger.info("model %d cannot run %d x %d tokens: %s", model.ref, rows, length, error_line(error))

    def _warm_asked(self, model: ServedModel, rows: int, length: int) -> list[Array]:
        try:
            self._warm(model, rows, length)
        except Exception as error:
            if is_exhaustion(error):
                raise
            raise InferenceFailed(f"the model cannot run {rows} x {length} tokens: {error_line(error)}") from error
        return []

    @staticmethod
    def _warm(model: ServedModel, rows: int, length: int) -> None:
        if isinstance(model.compiled, RemoteModel):
            model.compiled.warm(rows, length)
        else:
            model.compiled.run(blank_inputs(model.compiled.inputs, rows, length))
        model.warmed.add((rows, length))
