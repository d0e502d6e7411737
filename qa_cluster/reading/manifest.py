"""The manifest of a reader: everything that shards, workers and the service must know about it besides its weights.

A manifest is strict JSON, stored next to the ONNX file. A field that is missing, unknown or out of range is refused
with its name and value; nothing is guessed. This module does not load or run a model.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any, Self

from qa_cluster.errors import ModelError

FORMAT = 2
MODEL_FILE = "reader.onnx"
TOKENIZER_FILE = "tokenizer.json"
MANIFEST_FILE = "manifest.json"
REVISION_DIGITS = 12
_READING_DIGITS = 8
PRECISIONS = ("float32", "float16", "bfloat16", "int8", "int8-dynamic")
LENGTH_STEP = 16
"""Pairs are padded to a multiple of this many tokens, so that there are few shapes, each compiled once."""

_LARGEST_ID = (1 << 31) - 1
_MOST_SPECIAL = 4
_HEX64 = re.compile(r"[0-9a-f]{64}\Z")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z")


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of `data` as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Calibration:
    """The logistic that turns a span's score over null into the probability that the answer is right."""

    a: float
    b: float

    def probability(self, score: float) -> float:
        """Return `1 / (1 + exp(-(a * score + b)))`, without overflow for any finite score."""
        z = self.a * score + self.b
        return 1.0 / (1.0 + exp(-z)) if z >= 0 else exp(z) / (1.0 + exp(z))


@dataclass(frozen=True, slots=True)
class PairLayout:
    """How a question and a context are joined: the token ids before, between and after them.

    The null answer is at position 0, the first id of `head`. If the model has `token_type_ids`, `context_type` is the
    token type of the context and of `tail`; all ids before have type 0.
    """

    head: tuple[int, ...]
    middle: tuple[int, ...]
    tail: tuple[int, ...]
    context_type: int

    @property
    def special_tokens(self) -> int:
        """How many tokens of a pair belong to neither text."""
        return len(self.head) + len(self.middle) + len(self.tail)


