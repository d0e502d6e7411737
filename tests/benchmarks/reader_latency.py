"""The times of a reader by length and batch, for every precision and runtime, PyTorch and the arithmetic limit.

In each round all contenders run a shape one after the other, so that drift of the machine affects all equally. The
largest shapes get fewer rounds when time is short. Lengths and batches are among those of a worker's padded batches;
windows are full, so that padding has no influence. The worker's own classes open a contender.
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from qa_cluster.errors import ModelError
from qa_cluster.gears.inference.backends.base import CompiledModel, RuntimeLimits
from qa_cluster.gears.inference.backends.onnx import OnnxModel
from qa_cluster.gears.inference.backends.openvino import OpenVinoModel
from qa_cluster.gears.inference.model_file import ModelFile
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest
from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.reading.windows import Arrays, PairEncoder

from .corpus import Corpus
from .machine_limit import ARITHMETICS, MultiplyAdds, Peak, arithmetic_of, print_peaks
from .report import Report

LENGTHS = (16, 32, 64, 128, 256, 384)
BATCHES = (1, 8, 32)
THREADS = (1, 2)
QUESTION_TOKENS = 8
BLOCK_SECONDS = 0.04
MOST_REPEATS = 15
LONG_SECONDS = 0.3
# for all numbers of threads together, without exports; a shape without time for two rounds is measured once
SECONDS = 380.0
TORCH = "PyTorch float32"
# exported for the run; the bundled reader is the int8 one
EXPORTED = ("float32", "float16", "bfloat16", "int8-dynamic")

Shape = tuple[int, int]
Run = Callable[[Arrays], object]


@dataclass(frozen=True)
class Candidate:
    """An exported reader: its folder, manifest, and the inputs and multiply-adds of each shape."""

    folder: Path
    manifest: Manifest
    inputs: dict[Shape, Arrays]
    work: dict[Shape, int]


@dataclass
class Contender:
    """A reader in a runtime; `took` has the milliseconds of each round, `first` those of the run that warms a shape."""

    runtime: str
    candidate: Candidate
    run: Run
    took: dict[Shape, list[float]] = field(default_factory=dict)
    first: dict[Shape, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The precision of the contender, which is the name of its rows."""
        return self.candidate.manifest.precision

    @property
    def arithmetic(self) -> str:
        """The best arithmetic for its multiply-adds."""
        return arithmetic_of(self.runtime, self.name)

    def times(self, shape: Shape) -> list[float]:
        """The milliseconds of each round; if there was no time for a round, those of the warming run."""
        return self.took.get(shape) or [self.first[shape]]

    def cell(self, shape: Shape) -> str:
        """The cell of a shape in a table."""
        return ("" if shape in self.took else "≤ ") + spread(self.times(shape))


def run(
    report: Report,
    corpus: Corpus,
    models: Sequence[Path],
    checkpoint: Path | None,
    rounds: int,
    *,
    lengths: Sequence[int] = LENGTHS,
    batches: Sequence[int] = BATCHES,
    threads: Sequence[int] = THREADS,
    seconds: float = SECONDS,
) -> None:
    """All shapes of all models in all runtimes, first with one thread, then with more."""
    shapes = list(itertools.product(batches, lengths))
    candidates = [_candidate(folder, corpus, shapes) for folder in models]
    peaks = []
    for count in threads:
        peak = Peak(count)
        refused: list[str] = []
        contenders = list(_contenders(candidates, count, refused))
        share = seconds / count / sum(1 / each for each in threads)  # with half the threads a run takes twice the time
        with _torch(checkpoint, candidates[0], count) as plain:
            _measure([*contenders, *plain], shapes, peak, rounds, time.monotonic() + share)
        _print(report, contenders, plain, _Shown(lengths, batches, peak, refused))
        peaks.append(peak)
    print_peaks(report, peaks)


@contextmanager
def readers(given: Sequence[Path] | None, bundled: Path, checkpoint: Path | None) -> Iterator[list[Path]]:
    """The folders to measure: those given, else the bundled reader and exports of the checkpoint."""
    if given or checkpoint is None or not _can_export():
        yield list(given or [bundled])
        return
    with tempfile.TemporaryDirectory() as folder:
        with ThreadPoolExecutor(2) as pool:  # most of an export is one thread's work
            made = list(pool.map(partial(_export, checkpoint, Path(folder)), EXPORTED))
        yield [*made, bundled]


