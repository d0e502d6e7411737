"""Measures exact match and F1 of a reader on a question set. The reader gets the context of each question.

A context that is longer than a window is read in several windows. The answer is the span with the best *score over
null*: the score of the span minus the null, which is the score of `[CLS]` in the same window.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from qa_cluster.errors import ModelError
from qa_cluster.evaluation.examples import Example, load_examples, spread
from qa_cluster.evaluation.figures import (
    Figures,
    GivenAnswer,
    Trust,
    answer_rows,
    figures,
    figures_by_type,
    judge,
    trust,
)
from qa_cluster.reading.bundled import unpacked
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest, Score
from qa_cluster.reading.runtimes import Runner, open_runner
from qa_cluster.reading.spans import best_spans
from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.reading.windows import PairEncoder, TextPairEncoder, Window, batches

Progress = Callable[[str, int, int], None]
MAX_BATCH = 8
MAX_BATCH_TOKENS = 3072


@dataclass(frozen=True, slots=True)
class Prediction:
    """The best span of a question's context: its text, its range in code points, and its score over null."""

    text: str
    start: int
    end: int
    score: float


NOTHING_READ = Prediction("", 0, 0, float("-inf"))


@dataclass(frozen=True, slots=True)
class Report:
    """The scores of a reader on one question set.

    Attributes:
        figures: mean scores with confidence intervals.
        windows: the number of windows that the reader has read.
        no_answer_accuracy: the share of the questions without an answer that get "no answer"; None if every question
            has an answer.
        seconds: the time of reading and judging the answers, without the time to load the reader.
        by_type: mean scores with confidence intervals for each type of question.
        trust: how well the scores predict right answers; None if this cannot be measured.
        answers: the answer to every question. Its field `refused` says whether the answer is below the no-answer
            threshold.
    """

    model_id: str
    revision: str
    precision: str
    runtime: str
    dataset: str
    questions: int
    windows: int
    exact_match: float
    f1: float
    no_answer_accuracy: float | None
    seconds: float
    figures: Figures
    by_type: dict[str, Figures]
    trust: Trust | None
    answers: list[dict[str, object]]

    def to_dict(self, *, answers: bool = False) -> dict[str, object]:
        """Return the report as JSON-ready values, with the answers to all questions if `answers`."""
        document = asdict(self)
        if not answers:
            del document["answers"]
        return document


class ContextReader:
    """Reads the contexts of examples with one runner. `windows_read` is the number of windows of all calls."""

    def __init__(self, encoder: TextPairEncoder, runner: Runner) -> None:
        self._encoder = encoder
        self._runner = runner
        self.windows_read = 0

    def predict(self, examples: Sequence[Example], progress: Progress, stage: str) -> list[Prediction]:
        """Return the best prediction for each example, in order. If a context has no span, the prediction is
        `NOTHING_READ`. `stage` is the name of this work in the progress.
        """
        windows: list[Window] = []
        owners: list[int] = []
        for number, example in enumerate(examples):
            found = self._encoder.windows(example.question, example.context, example.title, example.section)
            windows.extend(found)
            owners.extend([number] * len(found))
        best = [NOTHING_READ] * len(examples)
        done = 0
        for group in batches(windows, max_batch=MAX_BATCH, max_batch_tokens=MAX_BATCH_TOKENS):
            start_logits, end_logits = self._runner(self._encoder.pairs.batch([windows[index] for index in group]))
            for row, index in enumerate(group):
                owner, window = owners[index], windows[index]
                prediction = self._decode(start_logits[row], end_logits[row], window, examples[owner].context)
                if prediction.score > best[owner].score:
                    best[owner] = prediction
            done += len(group)
            progress(stage, done, len(windows))
        self.windows_read += len(windows)
        return best

    def _decode(self, start: NDArray[np.float32], end: NDArray[np.float32], window: Window, context: str) -> Prediction:
        longest = self._encoder.pairs.manifest.max_answer_tokens
        reading = best_spans(
            [window], [(start, end)], self._encoder.passage(context), context, max_answer_tokens=longest
        )
        if not reading.spans:
            return NOTHING_READ
        span = reading.spans[0]
        return Prediction(context[span.start : span.end], span.start, span.end, span.score)


