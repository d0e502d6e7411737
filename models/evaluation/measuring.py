"""Compares a checkpoint with its exported files: scores, agreement of answers, size, latency."""

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
class RunnerVariant:
    """One way to run a reader: its precision, its runtime, and the runner that runs it.

    `size_bytes` is the size of the ONNX file. For the checkpoint in PyTorch, it is the size of the weights.
    """

    precision: str
    runtime: str
    runner: Runner
    size_bytes: int

    @property
    def name(self) -> str:
        """The precision and the runtime, for display."""
        return f"{self.precision}, {self.runtime}"


@dataclass(frozen=True, slots=True)
class SetScore:
    """The scores of a variant on one question set. `agreement` is the share of the questions for which the variant
    gives the same span as the first variant.
    """

    questions: int
    score: Score
    agreement: float


@dataclass(frozen=True, slots=True)
class Measured:
    """All measurements of one variant: the scores by the name of the question set, and the latency by the length in
    tokens.
    """

    precision: str
    runtime: str
    size_bytes: int
    scored: Mapping[str, SetScore] = field(default_factory=dict)
    latency: Mapping[int, Latency] = field(default_factory=dict)


class Measuring:
    """Measures the variants of one reader, and compares them with the first variant.

    Args:
        manifest: the limits and the no-answer threshold for all variants.
        tokenizer_json: the reader's tokenizer.
    """

    def __init__(self, manifest: Manifest, tokenizer_json: bytes, progress: Progress) -> None:
        self._manifest = manifest
        self._tokenizer = ReaderTokenizer(tokenizer_json)
        self._progress = progress

    def predict(self, variant: RunnerVariant, examples: Sequence[Example], stage: str) -> list[Prediction]:
        """Return the predictions of one variant, in the order of the examples. `stage` is the name of this work in the
        progress.
        """
        encoder = TextPairEncoder(self._tokenizer, PairEncoder(self._manifest))
        return ContextReader(encoder, variant.runner).predict(examples, self._progress, f"{stage}, {variant.name}")

    def compare(
        self, variants: Sequence[RunnerVariant], question_sets: Mapping[str, Sequence[Example]]
    ) -> list[Measured]:
        """Measure all variants on all question sets; return the measurements in the order of the variants."""
        scored: dict[str, dict[str, SetScore]] = {variant.name: {} for variant in variants}
        for name, examples in question_sets.items():
            reference: list[Prediction] = []
            for variant in variants:
                found = self.predict(variant, examples, f"scoring {name}")
                reference = reference or found
                scored[variant.name][name] = SetScore(
                    len(examples),
                    score(found, examples, self._manifest.no_answer_threshold),
                    agreement(reference, found),
                )
        self._progress("measuring latency", 0, 1)
        latency = measure_latency({variant.name: (variant.runner, self._manifest) for variant in variants}, LENGTHS)
        self._progress("measuring latency", 1, 1)
        return [
            Measured(
                variant.precision, variant.runtime, variant.size_bytes, scored[variant.name], latency[variant.name]
            )
            for variant in variants
        ]


def agreement(reference: Sequence[Prediction], found: Sequence[Prediction]) -> float:
    """Return the share of questions for which both lists of predictions have the same span."""
    same = sum((a.start, a.end) == (b.start, b.end) for a, b in zip(reference, found, strict=True))
    return same / len(reference)
