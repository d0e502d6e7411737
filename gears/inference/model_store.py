"""The models of the shard: compiles them off the event loop, warms them, and runs them in the queues of devices.

*Readers* (here also encoders) run in this process or, with `qa.inference-workers`, in the inference workers
(`workers.pool`). All other models are *foreign*: each runs in a process of its own, with limits (`workers.isolated`).
The file of a reader is first loaded and run in such a process, unless it is bundled with the package. Foreign models
have separate queues and loader threads, so that they never delay a reader. With `qa.model-processes` 0, foreign models
run where readers run, and no file is tried first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from functools import partial
from typing import IO

from qa_cluster.errors import InferenceFailed, InvalidInput, QAError
from qa_cluster.keys import manifest_key, model_key, parse_model_key
from qa_cluster.reading.bundled import is_bundled
from qa_cluster.reading.manifest import LENGTH_STEP

from ..shard.failures import GearsError, error_line
from ..shard.host import Host
from ..shard.link import raise_on_error
from ..shard.memory import check_fits, is_exhaustion, too_large
from .backends.base import CompiledModel, RuntimeLimits, blank_inputs
from .backends.choose import load_model
from .batcher import Batcher
from .devices import Devices
from .loading import LoadedByRef
from .model_file import RUNTIME_COPIES, fetch, memory_file, temporary_model_file
from .served import Batching, BatchTotals, ServedModel, WaitLimit
from .tensors import Array
from .token_batches import BATCH_SIZES
from .workers.isolated import IsolatedModel, IsolatedProcesses
from .workers.pool import InferenceWorkers, RemoteModel, WorkerCounts

logger = logging.getLogger(__name__)
# The shapes (rows, tokens) that a single question needs. These are warmed first. The other shapes are warmed when the
# device is idle.
_FIRST_SHAPES = ((1, 32), (1, 48), (1, 64), (4, 48), (8, 48))
_WARM_LENGTHS = range(LENGTH_STEP, 129, LENGTH_STEP)


class ModelStore:
    """Compiled models by reference.

    Args:
        workers: the processes that load and run readers; None: this process loads and runs readers.
        isolated: the processes of foreign models; None: foreign models run where readers run.

    Attributes:
        devices, foreign_devices: the queues of readers and of foreign models.
        foreign_loader: the threads that load foreign models and scripts.
        limits: returns the limits of the runtimes.
    """

    def __init__(
        self,
        host: Host,
        devices: Devices,
        *,
        limits: Callable[[], RuntimeLimits],
        max_batch_tokens: int,
        workers: InferenceWorkers | None = None,
        isolated: IsolatedProcesses | None = None,
        foreign_devices: Devices | None = None,
    ) -> None:
        self.devices = devices
        self.foreign_devices = foreign_devices or devices
        self.isolated = isolated
        self._workers = workers
        self._host = host
        self.limits = limits
        self._max_tokens = max_batch_tokens
        loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="load")
        self.foreign_loader = loader
        self._readers = self._models = LoadedByRef(self._fetch, loader)
        if isolated is not None:
            self.foreign_loader = ThreadPoolExecutor(isolated.limits.processes, thread_name_prefix="load-foreign")
            self._models = LoadedByRef(self._fetch_isolated, self.foreign_loader, _close)

    @property
    def worker_counts(self) -> WorkerCounts:
        """The counts of the inference workers; zeros if models run in this process."""
        return self._workers.counts if self._workers is not None else WorkerCounts()

    @property
    def totals(self) -> BatchTotals:
        """The totals of all queues."""
        summed = BatchTotals()
        for devices in {self.devices, self.foreign_devices}:
            summed.add(devices.totals)
        return summed

    @property
    def depth(self) -> int:
        """The number of waiting items in all queues."""
        return sum(devices.depth for devices in {self.devices, self.foreign_devices})

    async def get(self, ref: int) -> ServedModel:
        """Return the compiled model. Load it from the shard if this worker does not have it."""
        return self.ready(ref) or await self._models.get(ref)

    def get_blocking(self, ref: int) -> ServedModel:
        """Like `get`, for a thread that may block."""
        return self.ready(ref) or self._models.get_blocking(ref)

    async def load(self, ref: int, backend: str, device: str, size: int) -> ServedModel:
        """Compile a model that is being stored. A bundled model runs where readers run."""
        if self.isolated is None or await self._in_loader(self._is_bundled, ref, size):
            return await self._readers.load(ref, partial(self._fetch_file, ref, backend, device, size))
        return await self._models.load(ref, partial(self._isolate_stored, ref, backend, device, size))

    async def reader(self, ref: int) -> ServedModel:
        """Return the compiled model of a reader.

        Before the first load in this worker, a separate process tries the file, unless the file is bundled or an
        earlier trial has passed.
        """
        found = self._readers.ready(ref)
        if found is not None or self.isolated is None:
            return found or await self._readers.get(ref)
        await self._try_first(ref)
        found = await self._readers.get(ref)
        self._models.drop(ref)  # ends the process of the trial
        return found

    async def compile_reader(self, ref: int, backend: str, device: str, blob: bytes) -> ServedModel:
        """Compile a reader's model that has no key on this shard. As in `reader`, a process tries the file first."""
        if self.isolated is not None and not is_bundled(len(blob), [blob]):
            await self._models.load(ref, lambda: self._isolate(ref, backend, device, lambda: memory_file([blob])))
        found = await self._readers.load(ref, lambda: self._compile(ref, backend, device, [blob], len(blob)))
        if self.isolated is not None:
            self._models.drop(ref)
        return found

    async def _try_first(self, ref: int) -> None:
        """Load and run a file in a separate process, unless it is bundled or an earlier trial has passed."""
        if await self._in_loader(self._needs_trial, ref):
            await self._models.get(ref)

    async def _in_loader(self, question: Callable[..., bool], *args: int) -> bool:
        return await asyncio.get_running_loop().run_in_executor(self.foreign_loader, question, *args)

    def _needs_trial(self, ref: int) -> bool:
        assert self.isolated is not None
        if self.isolated.trials.of(ref).passed:
            return False
        return not self._is_bundled(ref, self._host.links.link().execute("QA.MODEL", ref)[2])

    def _is_bundled(self, ref: int, size: int) -> bool:
        return is_bundled(size, fetch(self._host.links.link(), ref, size))

    def queue_of(self, model: ServedModel) -> Batcher:
        """Return the queue of the model's device."""
        return (self.foreign_devices if model.isolated else self.devices).of(model.device)

    async def warm(self, model: ServedModel, shapes: Sequence[tuple[int, int]]) -> None:
        """Run a token model once in each shape (rows, tokens). Other work of the device runs in between.

        Raises InferenceFailed if a run fails.
        """
        queue = self.queue_of(model)
        for rows, length in shapes:
            if rows * length <= self._max_tokens and (rows, length) not in model.warmed:
                await queue.call(partial(self._warm_asked, model, rows, length))

    def ready(self, ref: int) -> ServedModel | None:
        """Return the compiled model; None if it is not loaded."""
        return self._readers.ready(ref) or self._models.ready(ref)

    def reader_ready(self, ref: int) -> ServedModel | None:
        """Return the compiled model of a reader; None if it is not loaded where readers run."""
        return self._readers.ready(ref)

    async def run(self, ref: int, arrays: Sequence[Array]) -> list[Array]:
        """Run the model with the reference `ref` in its device's queue, and return its outputs."""
        return (await self.run_batched(ref, arrays, None, None))[0]

    async def run_batched(
        self, ref: int, arrays: Sequence[Array], batching: Batching | None, limit: WaitLimit | None
    ) -> tuple[list[Array], int]:
        """Run a model with its batching options. Return the outputs, and the duration of the run in microseconds.

        `batching` is None if the model has no batching options. `limit` is the limit on the waiting time in the queue;
        None: no limit.
        """
        model = await self.get(ref)
        return await self.queue_of(model).run(model, arrays, batching, limit)

    def run_blocking(self, ref: int, arrays: Sequence[Array]) -> list[Array]:
        """Run a model on its device and wait for it. Any thread may call this."""
        model = self.get_blocking(ref)
        checked = model.check(arrays)
        return self.queue_of(model).call_blocking(lambda: model.compiled.run(checked))

    def drop(self, ref: int) -> None:
        """Drop a model whose bytes the shard no longer has."""
        for loaded in {self._models, self._readers}:
            loaded.drop(ref)

    async def load_readers(self, seconds: float) -> None:
        """Load the readers of the shard when the worker starts, the default reader first.

        After `seconds`, the remaining readers are loaded in the background. All other models are loaded at their first
        use.
        """
        parsed = [_reader_key(key) for key, _tag in self._host.execute("AI._MODELSCAN")]
        found = sorted((reader for reader in parsed if reader is not None), key=lambda reader: reader[1])
        tasks = [asyncio.ensure_future(self._load_reader(tag, name)) for tag, name in found]
        if tasks and (await asyncio.wait(tasks, timeout=seconds))[1]:
            logger.warning("some readers are not loaded after %g s: they are loaded in the background", seconds)

    async def _load_reader(self, tag: str, name: str) -> None:
        key = model_key(tag, name)
        try:
            # READONLY makes a replica serve the keys of its primary, so that its readers are warm before a promotion
            commands = [("READONLY",), ("QA.MODELREF", key), ("EXISTS", manifest_key(tag, name)), ("READWRITE",)]
            replies = self._host.execute_many(commands)
            if raise_on_error(replies[2]):
                await self.reader(int(raise_on_error(replies[1])[0]))
        except (QAError, GearsError) as error:
            logger.warning("reader %s is not loaded: %s", key, error_line(error))

    def _fetch(self, ref: int) -> ServedModel:
        backend, device, size = self._host.links.link().execute("QA.MODEL", ref)
        return self._fetch_file(ref, backend.decode(), device.decode(), size)

    def _fetch_isolated(self, ref: int) -> ServedModel:
        backend, device, size = self._host.links.link().execute("QA.MODEL", ref)
        return self._isolate_stored(ref, backend.decode(), device.decode(), size)

    def _isolate_stored(self, ref: int, backend: str, device: str, size: int) -> ServedModel:
        return self._isolate(ref, backend, device, lambda: memory_file(fetch(self._host.links.link(), ref, size)))

    def _isolate(
        self, ref: int, backend: str, device: str, open_file: Callable[[], tuple[IO[bytes], int]]
    ) -> ServedModel:
        """Load a model in a separate process, and run the first shapes of a token model in that process."""
        assert self.isolated is not None
        started = time.perf_counter()
        name = device.upper()
        self.foreign_devices.of(name)
        load = {"backend": backend, "device": name, "limits": astuple(self.limits())}
        compiled = IsolatedModel(self.isolated, ref, load, open_file)
        try:
            compiled.open()
            model = ServedModel(ref, compiled, name, isolated=True)
            for rows, length in self._first_shapes(model):
                compiled.warm(blank_inputs(compiled.inputs, rows, length))
        except BaseException:
            compiled.close()
            raise
        self.isolated.trials.passed(ref)
        logger.info("model %d runs in its own process, %.0f ms", ref, (time.perf_counter() - started) * 1000)
        return model

    def _first_shapes(self, model: ServedModel) -> list[tuple[int, int]]:
        """Return the shapes (rows, tokens) in which a token model runs once before it serves questions; return an empty
        list for other models.

        Shapes of several rows that exceed the token limit of a batch are left out.
        """
        shapes = _FIRST_SHAPES if model.is_token_model else ()
        return [(rows, length) for rows, length in shapes if rows == 1 or rows * length <= self._max_tokens]

    def _fetch_file(self, ref: int, backend: str, device: str, size: int) -> ServedModel:
        return self._compile(ref, backend, device, fetch(self._host.links.link(), ref, size), size)

    def _compile(self, ref: int, backend: str, device: str, parts: Iterable[bytes], size: int) -> ServedModel:
        started = time.perf_counter()
        check_fits("model", size, RUNTIME_COPIES)
        name = device.upper()
        self.devices.of(name)
        limits = self.limits()
        try:
            model = ServedModel(ref, self._loaded(backend, name, parts, limits), name)
            for rows, length in self._first_shapes(model):
                self._warm(model, rows, length)
        except Exception as error:  # runtimes have no exception type for lack of memory
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
        """Queue one run of a token model in each usual shape that is not in `_FIRST_SHAPES`.

        The runs start while the device is idle. They make later runs fast, because the first run in a shape compiles
        kernels.
        """
        if not model.is_token_model:
            return
        shapes = [(rows, length) for rows in BATCH_SIZES for length in _WARM_LENGTHS]
        shapes = [(rows, length) for rows, length in shapes if rows * length <= self._max_tokens]
        queue = self.queue_of(model)
        for rows, length in sorted(shapes, key=lambda shape: shape[0] * shape[1]):
            if (rows, length) not in _FIRST_SHAPES:
                queue.when_idle(partial(self._warm_when_idle, model, rows, length))

    def _warm_when_idle(self, model: ServedModel, rows: int, length: int) -> None:
        if self._readers.ready(model.ref) is model and (rows, length) not in model.warmed:
            self._warm_quietly(model, rows, length)

    def _warm_quietly(self, model: ServedModel, rows: int, length: int) -> None:
        try:
            self._warm(model, rows, length)
        except Exception as error:  # a model may accept only shorter rows
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


def _close(model: ServedModel) -> None:
    if isinstance(model.compiled, IsolatedModel):
        model.compiled.close()


def _reader_key(key: bytes) -> tuple[str, str] | None:
    """Return the tag and the name of a reader from the key of its model; None for other keys."""
    try:
        return parse_model_key(key.decode())
    except (UnicodeDecodeError, InvalidInput):  # a user's model whose name starts like the name of a reader
        return None
