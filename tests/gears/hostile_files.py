"""Small ONNX files that attack the process that loads or runs them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tests.gears.onnx_file import FLOAT, INT64, _bytes, _model, _node, _number, _value

ONE_GB_OF_FLOATS = 1 << 28


def _constant(name: str, dtype: int, data: bytes, dims: Sequence[int]) -> bytes:
    return b"".join(_number(1, dim) for dim in dims) + _number(2, dtype) + _bytes(8, name) + _bytes(9, data)


def _integers(name: str, *values: int) -> bytes:
    return _constant(name, INT64, struct.pack(f"<{len(values)}q", *values), [len(values)])


def giant_at_load(gigabytes: int = 9) -> bytes:
    """Tensors of one GB each, which are all in memory while a runtime compiles the file."""
    outputs = [_value(f"y{number}", FLOAT, [ONE_GB_OF_FLOATS]) for number in range(gigabytes)]
    constants = [_constant("x", FLOAT, struct.pack("<f", 1.0), [1]), _integers("n", ONE_GB_OF_FLOATS)]
    nodes = [
        node
        for number in range(gigabytes)
        for node in (
            _node("Mul", ["x", f"s{number}"], [f"t{number}"]),
            _node("Expand", [f"t{number}", "n"], [f"y{number}"]),
        )
    ]
    constants += [_constant(f"s{number}", FLOAT, struct.pack("<f", number + 1.0), [1]) for number in range(gigabytes)]
    nodes.append(_node("Identity", ["in"], ["out"]))
    return _model(nodes, [_value("in", FLOAT, [1])], [*outputs, _value("out", FLOAT, [1])], constants)


def giant_at_run() -> bytes:
    """y = x repeated n times: an input determines the memory of a run."""
    inputs = [_value("x", FLOAT, [1]), _value("n", INT64, [1])]
    return _model([_node("Tile", ["x", "n"], ["y"])], inputs, [_value("y", FLOAT, ["m"])])


def long_chain(nodes: int = 100_000) -> bytes:
    """A chain of additions."""
    chain = [_node("Add", [f"v{number}", "one"], [f"v{number + 1}"]) for number in range(nodes)]
    one = _constant("one", FLOAT, struct.pack("<f", 1.0), [1])
    return _model(chain, [_value("v0", FLOAT, [1])], [_value(f"v{nodes}", FLOAT, [1])], [one])


def overflowing(*, at_load: bool) -> bytes:
    """y = the smallest INT64 (a constant or the input) divided by -1, which ends a process by a signal."""
    least = _integers("x", -(1 << 63))
    ports = [_value("x", INT64, ["n"])], [_value("y", INT64, ["n"])]
    constants = [least, _integers("minus", -1)] if at_load else [_integers("minus", -1)]
    return _model([_node("Div", ["x", "minus"], ["y"])], [] if at_load else ports[0], ports[1], constants)
