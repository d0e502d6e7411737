"""A model that a function holds: it can be run until the function releases it, even if its key is gone.

A model's key may leave the shard with its slot. The worker's compiled model is still valid, so it is used further while
a copy of the key is being made. A model can also be compiled here before the shard has a slot for its key.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from qa_cluster.errors import ModelError

from ..inference.served import RunTimes, ServedModel
from ..inference.tensors import Array
from ..shard.failures import GearsError
from ..shard.host import current_host
from ..shard.link import Argument, raise_on_error
from ..shard.replies import decode_reply
from .runtime import current_runtime

_unkeyed = itertools.count(-1, -1)  # references of models that are in no key; the module's own are positive


class HeldModel:
    """The model with a reference (`QA.MODELREF`), or one that is in no key."""

    def __init__(self, ref: int) -> None:
        self.ref = ref
        self._served: ServedModel | None = None

    @classmethod
    async def compiled(cls, backend: str, device: str, blob: bytes) -> HeldModel:
        """Compile bytes that are in no key of this shard."""
        held = cls(next(_unkeyed))
        held._served = await current_runtime().models.compile(held.ref, backend, device, blob)
        return held

    @property
    def is_loaded(self) -> bool:
        """Whether it is already compiled."""
        return self._served is not None or current_runtime().models.ready(self.ref) is not None

    async def load(self) -> ServedModel:
        """The compiled model; it is compiled now unless it already is."""
        if self._served is None:
            models = current_runtime().models
            self._served = models.ready(self.ref) or await models.get(self.ref)
        return self._served

    async def warm(self, shapes: Sequence[tuple[int, int]]) -> None:
        """Compile it and run it once in each shape, rows x tokens, between the other work of its device.

        It raises ModelError for a model that is not a token model.
        """
        model = await self.load()
        if not model.is_token_model:
            ports = (*model.compiled.inputs, *model.compiled.outputs)
            found = ", ".join(f"{port.name} {port.dtype} {list(port.shape or ())}" for port in ports)
            raise ModelError(
                "the model cannot read batches of any size and length, export it with free dimensions: its inputs must "
                f"be integers, and all its inputs and outputs [any, any], it has {found}".replace("None", "any")
            )
        await current_runtime().models.warm(model, shapes)

    def same_as(self, ref: int) -> None:
        """Use `ref` from now on, a key's reference to the same bytes, without compiling them again."""
        self.release()
        self.ref = ref

    def release(self) -> None:
        """Stop using it; a model that is in no key is dropped."""
        if self.ref < 0:
            current_runtime().models.drop(self.ref)

    async def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run the model."""
        return await current_runtime().models.run_loaded(await self.load(), inputs)

    async def run_measured(self, inputs: Sequence[Array]) -> tuple[list[Array], RunTimes]:
        """Run the model; return its outputs, and how long they waited for a batch and were computed in it."""
        return await current_runtime().models.run_measured(await self.load(), inputs)


def with_references(commands: Sequence[Sequence[Argument]], keys: Sequence[str]) -> tuple[list[Any], list[int | None]]:
    """Replies to commands that only read, and the references of the models at keys; None for a key without a model.

    All of it takes one round trip, and works on a replica too. An error reply to a command is raised. It can not be
    called inside an atomic block (GearsError): the link that it uses waits for the end of that.
    """
    references = [("QA.MODELREF", key) for key in keys]
    host = current_host()
    if host.atomic.entered_here:
        raise GearsError("ERR references of models can not be read inside an atomic block: read them before it")
    link = host.links.link()
    # the caller's last command repeats its first (a scan of the models), so that it notices keys renamed in between
    *others, last = commands
    replies = link.execute_many([("READONLY",), *others, *references, last, ("READWRITE",)])
    found = [decode_reply(raise_on_error(reply)) for reply in (*replies[1 : len(others) + 1], replies[-2])]
    return found, [_reference(reply) for reply in replies[len(others) + 1 : -2]]


def _reference(reply: Any) -> int | None:
    if isinstance(reply, Exception):
        if "is empty" in str(reply):
            return None
        raise GearsError(str(reply))
    return int(reply[0])
