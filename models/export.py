"""Exports a Hugging Face question-answering checkpoint to what shards run: ONNX, tokenizer and manifest in one folder.

With calibration examples the file is static int8, without them float32. With held-out examples the manifest's
thresholds are fitted, with question sets it says what the reader scored before and after. The folder is written only
when everything has succeeded.
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.examples import Example, load_examples, spread
from qa_cluster.manifest import (
    MANIFEST_FILE,
    MODEL_FILE,
    TOKENIZER_FILE,
    Calibration,
    Manifest,
    Metric,
    Shapes,
    sha256_hex,
)
from qa_cluster.runtimes import Runner, open_runner
from qa_cluster.tokenization import ReaderTokenizer
from qa_cluster.windows import PairEncoder, TextPairEncoder

from .calibrate import UNFITTED, Thresholds, fit, with_negatives
from .checkpoint import (
    OUTPUTS,
    Checkpoint,
    load_checkpoint,
    parameter_bytes,
    require_export_extra,
    torch_runner,
)
from .evaluate import Progress, Reading, score, silent

MAX_QUESTION_TOKENS = 64
MAX_ANSWER_TOKENS = 30
WINDOW_TOKENS = 384
DOC_STRIDE = 128
RANK_WEIGHT = 0.3
MAX_CALIBRATION_EXAMPLES = 10_000
MAX_HELD_OUT_EXAMPLES = 5_000
WARM_LENGTHS = (48, 64, 32, 80, 96, 112, 128, 16)
WARM_BATCHES = (1, 8, 4, 2)
_OPSET = 17
_PROTOBUF_LIMIT = 2_000_000_000
_RECORDED = ("torch", "transformers", "onnx", "nncf", "openvino")


def export(
    source: str,
    out: Path,
    *,
    calibration: Path | None,
    held_out: Path | None = None,
    evaluation: Sequence[Path] = (),
    max_examples: int = 300,
    model_id: str | None = None,
    licence: str | None = None,
    provenance: str | None = None,
    threads: int = 2,
    progress: Progress = silent,
) -> Manifest:
    """Export the checkpoint `source` (folder or hub id) into the folder `out` and return its manifest.

    Args:
        calibration: question set whose contexts set the int8 activation ranges; None keeps float32.
        held_out: question set the reader was not trained on, to fit the manifest's thresholds.
        evaluation: question sets to score the reader on, before and after.
        max_examples: how many calibration examples are used, spread over the file.
    """
    require_export_extra()
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"output {str(out)!r} exists and is not a folder")
    if not 1 <= max_examples <= MAX_CALIBRATION_EXAMPLES:
        raise InvalidInput(f"max_examples is {max_examples}, must be from 1 to {MAX_CALIBRATION_EXAMPLES}")
    ranges = spread(load_examples(calibration), max_examples) if calibration is not None else []
    labelled = spread(load_examples(held_out), MAX_HELD_OUT_EXAMPLES) if held_out is not None else []
    question_sets = {path.stem: load_examples(path) for path in evaluation}
    progress("loading checkpoint", 0, 1)
    checkpoint = load_checkpoint(source)
    progress("loading checkpoint", 1, 1)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".export-", dir=out.parent) as name:
        folder = Path(name)
        (folder / TOKENIZER_FILE).write_text(checkpoint.tokenizer_json, encoding="utf-8")
        _write_model(checkpoint, folder, ranges, progress)
        manifest = _manifest(
            checkpoint,
            folder,
            precision="int8" if ranges else "float32",
            model_id=model_id or checkpoint.name,
            licence=licence or checkpoint.licence,
            provenance=provenance or f"exported from {checkpoint.name}",
        )
        measured = _Measured(checkpoint, manifest, folder, threads, progress)
        manifest = _replaced(manifest, measured.thresholds(labelled), measured.metrics(question_sets))
        (folder / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
        out.mkdir(exist_ok=True)
        for file in (TOKENIZER_FILE, MODEL_FILE, MANIFEST_FILE):  # the manifest last: it vouches for the others
            os.replace(folder / file, out / file)
    return manifest


class _Measured:
    """Runs the exported file, and where asked the checkpoint, on labelled examples."""

    def __init__(
        self, checkpoint: Checkpoint, manifest: Manifest, folder: Path, threads: int, progress: Progress
    ) -> None:
        self._checkpoint = checkpoint
        self._manifest = manifest
        self._tokenizer = checkpoint.tokenizer_json
        self._exported = open_runner(folder / MODEL_FILE, "openvino", threads=threads)
        self._progress = progress
        self._check_outputs()

    def thresholds(self, labelled: list[Example]) -> Thresholds:
        if not labelled:
            return UNFITTED
        examples = with_negatives(labelled)
        return fit(self._reading(self._exported).predict(examples, self._progress, "fitting thresholds"), examples)

    def metrics(self, question_sets: dict[str, list[Example]]) -> tuple[Metric, ...]:
        reference = torch_runner(self._checkpoint.network)
        metrics = []
        for name, examples in question_sets.items():
            before, after = (
                score(self._reading(runner).predict(examples, self._progress, f"scoring {name}, {what}"), examples)
                for what, runner in (("before", reference), ("after", self._exported))
            )
            metrics.append(Metric(name, len(examples), before, after))
        return tuple(metrics)

    def _reading(self, runner: Runner) -> Reading:
        return Reading(_encoder(self._tokenizer, self._manifest), runner)

    def _check_outputs(self) -> None:
        encoder = _encoder(self._tokenizer, self._manifest)
        window = encoder.windows("Who wrote the first program?", "Ada Lovelace wrote the first program in 1843.")
        for row in self._exported(encoder.pairs.batch(window)):
            if row.ndim != 2 or not np.isfinite(row).all():
                raise ModelError(f"exported model of {self._manifest.model_id!r} gives shape {row.shape} or no numbers")


def _encoder(tokenizer_json: str, manifest: Manifest) -> TextPairEncoder:
    return TextPairEncoder(ReaderTokenizer(tokenizer_json.encode()), PairEncoder(manifest))


def _write_model(checkpoint: Checkpoint, folder: Path, ranges: list[Example], progress: Progress) -> None:
    size = parameter_bytes(checkpoint.network)
    if size > _PROTOBUF_LIMIT:
        raise ModelError(f"weights of {checkpoint.name!r} take {size} bytes, one ONNX file holds {_PROTOBUF_LIMIT}")
    target = folder / MODEL_FILE
    progress("writing ONNX", 0, 1)
    _to_onnx(checkpoint, target)
    progress("writing ONNX", 1, 1)
    if not ranges:
        return
    import onnx

    from .quantize import quantize

    progress("quantizing", 0, 1)
    draft = _manifest(checkpoint, folder, precision="float32", model_id="draft", licence="draft", provenance="draft")
    encoder = _encoder(checkpoint.tokenizer_json, draft)
    windows = [encoder.windows(example.question, example.context)[:1] for example in ranges]
    arrays = [
        encoder.pairs.batch(window, length_step=1) for window in windows if window
    ]  # padding would widen the ranges
    onnx.save(quantize(onnx.load(target), arrays), target)
    progress("quantizing", 1, 1)


def _to_onnx(checkpoint: Checkpoint, target: Path) -> None:
    import torch

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
        # the tracer warns of every shape it reads and of its own age; the dynamo exporter's graphs quantize worse
        warnings.simplefilter("ignore")
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


def _manifest(
    checkpoint: Checkpoint, folder: Path, *, precision: str, model_id: str, licence: str, provenance: str
) -> Manifest:
    model = (folder / MODEL_FILE).read_bytes()
    lengths = tuple(length for length in WARM_LENGTHS if length <= checkpoint.max_tokens)
    window_tokens = min(WINDOW_TOKENS, checkpoint.max_tokens)
    max_question_tokens = min(MAX_QUESTION_TOKENS, checkpoint.max_tokens // 4)
    room = window_tokens - max_question_tokens - checkpoint.pair.special_tokens
    return Manifest(
        model_id=model_id,
        model_sha256=sha256_hex(model),
        model_bytes=len(model),
        tokenizer_sha256=sha256_hex((folder / TOKENIZER_FILE).read_bytes()),
        precision=precision,
        family=checkpoint.family,
        inputs=checkpoint.inputs,
        outputs=OUTPUTS,
        max_tokens=checkpoint.max_tokens,
        max_question_tokens=max_question_tokens,
        max_answer_tokens=MAX_ANSWER_TOKENS,
        window_tokens=window_tokens,
        doc_stride=min(DOC_STRIDE, room // 2),
        context_tokens=0,
        pad_id=checkpoint.pad_id,
        pair=checkpoint.pair,
        lowercase=checkpoint.lowercase,
        no_answer_threshold=UNFITTED.no_answer,
        wave_threshold=UNFITTED.wave,
        calibration=Calibration(UNFITTED.calibration.a, UNFITTED.calibration.b),
        calibration_error=None,
        rank_weight=RANK_WEIGHT,
        shapes=Shapes(lengths or (checkpoint.max_tokens,), WARM_BATCHES),
        licence=licence,
        provenance=provenance,
        created=datetime.now(UTC).date().isoformat(),
        exported_with={name: version(name) for name in _RECORDED},
    )


def _replaced(manifest: Manifest, thresholds: Thresholds, metrics: tuple[Metric, ...]) -> Manifest:
    return replace(
        manifest,
        calibration=thresholds.calibration,
        no_answer_threshold=thresholds.no_answer,
        wave_threshold=thresholds.wave,
        metrics=metrics,
    )
