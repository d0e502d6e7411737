"""The model of a reader or an encoder. It can run until `release`, even if its key was deleted.

A model's key may migrate to another shard with its slot. The worker's compiled model stays valid, so the reader uses it
until a copy of the key is created. A model can also be compiled before the shard has a slot for its key.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from qa_cluster.errors import ModelError
from qa_cluster.gears.inference.model_store import ModelStore
from qa_cluster.gears.inference.served import RunTimes, ServedModel
from qa_cluster.gears.inference.tensors import Array
from qa_cluster.vectors.encoder_manifest import VECTOR_OUTPUT

_WITHOUT_KEY = itertools.count(
    -1, -1
)  # negative references: models without a key; the module's references are positive


class ReaderModel:
    """A model with a reference to a key (`QA.MODELREF`), or a model without a key."""

    def __init__(self, models: ModelStore, ref: int) -> None:
        self.ref = ref
        self._models = models
        self._served: ServedModel | None = None

    @classmethod
    async def compiled(cls, models: ModelStore, blob: bytes) -> ReaderModel:
        """Compile an ONNX file that is not in a key of this shard."""
        model = cls(models, next(_WITHOUT_KEY))
        model._served = await models.compile_reader(model.ref, "ONNX", "CPU", blob)
        return model

    @property
    def has_key(self) -> bool:
        """Whether the model is in a key of this shard."""
        return self.ref >= 0

    @property
    def is_loaded(self) -> bool:
        """Whether the model is already compiled."""
        return self._served is not None or self._models.reader_ready(self.ref) is not None

    async def load(self) -> ServedModel:
        """Return the compiled model. Compile it at the first call."""
        if self._served is None:
            self._served = await self._models.reader(self.ref)
        return self._served

    async def warm(self, shapes: Sequence[tuple[int, int]], *, vectors: bool = False) -> None:
        """Compile the model and run it once in each shape (rows, tokens). Other work of the device runs in between.

        `vectors`: whether the model must be an encoder, which outputs vectors. Raises ModelError for the wrong kind of
        model.
        """
        model = await self.load()
        ports = (*model.compiled.inputs, *model.compiled.outputs)
        found = ", ".join(f"{port.name} {port.dtype} {list(port.shape or ())}" for port in ports)
        if vectors and not model.makes_vectors:
            raise ModelError(
                f"the model is not an encoder: its only output must be {VECTOR_OUTPUT} [any, dims], but it has"
                f" {found}".replace("None", "any")
            )
        if not vectors and (not model.is_token_model or model.makes_vectors):
            raise ModelError(
                "the model cannot read batches of any size and length: export it with dynamic dimensions. Its inputs"
                f" must be integers, and all inputs and outputs must be [any, any], but it has {found}".replace(
                    "None", "any"
                )
            )
        await self._models.warm(model, shapes)

    def same_as(self, ref: int) -> None:
        """Use the reference `ref` of a key with the same bytes. The model is not compiled again."""
        self.release()
        self.ref = ref

    def release(self) -> None:
        """Stop using the model. A model without a key is also removed from memory.

        A model with a key stays in memory until the module reports that its bytes are deleted (`model.drop`).
        """
        if not self.has_key:
            self._models.drop(self.ref)

    async def run_in_background(self, inputs: Sequence[Array]) -> list[Array]:
        """Run the model in its device's queue after all other work, or after a maximum waiting time (`batcher`).

        Return the outputs.
        """
        served = await self.load()
        return await self._models.queue_of(served).run_in_background(served, inputs)

    async def run_first(self, inputs: Sequence[Array]) -> list[Array]:
        """Run the model in its device's queue before all waiting work, and return the outputs."""
        served = await self.load()
        return await self._models.queue_of(served).run_first(served, inputs)

    async def run_measured(self, inputs: Sequence[Array]) -> tuple[list[Array], RunTimes]:
        """Run the model in its device's queue; return the outputs, and the waiting time and duration of the run."""
        served = await self.load()
        return await self._models.queue_of(served).run_measured(served, inputs)
