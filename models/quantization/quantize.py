"""Converts an ONNX reader to int8: static (an ordinary QDQ file), or with int8 weights only.

OpenVINO and ONNX Runtime both run these files at their full int8 speed. A *step* is the difference between the values
of two neighbouring int8 codes (in ONNX: the scale). The parts of the network are converted in these ways:

- *Products of activations and stored weights* become int8: unsigned activations with one step for all channels, signed
  weights with one step for each output. ONNX Runtime has fast kernels only for uint8 x int8. `smoothing` scales the
  channels of the activations, and `rounding` rounds the weights so that the outputs change little. The bias corrects
  the remaining mean error.
- *Activations with a few huge values* (in BERT, the outputs of the feed-forward layers of the first half) do not fit a
  single step, and smoothing would make the range of the weights too wide. So the file has no step for these
  activations, only int8 weights for their products. The runtime chooses the steps at run time, for each token. In the
  bundled reader, these are 4 of 25 matmul inputs (`onnx_graph` defines the term). Without fixed steps for them, the
  error of the logits is two fifths smaller, and the reader is 3 to 6 % slower.
- *Products of two activations* (the attention) stay in float32. They take little time, and OpenVINO fuses them.
- *Large embedding tables* become int8 with one step for each row. Rows are scaled after the lookup, because ONNX
  Runtime would need 12 ms in every run to dequantize a whole table.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qa_cluster.errors import ModelError
from qa_cluster.reading.windows import Arrays

from .onnx_graph import MatMulInput, Product, matmul_inputs, stored, watch
from .rounding import BITS, to_least_error, to_nearest, weight_scales
from .smoothing import Activations, Range, best_factors

FloatArray = NDArray[np.float32]
WIDEST = 50.0
"""Activations get no fixed range if their largest value is at least this multiple of their root mean square."""
LARGE_TABLE = 4096
"""Embedding tables with at least this number of rows become int8."""


def quantize(model: Any, examples: Sequence[Arrays], bits: int = BITS) -> Any:
    """Return the float32 ONNX `model` in static int8. The ranges of activations are measured on `examples`.

    `bits` is the number of bits of a weight's code, from 2 to 8.
    """
    if not examples:
        raise ModelError("int8 needs calibration examples with at least one token")
    made = _copy(model)
    graph = made.graph
    found = matmul_inputs(graph)
    seen = watch(model, [matmul_input.tensor for matmul_input in found], examples)
    uses = Counter(product.weights for matmul_input in found for product in matmul_input.products)
    quantized = [_Quantized.of(graph, matmul_input, seen[matmul_input.tensor], uses, bits) for matmul_input in found]
    _replace_weights(graph, quantized, uses, bits)
    for one in quantized:
        if one.range is not None:
            _insert_quantizer(graph, one.matmul_input.tensor, one.matmul_input.products, one.factors, one.range)
    return _finished(made, bits)


def quantize_weights(model: Any, examples: Sequence[Arrays], bits: int = BITS) -> Any:
    """Return the float32 ONNX `model` with int8 weights. With `examples`, the weights are rounded so that the outputs
    on these inputs change little. Without `examples`, each weight gets the nearest code. `bits` is as in `quantize`.
    """
    made = _copy(model)
    graph = made.graph
    found = matmul_inputs(graph)
    seen = watch(model, [matmul_input.tensor for matmul_input in found], examples) if examples else {}
    uses = Counter(product.weights for matmul_input in found for product in matmul_input.products)
    quantized = [_Quantized(matmul_input, seen.get(matmul_input.tensor)) for matmul_input in found]
    _replace_weights(graph, quantized, uses, bits)
    return _finished(made, bits)


@dataclass(frozen=True, slots=True)
class _Quantized:
    """A matmul input, and how it is quantized.

    Attributes:
        seen: the recorded values; None if no values were recorded.
        factors: the smoothing factors of the channels; None if the input is not smoothed.
        range: the fixed range of the uint8 codes; None if the file has no fixed range, and so does not round the input.
    """

    matmul_input: MatMulInput
    seen: Activations | None
    factors: FloatArray | None = None
    range: Range | None = None

    @classmethod
    def of(
        cls, graph: Any, matmul_input: MatMulInput, seen: Activations, uses: Counter[str], bits: int
    ) -> "_Quantized":
        from onnx import numpy_helper

        if seen.width >= WIDEST:
            return cls(matmul_input, seen)
        tensors = stored(graph)
        # no smoothing, because it would also divide weights that other matmul inputs use
        if any(uses[product.weights] > 1 for product in matmul_input.products):
            return cls(matmul_input, seen, None, seen.range(np.ones_like(seen.least)))
        weights = [numpy_helper.to_array(tensors[product.weights]) for product in matmul_input.products]
        factors = best_factors(seen, weights, bits)
        return cls(matmul_input, seen, factors, seen.range(factors))

    def rows(self) -> tuple[FloatArray, FloatArray] | None:
        """Return the recorded rows as inputs of the products, before and after the rounding to the range. Return None
        if no values were recorded.
        """
        if self.seen is None:
            return None
        before = self.seen.rows if self.factors is None else self.seen.rows * self.factors
        return before, before if self.range is None else self.range.rounded(before)


def _replace_weights(graph: Any, quantized: Sequence[_Quantized], uses: Counter[str], bits: int) -> None:
    """Replace the float32 weights of all products by int8 weights with scales, and correct the biases by the mean
    error. `uses` has the number of products of each weight, by the name of the weight.
    """
    met: dict[str, list[tuple[_Quantized, Product]]] = {name: [] for name in uses}
    for matmul_input in quantized:
        for product in matmul_input.matmul_input.products:
            met[product.weights].append((matmul_input, product))
    for name, users in met.items():
        _replace(graph, name, users, bits)


def _replace(graph: Any, name: str, users: Sequence[tuple[_Quantized, Product]], bits: int) -> None:
    from onnx import helper, numpy_helper

    tensors = stored(graph)
    weights = numpy_helper.to_array(tensors[name])
    factors = users[0][0].factors
    if factors is not None:
        weights = weights / factors[:, None]
    scales = weight_scales(weights, bits)
    met = [rows for rows in (matmul_input.rows() for matmul_input, _ in users) if rows is not None]
    if met:
        energy = sum((after.T @ after).astype(np.float64) for _, after in met)
        codes = to_least_error(weights, scales, np.asarray(energy), bits)
        rounded = codes * scales
        lost = [before.mean(axis=0) @ weights - after.mean(axis=0) @ rounded for before, after in met]
        _correct_bias(graph, [product for _, product in users], np.mean(lost, axis=0))
    else:
        codes = to_nearest(weights, scales, bits)
    graph.initializer.remove(tensors[name])
    graph.initializer.append(numpy_helper.from_array(codes, f"{name}.int8"))
    graph.initializer.append(numpy_helper.from_array(scales, f"{name}.scales"))
    position = list(graph.node).index(users[0][1].node)
    made = helper.make_node(
        "DequantizeLinear", [f"{name}.int8", f"{name}.scales"], [name], f"{name}.dequantized", axis=1
    )
    graph.node.insert(position, made)


def _correct_bias(graph: Any, products: Sequence[Product], lost: FloatArray) -> None:
    """Add `lost`, the mean error of the products, to their bias. Do nothing if the products have no common bias, or if
    another node uses the bias.
    """
    from onnx import numpy_helper

    bias = products[0].bias
    shared = {product.bias for product in products} != {bias}
    if bias is None or shared or sum(bias in node.input for node in graph.node) != len(products):
        return
    tensor = stored(graph)[bias]
    tensor.CopyFrom(numpy_helper.from_array((numpy_helper.to_array(tensor) + lost).astype(np.float32), bias))


def _insert_quantizer(
    graph: Any, tensor: str, products: Sequence[Product], factors: FloatArray | None, to: Range
) -> None:
    """Insert nodes that multiply the tensor by `factors` (unless they are None), and then round it to the codes of the
    range `to`.

    The products then use the result of these nodes, and all other nodes the unchanged tensor.
    """
    from onnx import helper, numpy_helper

    base = f"{tensor}.int8"
    nodes = []
    source = tensor
    if factors is not None:
        graph.initializer.append(numpy_helper.from_array(factors, f"{base}.factors"))
        source = f"{base}.smoothed"
        nodes.append(helper.make_node("Mul", [tensor, f"{base}.factors"], [source], source))
    graph.initializer.append(numpy_helper.from_array(np.float32(to.scale), f"{base}.scale"))
    graph.initializer.append(numpy_helper.from_array(np.uint8(to.zero), f"{base}.zero"))
    limits = [f"{base}.scale", f"{base}.zero"]
    nodes.append(helper.make_node("QuantizeLinear", [source, *limits], [f"{base}.codes"], f"{base}.codes"))
    nodes.append(helper.make_node("DequantizeLinear", [f"{base}.codes", *limits], [f"{base}.values"], f"{base}.values"))
    position = list(graph.node).index(products[0].node)
    for offset, node in enumerate(nodes):
        graph.node.insert(position + offset, node)
    for product in products:
        product.node.input[0] = f"{base}.values"


def _store_embeddings_by_row(graph: Any, bits: int) -> None:
    from onnx import TensorProto, helper, numpy_helper

    tensors = stored(graph)
    lookups = [
        node
        for node in graph.node
        if node.op_type == "Gather"
        and node.input[0] in tensors
        and len(tensors[node.input[0]].dims) == 2
        and tensors[node.input[0]].dims[0] >= LARGE_TABLE
        and tensors[node.input[0]].data_type == TensorProto.FLOAT
        and sum(list(user.input).count(node.input[0]) for user in graph.node) == 1
    ]
    for node in lookups:
        table, ids = node.input
        rows = numpy_helper.to_array(tensors[table])
        scales = weight_scales(rows.T, bits)[:, None]
        graph.initializer.remove(tensors[table])
        graph.initializer.append(numpy_helper.from_array(to_nearest(rows, scales, bits), f"{table}.int8"))
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


def _copy(model: Any) -> Any:
    from onnx import ModelProto

    made = ModelProto()
    made.CopyFrom(model)
    return made


def _finished(model: Any, bits: int) -> Any:
    import onnx

    _store_embeddings_by_row(model.graph, bits)
    del model.graph.value_info[:]  # the value infos describe the types before the quantization
    onnx.checker.check_model(model)
    return model
