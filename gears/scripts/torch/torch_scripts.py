"""Compiles TorchScripts from source, checks their entry points, and calls their functions with tensors.

A script can use only parts of TorchScript: torch's operators and types, exceptions, and the commands of
torch_operators. A script cannot use Python functions, because torch would call them with the rights of the worker's
process.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch.jit._builtins import _find_builtin

from ...inference.backends.torch import REFUSED_OPERATORS, flat_tensors, to_array, to_torch, torch_device, torch_error
from ...inference.tensors import Array
from ...shard.failures import GearsError
from .script_caller import ScriptCaller, TorchScriptCall
from .torch_operators import calling_for

_ENTRY_TYPES = ("List[Tensor]", "List[str]", "List[str]")
_SUBMODULES = ("linalg", "special", "fft")


def _operators_of(source: Any, name: str) -> ModuleType:
    """Return a copy of the torch module `source` with the name `name`, and with only what TorchScript accepts.

    TorchScript accepts torch's operators, dtypes, layouts and memory formats.
    """
    shown = ModuleType(name)
    for attribute in dir(source):
        value = getattr(source, attribute, None)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)) or (
            callable(value) and not isinstance(value, type) and _find_builtin(value) is not None
        ):
            setattr(shown, attribute, value)
    return shown


def _names() -> dict[str, Any]:
    shown = _operators_of(torch, "torch")
    for submodule in _SUBMODULES:
        setattr(shown, submodule, _operators_of(getattr(torch, submodule), f"torch.{submodule}"))
    for name in torch.functional.__all__:
        setattr(shown, name, getattr(torch, name))
    shown.__dict__.update(Tensor=torch.Tensor, device=torch.device, jit=ModuleType("torch.jit"))
    shown.__dict__["jit"].__dict__["annotate"] = torch.jit.annotate
    functional = ModuleType("torch.nn.functional")
    for name in dir(torch.nn.functional):
        value = getattr(torch.nn.functional, name)
        if callable(value) and not isinstance(value, type) and not name.startswith("_"):
            setattr(functional, name, value)
    shown.__dict__["nn"] = ModuleType("torch.nn")
    shown.__dict__["nn"].__dict__["functional"] = functional
    found = {"torch": shown, "redis": torch.ops.redis, "redisAI": torch.ops.redisAI, "Tensor": torch.Tensor}
    found["math"] = math
    for name, value in vars(builtins).items():
        if isinstance(value, type) and issubclass(value, Exception):
            found[name] = value
    return found


_NAMES = _names()


class TorchScript:
    """A compiled script. Any thread may call its functions.

    `entry_points` are the names of the functions that get tensors, keys and arguments. Each of these functions must
    have the parameters ``(List[Tensor], List[str], List[str])``. All other functions get only tensors. If the source
    cannot be compiled, or an entry point is missing or has other parameters, the constructor raises GearsError.
    """

    def __init__(self, device: str, source: str, entry_points: Sequence[str]) -> None:
        self.device = device
        self._entry_points = frozenset(entry_points)
        self._torch_device = torch_device(device)
        self._unit = torch._C.CompilationUnit()
        try:
            self._unit.define(source + "\n", _NAMES.get)
        except Exception as error:  # torch raises bare RuntimeError
            raise GearsError(f"ERR {' '.join(str(error).split())[:1000]}") from error
        functions = self._unit.get_functions()
        for function in functions:
            _refuse_reaching_out(function)
        for name in entry_points:
            self._check_entry_point(name)

    def _check_entry_point(self, name: str) -> None:
        function = self._unit.find_function(name)
        if function is None:
            raise GearsError(f"ERR Function {name} does not exist in the given script.")
        arguments = function.schema.arguments
        if len(arguments) != len(_ENTRY_TYPES):
            raise GearsError(f"ERR Wrong number of inputs in function {name}. Expected 3 but was {len(arguments)}")
        if tuple(argument.type.annotation_str for argument in arguments) != _ENTRY_TYPES:
            raise GearsError(
                f"ERR Wrong inputs type in function {name}. Expected signature similar to: "
                f"def {name}(tensors: List[Tensor], keys: List[str], args: List[str])"
            )

    def call(self, call: TorchScriptCall, caller: ScriptCaller) -> list[Array]:
        """Call a function on this thread, and return its output tensors. `caller` runs the script's requests on the
        shard.

        Raises GearsError if the function is missing, gets wrong arguments, fails, or returns a wrong number of outputs.
        """
        function = self._unit.find_function(call.function)
        if function is None:
            raise GearsError(f"ERR Function does not exist: {call.function}")
        tensors = [to_torch(array, self._torch_device) for array in call.tensors]
        given: list[Any]
        if call.function in self._entry_points:
            given = [tensors, list(call.keys), list(call.arguments)]
        else:
            given = _positional(call.function, function.schema.arguments, tensors)
        try:
            with torch.inference_mode(), calling_for(caller):
                result = function(*given)
        except Exception as error:
            raise GearsError(f"ERR {torch_error(error).removeprefix('ERR ')}") from error
        outputs = [] if result is None else flat_tensors(result)
        if outputs is None:
            raise GearsError(f"ERR Function returned non-tensor values - {call.function}")
        if call.n_outputs is not None and len(outputs) != call.n_outputs:
            raise GearsError(f"ERR Function returned unexpected number of outputs - {call.function}")
        return [to_array(tensor) for tensor in outputs]


def _refuse_reaching_out(function: Any) -> None:
    for kind in ("prim::PythonOp", *REFUSED_OPERATORS):
        if function.inlined_graph.findAllNodes(kind):
            raise GearsError(f"ERR function {function.name} uses {kind}, which scripts must not use")


def _positional(name: str, arguments: Sequence[Any], tensors: list[torch.Tensor]) -> list[Any]:
    """Return the tensors as arguments for the function `name`, which is not an entry point.

    `arguments` are the parameters of the function. A last parameter of type List[Tensor] gets the remaining tensors.
    Raises GearsError if the tensors do not match the parameters.
    """
    kinds = [argument.type.annotation_str for argument in arguments]
    variadic = bool(kinds) and kinds[-1] == "List[Tensor]"
    fixed = len(kinds) - variadic
    if any(kind != "Tensor" for kind in kinds[:fixed]):
        raise GearsError(
            f"ERR Wrong inputs type in function {name}: a function that is not an entry point takes tensors"
        )
    if len(tensors) < fixed or (len(tensors) > fixed and not variadic):
        raise GearsError(f"ERR Wrong number of inputs provided to function: {name}")
    return [*tensors[:fixed], tensors[fixed:]] if variadic else list(tensors)
