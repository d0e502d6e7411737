"""The report of an export has the same figures in every format. The export refuses a file with too large a loss.

The exports need the `export` extra.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qa_cluster.errors import ModelError
from qa_cluster.evaluation.examples import Example
from qa_cluster.models.__main__ import main
from qa_cluster.models.evaluation.evaluate import ContextReader, Prediction, silent
from qa_cluster.models.evaluation.latency import LENGTHS, ROUNDS, Latency, measure_latency
from qa_cluster.models.evaluation.measuring import Measured, SetScore, agreement
from qa_cluster.models.exporting.export import ExportOptions, export, refuse_losses
from qa_cluster.models.exporting.report import REPORT_FILES, ExportReport
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest, Score
from qa_cluster.reading.runtimes import RUNTIMES, Logits, open_runner
from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.reading.windows import Arrays, PairEncoder, TextPairEncoder
from tests.model.tiny_checkpoints import FAMILIES

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def measured(precision: str, runtime: str, f1: float, *, told: float | None = None) -> Measured:
    scored = {"dev": SetScore(200, Score(0.25, f1, told), 0.985)}
    latency = {length: Latency(length / 100, length / 200, length / 50) for length in LENGTHS}
    return Measured(precision, runtime, 4_200_000, scored, latency)


def report(*variants: Measured) -> ExportReport:
    return ExportReport("owner/reader", "0123456789ab", "int8", 2, 0.5, 0.034, 0.212, variants)


WAYS = (
    measured("float32", "PyTorch", 0.8127, told=0.75),
    measured("int8", "openvino", 0.8091, told=0.74),
    measured("int8", "onnxruntime", 0.8099, told=0.74),
)


def test_table_markdown_and_json_show_the_same_figures() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    report(*WAYS).show(console)
    shown, text = console.export_text(), report(*WAYS).to_markdown()
    for figure in ("0.8127", "0.8091", "0.8099", "0.7500", "98.5%", "4.2", "3.8 (1.9–7.7)", "dev: 200 questions"):
        assert figure in shown, figure
        assert figure in text, figure
    assert "0.212 for the reader's own odds, 0.034 after calibration" in text
    document = json.loads(report(*WAYS).to_json())
    assert document["variants"][1]["scored"]["dev"]["score"]["f1"] == 0.8091
    assert document["variants"][1]["latency"]["384"]["median_ms"] == 3.84
    assert "–" in report(measured("float32", "PyTorch", 0.5)).to_markdown().split("| float32")[1]


def test_the_plot_names_every_runtime_and_question_set(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the export extra is not installed")
    report(*WAYS).write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(REPORT_FILES)
    drawn = (tmp_path / "report.svg").read_text()
    for text in ("int8, openvino", "int8, onnxruntime", "float32, PyTorch", "dev", "latency", "owner/reader"):
        assert f"<!-- {text} -->" in drawn, text
    replace(report(*WAYS), model="a$_{b$").write(tmp_path)
    assert "<!-- a$_{b$ -->" in (tmp_path / "report.svg").read_text(), "dollar signs do not make a formula"


def test_losses_above_the_tolerance_are_errors_with_the_loss() -> None:
    refuse_losses(WAYS, "int8", 0.5)
    refuse_losses([WAYS[0], replace(WAYS[1], precision="float16"), WAYS[2]], "int8", 0.3)
    with pytest.raises(ModelError, match=r"int8 loses 0.36 points of F1 on 'dev' in openvino \(81.27 before, 80.91"):
        refuse_losses(WAYS, "int8", 0.3)
    gained = measured("int8", "openvino", 0.9)
    refuse_losses([WAYS[0], gained], "int8", 0)


def test_agreement_counts_equal_offsets_and_not_equal_words() -> None:
    first = [Prediction("Ada", 0, 3, 1.0), Prediction("Ada", 9, 12, 1.0)]
    assert agreement(first, [first[0], Prediction("Ada", 0, 3, 5.0)]) == 0.5


def test_latency_is_measured_at_lengths_that_the_model_accepts(reader: Path, manifest: Manifest) -> None:
    run = open_runner(reader / MODEL_FILE, RUNTIMES[0], threads=1)
    short = replace(manifest, max_tokens=64)
    shapes: list[tuple[int, ...]] = []

    def noted(arrays: Arrays) -> Logits:
        shapes.extend(array.shape for array in arrays.values())
        return run(arrays)

    found = measure_latency({"whole": (noted, manifest), "short": (run, short)}, (16, 64, 128), ROUNDS)
    assert list(found["whole"]) == [16, 64, 128]
    assert list(found["short"]) == [16, 64]
    for time in found["whole"].values():
        assert 0 < time.low_ms <= time.median_ms <= time.high_ms
    # a comparison of measured times would fail on a busy machine
    assert list(dict.fromkeys(shapes)) == [(1, 16), (1, 64), (1, 128)]


@dataclass(frozen=True, slots=True)
class Case:
    """A checkpoint with random weights, and a question set with this checkpoint's answers."""

    checkpoint: Path
    questions: Path


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]) -> Case:
    pytest.importorskip("torch", reason="the export extra is not installed")
    folder = tmp_path_factory.mktemp("case")
    checkpoint = FAMILIES["bert"].save(folder / "checkpoint")
    manifest = export(str(checkpoint), folder / "reader", ExportOptions(runtimes=("openvino",), threads=1))
    encoder = TextPairEncoder(ReaderTokenizer((folder / "reader" / TOKENIZER_FILE).read_bytes()), PairEncoder(manifest))
    examples = [Example(question, context, ()) for question, context in pairs[:40]]
    run = open_runner(folder / "reader" / MODEL_FILE, "openvino", threads=1)
    rows = [
        {"question": example.question, "context": example.context, "answer": found.text, "answer_start": found.start}
        for example, found in zip(examples, ContextReader(encoder, run).predict(examples, silent, ""), strict=True)
    ]
    rows += [{"question": q, "context": c, "answer": "", "answer_start": -1} for q, c in pairs[40:48]]
    (folder / "questions.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return Case(checkpoint, folder / "questions.jsonl")


def test_every_precision_is_compared_and_the_manifest_has_the_scores(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--calibration", str(case.questions), "--evaluation", str(case.questions), "--max-examples", "20"]
    options = ["--compare", "--limit", "24", "--tolerance", "100", "--threads", "1"]
    assert main(["export", str(case.checkpoint), str(tmp_path / "out"), *arguments, *options]) == 0
    output = capsys.readouterr()
    manifest = Manifest.from_json(output.out)
    assert manifest == Manifest.load(tmp_path / "out" / MANIFEST_FILE)
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    others = ("int8", "float32", "float16", "bfloat16", "int8-dynamic")
    assert [(way["precision"], way["runtime"]) for way in document["variants"]] == [
        ("float32", "PyTorch"),
        *((precision, runtime) for precision in others for runtime in RUNTIMES),
    ]
    assert re.search(r"bfloat16\s+│ onnxruntime", output.err)
    agreed = {
        (way["precision"], way["runtime"]): way["scored"]["questions"]["agreement"] for way in document["variants"]
    }
    assert agreed["float32", "PyTorch"] == agreed["float32", "openvino"] == agreed["float32", "onnxruntime"] == 1.0
    (metric,) = manifest.metrics
    assert (metric.dataset, metric.questions) == ("questions", 24)
    scores = [way["scored"]["questions"]["score"] for way in document["variants"]]
    assert (metric.before.f1, metric.after.f1) == (scores[0]["f1"], scores[1]["f1"])
    assert scores[0]["no_answer_accuracy"] is not None


def test_an_export_with_too_large_a_loss_needs_force(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ExportOptions(evaluation=(case.questions,), runtimes=("openvino",), threads=1)
    shown: list[ExportReport] = []
    monkeypatch.setattr("qa_cluster.models.exporting.export.convert", spoiled)
    with pytest.raises(ModelError, match=r"float32 loses \d+.\d\d points of F1 on 'questions' in openvino"):
        export(str(case.checkpoint), tmp_path / "new" / "out", replace(options, report=shown.append))
    assert len(shown) == 1
    assert not list(tmp_path.iterdir())
    (metric,) = export(str(case.checkpoint), tmp_path / "out", replace(options, force=True)).metrics
    assert metric.after.f1 < metric.before.f1 - 0.1
    assert (tmp_path / "out" / MODEL_FILE).is_file()


def spoiled(model: Any, precision: str, examples: object, weight_bits: int) -> Any:
    """The model with reversed word embeddings."""
    from onnx import numpy_helper

    words = next(tensor for tensor in model.graph.initializer if "word_embeddings" in tensor.name)
    words.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(words)[::-1].copy(), words.name))
    return model
