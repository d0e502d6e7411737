"""Backends: the same file gives the same answer in OpenVINO and ONNX Runtime, and invalid files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qa_cluster.errors import InferenceFailed, ModelError
from qa_cluster.gears.inference.backends import choose
from qa_cluster.gears.inference.backends.base import RuntimeLimits, is_token_model
from qa_cluster.gears.inference.backends.onnx import OnnxModel
from qa_cluster.gears.inference.backends.openvino import OpenVinoModel
from qa_cluster.gears.inference.model_file import temporary_model_file
from qa_cluster.gears.inference.tensors import from_wire, read_wire, to_blob, to_wire
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.models.bundle import default_reader
from qa_cluster.reading.manifest import MODEL_FILE
from tests.gears.files import load_bytes
from tests.gears.onnx_file import (
    add_model,
    loop_model,
    outside_model,
    positions_model,
    product_model,
    table_model,
    token_model,
)


def test_runtimes_agree_on_ports_and_results() -> None:
    with temporary_model_file([token_model()]) as file:
        models = [OpenVinoModel(file, 1), OnnxModel(file, "CPU", RuntimeLimits())]
    ids, mask = np.array([[5, 6, 7]]), np.array([[1, 1, 0]])
    for model in models:
        assert is_token_model(model)
        assert [port.name for port in model.inputs] == ["input_ids", "attention_mask"]
        assert [port.name for port in model.outputs] == ["score"]
        (score,) = model.run([ids, mask])
        assert score.tolist() == [[5.0, 6.0, 0.0]]


@pytest.mark.parametrize(("threads", "mode"), [(1, "ORT_SEQUENTIAL"), (2, "ORT_PARALLEL")])
def test_operations_of_a_model_run_in_parallel_only_with_several_threads(threads: int, mode: str) -> None:
    model = load_bytes("ONNX", "CPU", add_model(), RuntimeLimits(inter_op_threads=threads))
    assert isinstance(model, OnnxModel)
    assert model._session.get_session_options().execution_mode.name == mode
    (total,) = model.run([np.array([1, 2], "<f4"), np.array([3, 4], "<f4")])
    assert total.tolist() == [4, 6]


def test_openvino_is_preferred_and_generic_models_are_not_token_models() -> None:
    model = load_bytes("ONNX", "CPU:1", add_model(2), RuntimeLimits())
    assert isinstance(model, OpenVinoModel)
    assert isinstance(load_bytes("ONNX", "CPU", add_model(), RuntimeLimits()), OnnxModel), "its shapes are not fixed"
    assert not is_token_model(model)
    first = model.run([np.array([1, 2], "<f4"), np.array([3, 4], "<f4")])[0]
    model.run([np.array([9, 9], "<f4"), np.array([9, 9], "<f4")])
    assert first.tolist() == [4.0, 6.0], "the next run must not change an earlier result"


@pytest.mark.parametrize("int8_products", [True, False])
def test_an_int8_reader_runs_in_the_runtime_whose_answers_do_not_depend_on_the_batch(
    int8_products: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "has_int8_products", lambda: int8_products)
    reader = (default_reader() / MODEL_FILE).read_bytes()
    assert isinstance(load_bytes("ONNX", "CPU", reader, RuntimeLimits()), OpenVinoModel if int8_products else OnnxModel)
    assert isinstance(load_bytes("ONNX", "CPU", token_model(), RuntimeLimits()), OpenVinoModel), "a float32 model"
    with pytest.raises(ModelError):
        load_bytes("ONNX", "CPU", b"", RuntimeLimits())


@pytest.mark.parametrize(
    ("blob", "fitting", "mismatched"),
    [
        (add_model(), ((2,), (2,)), ((2,), (3,))),
        (product_model(), ((2, 3), (3, 4)), ((2, 3), (4, 5))),
        (product_model(), ((2, 3), (3, 4)), ((2, 300_000), (4, 5))),
    ],
)
def test_mismatched_shapes_are_refused_and_do_not_affect_later_runs(
    blob: bytes, fitting: tuple[tuple[int, ...], ...], mismatched: tuple[tuple[int, ...], ...]
) -> None:
    """Without the check, OpenVINO returned outputs of the previous run, and later even memory of other requests."""
    model = load_bytes("ONNX", "CPU", blob, RuntimeLimits(1))
    for value in range(1, 5):
        arrays = [np.full(shape, value, "<f4") for shape in fitting]
        expected = arrays[0] @ arrays[1] if arrays[0].ndim == 2 else arrays[0] + arrays[1]
        assert model.run(arrays)[0].tolist() == expected.tolist()
        with pytest.raises(InferenceFailed, match="ONNXRuntimeError"):
            model.run([np.full(shape, 70, "<f4") for shape in mismatched])


@pytest.mark.parametrize("longest", [5, 512, 600])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_beyond_the_positions_of_a_token_model_are_refused_before_they_run(longest: int, threads: int) -> None:
    with temporary_model_file([positions_model(longest)]) as file:
        model = OpenVinoModel(file, threads)
    for rows in (1, 3):
        ids = np.full((rows, longest), 2)
        assert model.run([ids, np.ones_like(ids)])[0].tolist() == [[2.0 * n for n in range(longest)]] * rows
        for more in (longest + 1, longest + 88):
            longer = np.full((rows, more), 7)
            with pytest.raises(InferenceFailed, match=f"rows of up to {longest} tokens, got {more}"):
                model.run([longer, np.ones_like(longer)])


def test_an_exception_in_an_openvino_run_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with temporary_model_file([positions_model(5)]) as file:
        model = OpenVinoModel(file, 1)
    monkeypatch.setattr(model, "_longest", 100)
    ids = np.full((1, 5), 2)
    model.run([ids, ids])
    with pytest.raises(InferenceFailed, match=r"mismatch|failed"):
        model.run([np.full((1, 7), 2)] * 2)


@pytest.mark.parametrize(
    ("backend", "device", "blob", "message"),
    [
        ("TORCH", "CPU", b"x", r"with its extra torch|not a TorchScript file"),
        ("TF", "CPU", b"x", "unsupported backend TF"),
        ("ONNX", "CPU", b"nonsense", "not a model that ONNX Runtime can load"),
        ("ONNX", "GPU:0", add_model(), "unsupported device GPU:0"),
    ],
)
def test_refusals(backend: str, device: str, blob: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load_bytes(backend, device, blob, RuntimeLimits())
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


def test_a_run_beyond_its_time_limit_is_stopped() -> None:
    model = load_bytes("ONNX", "CPU", loop_model(), RuntimeLimits(run_timeout_ms=3000))
    assert isinstance(model, OnnxModel), "a model with a loop runs in ONNX Runtime, which can end a run"
    go, x = np.array(True), np.array([3.0], "<f4")
    with pytest.raises(InferenceFailed, match="Exiting due to terminate flag being set to true"):
        model.run([np.array(2**62), go, x])
    assert model.run([np.array(5), go, x])[0].tolist() == [3.0], "the time limit must not end the next run"


def test_a_memory_limit_needs_onnx_runtime() -> None:
    limits = RuntimeLimits(memory_mb=8)
    model = load_bytes("ONNX", "CPU", add_model(), limits)
    assert isinstance(model, OnnxModel)
    assert model.run([np.ones(4, "<f4")] * 2)[0].tolist() == [2.0] * 4
    with pytest.raises(ModelError, match=r"Onnxruntime memory limit exceeded, memory allocation failed\."):
        load_bytes("ONNX", "CPU", table_model(1000, 4000, bytes(16_000_000)), limits)


@pytest.mark.parametrize("location", ["secret.bin", "./secret.bin", "{folder}/secret.bin", "../environ"])
@pytest.mark.parametrize("memory_mb", [0, 64])
def test_a_model_reads_no_other_file(
    location: str, memory_mb: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker runs in the directory of the server, which contains the data of all users."""
    (tmp_path / "secret.bin").write_bytes(b"secret")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="not a model that ONNX Runtime can load"):
        load_bytes(
            "ONNX", "CPU", outside_model(location.format(folder=tmp_path), 6), RuntimeLimits(memory_mb=memory_mb)
        )
