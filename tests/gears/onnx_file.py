"""Small ONNX files, encoded by hand, because the tests need only one or two nodes of the protobuf format."""

from __future__ import annotations

import struct
from collections.abc import Sequence

FLOAT, UINT8, INT64, BOOL = 1, 2, 7, 9
Dim = int | str


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, data: bytes | str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return _varint(field << 3 | 2) + _varint(len(raw)) + raw


def _value(name: str, dtype: int, shape: Sequence[Dim]) -> bytes:
    dims = b"".join(_bytes(1, _number(1, d) if isinstance(d, int) else _bytes(2, d)) for d in shape)
    return _bytes(1, name) + _bytes(2, _bytes(1, _number(1, dtype) + _bytes(2, dims)))


def _node(operator: str, inputs: Sequence[str], outputs: Sequence[str], attributes: bytes = b"") -> bytes:
    names = b"".join(_bytes(1, name) for name in inputs) + b"".join(_bytes(2, name) for name in outputs)
    return names + _bytes(4, operator) + attributes


def _graph(
    nodes: Sequence[bytes], inputs: Sequence[bytes], outputs: Sequence[bytes], initializers: Sequence[bytes] = ()
) -> bytes:
    graph = b"".join(_bytes(1, node) for node in nodes) + _bytes(2, "graph")
    graph += b"".join(_bytes(5, initializer) for initializer in initializers)
    return graph + b"".join(_bytes(11, value) for value in inputs) + b"".join(_bytes(12, value) for value in outputs)


def _model(
    nodes: Sequence[bytes], inputs: Sequence[bytes], outputs: Sequence[bytes], initializers: Sequence[bytes] = ()
) -> bytes:
    graph = _graph(nodes, inputs, outputs, initializers)
    return _number(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, "") + _number(2, 13))


def add_model(length: Dim = "n") -> bytes:
    """sum = a + b, FLOAT of any length, or of the given length."""
    values = [_value(name, FLOAT, [length]) for name in ("a", "b", "sum")]
    return _model([_node("Add", ["a", "b"], ["sum"])], values[:2], values[2:])


def product_model() -> bytes:
    """y = a @ b, FLOAT matrices of any shape."""
    shapes = {"a": ["m", "k"], "b": ["k", "n"], "y": ["m", "n"]}
    values = [_value(name, FLOAT, shape) for name, shape in shapes.items()]
    return _model([_node("MatMul", ["a", "b"], ["y"])], values[:2], values[2:])


def token_model() -> bytes:
    """A token model: score = float(input_ids * attention_mask)."""
    shape = ["batch", "length"]
    to_float = _bytes(5, _bytes(1, "to") + _number(3, FLOAT) + _number(20, 2))
    nodes = [
        _node("Mul", ["input_ids", "attention_mask"], ["masked"]),
        _node("Cast", ["masked"], ["score"], to_float),
    ]
    inputs = [_value(name, INT64, shape) for name in ("input_ids", "attention_mask")]
    return _model(nodes, inputs, [_value("score", FLOAT, shape)])


def positions_model(longest: int) -> bytes:
    """A token model with a table of positions: score = input_ids * attention_mask * (0, 1, ..), for limited lengths."""
    shape, numbers = ["batch", "length"], b"".join(n.to_bytes(8, "little") for n in range(longest))
    constants = {"table": (numbers, [1, longest]), "zero": (bytes(8), [1]), "one": ((1).to_bytes(8, "little"), [1])}
    initializers = [
        b"".join(_number(1, dim) for dim in dims) + _number(2, INT64) + _bytes(8, name) + _bytes(9, data)
        for name, (data, dims) in constants.items()
    ]
    to_float = _bytes(5, _bytes(1, "to") + _number(3, FLOAT) + _number(20, 2))
    nodes = [
        _node("Shape", ["input_ids"], ["both"]),
        _node("Gather", ["both", "one"], ["count"]),
        _node("Slice", ["table", "zero", "count", "one"], ["positions"]),
        _node("Mul", ["input_ids", "attention_mask"], ["masked"]),
        _node("Mul", ["masked", "positions"], ["placed"]),
        _node("Cast", ["placed"], ["score"], to_float),
    ]
    inputs = [_value(name, INT64, shape) for name in ("input_ids", "attention_mask")]
    return _model(nodes, inputs, [_value("score", FLOAT, shape)], initializers)


