"""Backends: the same file gives the same answer in OpenVINO and ONNX Runtime, and what cannot be run is refused."""

from __future__ import annotations

import numpy as np
import pytest
from qa_cluster.gears.backends import is_token_model, load_model
from qa_cluster.gears.failures import GearsError
from qa_cluster.gears.onnx_backend import OnnxModel
from qa_cluster.gears.openvino_backend import OpenVinoModel
from qa_cluster.gears.tensors import from_wire, read_wire, to_blob, to_wire

from qa_cluster.errors import ModelError
from tests.gears.onnx_file import add_model, token_model


def test_runtimes_agree_on_ports_and_results() -> None:
    models = [OpenVinoModel(token_model(), 1), OnnxModel(token_model(), "CPU", 1)]
    ids, mask = np.array([[5, 6, 7]]), np.array([[1, 1, 0]])
    for model in models:
        assert is_token_model(model)
        assert [port.name for port in model.inputs] == ["input_ids", "attention_mask"]
        assert [port.name for port in model.outputs] == ["score"]
        (score,) = model.run([ids, mask])
        assert score.tolist() == [[5.0, 6.0, 0.0]]


def test_openvino_is_first_and_generic_models_are_not_token_models() -> None:
    model = load_model("ONNX", "CPU:1", add_model(), 1)
    assert isinstance(model, OpenVinoModel)
    assert not is_token_model(model)
    first = model.run([np.array([1, 2], "<f4"), np.array([3, 4], "<f4")])[0]
    model.run([np.array([9, 9], "<f4"), np.array([9, 9], "<f4")])
    assert first.tolist() == [4.0, 6.0], "a result must not change when the model runs again"


@pytest.mark.parametrize(
    ("backend", "device", "blob", "message"),
    [
        ("TORCH", "CPU", b"x", "unsupported backend TORCH"),
        ("TF", "CPU", b"x", "unsupported backend TF"),
        ("ONNX", "CPU", b"nonsense", "not a model that ONNX Runtime can load"),
        ("ONNX", "GPU:0", add_model(), "unsupported device GPU:0"),
    ],
)
def test_refusals(backend: str, device: str, blob: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load_model(backend, device, blob, 1)
    assert "\n" not in str(caught.value)


def test_tensors_on_the_wire() -> None:
    array = np.arange(6, dtype="<i4").reshape(2, 3)
    assert to_wire(array) == ("INT32", 2, 2, 3, array.tobytes())
    texts = from_wire("STRING", [2], b"a\0\xc3\xa9\0")
    assert texts.tolist() == ["a", "é"]
    assert to_blob(texts) == b"a\0\xc3\xa9\0"
    (back,) = read_wire([b"FLOAT", 1, 2, np.array([1, 2], "<f4").tobytes()], 1)
    assert back.tolist() == [1.0, 2.0]
    for dtype, dims, blob in (("FLOAT", [2], b"1234"), ("STRING", [2], b"a\0"), ("FLOAT16", [1], b"12")):
        with pytest.raises(GearsError, match="ERR "):
            from_wire(dtype, dims, blob)
    with pytest.raises(GearsError, match="no tensor type for complex128"):
        to_wire(np.array([1j]))
