"""The arguments of a TorchScript call, in a module that does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...inference.tensors import Array


@dataclass(frozen=True, slots=True)
class TorchScriptCall:
    """One call of a script's function with the rights of `user` (empty: the worker's own rights)."""

    function: str
    tensors: Sequence[Array]
    keys: Sequence[str] = ()
    arguments: Sequence[str] = ()
    user: str = ""
    n_outputs: int | None = None
