"""The manifest of an encoder: the model that computes the vectors of passages and questions.

The shards store encoders next to readers. An encoder's manifest has the field ``"kind": "encoder"``. As in a reader's
manifest (`reading/manifest.py`), a field that is missing, unknown or out of range raises ModelError. This module does
not load or run a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

from qa_cluster.errors import ModelError
from qa_cluster.manifest_fields import (
    DATE,
    ENCODER_KIND,
    LARGEST_ID,
    PRECISIONS,
    FieldReader,
    ModelFiles,
    Shapes,
    parse_object,
    read_revision,
    read_shapes,
)
from qa_cluster.reading.manifest import Manifest
from qa_cluster.reading.prefix import MAX_PREFIX_TOKENS

# The format of an encoder's manifest. A reader's manifest has a format of its own.
FORMAT = 2
ENCODER_FILE = "encoder.onnx"
# The output of an encoder's ONNX file: one vector for each row. The worker recognises encoders by this name.
VECTOR_OUTPUT = "vector"
MAX_DIMS = 4096
DIGEST_BYTES = 8
# The smallest budget of a passage: enough for its prefix, the special tokens, and some text.
MIN_CONTEXT_TOKENS = 2 * MAX_PREFIX_TOKENS
# A part of every digest. Increase it if `passage_cut` cuts the same document into different passages.
_CUT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Agreement:
    """The cosine between the vectors of the exported file and the vectors of the original network in float32.

    Attributes:
        texts: the number of texts. The calibration of int8 did not use these texts.
        mean, least: the mean and the smallest cosine.
    """

    texts: int
    mean: float
    least: float


@dataclass(frozen=True)
class EncoderManifest(ModelFiles):
    """All properties of an encoder except its weights.

    Attributes:
        dims: the number of values in a vector.
        context_tokens: the token budget of a passage, including its prefix and the special tokens.
        passage_prefix: whether the title and the section path precede a passage (`prefix`).
        head, tail: the ids of the special tokens before and after a text.
        rank_weight: the weight of the cosine relative to the BM25 score of a sentence.
        missing_cosine: the value that replaces the cosine of a sentence if its document has no vectors of this encoder.
        agreement: how well the exported file agrees with the original network; None if this was not measured.

    >>> manifest = EncoderManifest.load(folder / "manifest.json")
    >>> manifest.digest.hex()
    """

    model_id: str
    model_sha256: str
    model_bytes: int
    tokenizer_sha256: str
    precision: str
    family: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dims: int
    max_tokens: int
    max_question_tokens: int
    context_tokens: int
    passage_prefix: bool
    pad_id: int
    head: tuple[int, ...]
    tail: tuple[int, ...]
    lowercase: bool
    rank_weight: float
    missing_cosine: float
    shapes: Shapes
    licence: str
    provenance: str
    created: str
    exported_with: Mapping[str, str] = field(default_factory=dict)
    agreement: Agreement | None = None

    @cached_property
    def digest(self) -> bytes:
        """Identifies everything that a vector depends on: the weights, the tokenizer, and how documents are cut.

        `rank_weight` and `missing_cosine` are not included, so vectors stay valid after a new fit of these numbers.
        """
        parts = (self.model_sha256, self.tokenizer_sha256, self.inputs, self.outputs, self.dims, self.head, self.tail)
        limits = (self.max_tokens, self.max_question_tokens, self.context_tokens, self.passage_prefix, _CUT_VERSION)
        return blake2b(repr((*parts, *limits)).encode(), digest_size=DIGEST_BYTES).digest()

    @property
    def special_tokens(self) -> int:
        """The number of special tokens in an input."""
        return len(self.head) + len(self.tail)

    def to_json(self) -> str:
        """Return the manifest as JSON text that `from_json` reads back to an equal manifest."""
        document = {"format": FORMAT, "kind": ENCODER_KIND, "revision": self.revision, **asdict(self)}
        document["exported_with"] = dict(self.exported_with)
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse a manifest; ModelError names the first field that is missing, unknown, of a wrong type or out of
        range."""
        return cls(**_fields(parse_object(text)))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the manifest file at `path`."""
        return cls.from_json(_read(path))


AnyManifest = Manifest | EncoderManifest


def parse_manifest(text: str | bytes) -> AnyManifest:
    """Parse the manifest of a reader or of an encoder; ModelError names the first invalid field."""
    return EncoderManifest.from_json(text) if parse_object(text).is_encoder else Manifest.from_json(text)


def load_manifest(path: Path) -> AnyManifest:
    """Read the manifest file of a reader or of an encoder."""
    return parse_manifest(_read(path))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read manifest {str(path)!r}: {error.strerror}") from error


def _fields(reader: FieldReader) -> dict[str, Any]:
    for name, wanted in (("format", FORMAT), ("kind", ENCODER_KIND)):
        if reader.take(name) != wanted:
            raise reader.refused(name, reader.take(name), f"{wanted!r}")
    found: dict[str, Any] = {
        "model_id": reader.text("model_id"),
        "model_sha256": reader.digest("model_sha256"),
        "model_bytes": reader.integer("model_bytes", 1, 1 << 40),
        "tokenizer_sha256": reader.digest("tokenizer_sha256"),
        "precision": reader.choice("precision", PRECISIONS),
        "family": reader.text("family"),
        "inputs": reader.names("inputs"),
        "outputs": reader.names("outputs"),
        "dims": reader.integer("dims", 1, MAX_DIMS),
        "max_tokens": reader.integer("max_tokens", MIN_CONTEXT_TOKENS, 1 << 16),
        "passage_prefix": reader.flag("passage_prefix"),
        "pad_id": reader.integer("pad_id", 0, LARGEST_ID),
        "head": reader.ids("head"),
        "tail": reader.ids("tail"),
        "lowercase": reader.flag("lowercase"),
        "rank_weight": reader.number("rank_weight", 0, 1e6),
        "missing_cosine": reader.number("missing_cosine", -1, 1),
        "licence": reader.text("licence"),
        "provenance": reader.text("provenance"),
        "created": reader.text("created", pattern=DATE, expected="a date YYYY-MM-DD"),
        "exported_with": reader.texts("exported_with"),
    }
    read_revision(reader, found["model_sha256"])
    found["max_question_tokens"] = reader.integer(
        "max_question_tokens", 1, found["max_tokens"] - len(found["head"]) - len(found["tail"])
    )
    found["context_tokens"] = reader.integer("context_tokens", MIN_CONTEXT_TOKENS, found["max_tokens"])
    found["shapes"] = read_shapes(reader.inner("shapes"), found["max_tokens"])
    found["agreement"] = None if reader.take("agreement") is None else _agreement(reader.inner("agreement"))
    reader.finish()
    return found


def _agreement(reader: FieldReader) -> Agreement:
    found = Agreement(
        texts=reader.integer("texts", 1, 1 << 31),
        mean=reader.number("mean", -1, 1),
        least=reader.number("least", -1, 1),
    )
    reader.finish()
    return found
