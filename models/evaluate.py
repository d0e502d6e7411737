"""How well a reader answers: exact match and F1 on a question set, the context given with each question.

A context longer than a window is read window by window; the answer is the span with the best score over null, where
null is the score of `[CLS]` in the same window.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from qa_cluster.errors import ModelError
from qa_cluster.examples import Example, load_examples
from qa_cluster.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest, Score
from qa_cluster.reading import best_spans
from qa_cluster.runtimes import Runner, open_runner
from qa_cluster.scoring import exact_match, f1
from qa_cluster.tokenization import ReaderTokenizer
from qa_cluster.windows import PairEncoder, TextPairEncoder, Window, batches

Progress = Callable[[str, int, int], None]
MAX_BATCH = 8
MAX_BATCH_TOKENS = 3072


@dataclass(frozen=True, slots=True)
class Prediction:
    """The best span of one question's context: its text, its place in code points, its score over null."""

    text: str
    start: int
    end: int
    score: float


NOTHING_READ = Prediction("", 0, 0, float("-inf"))


@dataclass(frozen=True, slots=True)
class Report:
    """What a reader scored on one question set."""

    model_id: str
    revision: str
    precision: str
    runtime: str
    dataset: str
    questions: int
    windows: int
    exact_match: float
    f1: float
    seconds: float

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON-ready values."""
        return asdict(self)


class Reading:
    """Reads contexts with one runner; counts the windows it read."""

    def __init__(self, encoder: TextPairEncoder, runner: Runner) -> None:
        self._encoder = encoder
        self._runner = runner
        self.windows_read = 0

    def predict(self, examples: Sequence[Example], progress: Progress, stage: str) -> list[Prediction]:
        """Return one prediction an example, in their order."""
        windows: list[Window] = []
        owners: list[int] = []
        for number, example in enumerate(examples):
            found = self._encoder.windows(example.question, example.context)
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
        passage, until = self._encoder.passage(context), window.first + window.tokens
        reading = best_spans(
            start,
            end,
            (passage.starts[window.first : until], passage.ends[window.first : until]),
            context,
            sentence_start=window.passage_start,
            max_answer_tokens=self._encoder.pairs.manifest.max_answer_tokens,
        )
        if not reading.spans:
            return NOTHING_READ
        span = reading.spans[0]
        return Prediction(context[span.start : span.end], span.start, span.end, span.score)


def score(predictions: Sequence[Prediction], examples: Sequence[Example]) -> Score:
    """Return mean exact match and F1."""
    pairs = list(zip(predictions, examples, strict=True))
    return Score(
        exact_match=sum(exact_match(found.text, example.answers) for found, example in pairs) / len(pairs),
        f1=sum(f1(found.text, example.answers) for found, example in pairs) / len(pairs),
    )


def silent(stage: str, done: int, total: int) -> None:
    """Report no progress."""


def evaluate(
    model_dir: Path,
    dataset: Path,
    *,
    runtime: str = "openvino",
    window_tokens: int | None = None,
    doc_stride: int | None = None,
    threads: int = 2,
    limit: int | None = None,
    progress: Progress = silent,
) -> Report:
    """Measure the exported reader in `model_dir` on a question set.

    >>> evaluate(default_reader(), Path("xquad_en_a.json")).f1
    0.645
    """
    manifest = Manifest.load(model_dir / MANIFEST_FILE)
    model, tokenizer = model_dir / MODEL_FILE, model_dir / TOKENIZER_FILE
    try:
        tokenizer_json = tokenizer.read_bytes()
        manifest.verify(model.read_bytes(), tokenizer_json)
    except OSError as error:
        raise ModelError(f"model folder {str(model_dir)!r} is not complete: {error}") from error
    examples = load_examples(dataset, limit=limit)
    pairs = PairEncoder(manifest, window_tokens=window_tokens, doc_stride=doc_stride)
    reading = Reading(
        TextPairEncoder(ReaderTokenizer(tokenizer_json), pairs), open_runner(model, runtime, threads=threads)
    )
    began = perf_counter()
    predictions = reading.predict(examples, progress, f"reading {dataset.name}")
    result = score(predictions, examples)
    return Report(
        model_id=manifest.model_id,
        revision=manifest.revision,
        precision=manifest.precision,
        runtime=runtime,
        dataset=dataset.stem,
        questions=len(examples),
        windows=reading.windows_read,
        exact_match=result.exact_match,
        f1=result.f1,
        seconds=perf_counter() - began,
    )
