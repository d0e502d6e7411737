"""Runs TorchScript models in torch. Import this module only when needed: torch is in the extra `torch`.

The file format has no types or shapes of inputs. So torch refuses wrong inputs only in the run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from qa_cluster.errors import InferenceFailed, ModelError

from ..model_file import ModelFile
from ..tensors import Array
from .base import Port, RuntimeLimits

MAX_ERROR_TEXT = 500
# operators that access files, which a stored model must not use
REFUSED_OPERATORS = ("aten::save", "aten::from_file")
# A model must not use operators for scripts, because it would run with the rights of the calling script. It must not
# use operators that access memory by address or without index checks, or that contact other processes.
_REFUSED_WORDS = re.compile(
    rb"\b(?:save|from_file|redis|redisAI|inductor|debugprims|c10d|_c10d_functional(?:_autograd)?|symm_mem"
    rb"|\w+_unsafe|_unsafe_(?:masked_)?index\w*)\b"
)
# Finds operators with computed names. torch itself writes `getattr` only for parts of modules.
_NAMELESS = re.compile(rb"\b(?:torch|ops)\b(?!\.[A-Za-z_])|\bops\.\w+(?!\w|\.\w)")
_RAISED = re.compile(r"\n(?:[\w.]+(?:Error|Exception|Exit)): ")
_CLASS = re.compile(r"^(?:[\w.]+(?:Error|Exception)): ")


def torch_error(error: BaseException) -> str:
    """Return the last message of the error in one line, without the traceback and C++ frames."""
    text = str(error)
    raised = list(_RAISED.finditer(text))
    if raised:
        text = text[raised[-1].end() :]
    text = text.partition("\n\nAt:\n")[0].partition("\nException raised from ")[0]
    while found := _CLASS.match(text):
        text = text[found.end() :]
    return " ".join(text.split())[:MAX_ERROR_TEXT] or type(error).__name__


def torch_device(name: str) -> torch.device:
    """Return the torch device with a queue's name. Raise ModelError if this environment does not have the device."""
    kind, _, number = name.upper().partition(":")
    if kind == "CPU":
        return torch.device("cpu")
    if torch.cuda.is_available():
        if int(number or 0) < torch.cuda.device_count():
            return torch.device("cuda", int(number or 0))
        raise ModelError(f"unsupported device {name}: this host has {torch.cuda.device_count()} GPUs")
    raise ModelError(f"unsupported device {name}: torch finds no GPU in the worker's environment, use CPU")


def to_torch(array: Array, device: torch.device) -> torch.Tensor:
    """Return a copy of the array as a tensor, because a model can change its inputs in place."""
    if array.dtype.kind in "OUS":
        raise InferenceFailed("torch has no tensors of type STRING")
    tensor = torch.from_numpy(np.array(array))
    return tensor if device.type == "cpu" else tensor.to(device)


def to_array(tensor: torch.Tensor) -> Array:
    """Return the values of a tensor as an array. 16-bit floats become FLOAT, because the wire format lacks 16-bit
    floats.
    """
    plain = tensor.detach()
    if plain.dtype in (torch.float16, torch.bfloat16):
        plain = plain.float()
    array: Array = plain.cpu().contiguous().resolve_conj().resolve_neg().numpy()
    return array


def flat_tensors(result: Any) -> list[torch.Tensor] | None:
    """Return the tensors of a result (a tensor, or nested lists and tuples); None if it has other values."""
    if isinstance(result, torch.Tensor):
        return [result]
    if not isinstance(result, (list, tuple)):
        return None
    flat: list[torch.Tensor] = []
    for part in result:
        inner = flat_tensors(part)
        if inner is None:
            return None
        flat += inner
    return flat


def set_threads(limits: RuntimeLimits) -> None:
    """Set torch's thread counts. The count for parallel operators can be set only once, before any work."""
    torch.set_num_threads(limits.threads)
    if torch.get_num_interop_threads() != limits.inter_op_threads and not _inter_op_set:
        _inter_op_set.append(limits.inter_op_threads)
        torch.set_num_interop_threads(limits.inter_op_threads)


_inter_op_set: list[int] = []


def _count_outputs(kind: Any) -> int:
    if kind.kind() == "TupleType":
        return sum(_count_outputs(element) for element in kind.elements())
    return 1


def _input_ports(schema: Any) -> tuple[Port, ...]:
    ports = []
    for argument in schema.arguments[1:]:
        if str(argument.type) in ("Tensor", "Optional[Tensor]"):
            ports.append(Port(argument.name, None, None))
        elif not argument.has_default_value():
            raise ModelError(f"forward needs {argument.name}, a {argument.type}, but a model gets only tensors")
    return tuple(ports)


def _check_code(path: str) -> None:
    """Raise ModelError if the code of a file uses forbidden names. Call this before loading: loading runs code."""
    reader = torch._C.PyTorchFileReader(path)
    records = reader.get_all_records()
    if "model.json" in records:  # in this format, any record can contain code
        raise ModelError("the file has the format of torch 1.2 and older: save the model with a newer torch")
    for name in records:
        if name.startswith("code/") and not name.endswith(".debug_pkl"):
            code = reader.get_record(name)
            found = _REFUSED_WORDS.search(code) or (_NAMELESS.search(code) if b"getattr" in code else None)
            if found is not None:
                raise ModelError(f"the model uses {found.group().decode()}, which is forbidden in models")


class TorchModel:
    """A TorchScript module. Any thread may run it."""

    def __init__(self, file: ModelFile, device: str, limits: RuntimeLimits) -> None:
        self._device = torch_device(device)
        set_threads(limits)
        try:
            _check_code(file.path)
            module = torch.jit.load(file.path, map_location=self._device)
            schema = module.forward.schema
        except ModelError:
            raise
        except Exception as error:  # torch raises bare RuntimeError
            raise ModelError(
                f"not a TorchScript file that torch {torch.__version__} can load: {torch_error(error)}"
            ) from error
        module.eval()
        self._module = module
        self._names = [port.name for port in _input_ports(schema)]
        self.inputs = tuple(Port(name, None, None) for name in self._names)
        returned = sum(_count_outputs(value.type) for value in schema.returns)
        self.outputs = tuple(Port("", None, None) for _ in range(returned))

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the model once."""
        given = {name: to_torch(array, self._device) for name, array in zip(self._names, arrays, strict=True)}
        try:
            with torch.inference_mode():
                result = self._module(**given)
        except Exception as error:
            raise InferenceFailed(torch_error(error)) from error
        tensors = flat_tensors(result)
        if tensors is None:
            raise InferenceFailed(
                f"the model returned {type(result).__name__}, but must return tensors or lists of tensors"
            )
        return [to_array(tensor) for tensor in tensors]
