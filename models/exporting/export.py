"""Exports a Hugging Face question-answering checkpoint as a reader: ONNX, tokenizer and manifest in one folder.

With held-out examples, the thresholds in the manifest are fitted. With question sets, the manifest has the scores
before and after the export. An export that loses more F1 than the tolerance is refused, unless `force` is set. The
folder is written only at the end.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from typing import Any

import numpy as np

from qa_cluster.errors import InvalidInput, ModelError, QAError
from qa_cluster.evaluation.examples import Example, load_examples, spread
from qa_cluster.manifest_fields import PRECISIONS, Shapes, sha256_hex
from qa_cluster.reading.manifest import (
    LENGTH_STEP,
    MANIFEST_FILE,
    MODEL_FILE,
    TOKENIZER_FILE,
    Calibration,
    Manifest,
    Metric,
)
from qa_cluster.reading.runtimes import MAX_THREADS, RUNTIMES, open_runner
from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.reading.windows import Arrays, PairEncoder, TextPairEncoder

from ..checkpoints.checkpoint import (
    OUTPUTS,
    Checkpoint,
    load_checkpoint,
    parameter_bytes,
    require_export_extra,
    torch_runner,
)
from ..checkpoints.loading import one_line
from ..evaluation.calibrate import UNFITTED, Thresholds, fit, require_enough, with_negatives
from ..evaluation.evaluate import Progress, silent
from ..evaluation.measuring import PYTORCH, Measured, Measuring, RunnerVariant
from ..evaluation.waves import fit_waves
from ..quantization.precisions import convert, require_precision
from ..quantization.rounding import BITS
from .report import REPORT_FILES, ExportReport
from .tracing import write_onnx

MAX_QUESTION_TOKENS = 64
MAX_ANSWER_TOKENS = 30
WINDOW_TOKENS = 384
DOC_STRIDE = 128
RANK_WEIGHT = 0.3
TOLERANCE = 0.5
SMALLEST_BITS = 3
MAX_CALIBRATION_EXAMPLES = 10_000
MAX_HELD_OUT_EXAMPLES = 5_000
# The default token budget of a sentence with its neighbours. docs/reading.md has the measurement behind it.
CONTEXT_TOKENS = 128
WARM_LENGTHS = (48, 64, 32, 80, 96, 112, 128, 16)
# Workers warm a reader with inputs of these lengths (in tokens) and batch sizes, the most useful first. Most sentences
# with their neighbours fill the budget of 128 tokens, and a window also has the tokens of the question. So the most
# useful length is 144 for a reader with neighbours.
WARM_CONTEXT_LENGTHS = (144, 160, 128, 112, 96, 80, 64, 48, 32, 16)
WARM_BATCHES = (1, 8, 4, 2)
_LONG_SHARE = 5  # every fifth calibration example gets a context that fills a whole window
# The logits of the traced ONNX file may differ from the logits of the network by this share of the range of the logits,
# or of 1 if the range is smaller than 1.
_SAME = 1e-3
_RECORDED = ("torch", "transformers", "onnx", "onnxruntime", "openvino")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of an export of a checkpoint.

    Attributes:
        precision: the precision of the reader. None means int8 with `calibration`, and otherwise float32.
        weight_bits: the number of bits of a weight's code in int8 and int8-dynamic. With fewer bits, the file
            compresses better.
        compare: measure all precisions, not only the chosen one (int8 only with `calibration`).
        calibration: question set; the ranges of int8 are measured on its questions with their contexts.
        held_out: question set that was not trained on, to fit the thresholds in the manifest.
        evaluation: question sets on which the reader is scored before and after the export.
        limit: maximum number of questions of each evaluation set, spread over the file; None: all questions.
        context_tokens: the token budget of a sentence with its neighbours, 0: no neighbours. The manifest gets a
            smaller budget if a window has less space.
        max_examples: maximum number of calibration examples, spread over the file.
        tolerance: the points of F1 that the export may lose on any evaluation set.
        force: write the reader even if it loses more than `tolerance`.
        runtimes: the runtimes in which the files are measured; the manifest has the figures of the first one.
        report: called with the report before the export refuses a loss of F1, and before it writes files to the output
            folder.
    """

    precision: str | None = None
    weight_bits: int = BITS
    compare: bool = False
    calibration: Path | None = None
    held_out: Path | None = None
    evaluation: Sequence[Path] = ()
    limit: int | None = None
    context_tokens: int = CONTEXT_TOKENS
    max_examples: int = 300
    tolerance: float = TOLERANCE
    force: bool = False
    model_id: str | None = None
    licence: str | None = None
    provenance: str | None = None
    runtimes: Sequence[str] = RUNTIMES
    threads: int = 2
    progress: Progress = silent
    report: Callable[[ExportReport], None] = field(default=lambda report: None)

    @property
    def chosen(self) -> str:
        """The precision of the reader that the export writes."""
        return self.precision or ("int8" if self.calibration is not None else "float32")

    def precisions(self) -> list[str]:
        """Return the precisions that are measured, the chosen precision first."""
        others = [name for name in PRECISIONS if name != self.chosen and (name != "int8" or self.calibration)]
        return [self.chosen, *(others if self.compare else ())]

    def check(self, source: str, out: Path) -> None:
        """Raise InvalidInput for options that are invalid or do not fit together, and for a folder `out` that cannot
        get the reader of the checkpoint `source`.
        """
        require_precision(self.chosen, calibrated=self.calibration is not None)
        if out.exists() and not out.is_dir():
            raise InvalidInput(f"output {str(out)!r} exists and is not a folder")
        if out.is_dir() and Path(source).is_dir() and out.samefile(source):
            raise InvalidInput(
                f"output {str(out)!r} is the folder of the checkpoint, whose tokenizer would be replaced: choose"
                " a different folder"
            )
        if not 1 <= self.threads <= MAX_THREADS:
            raise InvalidInput(f"threads is {self.threads}, must be from 1 to {MAX_THREADS}")
        if not 1 <= self.max_examples <= MAX_CALIBRATION_EXAMPLES:
            raise InvalidInput(f"max_examples is {self.max_examples}, must be from 1 to {MAX_CALIBRATION_EXAMPLES}")
        if not SMALLEST_BITS <= self.weight_bits <= BITS:
            raise InvalidInput(f"weight_bits is {self.weight_bits}, must be from {SMALLEST_BITS} to {BITS}")
        if not 0 <= self.context_tokens <= WINDOW_TOKENS:
            raise InvalidInput(f"context_tokens is {self.context_tokens}, must be from 0 to {WINDOW_TOKENS}")
        if not 0 <= self.tolerance <= 100:
            raise InvalidInput(f"tolerance is {self.tolerance:g}, must be from 0 to 100 points of F1")
        unknown = [name for name in self.runtimes if name not in RUNTIMES]
        if unknown or not self.runtimes:
            raise InvalidInput(f"runtimes are {list(self.runtimes)}, must be of {', '.join(RUNTIMES)}")
        names = [path.stem for path in self.evaluation]
        if len(set(names)) != len(names):
            raise InvalidInput(f"evaluation sets have the names {', '.join(names)}: give them different names")


