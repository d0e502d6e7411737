"""The manifest of a reader: everything that shards, workers and the service must know about it except its weights.

A manifest is strict JSON, stored next to the ONNX file. A required field that is missing, an unknown field, or a value
that is out of range raises ModelError. The error contains the name and the value of the field. This module does not
load or run a model.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any, Self

from qa_cluster.errors import ModelError
from qa_cluster.manifest_fields import (
    DATE,
    LARGEST_ID,
    PRECISIONS,
    FieldReader,
    ModelFiles,
    Shapes,
    parse_object,
    read_revision,
    read_shapes,
    sha256_hex,
)
from qa_cluster.types import LIKELY, SURE, UNSURE

FORMAT = 2
MODEL_FILE = "reader.onnx"
TOKENIZER_FILE = "tokenizer.json"
MANIFEST_FILE = "manifest.json"
_READING_DIGITS = 8
DEFAULT_SURE, DEFAULT_LIKELY = 0.9, 0.5
LENGTH_STEP = 16
"""A pair (a question and a context, with the special tokens) is padded to a multiple of this many tokens. So there are
few lengths, and the model is compiled once for each length."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The logistic function that converts the score of a span to the probability that the answer is right.

    The score is the span's `order` (`asking/answers/assembly.py`), or its score over null if no ranking is involved.

    Attributes:
        a, b: the odds of a span against "no answer" are ``exp(a * score + b)``.
        sure, likely: the lowest probabilities of answers that are called *sure* and *likely*. All other answers are
            *unsure*.
    """

    a: float
    b: float
    sure: float = DEFAULT_SURE
    likely: float = DEFAULT_LIKELY

    def probability(self, score: float) -> float:
        """Return `1 / (1 + exp(-(a * score + b)))`, without overflow for any finite score."""
        z = self.a * score + self.b
        return 1.0 / (1.0 + exp(-z)) if z >= 0 else exp(z) / (1.0 + exp(z))

    def confidence(self, probability: float) -> str:
        """Return the word (sure, likely or unsure) for the probability of an answer."""
        if probability >= self.sure:
            return SURE
        return LIKELY if probability >= self.likely else UNSURE

    def to_dict(self) -> dict[str, float]:
        """Return the JSON form. It omits `sure` and `likely` if both have their default values."""
        unfitted = (self.sure, self.likely) == (DEFAULT_SURE, DEFAULT_LIKELY)
        return {"a": self.a, "b": self.b, **({} if unfitted else {"sure": self.sure, "likely": self.likely})}


@dataclass(frozen=True, slots=True)
class PairLayout:
    """How a question and a context are joined: the ids of the special tokens before, between and after them.

    The null answer is at position 0, the first id of `head`. If the model has `token_type_ids`, `context_type` is the
    type of the context, of its prefix (`prefix`) and of `tail`. All tokens before the prefix have type 0.
    """

    head: tuple[int, ...]
    middle: tuple[int, ...]
    tail: tuple[int, ...]
    context_type: int

    @property
    def special_tokens(self) -> int:
        """The number of special tokens in a pair."""
        return len(self.head) + len(self.middle) + len(self.tail)


@dataclass(frozen=True, slots=True)
class Score:
    """Exact match, F1 and no-answer accuracy, from 0 to 1. The accuracy is None if every question has an answer."""

    exact_match: float
    f1: float
    no_answer_accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """The scores on one question set: `before` the export (the original checkpoint) and `after` (the exported file)."""

    dataset: str
    questions: int
    before: Score
    after: Score


@dataclass(frozen=True, slots=True)
class WaveFit:
    """The result of fitting the wave threshold on held-out questions. The corpus had only the sentences of these
    questions' contexts.

    Attributes:
        threshold: the `order` of a span (`asking/answers/assembly.py`) at which reading stops.
        questions, sentences: the number of held-out questions, and the number of sentences in the corpus.
        ends: the total number of sentences read by the end of each wave.
        read: the mean number of sentences that were read for a question.
        f1, f1_all: the F1 with waves, and the F1 if all candidates are read.
    """

    threshold: float
    questions: int
    sentences: int
    ends: tuple[int, ...]
    read: float
    f1: float
    f1_all: float


@dataclass(frozen=True)
class Manifest(ModelFiles):
    """All properties of a reader except its weights.

    `revision` identifies the weights: it is the start of `model_sha256`.

    Attributes:
        no_answer_threshold: the `order` that the best answer must reach; otherwise, "no answer" is returned. The
            `order` of a span is its score over null minus a penalty for the ranking of its sentence
            (`asking/answers/assembly.py`).
        wave_threshold: if the `order` of a span reaches this value, no more waves are read.
        window_tokens: the token limit of an input, with the question and the special tokens.
        doc_stride: the number of tokens by which the windows of a longer passage overlap.
        context_tokens: the token budget for a sentence with its neighbours; 0: the sentence alone.
        calibration_error: the calibration error of the probabilities, from 0 to 1; None: it was not measured.
        rank_weight: the weight of the ranking score in the `order` of a span.
        passage_prefix: whether the reader was trained on passages with title and section before them (`prefix`). False
            if the field is missing.

    >>> manifest = Manifest.load(folder / "manifest.json")
    >>> manifest.verify(model_bytes, tokenizer_bytes)
    >>> manifest.calibration.probability(score_over_null)
    """

    model_id: str
    model_sha256: str
    model_bytes: int
    tokenizer_sha256: str
    precision: str
    family: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    max_tokens: int
    max_question_tokens: int
    max_answer_tokens: int
    window_tokens: int
    doc_stride: int
    context_tokens: int
    pad_id: int
    pair: PairLayout
    lowercase: bool
    no_answer_threshold: float
    wave_threshold: float
    calibration: Calibration
    calibration_error: float | None
    rank_weight: float
    shapes: Shapes
    licence: str
    provenance: str
    created: str
    exported_with: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    waves: WaveFit | None = None
    passage_prefix: bool = False

    @cached_property
    def reading_revision(self) -> str:
        """Identifies everything that a sentence answer depends on: the weights, and a digest of the settings of
        reading.
        """
        limits = (self.max_question_tokens, self.max_answer_tokens, self.window_tokens, self.doc_stride)
        how: tuple[object, ...] = (self.tokenizer_sha256, self.inputs, self.outputs, self.pair, *limits)
        how += (self.context_tokens,)
        if self.passage_prefix:  # the digests of readers without a prefix do not have this part
            how += ("title and section",)
        return f"{self.revision}+{sha256_hex(repr(how).encode())[:_READING_DIGITS]}"

    def to_json(self) -> str:
        """Return the manifest as JSON text that `from_json` reads back to an equal manifest."""
        document = {"format": FORMAT, "revision": self.revision, **asdict(self)}
        document["exported_with"] = dict(self.exported_with)
        document["calibration"] = self.calibration.to_dict()
        if not self.passage_prefix:
            del document["passage_prefix"]
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse a manifest; ModelError names the first field that is missing, unknown, out of range or of a
        wrong type.
        """
        reader = parse_object(text)
        if reader.is_encoder:
            raise ModelError("manifest belongs to an encoder, which computes vectors and cannot answer questions")
        return cls(**_manifest_fields(reader))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the manifest file at `path`."""
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ModelError(f"cannot read manifest {str(path)!r}: {error.strerror}") from error
        return cls.from_json(text)


def _manifest_fields(reader: FieldReader) -> dict[str, Any]:
    if reader.take("format") != FORMAT:
        raise reader.refused("format", reader.take("format"), f"{FORMAT}, the only format that this version reads")
    found: dict[str, Any] = {
        "model_id": reader.text("model_id"),
        "model_sha256": reader.digest("model_sha256"),
        "model_bytes": reader.integer("model_bytes", 1, 1 << 40),
        "tokenizer_sha256": reader.digest("tokenizer_sha256"),
        "precision": reader.choice("precision", PRECISIONS),
        "family": reader.text("family"),
        "inputs": reader.names("inputs"),
        "outputs": reader.names("outputs"),
        "max_tokens": reader.integer("max_tokens", 8, 1 << 16),
        "lowercase": reader.flag("lowercase"),
        "no_answer_threshold": reader.number("no_answer_threshold", -1e6, 1e6),
        "wave_threshold": reader.number("wave_threshold", -1e6, 1e6),
        "rank_weight": reader.number("rank_weight", 0, 1e6),
        "licence": reader.text("licence"),
        "provenance": reader.text("provenance"),
        "created": reader.text("created", pattern=DATE, expected="a date YYYY-MM-DD"),
        "exported_with": reader.texts("exported_with"),
    }
    read_revision(reader, found["model_sha256"])
    found["pad_id"] = reader.integer("pad_id", 0, LARGEST_ID)
    found["pair"] = pair = _pair(reader.inner("pair"))
    # A pair consists of the question, the special tokens and at least one token of the context.
    room = found["max_tokens"] - pair.special_tokens - 1
    found["max_question_tokens"] = reader.integer("max_question_tokens", 1, room)
    found["max_answer_tokens"] = reader.integer("max_answer_tokens", 1, found["max_tokens"])
    least = found["max_question_tokens"] + pair.special_tokens + 1
    found["window_tokens"] = reader.integer("window_tokens", least, found["max_tokens"])
    found["doc_stride"] = reader.integer("doc_stride", 0, found["window_tokens"] - least)
    found["context_tokens"] = reader.integer("context_tokens", 0, found["max_tokens"])
    found["calibration"] = _calibration(reader.inner("calibration"))
    found["calibration_error"] = reader.share("calibration_error")
    found["shapes"] = read_shapes(reader.inner("shapes"), found["max_tokens"])
    found["metrics"] = tuple(
        _metric(FieldReader(item, f"manifest field 'metrics[{i}]'")) for i, item in enumerate(reader.items("metrics"))
    )
    found["passage_prefix"] = reader.optional_flag("passage_prefix")
    found["waves"] = None if reader.take("waves") is None else _waves(reader.inner("waves"))
    reader.finish()
    return found


def _waves(reader: FieldReader) -> WaveFit:
    fit = WaveFit(
        threshold=reader.number("threshold", -1e6, 1e6),
        questions=reader.integer("questions", 1, 1 << 31),
        sentences=reader.integer("sentences", 1, 1 << 31),
        ends=tuple(sorted(reader.sizes("ends", 1024))),
        read=reader.number("read", 0, 1024),
        f1=reader.number("f1", 0, 1),
        f1_all=reader.number("f1_all", 0, 1),
    )
    reader.finish()
    return fit


def _pair(reader: FieldReader) -> PairLayout:
    layout = PairLayout(
        head=reader.ids("head"),
        middle=reader.ids("middle"),
        tail=reader.ids("tail"),
        context_type=reader.integer("context_type", 0, 1),
    )
    reader.finish()
    return layout


def _calibration(reader: FieldReader) -> Calibration:
    sure = reader.optional_number("sure", 0, 1, default=DEFAULT_SURE)
    calibration = Calibration(
        a=reader.number("a", 0, 1e6),
        b=reader.number("b", -1e6, 1e6),
        sure=sure,
        likely=reader.optional_number("likely", 0, sure, default=min(DEFAULT_LIKELY, sure)),
    )
    reader.finish()
    return calibration


def _score(reader: FieldReader) -> Score:
    score = Score(
        exact_match=reader.number("exact_match", 0, 1),
        f1=reader.number("f1", 0, 1),
        no_answer_accuracy=reader.share("no_answer_accuracy"),
    )
    reader.finish()
    return score


def _metric(reader: FieldReader) -> Metric:
    metric = Metric(
        dataset=reader.text("dataset"),
        questions=reader.integer("questions", 1, 1 << 31),
        before=_score(reader.inner("before")),
        after=_score(reader.inner("after")),
    )
    reader.finish()
    return metric
