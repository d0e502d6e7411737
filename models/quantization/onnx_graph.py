"""Finds the tensors that an ONNX graph multiplies by stored weights, and records their values on real examples.

A *matmul input* is a tensor that `MatMul` nodes multiply by stored matrices. For example, queries, keys and
values are computed from the output of one layer normalization: this is one matmul input with three matrices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qa_cluster.errors import ModelError
from qa_cluster.reading.windows import Arrays

from .smoothing import Activations

FloatArray = NDArray[np.float32]
MAX_ROWS = 16384
_MAX_ROWS_BYTES = 2 << 30  # the limit for the recorded rows of all tensors together


@dataclass(frozen=True, slots=True)
class Product:
    """A `MatMul` by a stored matrix: its node, the name of the matrix, and the name of the stored bias that is added to
    the result. `bias` is None if no such bias is added.
    """

    node: Any
    weights: str
    bias: str | None


@dataclass(frozen=True, slots=True)
class MatMulInput:
    """A matmul input: the name of the tensor, and its products by stored matrices."""

    tensor: str
    products: tuple[Product, ...]


def stored(graph: Any) -> dict[str, Any]:
    """Return the stored tensors of a graph by name."""
    return {tensor.name: tensor for tensor in graph.initializer}


def matmul_inputs(graph: Any) -> list[MatMulInput]:
    """Return the matmul inputs of a graph, in the order of their first product. Raises ModelError if the graph has no
    matmul input.
    """
    from onnx import TensorProto

    tensors = stored(graph)
    found: dict[str, list[Product]] = {}
    for node in graph.node:
        weights = tensors.get(node.input[1]) if node.op_type == "MatMul" else None
        if weights is not None and len(weights.dims) == 2 and weights.data_type == TensorProto.FLOAT:
            product = Product(node, weights.name, _bias(graph, node, tensors))
            found.setdefault(node.input[0], []).append(product)
    if not found:
        raise ModelError("the network has no product with stored weights that int8 could replace")
    return [MatMulInput(tensor, tuple(products)) for tensor, products in found.items()]


def _bias(graph: Any, product: Any, tensors: dict[str, Any]) -> str | None:
    users = [node for node in graph.node if product.output[0] in node.input]
    if len(users) != 1 or users[0].op_type != "Add":
        return None
    other = next((name for name in users[0].input if name != product.output[0]), "")
    return other if other in tensors and len(tensors[other].dims) == 1 else None


def watch(model: Any, tensors: Sequence[str], examples: Sequence[Arrays]) -> dict[str, Activations]:
    """Run a float32 model on examples. Return, by the name of the tensor, the recorded values of the tensors `tensors`.
    The last dimension of a tensor has its channels; all other dimensions together are its rows.

    The minimum and the maximum of a channel are taken from all rows. Only some rows are recorded, spread over all
    examples: about `MAX_ROWS` of each tensor, or fewer if all tensors together would need more than `_MAX_ROWS_BYTES`.
    """
    least: dict[str, FloatArray] = {}
    greatest: dict[str, FloatArray] = {}
    kept: dict[str, list[FloatArray]] = {name: [] for name in tensors}
    share = 0
    for values in _run(model, tensors, examples):
        if not share:
            row_bytes = sum(value.shape[-1] * value.itemsize for value in values)
            share = max(1, min(MAX_ROWS, _MAX_ROWS_BYTES // row_bytes) // len(examples))
        for name, value in zip(tensors, values, strict=True):
            rows = value.reshape(-1, value.shape[-1])
            low, high = rows.min(axis=0), rows.max(axis=0)
            least[name] = np.minimum(least[name], low) if name in least else low
            greatest[name] = np.maximum(greatest[name], high) if name in greatest else high
            # the first row, of `[CLS]`, is always recorded, because every score depends on the null score
            places = np.unique(np.linspace(0, len(rows) - 1, min(share, len(rows))).astype(int))
            kept[name].append(rows[places])
    return {name: Activations(least[name], greatest[name], np.concatenate(kept[name])) for name in tensors}


def _run(model: Any, tensors: Sequence[str], examples: Sequence[Arrays]) -> Iterator[list[FloatArray]]:
    import onnxruntime
    from onnx import ModelProto, TensorProto, helper

    watched = ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    for name in tensors:
        watched.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(watched.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for example in examples:
        yield session.run(list(tensors), example)
