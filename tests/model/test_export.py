"""Export of small checkpoints made here, and the refusal of what is not a usable one. Needs the `export` extra."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qa_cluster.models.__main__ import main
from qa_cluster.models.checkpoint import load_checkpoint, torch_runner
from qa_cluster.models.export import export

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest
from qa_cluster.runtimes import RUNTIMES, open_runner
from qa_cluster.tokenization import ReaderTokenizer
from qa_cluster.windows import PairEncoder, TextPairEncoder

transformers = pytest.importorskip("transformers", reason="the export extra is not installed")
torch = pytest.importorskip("torch", reason="the export extra is not installed")
pytest.importorskip("nncf", reason="the export extra is not installed")
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def save(folder: Path, head: str, reader: Path) -> Path:
    torch.manual_seed(3)
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    getattr(transformers, head)(config).save_pretrained(folder)
    shutil.copy(reader / TOKENIZER_FILE, folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "BertTokenizer", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
        )
    )
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, reader: Path) -> Path:
    return save(tmp_path_factory.mktemp("tiny"), "BertForQuestionAnswering", reader)


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]) -> Path:
    path = tmp_path_factory.mktemp("data") / "calibration.jsonl"
    rows = [{"question": q, "context": c, "answer": "", "answer_start": -1} for q, c in pairs]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def logits(folder: Path, runtime: str, pairs: list[tuple[str, str]]) -> tuple[Any, Any, Any]:
    """Start logits of the exported file and of the checkpoint's network, and what positions count."""
    manifest = Manifest.load(folder / MANIFEST_FILE)
    tokenizer = ReaderTokenizer((folder / TOKENIZER_FILE).read_bytes())
    encoder = TextPairEncoder(tokenizer, PairEncoder(manifest, window_tokens=96, doc_stride=8))
    arrays = encoder.pairs.batch([encoder.windows(question, context)[0] for question, context in pairs[:32]])
    return open_runner(folder / MODEL_FILE, runtime, threads=1)(arrays)[0], arrays, arrays["attention_mask"] == 1


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_float32_file_gives_what_pytorch_gives(
    checkpoint: Path, tmp_path: Path, pairs: list[tuple[str, str]], runtime: str
) -> None:
    manifest = export(str(checkpoint), tmp_path / "out", calibration=None)
    assert (manifest.precision, manifest.max_tokens, manifest.lowercase) == ("float32", 128, True)
    assert manifest.family == "bert"
    found, arrays, counted = logits(tmp_path / "out", runtime, pairs)
    expected = torch_runner(load_checkpoint(str(checkpoint)).network)(arrays)[0]
    np.testing.assert_allclose(found[counted], expected[counted], atol=1e-4)


def test_int8_file_is_close_to_pytorch_in_both_runtimes(
    checkpoint: Path, calibration: Path, tmp_path: Path, pairs: list[tuple[str, str]]
) -> None:
    stages: list[str] = []
    manifest = export(
        str(checkpoint),
        tmp_path / "out",
        calibration=calibration,
        max_examples=50,
        evaluation=[calibration],
        model_id="tiny",
        progress=lambda stage, done, total: stages.append(stage),
    )
    assert Manifest.load(tmp_path / "out" / MANIFEST_FILE) == manifest
    manifest.verify((tmp_path / "out" / MODEL_FILE).read_bytes(), (tmp_path / "out" / TOKENIZER_FILE).read_bytes())
    assert (manifest.precision, manifest.model_id) == ("int8", "tiny")
    assert [metric.dataset for metric in manifest.metrics] == ["calibration"]
    assert list(dict.fromkeys(stages))[:3] == ["loading checkpoint", "writing ONNX", "quantizing"]
    network = load_checkpoint(str(checkpoint)).network
    for runtime in RUNTIMES:
        found, arrays, counted = logits(tmp_path / "out", runtime, pairs)
        expected = torch_runner(network)(arrays)[0]
        assert np.corrcoef(found[counted], expected[counted])[0, 1] > 0.98