def double_model() -> bytes:
    """y = x + x, INT64 of any length and number of rows."""
    ports = [_value(name, INT64, ["rows", "length"]) for name in ("x", "y")]
    return _model([_node("Add", ["x", "x"], ["y"])], ports[:1], ports[1:])


def table_model(rows: int, columns: int, weights: bytes) -> bytes:
    """y = the rows with the numbers x of a table of FLOAT weights: a model of any size that runs quickly."""
    initializer = _number(1, rows) + _number(1, columns) + _number(2, FLOAT) + _bytes(8, "table") + _bytes(9, weights)
    node = _node("Gather", ["table", "x"], ["y"])
    return _model([node], [_value("x", INT64, ["n"])], [_value("y", FLOAT, ["n", columns])], [initializer])


def span_model(*, last: bool, weights: bytes = b"", shape: Sequence[Dim] = ("batch", "length")) -> bytes:
    """A reader that always answers with the last token of the passage, or always with the first token.

    Its logits are 1000 in the passage, plus or minus the token's position. `weights` (FLOAT) only enlarge the file.
    """
    to_float = _bytes(5, _bytes(1, "to") + _number(3, FLOAT) + _number(20, 2))
    constants = {"axis": (INT64, (1).to_bytes(8, "little"), []), "big": (FLOAT, struct.pack("<f", 1000.0), [])}
    if weights:
        constants |= {"table": (FLOAT, weights, [len(weights) // 4]), "zero": (INT64, bytes(8), [])}
    initializers = [
        b"".join(_number(1, dim) for dim in dims) + _number(2, dtype) + _bytes(8, name) + _bytes(9, data)
        for name, (dtype, data, dims) in constants.items()
    ]
    nodes = [
        _node("CumSum", ["attention_mask", "axis"], ["counted"]),
        _node("Cast", ["counted"], ["position"], to_float),
        _node("Cast", ["token_type_ids"], ["in_passage"], to_float),
        _node("Mul", ["in_passage", "big"], ["high"]),
        _node("Add" if last else "Sub", ["high", "position"], ["plain"]),
    ]
    if weights:
        nodes += [
            _node("Mul", ["input_ids", "zero"], ["first"]),
            _node("Gather", ["table", "first"], ["nothing"]),
            _node("Add", ["plain", "nothing"], ["score"]),
        ]
    else:
        nodes.append(_node("Identity", ["plain"], ["score"]))
    nodes += [_node("Identity", ["score"], [name]) for name in ("start_logits", "end_logits")]
    inputs = [_value(name, INT64, shape) for name in ("input_ids", "attention_mask", "token_type_ids")]
    outputs = [_value(name, FLOAT, shape) for name in ("start_logits", "end_logits")]
    return _model(nodes, inputs, outputs, initializers)


def encoder_model(dims: int, output: str = "vector") -> bytes:
    """An encoder whose vectors are sums over tokens: each token adds sines of its id, so equal words are near."""
    to_float = _bytes(5, _bytes(1, "to") + _number(3, FLOAT) + _number(20, 2))
    drop = _bytes(5, _bytes(1, "keepdims") + _number(3, 0) + _number(20, 2))
    steps = struct.pack(f"<{dims}f", *(0.37 + 0.61 * number for number in range(dims)))
    constants = {
        "steps": (FLOAT, steps, [dims]),
        "inner": (INT64, (2).to_bytes(8, "little"), [1]),
        "length": (INT64, (1).to_bytes(8, "little"), [1]),
    }
    initializers = [
        b"".join(_number(1, dim) for dim in dims_of) + _number(2, dtype) + _bytes(8, name) + _bytes(9, data)
        for name, (dtype, data, dims_of) in constants.items()
    ]
    nodes = [
        _node("Cast", ["input_ids"], ["ids"], to_float),
        _node("Unsqueeze", ["ids", "inner"], ["column"]),
        _node("Mul", ["column", "steps"], ["angles"]),
        _node("Sin", ["angles"], ["values"]),
        _node("Cast", ["attention_mask"], ["mask"], to_float),
        _node("Unsqueeze", ["mask", "inner"], ["counted"]),
        _node("Mul", ["values", "counted"], ["masked"]),
        _node("ReduceSum", ["masked", "length"], [output], drop),
    ]
    inputs = [_value(name, INT64, ("batch", "length")) for name in ("input_ids", "attention_mask")]
    return _model(nodes, inputs, [_value(output, FLOAT, ("batch", dims))], initializers)


def outside_model(location: str, size: int) -> bytes:
    """y = the first bytes of another file, as UINT8."""
    outside = _number(1, size) + _number(2, UINT8) + _bytes(8, "w") + _number(14, 1)
    for name, value in (("location", location), ("offset", "0"), ("length", str(size))):
        outside += _bytes(13, _bytes(1, name) + _bytes(2, value))
    return _model([_node("Identity", ["w"], ["y"])], [], [_value("y", UINT8, [size])], [outside])


def loop_model() -> bytes:
    """y = x, FLOAT [1], after `rounds` rounds of a loop that does nothing."""
    state = [_value("i", INT64, []), _value("go_in", BOOL, []), _value("x_in", FLOAT, [1])]
    body = _graph(
        [_node("Identity", ["go_in"], ["go_out"]), _node("Identity", ["x_in"], ["x_out"])],
        state,
        [_value("go_out", BOOL, []), _value("x_out", FLOAT, [1])],
    )
    loop = _node("Loop", ["rounds", "go", "x"], ["y"], _bytes(5, _bytes(1, "body") + _bytes(6, body) + _number(20, 5)))
    inputs = [_value("rounds", INT64, []), _value("go", BOOL, []), _value("x", FLOAT, [1])]
    return _model([loop], inputs, [_value("y", FLOAT, [1])])


def deep_model() -> bytes:
    """A reader whose logits have one dimension too many."""
    to_float = _bytes(5, _bytes(1, "to") + _number(3, FLOAT) + _number(20, 2))
    axis = _number(1, 1) + _number(2, INT64) + _bytes(8, "axis") + _bytes(9, (2).to_bytes(8, "little"))
    nodes = [
        _node("Add", ["input_ids", "attention_mask"], ["sum"]),
        _node("Add", ["sum", "token_type_ids"], ["total"]),
        _node("Cast", ["total"], ["plain"], to_float),
        *(_node("Unsqueeze", ["plain", "axis"], [name]) for name in ("start_logits", "end_logits")),
    ]
    inputs = [_value(name, INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask", "token_type_ids")]
    outputs = [_value(name, FLOAT, ["batch", "length", 1]) for name in ("start_logits", "end_logits")]
    return _model(nodes, inputs, outputs, [axis])


def sequence_model() -> bytes:
    """y = x + x, FLOAT of any length, and a second output, the sequence of x and y, which is not a tensor."""
    element = _bytes(1, _number(1, FLOAT) + _bytes(2, _bytes(1, _bytes(2, "n"))))
    sequence = _bytes(1, "both") + _bytes(2, _bytes(4, _bytes(1, element)))
    nodes = [_node("SequenceConstruct", ["x", "y"], ["both"]), _node("Add", ["x", "x"], ["y"])]
    ports = [_value(name, FLOAT, ["n"]) for name in ("x", "y")]
    return _model([nodes[1], nodes[0]], ports[:1], [sequence, ports[1]])


def unknown_rank_model(*, in_ort: bool = False) -> bytes:
    """y = x, FLOAT of any shape; with `in_ort`, by an operation that only ONNX Runtime knows."""
    ports = [_bytes(1, name) + _bytes(2, _bytes(1, _number(1, FLOAT))) for name in ("x", "y")]
    if not in_ort:
        return _model([_node("Identity", ["x"], ["y"])], ports[:1], ports[1:])
    zero = _number(2, INT64) + _bytes(8, "zero") + _bytes(9, bytes(8))
    nodes = [_node("SequenceConstruct", ["x"], ["list"]), _node("SequenceAt", ["list", "zero"], ["y"])]
    return _model(nodes, ports[:1], ports[1:], [zero])
