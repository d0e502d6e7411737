"""Small ONNX files, encoded by hand: the format is protobuf, and the tests need a node or two."""

from __future__ import annotations

from collections.abc import Sequence

FLOAT, INT64 = 1, 7
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


def _model(nodes: Sequence[bytes], inputs: Sequence[bytes], outputs: Sequence[bytes]) -> bytes:
    graph = b"".join(_bytes(1, node) for node in nodes) + _bytes(2, "graph")
    graph += b"".join(_bytes(11, value) for value in inputs) + b"".join(_bytes(12, value) for value in outputs)
    return _number(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, "") + _number(2, 13))


def add_model() -> bytes:
    """sum = a + b, FLOAT of any length."""
    values = [_value(name, FLOAT, ["n"]) for name in ("a", "b", "sum")]
    return _model([_node("Add", ["a", "b"], ["sum"])], values[:2], values[2:])


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
