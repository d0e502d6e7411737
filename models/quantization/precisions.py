"""Converts the float32 ONNX file to another precision.

- `float16` and `bfloat16` store the weights in half the space. OpenVINO and ONNX Runtime compute float16 files in
  float32. OpenVINO computes bfloat16 files in bfloat16 if the processor supports it.
- `int8` is for CPUs (see `quantize`).
- `int8-dynamic` stores int8 weights. The runtime chooses the scales of the activations while it runs. Each scale
  belongs to some channels of one token, so no answer depends on the other texts of its batch. ONNX Runtime multiplies
  with its operator `MatMulNBits`. ONNX Runtime's usual dynamic quantization, with one scale for the whole batch, is not
  used.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from qa_cluster.errors import InvalidInput
from qa_cluster.manifest_fields import PRECISIONS
from qa_cluster.reading.precisions import METADATA_KEY
from qa_cluster.reading.windows import Arrays

from .onnx_graph import stored
from .quantize import quantize, quantize_weights
from .rounding import BITS

# The least number of elements of a tensor that is stored in 16 bits. Smaller tensors stay in float32.
_SMALLEST_STORED = 1024
_LARGEST_FLOAT16 = 65504.0


def require_precision(precision: str, *, calibrated: bool) -> None:
    """Raise InvalidInput for an unknown precision, and for the precision int8 without a calibration set. `calibrated`
    says whether there is a calibration set.
    """
    if precision not in PRECISIONS:
        raise InvalidInput(f"unknown precision {precision!r}, must be one of {', '.join(PRECISIONS)}")
    if precision == "int8" and not calibrated:
        raise InvalidInput("precision int8 needs --calibration, a question set to measure the ranges")


def convert(model: Any, precision: str, examples: Sequence[Arrays], weight_bits: int = BITS) -> Any:
    """Return the float32 ONNX `model` converted to `precision`. The metadata of the result records the precision.
    `model` itself stays unchanged.

    Args:
        examples: the inputs for fitting the ranges and the rounding of int8.
        weight_bits: the number of bits of a weight's code in int8 and int8-dynamic.
    """
    from onnx import ModelProto, TensorProto, helper

    if precision == "int8":
        made = quantize(model, examples, weight_bits)
    elif precision == "int8-dynamic":
        made = quantize_weights(model, examples, weight_bits)
    else:
        made = ModelProto()
        made.CopyFrom(model)
        if precision != "float32":
            _store_in_16_bits(made.graph, TensorProto.FLOAT16 if precision == "float16" else TensorProto.BFLOAT16)
    helper.set_model_props(made, {METADATA_KEY: precision})
    return made


def _store_in_16_bits(graph: Any, kind: int) -> None:
    """Store the large float32 tensors of a graph in 16 bits, and insert casts to float32. `kind` is the ONNX data type
    with 16 bits. Tensors with values that float16 cannot represent stay in float32. Runtimes cast once, when they load
    the file.
    """
    from onnx import TensorProto, helper, numpy_helper

    casts = []
    for name, tensor in stored(graph).items():
        if tensor.data_type != TensorProto.FLOAT:
            continue
        values = numpy_helper.to_array(tensor)
        if values.size < _SMALLEST_STORED or np.abs(values).max() > _LARGEST_FLOAT16:
            continue
        halved = f"{name}.halved"
        # the values are given as bytes, because ONNX would otherwise store each 16-bit value as int32
        raw = values.astype(helper.tensor_dtype_to_np_dtype(kind)).tobytes()
        graph.initializer.remove(tensor)
        graph.initializer.append(helper.make_tensor(halved, kind, values.shape, raw, raw=True))
        casts.append(helper.make_node("Cast", [halved], [name], f"{name}.cast", to=TensorProto.FLOAT))
    for cast in reversed(casts):
        graph.node.insert(0, cast)