def test_int8_file_has_no_table_to_dequantize_and_no_signed_activation_before_weights(
    checkpoint: Path, calibration: Path, tmp_path: Path
) -> None:
    import onnx

    export(str(checkpoint), tmp_path / "out", calibration=calibration, max_examples=20)
    graph = onnx.load(tmp_path / "out" / MODEL_FILE).graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    words = next(tensor for tensor in graph.initializer if list(tensor.dims) == [30522, 32])
    assert words.data_type == onnx.TensorProto.INT8
    assert {node.op_type for node in graph.node if words.name in node.input} == {"Gather"}
    made_by = {name: node for node in graph.node for name in node.output}
    met = 0
    for node in graph.node:
        sides = [made_by[name] for name in node.input if name in made_by] if node.op_type in ("MatMul", "Gemm") else []
        if any(side.op_type == "DequantizeLinear" and side.input[0] in tensors for side in sides):
            for side in sides:
                if side.op_type == "DequantizeLinear" and side.input[0] not in tensors:
                    assert tensors[side.input[2]].data_type == onnx.TensorProto.UINT8
                    met += 1
    assert met > 0


def test_a_checkpoint_without_the_head_is_refused(tmp_path: Path, reader: Path) -> None:
    folder = save(tmp_path / "masked", "BertForMaskedLM", reader)
    with pytest.raises(ModelError, match="no question-answering head: its config names BertForMaskedLM"):
        export(str(folder), tmp_path / "out", calibration=None)
    assert not (tmp_path / "out").exists()


def test_weights_that_lack_the_head_are_refused(tmp_path: Path, reader: Path) -> None:
    folder = save(tmp_path / "headless", "BertForMaskedLM", reader)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertForQuestionAnswering"]}))
    with pytest.raises(ModelError, match=r"lack .* 'qa_outputs"):
        export(str(folder), tmp_path / "out", calibration=None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", "cannot load config"),
        ("config.json", b'{"model_type": "no-such-thing"}', "cannot load config"),
        ("model.safetensors", b"\x08\0\0\0\0\0\0\0garbage", "cannot load weights"),
        ("model.safetensors", None, "cannot load weights"),
        ("tokenizer.json", b"{", "cannot load tokenizer"),
        ("tokenizer.json", None, "has no tokenizer.json"),
    ],
)
def test_corrupt_and_missing_files_are_refused(
    checkpoint: Path, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    shutil.copytree(checkpoint, tmp_path / "broken")
    (tmp_path / "broken" / name).unlink()
    if content is not None:
        (tmp_path / "broken" / name).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        export(str(tmp_path / "broken"), tmp_path / "out", calibration=None)
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


def test_a_pair_layout_shards_cannot_build_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "other")
    tokenizer = json.loads((tmp_path / "other" / TOKENIZER_FILE).read_text(encoding="utf-8"))
    pair = tokenizer["post_processor"]["pair"]
    pair.insert(3, {"SpecialToken": {"id": "[SEP]", "type_id": 1}})
    (tmp_path / "other" / TOKENIZER_FILE).write_text(json.dumps(tokenizer), encoding="utf-8")
    config = json.loads((tmp_path / "other" / "tokenizer_config.json").read_text())
    generic = {**config, "tokenizer_class": "PreTrainedTokenizerFast"}  # BertTokenizer would lay pairs out its own way
    (tmp_path / "other" / "tokenizer_config.json").write_text(json.dumps(generic))
    with pytest.raises(ModelError, match="does not lay out pairs"):
        export(str(tmp_path / "other"), tmp_path / "out", calibration=None)


@pytest.mark.parametrize("source", ["", "/no/such/folder", "./none", "a/b/c"])
def test_a_source_that_is_neither_folder_nor_hub_id_is_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model folder"):
        export(source, tmp_path / "out", calibration=None)


def test_bad_arguments_are_refused_before_anything_is_loaded(tmp_path: Path, calibration: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidInput, match="is not a folder"):
        export("x", tmp_path / "file", calibration=None)
    with pytest.raises(InvalidInput, match="max_examples is 0"):
        export("x", tmp_path / "out", calibration=calibration, max_examples=0)
    with pytest.raises(InvalidInput, match="cannot read question set"):
        export("x", tmp_path / "out", calibration=tmp_path / "none.json")
    assert (tmp_path / "file").read_text() == "mine"


def test_command_reports_a_refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "/no/such/folder", str(tmp_path / "out")]) == 1
    assert "error: no model folder" in capsys.readouterr().err