def _export(checkpoint: Path, folder: Path, precision: str) -> Path:
    out = folder / precision
    command = [sys.executable, "-m", "qa_cluster.models", "export", str(checkpoint), str(out)]
    options = ["--precision", precision, "--runtime", "openvino"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the export in {precision} failed: {done.stderr[-1000:]}")
    return out


def _can_export() -> bool:
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers", "onnx"))


def _candidate(folder: Path, corpus: Corpus, shapes: Sequence[Shape]) -> Candidate:
    manifest = Manifest.load(folder / MANIFEST_FILE)
    tokenizer = ReaderTokenizer((folder / TOKENIZER_FILE).read_bytes())
    question = tokenizer.encode_question(corpus.questions[0], QUESTION_TOKENS)
    passage = tokenizer.encode_text(" ".join(text for _, text in corpus.documents)[:100_000])
    inputs = {}
    for batch, length in shapes:
        pairs = PairEncoder(manifest, window_tokens=length, doc_stride=0, max_question_tokens=QUESTION_TOKENS)
        windows = list(itertools.islice(itertools.cycle(pairs.windows(question, passage)), batch))
        inputs[batch, length] = pairs.batch(windows)
    counted = MultiplyAdds(folder / MODEL_FILE)
    return Candidate(folder, manifest, inputs, {shape: counted.of(*shape) for shape in shapes})


def _contenders(candidates: Sequence[Candidate], threads: int, refused: list[str]) -> Iterator[Contender]:
    for candidate in candidates:
        path = candidate.folder / MODEL_FILE
        file = ModelFile(str(path), path.stat().st_size)
        openers: dict[str, Callable[[], CompiledModel]] = {
            "OpenVINO": partial(OpenVinoModel, file, threads),
            "ONNX Runtime": partial(OnnxModel, file, "CPU", RuntimeLimits(threads=threads)),
        }
        for runtime, opened in openers.items():
            try:
                model = opened()
            except (ModelError, RuntimeError) as error:  # OpenVINO raises bare RuntimeError
                cause = " ".join(str(error).split())[:120]
                refused.append(f"{runtime} does not take {candidate.manifest.precision}: {cause}")
                continue
            yield Contender(runtime, candidate, partial(_run, model))


def _run(model: CompiledModel, arrays: Arrays) -> object:
    return model.run(list(arrays.values()))


@contextmanager
def _torch(checkpoint: Path | None, candidate: Candidate, threads: int) -> Iterator[list[Contender]]:
    """The checkpoint in plain PyTorch with default options; nothing without a checkpoint."""
    if checkpoint is None:
        yield []
        return
    import torch
    from transformers import AutoModelForQuestionAnswering
    from transformers.utils import logging

    logging.disable_progress_bar()
    network = AutoModelForQuestionAnswering.from_pretrained(checkpoint).eval()

    def read(arrays: Arrays) -> object:
        with torch.inference_mode():
            return network(**{name: torch.from_numpy(array) for name, array in arrays.items()})

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield [Contender(TORCH, candidate, read)]
    finally:
        torch.set_num_threads(before)


def _measure(
    contenders: Sequence[Contender], shapes: Sequence[Shape], peak: Peak, rounds: int, deadline: float
) -> None:
    """Warm all shapes, then measure `rounds` rounds of each, the shortest first, or as many as time allows.

    All contenders have the same number of rounds for a shape. The largest shapes may have no rounds.
    """
    guesses = {shape: [_warmed(contender, shape) for contender in contenders] for shape in shapes}
    for _ in range(rounds):
        peak.measure()
        for shape in sorted(shapes, key=lambda shape: sum(guesses[shape])):
            if time.monotonic() + sum(max(guess, BLOCK_SECONDS) for guess in guesses[shape]) > deadline:
                break
            for contender, guess in zip(contenders, guesses[shape], strict=True):
                contender.took.setdefault(shape, []).append(_block(contender, shape, guess))


def _warmed(contender: Contender, shape: Shape) -> float:
    """The approximate seconds of a run of a shape; the first run compiles kernels."""
    took = _timed(contender, shape)
    contender.first[shape] = took * 1000
    return took if took > LONG_SECONDS else _timed(contender, shape)


def _block(contender: Contender, shape: Shape, guess: float) -> float:
    """The median of a few runs; a short first run does not count: threads of other runtimes still spin."""
    repeats = max(1, min(MOST_REPEATS, int(BLOCK_SECONDS / guess)))
    if repeats > 1:
        contender.run(contender.candidate.inputs[shape])
    return statistics.median(_timed(contender, shape) for _ in range(repeats)) * 1000


def _timed(contender: Contender, shape: Shape) -> float:
    arrays = contender.candidate.inputs[shape]
    started = time.perf_counter()
    contender.run(arrays)
    return time.perf_counter() - started


@dataclass(frozen=True)
class _Shown:
    """The common parts of the tables of one number of threads."""

    lengths: Sequence[int]
    batches: Sequence[int]
    peak: Peak
    refused: Sequence[str]

    @property
    def threads(self) -> str:
        return f"{self.peak.threads} thread{'s' * (self.peak.threads > 1)}"

    def rows(self, name: str, cell: Callable[[Shape], str]) -> list[list[str]]:
        """A row for each batch."""
        return [[name, str(batch), *(cell((batch, length)) for length in self.lengths)] for batch in self.batches]

    def limit(self, contender: Contender, shape: Shape) -> float:
        """The least milliseconds that a shape's multiply-adds take."""
        return self.peak.limit_ms(contender.arithmetic, contender.candidate.work[shape])

    def columns(self) -> list[str]:
        """The heads of all tables."""
        return ["", "batch", *(f"{length} tokens" for length in self.lengths)]


def _print(report: Report, contenders: Sequence[Contender], plain: Sequence[Contender], shown: _Shown) -> None:
    note = (
        f"milliseconds, medians of {_rounds(contenders)} ± half their range; no ±: one round; ≤: no more than"
        " the run that warms, kernels being compiled; tokens: padded length, as the worker pads;"
        f" {'; '.join(shown.refused)}"
    ).rstrip("; ")
    rows = [row for contender in plain for row in shown.rows(TORCH, contender.cell)]
    by_arithmetic = {contender.arithmetic: contender for contender in reversed(contenders)}
    for arithmetic in (name for name in ARITHMETICS if name in by_arithmetic):
        first = by_arithmetic[arithmetic]
        rows += shown.rows(f"limit, {arithmetic}", partial(_limit, first, shown))
    models = ", ".join(dict.fromkeys(f"{c.name} {c.candidate.manifest.name}" for c in contenders))
    limit_note = (
        "limit: all multiply-adds of the model at the rate of large matrix products; both int8 are computed in int8,"
        f" bfloat16 by OpenVINO in bfloat16, all else in float32; models: {models}"
    )
    report.table(f"Reader: PyTorch and the limit, {shown.threads}", shown.columns(), rows, f"{note}; {limit_note}")
    for runtime in dict.fromkeys(contender.runtime for contender in contenders):
        chosen = [contender for contender in contenders if contender.runtime == runtime]
        rows, ratios = [], []
        for contender in chosen:
            rows += shown.rows(contender.name, contender.cell)
            ratios += shown.rows(contender.name, partial(_against, contender, plain, shown))
        report.table(f"Reader: {runtime}, {shown.threads}", shown.columns(), rows, note)
        report.table(
            f"Reader: {runtime}, {shown.threads}, against PyTorch float32 and the limit",
            shown.columns(),
            ratios,
            "how many times as fast as PyTorch float32 (medians of the rounds' ratios); share of the limit of its own"
            " arithmetic that is reached",
        )


def _limit(contender: Contender, shown: _Shown, shape: Shape) -> str:
    return _ms(shown.limit(contender, shape))


def _rounds(contenders: Sequence[Contender]) -> str:
    """``3 rounds``, or ``1–3 rounds`` if shapes have different numbers."""
    counts = {len(contender.times(shape)) for contender in contenders for shape in contender.first}
    least, most = min(counts), max(counts)
    return f"{least}–{most} rounds" if least < most else f"{most} round{'s' * (most > 1)}"


def _against(contender: Contender, plain: Sequence[Contender], shown: _Shown, shape: Shape) -> str:
    took = contender.times(shape)
    share = f"{shown.limit(contender, shape) / statistics.median(took):.0%}"
    for reference in plain:
        ratio = statistics.median(theirs / ours for ours, theirs in zip(took, reference.times(shape), strict=True))
        return f"{ratio:.1f} × {share}"
    return share


def spread(values: Sequence[float]) -> str:
    """``12.3 ±4%``: the median, and half the range of the values as a share of it."""
    middle = statistics.median(values)
    if len(values) == 1:
        return _ms(middle)
    return f"{_ms(middle)} ±{(max(values) - min(values)) / 2 / middle:.0%}"


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
