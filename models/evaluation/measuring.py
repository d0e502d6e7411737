"""Measures a checkpoint and the files made of it side by side: scores, agreement span for span, size, latency."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qa_cluster.evaluation.examples import Example
from qa_cluster.reading.manifest import Manifest, Score
from qa_cluster.reading.runtimes import Runner
from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.reading.windows import PairEncoder, TextPairEncoder

from .evaluate import ContextReader, Prediction, Progress, score
from .latency import LENGTHS, Latency, measure_latency

PYTORCH = "PyTorch"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run the reader: its precision and runtime in reports, its runner, and the size of its weights."""

    precision: str
    runtime: str
    runner: Runner
    size_bytes: int

    @property
    def name(self) -> str:
        """Precision and runtime."""
        return f"{self.precision}, {self.runtime}"


@dataclass(frozen=True, slots=True)
class SetScore:
    """A way's scores on one question set; `agreement` is the share of answers with the same span as the checkpoint."""

    questions: int
    score: Score
    agreement: float


@dataclass(frozen=True, slots=True)
class Measured:
    """All measurements of one way: by question set, and by length in tokens."""

    precision: str
    runtime: str
    size_bytes: int
    scored: Mapping[str, SetScore] = field(default_factory=dict)
    latency: Mapping[int, Latency] = field(default_factory=dict)


class Measuring:
    """Measures ways to run one reader; the others are compared with the first.

    Args:
        manifest: the reader's limits and no-answer threshold, the same for all ways.
        tokenizer_json: the reader's tokenizer.
    """

    def __init__(self, manifest: Manifest, tokenizer_json: bytes, progress: Progress) -> None:
        self._manifest = manifest
        self._tokenizer = ReaderTokenizer(tokenizer_json)
        self._progress = progress

    def predict(self, way: Way, examples: Sequence[Example], stage: str) -> list[Prediction]:
        """The predictions by one way."""
        encoder = TextPairEncoder(self._tokenizer, PairEncoder(self._manifest))
        return ContextReader(encoder, way.runner).predict(examples, self._progress, f"{stage}, {way.name}")

    def compare(self, ways: Sequence[Way], question_sets: Mapping[str, Sequence[Example]]) -> list[Measured]:
        """Measure all ways, in their order."""
        scored: dict[str, dict[str, SetScore]] = {way.name: {} for way in ways}
        for name, examples in question_sets.items():
            reference: list[Prediction] = []
            for way in ways:
                found = self.predict(way, examples, f"scoring {name}")
                reference = reference or found
                scored[way.name][name] = SetScore(
                    len(examples),
                    score(found, examples, self._manifest.no_answer_threshold),
                    agreement(reference, found),
                )
        self._progress("measuring latency", 0, 1)
        latency = measure_latency({way.name: (way.runner, self._manifest) for way in ways}, LENGTHS)
        self._progress("measuring latency", 1, 1)
        return [
            Measured(way.precision, way.runtime, way.size_bytes, scored[way.name], latency[way.name]) for way in ways
        ]


def agreement(reference: Sequence[Prediction], found: Sequence[Prediction]) -> float:
    """Return the share of questions that both answer with the same span."""
    same = sum((a.start, a.end) == (b.start, b.end) for a, b in zip(reference, found, strict=True))
    return same / len(reference)