@dataclass(frozen=True, slots=True)
class Shapes:
    """The padded lengths and batch sizes to compile before serving; the most useful come first."""

    lengths: tuple[int, ...]
    batches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Exact match and F1 in 0..1; the no-answer accuracy, None if every question has an answer."""

    exact_match: float
    f1: float
    no_answer_accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """The scores on one question set: `before` of the original checkpoint, `after` of the exported file."""

    dataset: str
    questions: int
    before: Score
    after: Score


@dataclass(frozen=True, slots=True)
class WaveFit:
    """The fit of the wave threshold, on held-out questions; the corpus was the sentences of their contexts.

    Attributes:
        threshold: from this score over null on, no further sentences are read.
        ends: how many sentences have been read after each wave.
        read: the mean number of sentences read for a question.
        f1, f1_all: F1 with waves, and F1 if all candidates are read.
    """

    threshold: float
    questions: int
    sentences: int
    ends: tuple[int, ...]
    read: float
    f1: float
    f1_all: float


@dataclass(frozen=True)
class Manifest:
    """Everything about a reader except its weights. `revision` names the weights: it is the start of `model_sha256`.

    Thresholds are logits over null. A passage that does not fit into `window_tokens` is read in windows that overlap by
    `doc_stride`. `context_tokens` is the budget for a sentence with its neighbours, 0 for the sentence alone.
    `passage_prefix`: the reader was trained on passages with title and section before them (`prefix`). False is not
    written; a manifest without the field means false.

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

    @property
    def revision(self) -> str:
        """The first 12 hex digits of the SHA-256 of the ONNX file."""
        return self.model_sha256[:REVISION_DIGITS]

    @property
    def name(self) -> str:
        """Model and revision; the name identifies a reader on a shard."""
        return f"{self.model_id}@{self.revision}"

    @cached_property
    def reading_revision(self) -> str:
        """Names everything that a sentence answer depends on: the weights, and a digest of the settings of reading."""
        limits = (self.max_question_tokens, self.max_answer_tokens, self.window_tokens, self.doc_stride)
        how: tuple[object, ...] = (self.tokenizer_sha256, self.inputs, self.outputs, self.pair, *limits)
        how += (self.context_tokens,)
        if self.passage_prefix:  # the digests of readers without a prefix do not have this part
            how += ("title and section",)
        return f"{self.revision}+{sha256_hex(repr(how).encode())[:_READING_DIGITS]}"

    def verify(self, model: bytes, tokenizer: bytes) -> None:
        """Raise ModelError unless both files belong to this manifest."""
        for what, data, expected in (
            ("model", model, self.model_sha256),
            ("tokenizer", tokenizer, self.tokenizer_sha256),
        ):
            found = sha256_hex(data)
            if found != expected:
                raise ModelError(
                    f"{what} file does not belong to manifest of {self.model_id!r}: sha256 {found}, expected {expected}"
                )

    def to_json(self) -> str:
        """Return the manifest as JSON text that `from_json` reads back to an equal manifest."""
        document = {"format": FORMAT, "revision": self.revision, **asdict(self)}
        document["exported_with"] = dict(self.exported_with)
        if not self.passage_prefix:
            del document["passage_prefix"]
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a manifest; ModelError names the first field that is missing, unknown, ill-typed or out of range."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:  # ValueError: JSONDecodeError and UnicodeDecodeError
            raise ModelError(f"manifest is not JSON: {error}") from error
        return cls(**_manifest_fields(_Reader(document, "manifest")))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the manifest file at `path`."""
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ModelError(f"cannot read manifest {str(path)!r}: {error.strerror}") from error
        return cls.from_json(text)


class _Reader:
    """Reads one JSON object field by field; `finish` refuses fields that were not read."""

    def __init__(self, document: object, where: str) -> None:
        if not isinstance(document, dict):
            raise ModelError(f"{where} must be a JSON object, got {_shown(document)}")
        self._document: dict[str, object] = document
        self._where = where
        self._seen: set[str] = set()

    def take(self, name: str) -> object:
        self._seen.add(name)
        if name not in self._document:
            raise ModelError(f"{self._where} lacks the field {name!r}")
        return self._document[name]

    def text(self, name: str, *, pattern: re.Pattern[str] | None = None, expected: str = "a non-empty string") -> str:
        value = self.take(name)
        if not isinstance(value, str) or not value or (pattern is not None and not pattern.match(value)):
            raise self.refused(name, value, expected)
        return value

    def digest(self, name: str) -> str:
        return self.text(name, pattern=_HEX64, expected="64 lower-case hex digits")

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.take(name)
        if not isinstance(value, str) or value not in choices:
            raise self.refused(name, value, f"one of {', '.join(choices)}")
        return value

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if not isinstance(value, bool):
            raise self.refused(name, value, "true or false")
        return value

    def optional_flag(self, name: str) -> bool:
        return self.flag(name) if name in self._document else False

    def integer(self, name: str, low: int, high: int) -> int:
        value = self.take(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.refused(name, value, f"an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float) -> float:
        value = self.take(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise self.refused(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def share(self, name: str) -> float | None:
        return None if self.take(name) is None else self.number(name, 0, 1)

    def ids(self, name: str) -> tuple[int, ...]:
        value = self.take(name)
        if (
            not isinstance(value, list)
            or not 1 <= len(value) <= _MOST_SPECIAL
            or not all(isinstance(item, int) and not isinstance(item, bool) for item in value)
            or not all(0 <= item <= _LARGEST_ID for item in value)
        ):
            raise self.refused(name, value, f"a list of 1 to {_MOST_SPECIAL} token ids")
        return tuple(value)

    def names(self, name: str) -> tuple[str, ...]:
        value = self.take(name)
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise self.refused(name, value, "a non-empty list of strings")
        if len(set(value)) != len(value):
            raise self.refused(name, value, "a list without repetition")
        return tuple(value)

    def sizes(self, name: str, high: int) -> tuple[int, ...]:
        value = self.take(name)
        if (
            not isinstance(value, list)
            or not value
            or not all(isinstance(item, int) and not isinstance(item, bool) and 1 <= item <= high for item in value)
            or len(set(value)) != len(value)
        ):
            raise self.refused(name, value, f"a non-empty list of different integers from 1 to {high}")
        return tuple(value)

    def list(self, name: str) -> list[object]:
        value = self.take(name)
        if not isinstance(value, list):
            raise self.refused(name, value, "a list")
        return value

    def inner(self, name: str) -> "_Reader":
        return _Reader(self.take(name), f"{self._where} field {name!r}")

    def texts(self, name: str) -> dict[str, str]:
        value = self.take(name)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise self.refused(name, value, "an object of strings")
        return value

    def refused(self, name: str, value: object, expected: str) -> ModelError:
        return ModelError(f"{self._where} field {name!r} is {_shown(value)}, must be {expected}")

    def finish(self) -> None:
        unknown = sorted(set(self._document) - self._seen)
        if unknown:
            raise ModelError(f"{self._where} has an unknown field {unknown[0]!r}")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _manifest_fields(reader: _Reader) -> dict[str, Any]:
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
        "created": reader.text("created", pattern=_DATE, expected="a date YYYY-MM-DD"),
        "exported_with": reader.texts("exported_with"),
    }
    revision = reader.take("revision")
    if revision != found["model_sha256"][:REVISION_DIGITS]:
        raise reader.refused("revision", revision, f"the first {REVISION_DIGITS} digits of 'model_sha256'")
    found["pad_id"] = reader.integer("pad_id", 0, _LARGEST_ID)
    found["pair"] = pair = _pair(reader.inner("pair"))
    # In addition to the question, a pair has the special tokens and at least one token of the context.
    room = found["max_tokens"] - pair.special_tokens - 1
    found["max_question_tokens"] = reader.integer("max_question_tokens", 1, room)
    found["max_answer_tokens"] = reader.integer("max_answer_tokens", 1, found["max_tokens"])
    least = found["max_question_tokens"] + pair.special_tokens + 1
    found["window_tokens"] = reader.integer("window_tokens", least, found["max_tokens"])
    found["doc_stride"] = reader.integer("doc_stride", 0, found["window_tokens"] - least)
    found["context_tokens"] = reader.integer("context_tokens", 0, found["max_tokens"])
    found["calibration"] = _calibration(reader.inner("calibration"))
    found["calibration_error"] = reader.share("calibration_error")
    found["shapes"] = _shapes(reader.inner("shapes"), found["max_tokens"])
    found["metrics"] = tuple(
        _metric(_Reader(item, f"manifest field 'metrics[{i}]'")) for i, item in enumerate(reader.list("metrics"))
    )
    found["passage_prefix"] = reader.optional_flag("passage_prefix")
    found["waves"] = None if reader.take("waves") is None else _waves(reader.inner("waves"))
    reader.finish()
    return found


def _waves(reader: _Reader) -> WaveFit:
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


def _pair(reader: _Reader) -> PairLayout:
    layout = PairLayout(
        head=reader.ids("head"),
        middle=reader.ids("middle"),
        tail=reader.ids("tail"),
        context_type=reader.integer("context_type", 0, 1),
    )
    reader.finish()
    return layout


def _calibration(reader: _Reader) -> Calibration:
    calibration = Calibration(a=reader.number("a", 0, 1e6), b=reader.number("b", -1e6, 1e6))
    reader.finish()
    return calibration


def _shapes(reader: _Reader, max_tokens: int) -> Shapes:
    shapes = Shapes(lengths=reader.sizes("lengths", max_tokens), batches=reader.sizes("batches", 1024))
    reader.finish()
    return shapes


def _score(reader: _Reader) -> Score:
    score = Score(
        exact_match=reader.number("exact_match", 0, 1),
        f1=reader.number("f1", 0, 1),
        no_answer_accuracy=reader.share("no_answer_accuracy"),
    )
    reader.finish()
    return score


def _metric(reader: _Reader) -> Metric:
    metric = Metric(
        dataset=reader.text("dataset"),
        questions=reader.integer("questions", 1, 1 << 31),
        before=_score(reader.inner("before")),
        after=_score(reader.inner("after")),
    )
    reader.finish()
    return metric
