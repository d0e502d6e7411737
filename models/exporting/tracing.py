"""Writes the network of a checkpoint as a float32 ONNX file for any batch and length."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qa_cluster.errors import ModelError

from ..checkpoints.checkpoint import OUTPUTS, Checkpoint, parameter_bytes
from ..checkpoints.loading import one_line

_OPSET = 17
_PROTOBUF_LIMIT = 2_000_000_000


def write_onnx(checkpoint: Checkpoint, target: Path) -> None:
    """Trace the network of a checkpoint, and write it to the ONNX file `target`. Raises ModelError if the network is
    too large for one file, or cannot be traced.
    """
    size = parameter_bytes(checkpoint.network)
    if size > _PROTOBUF_LIMIT:
        raise ModelError(
            f"weights of {checkpoint.name!r} have {size} bytes, an ONNX file holds at most {_PROTOBUF_LIMIT}"
        )
    network, names = checkpoint.network, checkpoint.inputs

    def spans(*inputs: Any) -> tuple[Any, Any]:
        output = network(**dict(zip(names, inputs, strict=True)), return_dict=True)
        return output.start_logits, output.end_logits

    axes = {name: {0: "batch", 1: "length"} for name in OUTPUTS}
    what = f"network of {checkpoint.name!r} ({checkpoint.family})"
    trace(spans, network, target, inputs=names, outputs=axes, what=what)


def trace(
    compute: Callable[..., Any],
    network: Any,
    target: Path,
    *,
    inputs: Sequence[str],
    outputs: dict[str, dict[int, str]],
    what: str,
) -> None:
    """Write the function `compute` as an ONNX file, with the weights of the network that it uses.

    Args:
        inputs: the names of the inputs of `compute`, int64 [batch, length] each.
        outputs: the names of the outputs, with the names of their dynamic axes.
        what: the subject of the ModelError that says why the network cannot be written.
    """
    import onnx
    import torch

    class Traced(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *given: Any) -> Any:
            return compute(*given)

    example = tuple(torch.ones(2, 16, dtype=torch.int64) for _ in inputs)
    with warnings.catch_warnings(), torch.inference_mode():
        # The tracer warns about every shape, and that the tracer is deprecated. The code uses the tracer because the
        # graphs of the newer exporter (dynamo) run slower.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                Traced().eval(),
                example,
                str(target),
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_axes={**{name: {0: "batch", 1: "length"} for name in inputs}, **outputs},
                opset_version=_OPSET,
                dynamo=False,
            )
            onnx.save(with_plain_weights(onnx.load(target)), target)
        except Exception as error:  # the tracer raises errors of any type
            raise ModelError(f"{what} cannot be written as ONNX: {one_line(error)}") from error


def with_plain_weights(model: Any) -> Any:
    """Return the ONNX model without the `Identity` nodes that the tracer inserts for shared weights. The model is
    changed in place.
    """
    graph = model.graph
    names = {tensor.name: tensor.name for tensor in graph.initializer}
    for node in list(graph.node):
        if node.op_type == "Identity" and node.input[0] in names:
            names[node.output[0]] = names[node.input[0]]
            graph.node.remove(node)
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
    return model
