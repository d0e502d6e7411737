"""A file of each precision gives the checkpoint's answers in both runtimes, alone and in a batch.

The tests need the `export` extra.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qa_cluster.gears.inference.backends.openvino import OpenVinoModel
from qa_cluster.gears.inference.model_file import ModelFile
from qa_cluster.models.checkpoints.checkpoint import load_checkpoint, torch_runner
from qa_cluster.models.exporting.export import ExportOptions, export
from qa_cluster.models.quantization import quantize as quantizing
from qa_cluster.models.quantization.onnx_graph import matmul_inputs, watch
from qa_cluster.models.quantization.rounding import largest_code, to_nearest, weight_scales
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, PRECISIONS, TOKENIZER_FILE, Manifest
from qa_cluster.reading.precisions import METADATA_KEY, suits_openvino
from qa_cluster.reading.runtimes import RUNTIMES, open_runner
from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.reading.windows import Arrays, PairEncoder, TextPairEncoder
from tests.model.tiny_checkpoints import FAMILIES

pytest.importorskip("transformers", reason="the export extra is not installed")
pytest.importorskip("torch", reason="the export extra is not installed")
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

WIDE = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 5000, "initializer_range": 0.06}
FURTHEST = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 0.06, "int8": 0.15, "int8-dynamic": 0.06}
"""The largest error of the logits, as a share of their range."""


@dataclass(frozen=True, slots=True)
class Readers:
    """One checkpoint, exported in every precision."""

    checkpoint: Path
    folders: dict[str, Path]
    batch: Arrays

    @property
    def counted(self) -> Any:
        """Which positions are not padding."""
        return self.batch["attention_mask"] == 1


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]) -> Path:
    path = tmp_path_factory.mktemp("data") / "calibration.jsonl"
    rows = [{"question": q, "context": c, "answer": "", "answer_start": -1} for q, c in pairs]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def exported(checkpoint: Path, out: Path, precision: str, calibration: Path) -> Path:
    options = ExportOptions(
        precision=precision, calibration=calibration, max_examples=40, runtimes=("openvino",), threads=1
    )
    assert export(str(checkpoint), out, options).precision == precision
    return out


def encoder(folder: Path) -> TextPairEncoder:
    manifest = Manifest.load(folder / MANIFEST_FILE)
    pairs = PairEncoder(manifest, window_tokens=96, doc_stride=8)
    return TextPairEncoder(ReaderTokenizer((folder / TOKENIZER_FILE).read_bytes()), pairs)


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory, calibration: Path, pairs: list[tuple[str, str]]) -> Readers:
    folder = tmp_path_factory.mktemp("precisions")
    checkpoint = FAMILIES["bert"].save(folder / "checkpoint", **WIDE)
    made = {name: exported(checkpoint, folder / name, name, calibration) for name in PRECISIONS}
    pairing = encoder(made["float32"])
    batch = pairing.pairs.batch([pairing.windows(question, context)[0] for question, context in pairs[:24]])
    return Readers(checkpoint, made, batch)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_logits_are_near_those_of_pytorch(readers: Readers, precision: str, runtime: str) -> None:
    run = open_runner(readers.folders[precision] / MODEL_FILE, runtime, threads=1)
    expected = torch_runner(load_checkpoint(str(readers.checkpoint)).network)(readers.batch)
    for found, reference in zip(run(readers.batch), expected, strict=True):
        furthest = np.abs(found - reference)[readers.counted].max()
        assert furthest < FURTHEST[precision] * np.ptp(reference[readers.counted])


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_answer_alone_equals_the_answer_in_a_batch(readers: Readers, precision: str, runtime: str) -> None:
    run = open_runner(readers.folders[precision] / MODEL_FILE, runtime, threads=1)
    together = run(readers.batch)
    for row in range(0, len(readers.counted), 3):
        alone = {name: values[row : row + 1] for name, values in readers.batch.items()}
        for found, whole in zip(run(alone), together, strict=True):
            counted = readers.counted[row]
            np.testing.assert_allclose(found[0, counted], whole[row, counted], atol=1e-4)
        used = int(counted.sum())  # the pair without padding
        bare = {name: values[:, : -(-used // 16) * 16] for name, values in alone.items()}
        np.testing.assert_allclose(run(bare)[0][0, :used], together[0][row, :used], atol=1e-4)


def test_files_have_the_expected_sizes(readers: Readers) -> None:
    sizes = {name: (folder / MODEL_FILE).stat().st_size for name, folder in readers.folders.items()}
    assert sizes["float16"] < 0.53 * sizes["float32"]
    assert sizes["bfloat16"] < 0.53 * sizes["float32"]
    assert sizes["int8"] < 0.33 * sizes["float32"]
    assert sizes["int8-dynamic"] < 0.33 * sizes["float32"]


def test_weights_with_codes_of_few_bits_compress_better(readers: Readers, tmp_path: Path, calibration: Path) -> None:
    onnx = pytest.importorskip("onnx")
    options = ExportOptions(
        precision="int8",
        weight_bits=4,
        calibration=calibration,
        max_examples=40,
        runtimes=("openvino",),
        threads=1,
        force=True,
    )
    export(str(readers.checkpoint), tmp_path / "few", options)
    files = [folder / MODEL_FILE for folder in (tmp_path / "few", readers.folders["int8"])]
    few, many = (len(gzip.compress(file.read_bytes())) for file in files)
    assert few < 0.75 * many
    codes = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(files[0]).graph.initializer}
    weights = [values for values in codes.values() if values.dtype == np.int8]
    assert weights and all(np.abs(values).max() <= 7 for values in weights)


@pytest.mark.parametrize("bits", [3, 4, 6, 8])
def test_steps_of_few_bits_clip_if_this_lowers_the_error(bits: int) -> None:
    weights = np.random.default_rng(1).normal(size=(512, 8)).astype(np.float32)
    weights[0, 0] = 40.0

    def error(scales: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(np.square(weights - to_nearest(weights, scales, bits) * scales).mean(axis=0))

    widest = np.abs(weights).max(axis=0) / largest_code(bits)
    assert (error(weight_scales(weights, bits)) <= error(widest) * (1 + 1e-6)).all()
    assert bits == 8 or error(weight_scales(weights, bits))[1:].mean() < 0.95 * error(widest)[1:].mean()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_worker_uses_the_settings_of_the_precision(readers: Readers, precision: str) -> None:
    """The file itself has the precision, because a worker receives a file without its manifest."""
    import onnx

    path = readers.folders[precision] / MODEL_FILE
    stated = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert stated[METADATA_KEY] == precision
    model = OpenVinoModel(ModelFile(str(path), path.stat().st_size), threads=1)
    found = model.run([readers.batch[port.name].astype(port.dtype) for port in model.inputs])
    expected = open_runner(path, "openvino", threads=1)(readers.batch)
    for mine, offline in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, offline)


@pytest.mark.parametrize("precision", ["bfloat16", "int8-dynamic"])
def test_bfloat16_and_groups_are_switched_on_by_the_file(readers: Readers, precision: str) -> None:
    """Without its metadata the file gives other logits, which proves that the metadata have an effect."""
    import onnx
    import openvino

    if precision == "bfloat16" and "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this processor has no bfloat16, so OpenVINO computes in float32")
    if precision == "int8-dynamic" and not suits_openvino(precision):
        pytest.skip("this processor has no int8 multiplication, so int8 files run in ONNX Runtime")
    path = readers.folders[precision] / MODEL_FILE
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path.with_name("bare.onnx"))
    told = open_runner(path, "openvino", threads=1)(readers.batch)[0]
    bare = open_runner(path.with_name("bare.onnx"), "openvino", threads=1)(readers.batch)[0]
    assert np.abs(told - bare)[readers.counted].max() > 1e-6


def test_int8_files_gather_before_they_dequantize_and_have_unsigned_activations(readers: Readers) -> None:
    import onnx

    graph = onnx.load(readers.folders["int8"] / MODEL_FILE).graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    words = next(tensor for tensor in graph.initializer if list(tensor.dims) == [5000, 128])
    assert words.data_type == onnx.TensorProto.INT8
    assert {node.op_type for node in graph.node if words.name in node.input} == {"Gather"}
    made_by = {name: node for node in graph.node for name in node.output}
    met = 0
    for node in graph.node:
        sides = [made_by[name] for name in node.input if name in made_by] if node.op_type == "MatMul" else []
        if any(side.op_type == "DequantizeLinear" and side.input[0] in tensors for side in sides):
            activation = next(side for side in sides if side.input[0] not in tensors)
            assert activation.op_type == "DequantizeLinear"
            assert tensors[activation.input[2]].data_type == onnx.TensorProto.UINT8
            met += 1
    assert met == 13  # six in each of two layers, and the head


def test_activations_with_a_few_huge_values_get_no_fixed_range(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    model = onnx.load(readers.folders["float32"] / MODEL_FILE)
    widths = sorted(
        seen.width
        for seen in watch(model, [site.tensor for site in matmul_inputs(model.graph)], [readers.batch]).values()
    )
    monkeypatch.setattr(quantizing, "WIDEST", widths[-2])
    kinds = Counter(node.op_type for node in quantizing.quantize(model, [readers.batch]).graph.node)
    assert kinds["QuantizeLinear"] == len(widths) - 2


@pytest.mark.parametrize("family", ["albert", "roberta", "deberta-v2"])
def test_int8_of_other_families(family: str, tmp_path: Path, calibration: Path, pairs: list[tuple[str, str]]) -> None:
    """Special cases: ALBERT's layers share their weights, and DeBERTa also multiplies positions by weights."""
    checkpoint = FAMILIES[family].save(tmp_path / "checkpoint", initializer_range=0.06)
    folder = exported(checkpoint, tmp_path / "out", "int8", calibration)
    pairing = encoder(folder)
    batch = pairing.pairs.batch([pairing.windows(question, context)[0] for question, context in pairs[:16]])
    expected = torch_runner(load_checkpoint(str(checkpoint)).network)(batch)[0]
    counted = batch["attention_mask"] == 1
    for runtime in RUNTIMES:
        found = open_runner(folder / MODEL_FILE, runtime, threads=1)(batch)[0]
        assert np.corrcoef(found[counted], expected[counted])[0, 1] > 0.99