def export(source: str, out: Path, options: ExportOptions = ExportOptions()) -> Manifest:
    """Export the checkpoint `source` (folder or hub id) as a reader in the folder `out`. Return the manifest of the
    reader.

    Raises ModelError if the checkpoint cannot be exported, or if the export loses more F1 than the tolerance and
    `force` is not set. Raises InvalidInput if an option or a question set cannot be used.
    """
    require_export_extra()
    options.check(source, out)
    ranges = spread(load_examples(options.calibration), options.max_examples) if options.calibration else []
    labelled = spread(load_examples(options.held_out), MAX_HELD_OUT_EXAMPLES) if options.held_out else []
    examples = with_negatives(labelled)
    if labelled:
        require_enough(examples)
    question_sets = {path.stem: _some(load_examples(path), options.limit) for path in options.evaluation}
    with _scratch(out) as folder:
        options.progress("loading checkpoint", 0, 1)
        checkpoint = load_checkpoint(source)
        options.progress("loading checkpoint", 1, 1)
        id_ = options.model_id or checkpoint.name
        if "@" in id_:  # in the name of a reader, a revision follows the @
            raise InvalidInput(f"id {id_!r} contains an @: choose another id with --model-id")
        export_ = _Export(checkpoint, folder, options)
        export_.write_files(ranges)
        manifest = export_.measure(labelled, examples, question_sets)
        (folder / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
        out.mkdir(parents=True, exist_ok=True)
        for file in (TOKENIZER_FILE, MODEL_FILE, *REPORT_FILES, MANIFEST_FILE):  # the manifest with the hashes is last
            os.replace(folder / file, out / file)
    return manifest


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """Yield a new temporary folder for unfinished files, and remove it at the end. Raises InvalidInput if the folder
    cannot be created.
    """
    # If the output folder exists, the temporary folder is inside it, because files cannot be moved from outside into a
    # mount point.
    place = next(folder for folder in (out, *out.absolute().parents) if folder.is_dir())
    made = place / f".export-{token_hex(8)}"
    try:
        made.mkdir(mode=0o700)
        yield made
    except OSError as error:
        if made.exists():
            raise
        raise InvalidInput(f"output {str(out)!r} cannot be written: {error.strerror}: {str(place)!r}") from error
    finally:
        rmtree(made, ignore_errors=True)


class _Export:
    """One export of a checkpoint. All its files are in the temporary folder `folder`."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, options: ExportOptions) -> None:
        self._checkpoint = checkpoint
        self._folder = folder
        self._options = options
        self._progress = options.progress
        self._tokenizer = checkpoint.tokenizer_json.encode()

    def write_files(self, ranges: Sequence[Example]) -> None:
        """Write the tokenizer, and an ONNX file for each precision that is measured. `ranges` are the examples on which
        the ranges of int8 are measured.
        """
        import onnx

        (self._folder / TOKENIZER_FILE).write_bytes(self._tokenizer)
        traced = self._folder / "traced.onnx"
        self._progress("writing ONNX", 0, 1)
        write_onnx(self._checkpoint, traced)
        self._check_traced(traced)
        self._progress("writing ONNX", 1, 1)
        model = onnx.load(traced)
        precisions = self._options.precisions()
        examples = self._inputs(ranges) if {"int8", "int8-dynamic"} & set(precisions) else []
        for number, precision in enumerate(precisions):
            self._progress("converting", number, len(precisions))
            onnx.save(self._converted(model, precision, examples), self._file(precision))
        self._progress("converting", len(precisions), len(precisions))

    def _converted(self, model: Any, precision: str, examples: Sequence[Arrays]) -> Any:
        try:
            return convert(model, precision, examples, self._options.weight_bits)
        except QAError:
            raise
        except Exception as error:  # errors of the runtime, numpy and the checker have no common base
            raise ModelError(
                f"{self._checkpoint.name!r} cannot be converted to {precision}: {one_line(error)}"
            ) from error

    def measure(
        self,
        labelled: Sequence[Example],
        examples: Sequence[Example],
        question_sets: Mapping[str, Sequence[Example]],
    ) -> Manifest:
        """Fit the thresholds, measure all files, write the report, and return the manifest. The ONNX file of the chosen
        precision gets its final name.

        Raises ModelError if the file of the chosen precision loses more F1 than the tolerance and `force` is not set.

        Args:
            labelled: the held-out questions.
            examples: the held-out questions. If all of them have an answer, unanswerable questions are added
                (`with_negatives`).
        """
        options, chosen = self._options, self._options.chosen
        files = [
            RunnerVariant(precision, runtime, self._runner(precision, runtime), self._file(precision).stat().st_size)
            for precision in options.precisions()
            for runtime in options.runtimes
        ]
        manifest, thresholds = self._manifest(self._file(chosen), chosen), UNFITTED
        if labelled:
            manifest, thresholds = self._fit(manifest, files[0], labelled, examples)
        network = self._checkpoint.network
        before = RunnerVariant("float32", PYTORCH, torch_runner(network, options.threads), parameter_bytes(network))
        measured = Measuring(manifest, self._tokenizer, self._progress).compare([before, *files], question_sets)
        manifest = Manifest.from_json(replace(manifest, metrics=_metrics(measured)).to_json())
        report = ExportReport(
            model=manifest.model_id,
            revision=manifest.revision,
            chosen=chosen,
            threads=options.threads,
            tolerance=options.tolerance,
            calibration_error=thresholds.error,
            calibration_error_before=thresholds.error_before,
            variants=tuple(measured),
        )
        options.report(report)
        if not options.force:
            refuse_losses(measured, chosen, options.tolerance)
        report.write(self._folder)
        os.replace(self._file(chosen), self._folder / MODEL_FILE)
        return manifest

    def _fit(
        self, manifest: Manifest, serving: RunnerVariant, labelled: Sequence[Example], examples: Sequence[Example]
    ) -> tuple[Manifest, Thresholds]:
        """Fit the thresholds and the wave threshold to the answers of an exported file.

        Return the manifest with the results, and the thresholds.

        Args:
            serving: the file of the chosen precision, in the first runtime.
            labelled, examples: as in `measure`.
        """
        measuring = Measuring(manifest, self._tokenizer, self._progress)
        thresholds = fit(measuring.predict(serving, examples, "fitting thresholds"), examples)
        manifest = _fitted(manifest, thresholds)
        waves = fit_waves(
            labelled,
            lambda pairs: measuring.predict(serving, pairs, "fitting waves"),
            rank_weight=manifest.rank_weight,
        )
        if waves is not None:
            manifest = replace(manifest, wave_threshold=waves.threshold, waves=waves)
        return manifest, thresholds

    def _file(self, precision: str) -> Path:
        return self._folder / f"{precision}.onnx"

    def _runner(self, precision: str, runtime: str) -> Any:
        run = open_runner(self._file(precision), runtime, threads=self._options.threads)
        for row in run(self._example()):
            if row.ndim != 2 or not np.isfinite(row).all():
                raise ModelError(
                    f"{precision} file of {self._checkpoint.name!r} gives the shape {row.shape} or values that are "
                    f"not finite in {runtime}"
                )
        return run

    def _example(self) -> Arrays:
        """Return the inputs for two pairs of question and context: a short pair, and a pair that fills a window."""
        pairs = self._encoder()
        question = "Who wrote the first program?"
        longest = "Ada Lovelace wrote the first program in 1843. " * pairs.pairs.window_tokens
        return pairs.pairs.batch([pairs.windows(question, "Ada.")[0], pairs.windows(question, longest)[0]])

    def _check_traced(self, traced: Path) -> None:
        """Raise ModelError if the logits of the ONNX file `traced` differ from the logits of the network by more than
        `_SAME` allows.

        They can differ, because the tracer records only the operations that the network does for one example input.
        """
        arrays = self._example()
        expected = torch_runner(self._checkpoint.network)(arrays)
        for runtime in self._options.runtimes:
            found = open_runner(traced, runtime, threads=self._options.threads)(arrays)
            for mine, theirs in zip(found, expected, strict=True):
                counted = arrays["attention_mask"] == 1
                wrong = mine.shape != theirs.shape or not np.isfinite(mine[counted]).all()
                furthest = np.inf if wrong else float(np.abs(mine - theirs)[counted].max())
                if furthest > _SAME * max(1.0, float(np.ptp(theirs[counted]))):
                    raise ModelError(
                        f"{self._checkpoint.name!r} ({self._checkpoint.family}) cannot be exported: its ONNX file "
                        f"gives logits in {runtime} that differ from the network's by up to {furthest:.3g}"
                    )

    def _inputs(self, examples: Sequence[Example]) -> list[Arrays]:
        """Return the inputs for the calibration of int8: one pair of question and context for each example, unpadded.
        Every fifth pair fills a window. Examples without a window are left out.
        """
        encoder = self._encoder()
        contexts = [example.context for example in examples]
        found = []
        for number, example in enumerate(examples):
            context = example.context
            if number % _LONG_SHARE == 0:
                context = " ".join([*contexts[number:], *contexts[:number]])[: 8 * encoder.pairs.window_tokens]
            windows = encoder.windows(example.question, context, example.title, example.section)[:1]
            if windows:
                found.append(encoder.pairs.batch(windows, length_step=1))
        return found

    def _encoder(self) -> TextPairEncoder:
        return TextPairEncoder(ReaderTokenizer(self._tokenizer), PairEncoder(self._manifest(None, "float32")))

    def _manifest(self, file: Path | None, precision: str) -> Manifest:
        checkpoint, options = self._checkpoint, self._options
        model = file.read_bytes() if file is not None else b"no file yet"
        # windows are padded to multiples of LENGTH_STEP, and a padded window must not exceed the network's limit
        whole_steps = checkpoint.max_tokens - checkpoint.max_tokens % LENGTH_STEP
        window_tokens = min(WINDOW_TOKENS, whole_steps or checkpoint.max_tokens)
        max_question_tokens = min(MAX_QUESTION_TOKENS, checkpoint.max_tokens // 4)
        room = window_tokens - max_question_tokens - checkpoint.pair.special_tokens
        context_tokens = min(options.context_tokens, room)
        warm = WARM_CONTEXT_LENGTHS if context_tokens else WARM_LENGTHS
        lengths = tuple(length for length in warm if length <= whole_steps)
        made = Manifest(
            model_id=options.model_id or checkpoint.name,
            model_sha256=sha256_hex(model),
            model_bytes=len(model),
            tokenizer_sha256=sha256_hex(self._tokenizer),
            precision=precision,
            family=checkpoint.family,
            inputs=checkpoint.inputs,
            outputs=OUTPUTS,
            max_tokens=checkpoint.max_tokens,
            max_question_tokens=max_question_tokens,
            max_answer_tokens=min(MAX_ANSWER_TOKENS, checkpoint.max_tokens),
            window_tokens=window_tokens,
            doc_stride=min(DOC_STRIDE, room // 2),
            context_tokens=context_tokens,
            pad_id=checkpoint.pad_id,
            pair=checkpoint.pair,
            lowercase=checkpoint.lowercase,
            no_answer_threshold=UNFITTED.no_answer,
            wave_threshold=UNFITTED.wave,
            calibration=Calibration(UNFITTED.calibration.a, UNFITTED.calibration.b),
            calibration_error=None,
            rank_weight=RANK_WEIGHT,
            shapes=Shapes(lengths or (checkpoint.max_tokens,), WARM_BATCHES),
            licence=options.licence or checkpoint.licence,
            provenance=options.provenance or f"exported from {checkpoint.origin}",
            created=datetime.now(UTC).date().isoformat(),
            exported_with={name: version(name) for name in _RECORDED},
            passage_prefix=checkpoint.passage_prefix,
        )
        return Manifest.from_json(made.to_json())  # raises if a value of the checkpoint is invalid in a manifest


def refuse_losses(measured: Sequence[Measured], chosen: str, tolerance: float) -> None:
    """Raise ModelError if a file of the precision `chosen` loses more than `tolerance` points of F1 on any question
    set, compared with the checkpoint. The first of `measured` is the measurement of the checkpoint.
    """
    before = measured[0]
    for variant in measured[1:]:
        if variant.precision != chosen:
            continue
        for name, found in variant.scored.items():
            was, now = before.scored[name].score.f1 * 100, found.score.f1 * 100
            if was - now > tolerance:
                raise ModelError(
                    f"{chosen} loses {was - now:.2f} points of F1 on {name!r} in {variant.runtime} ({was:.2f} before, "
                    f"{now:.2f} after), the tolerance is {tolerance:g}: choose a different --precision (--compare "
                    "measures all), raise --tolerance, or write the reader with --force"
                )


def _metrics(measured: Sequence[Measured]) -> tuple[Metric, ...]:
    before, after = measured[0], measured[1]
    return tuple(
        Metric(name, found.questions, found.score, after.scored[name].score) for name, found in before.scored.items()
    )


def _fitted(manifest: Manifest, thresholds: Thresholds) -> Manifest:
    return replace(
        manifest,
        calibration=thresholds.calibration,
        calibration_error=thresholds.error,
        no_answer_threshold=thresholds.no_answer,
        wave_threshold=thresholds.wave,
    )


def _some(examples: list[Example], limit: int | None) -> list[Example]:
    return examples if limit is None else spread(examples, limit)
