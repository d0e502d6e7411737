"""Static int8 for an ONNX reader: one ordinary QDQ file that OpenVINO and ONNX Runtime both run at full speed.

NNCF finds the activation ranges on calibration examples. Two things it would do are done here instead, because ONNX
Runtime pays for them on every run (12 ms for a pair of 16 tokens against 0.6):

- Embedding tables: NNCF dequantizes the whole table before the lookup. Here the table is stored as int8 with one scale
  a row, the rows are looked up first, and only those are scaled.
- Activations that meet int8 weights: NNCF makes them int8, ONNX Runtime has fast kernels for uint8 x int8 only. Adding
  128 to value and zero point changes nothing else. Products of two activations stay as they are, since OpenVINO is
  faster with symmetric ones there.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import numpy as np

from qa_cluster.windows import Arrays

_WEIGHTED = ("MatMul", "Gemm")


def quantize(model: Any, examples: Sequence[Arrays]) -> Any:
    """Return the float32 ONNX `model` in int8, its activation ranges measured on `examples`."""
    import nncf
    import onnx

    nncf.set_log_level(logging.ERROR)
    with redirect_stdout(StringIO()):  # its progress bars cannot be switched off otherwise
        quantized = nncf.quantize(
            model,
            nncf.Dataset(list(examples)),
            model_type=nncf.ModelType.TRANSFORMER,
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(examples),
            ignored_scope=nncf.IgnoredScope(types=["Gather"], validate=False),
        )
    _store_embeddings_by_row(quantized.graph)
    _make_activations_unsigned(quantized.graph)
    del quantized.graph.value_info[:]  # holds the types from before
    onnx.checker.check_model(quantized)
    return quantized


def _store_embeddings_by_row(graph: Any) -> None:
    from onnx import TensorProto, helper, numpy_helper

    tensors = {tensor.name: tensor for tensor in graph.initializer}
    lookups = [
        node
        for node in graph.node
        if node.op_type == "Gather"
        and node.input[0] in tensors
        and len(tensors[node.input[0]].dims) == 2
        and tensors[node.input[0]].data_type == TensorProto.FLOAT
        and _uses(graph.node, node.input[0]) == 1
    ]
    for node in lookups:
        table, ids = node.input
        rows = numpy_helper.to_array(tensors[table])
        scales = np.maximum(np.abs(rows).max(axis=1, keepdims=True) / 127, np.finfo(np.float32).tiny).astype(np.float32)
        stored = np.rint(rows / scales).astype(np.int8)
        graph.initializer.remove(tensors[table])
        graph.initializer.append(numpy_helper.from_array(stored, f"{table}.int8"))
        graph.initializer.append(numpy_helper.from_array(scales, f"{table}.scales"))
        name = node.name
        replacement = [
            helper.make_node("Gather", [f"{table}.int8", ids], [f"{name}.rows"], f"{name}.rows", axis=0),
            helper.make_node("Cast", [f"{name}.rows"], [f"{name}.float"], f"{name}.float", to=TensorProto.FLOAT),
            helper.make_node("Gather", [f"{table}.scales", ids], [f"{name}.scales"], f"{name}.scales", axis=0),
            helper.make_node("Mul", [f"{name}.float", f"{name}.scales"], [node.output[0]], f"{name}.scaled"),
        ]
        position = list(graph.node).index(node)
        graph.node.remove(node)
        for offset, new in enumerate(replacement):
            graph.node.insert(position + offset, new)


def _make_activations_unsigned(graph: Any) -> None:
    from onnx import TensorProto, numpy_helper

    tensors = {tensor.name: tensor for tensor in graph.initializer}
    dequantized = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    for node in graph.node:
        if node.op_type != "QuantizeLinear" or len(node.input) < 3:
            continue
        zero = tensors.get(node.input[2])
        if zero is None or zero.data_type != TensorProto.INT8:
            continue
        readers = [user for user in graph.node if node.output[0] in user.input]
        value = numpy_helper.to_array(zero).astype(np.int16)
        shared = _uses(graph.node, zero.name) != 1 + len(readers)
        if shared or not all(user.op_type == "DequantizeLinear" for user in readers):
            continue
        if value.any() or _meets_weights(graph.node, readers, tensors, dequantized):
            zero.CopyFrom(numpy_helper.from_array((value + 128).astype(np.uint8), zero.name))


def _meets_weights(nodes: Iterable[Any], readers: Sequence[Any], tensors: dict[str, Any], dequantized: Any) -> bool:
    """Say whether everything that uses these dequantized activations multiplies them by stored weights."""
    outputs = {reader.output[0] for reader in readers}
    users = [user for user in nodes if outputs & set(user.input)]
    return bool(users) and all(
        user.op_type in _WEIGHTED
        and any(name in dequantized and dequantized[name].input[0] in tensors for name in user.input)
        for user in users
    )


def _uses(nodes: Iterable[Any], name: str) -> int:
    return sum(list(node.input).count(name) for node in nodes)