def score(predictions: Sequence[Prediction], examples: Sequence[Example], no_answer_threshold: float = 0.0) -> Score:
    """Return the mean exact match, the mean F1, and the share of the questions without an answer that get "no answer"
    (None if every question has an answer). A prediction with a score below the threshold counts as "no answer".

    If every question has an answer, the threshold is ignored: the best span counts, whatever its score is.
    """
    given = [GivenAnswer(found.text, found.score >= no_answer_threshold) for found in predictions]
    verdicts = judge(examples, given)
    without = [refused for refused, example in zip(verdicts.refused, examples, strict=True) if not example.answers]
    return Score(
        exact_match=sum(verdicts.exact_match) / len(examples),
        f1=sum(verdicts.f1) / len(examples),
        no_answer_accuracy=sum(without) / len(without) if without else None,
    )


def silent(stage: str, done: int, total: int) -> None:
    """Show no progress. This is the default for arguments of the type `Progress`."""


def evaluate(
    model_dir: Path,
    dataset: Path,
    *,
    runtime: str = "openvino",
    window_tokens: int | None = None,
    doc_stride: int | None = None,
    threads: int = 2,
    limit: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Report:
    """Measure the exported reader in `model_dir` on a question set, or on `limit` questions that are spread over it.

    >>> round(evaluate(default_reader(), Path("xquad_en_a.json")).f1, 3)
    0.679
    """
    examples = load_examples(dataset)
    if limit is not None:
        examples = spread(examples, limit)
    with unpacked(model_dir) as files:
        manifest, tokenizer_json = _verified(files)
        runner = open_runner(files / MODEL_FILE, runtime, threads=threads)
    pairs = PairEncoder(manifest, window_tokens=window_tokens, doc_stride=doc_stride)
    reading = ContextReader(TextPairEncoder(ReaderTokenizer(tokenizer_json), pairs), runner)
    began = perf_counter()
    given = _given(reading.predict(examples, progress, f"reading {dataset.name}"), manifest)
    verdicts = judge(examples, given)
    found = figures(examples, verdicts, seed=seed)
    return Report(
        model_id=manifest.model_id,
        revision=manifest.revision,
        precision=manifest.precision,
        runtime=runtime,
        dataset=dataset.stem,
        questions=len(examples),
        windows=reading.windows_read,
        exact_match=found.exact_match.value,
        f1=found.f1.value,
        no_answer_accuracy=found.no_answer_accuracy.value if found.no_answer_accuracy else None,
        seconds=perf_counter() - began,
        figures=found,
        by_type=figures_by_type(examples, verdicts, seed=seed),
        trust=trust(given, examples),
        answers=answer_rows(examples, given, verdicts),
    )


def _verified(model_dir: Path) -> tuple[Manifest, bytes]:
    """Return the manifest and the tokenizer of a reader.

    Raises ModelError if a file is missing, or if the hash of a file differs from the hash in the manifest.
    """
    manifest = Manifest.load(model_dir / MANIFEST_FILE)
    try:
        tokenizer_json = (model_dir / TOKENIZER_FILE).read_bytes()
        manifest.verify((model_dir / MODEL_FILE).read_bytes(), tokenizer_json)
    except OSError as error:
        raise ModelError(f"model folder {str(model_dir)!r} is not complete: {error}") from error
    return manifest, tokenizer_json


def _given(predictions: Sequence[Prediction], manifest: Manifest) -> list[GivenAnswer]:
    return [
        GivenAnswer(
            found.text,
            found.score >= manifest.no_answer_threshold,
            manifest.calibration.probability(found.score) if np.isfinite(found.score) else None,
        )
        for found in predictions
    ]
