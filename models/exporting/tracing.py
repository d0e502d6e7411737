"""Writes the network of a checkpoint as a float32 ONNX file for any batch and length."""

import warnings
from pathlib import Path
from typing import Any

from qa_cluster.errors import ModelError

from ..checkpoints.checkpoint import OUTPUTS, Checkpoint, parameter_bytes

_OPSET = 17
_PROTOBUF_LIMIT = 2_000_000_000


def write_onnx(checkpoint: Checkpoint, target: Path) -> None:
    """Trace the network into `target`; ModelError if the network is too large for one file."""
    import onnx
    import torch

    size = parameter_bytes(checkpoint.network)
    if size > _PROTOBUF_LIMIT:
        raise ModelError(
            f"weights of {checkpoint.name!r} have {size} bytes, an ONNX file holds at most {_PROTOBUF_LIMIT}"
        )
    network, names = checkpoint.network, checkpoint.inputs

    class Spans(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *inputs: Any) -> tuple[Any, Any]:
            output = self.network(**dict(zip(names, inputs, strict=True)), return_dict=True)
            return output.start_logits, output.end_logits

    example = tuple(torch.ones(2, 16, dtype=torch.int64) for _ in names)
    with warnings.catch_warnings(), torch.inference_mode():
        # The tracer warns about every shape and about its deprecation. The graphs of the dynamo exporter run slower.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                Spans().eval(),
                example,
                str(target),
                input_names=list(names),
                output_names=list(OUTPUTS),
                dynamic_axes={name: {0: "batch", 1: "length"} for name in (*names, *OUTPUTS)},
                opset_version=_OPSET,
                dynamo=False,
            )
            onnx.save(with_plain_weights(onnx.load(target)), target)
        except Exception as error:  # the tracer raises errors of any type
            cause = " ".join(str(error).split())[:300]
            raise ModelError(
                f"network of {checkpoint.name!r} ({checkpoint.family}) cannot be written as ONNX: "
                f"{type(error).__name__}: {cause}"
            ) from error


def with_plain_weights(model: Any) -> Any:
    """Remove the `Identity` nodes that the tracer inserts for shared weights."""
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
