"""A model that a function holds on to: it can still be run when its key has gone, until the function lets go of it.

A model's key may leave the shard with its slot. What the worker has compiled is as good as before, so it goes on being
used while a copy is on its way. A model can also be compiled here before the shard has a slot to keep it in.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from .link import raise_on_error
from .runtime import current_runtime
from .served import ServedModel
from .tensors import Array

_unkeyed = itertools.count(-1, -1)  # references of models that are in no key; the module's own are positive


class HeldModel:
    """The model of a reference (`QA.MODELREF`), or one that is in no key."""

    def __init__(self, ref: int) -> None:
        self.ref = ref
        self._served: ServedModel | None = None

    @classmethod
    async def compiled(cls, backend: str, device: str, blob: bytes) -> HeldModel:
        """Compile bytes that are in no key of this shard."""
        held = cls(next(_unkeyed))
        held._served = await current_runtime().models.compile(held.ref, backend, device, blob)
        return held

    async def load(self) -> ServedModel:
        """The compiled model; compiled now unless it is already."""
        if self._served is None:
            models = current_runtime().models
            self._served = models.ready(self.ref) or await models.get(self.ref)
        return self._served

    def same_as(self, ref: int) -> None:
        """The very same bytes are at `ref` too, in a key of this shard: they need not be compiled again."""
        self.release()
        self.ref = ref

    def release(self) -> None:
        """It is not used any more: one that is in no key is dropped."""
        if self.ref < 0:
            current_runtime().models.drop(self.ref)

    async def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run the model."""
        return await current_runtime().models.run_loaded(await self.load(), inputs)


def reference(key: str) -> int:
    """The reference of the model at a key; that of a replica's primary too."""
    shard = current_runtime().links.link()
    replies = shard.execute_many([("READONLY",), ("QA.MODELREF", key), ("READWRITE",)])
    return int(raise_on_error(replies[1])[0])
