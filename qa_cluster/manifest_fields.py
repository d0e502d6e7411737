"""Reads the fields of a manifest. A field that is missing, unknown or has a wrong value raises a ModelError.

The error names the field and a wrong value.

The manifests of readers (`reading.manifest`) and of encoders (`vectors.encoder_manifest`) share this module.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TypeGuard

from .errors import ModelError

REVISION_DIGITS = 12
ENCODER_KIND = "encoder"
PRECISIONS = ("float32", "float16", "bfloat16", "int8", "int8-dynamic")
LARGEST_ID = (1 << 31) - 1

_MOST_SPECIAL = 4
_HEX64 = re.compile(r"[0-9a-f]{64}\Z")
DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z")


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of `data` as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Shapes:
    """The padded lengths (in tokens) and batch sizes to compile before serving; the most useful come first."""

    lengths: tuple[int, ...]
    batches: tuple[int, ...]


class ModelFiles:
    """The fields that all model manifests share: the model's identity, and the hashes of its files."""

    model_id: str
    model_sha256: str
    tokenizer_sha256: str

    @property
    def revision(self) -> str:
        """The first 12 hex digits of the SHA-256 of the ONNX file."""
        return self.model_sha256[:REVISION_DIGITS]

    @property
    def name(self) -> str:
        """``<model id>@<revision>``, which identifies a model on a shard."""
        return f"{self.model_id}@{self.revision}"

    def verify(self, model: bytes, tokenizer: bytes) -> None:
        """Raise ModelError if the hash of a file differs from the hash in this manifest."""
        for what, data, expected in (
            ("model", model, self.model_sha256),
            ("tokenizer", tokenizer, self.tokenizer_sha256),
        ):
            found = sha256_hex(data)
            if found != expected:
                raise ModelError(
                    f"{what} file does not belong to manifest of {self.model_id!r}: sha256 {found}, expected {expected}"
                )


class FieldReader:
    """Reads one JSON object field by field.

    Each method that reads a field takes the name of the field, and raises ModelError if the field is missing or has a
    wrong value. Methods with the prefix `optional_` return a default if the field is missing. Call `finish` last: it
    refuses fields that were not read.

    Args:
        document: the parsed JSON value; ModelError if it is not an object.
        where: names the object in errors, such as ``manifest``.
    """

    def __init__(self, document: object, where: str) -> None:
        if not isinstance(document, dict):
            raise ModelError(f"{where} must be a JSON object, got {_shown(document)}")
        self._document: dict[str, object] = document
        self._where = where
        self._seen: set[str] = set()

    @property
    def is_encoder(self) -> bool:
        """Whether the object is the manifest of an encoder."""
        return self._document.get("kind") == ENCODER_KIND

    def take(self, name: str) -> object:
        """Return the value of a field, of any type."""
        self._seen.add(name)
        if name not in self._document:
            raise ModelError(f"{self._where} lacks the field {name!r}")
        return self._document[name]

    def text(self, name: str, *, pattern: re.Pattern[str] | None = None, expected: str = "a non-empty string") -> str:
        """Return a non-empty text. If `pattern` is given, the text must match it.

        `expected` describes the text in errors.
        """
        value = self.take(name)
        if not isinstance(value, str) or not value or (pattern is not None and not pattern.match(value)):
            raise self.refused(name, value, expected)
        return value

    def digest(self, name: str) -> str:
        """Return a SHA-256 in hex."""
        return self.text(name, pattern=_HEX64, expected="64 lower-case hex digits")

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return a text that is one of `choices`."""
        value = self.take(name)
        if not isinstance(value, str) or value not in choices:
            raise self.refused(name, value, f"one of {', '.join(choices)}")
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        value = self.take(name)
        if not isinstance(value, bool):
            raise self.refused(name, value, "true or false")
        return value

    def optional_flag(self, name: str) -> bool:
        """Return a boolean; false if the field is missing."""
        return self.flag(name) if name in self._document else False

    def integer(self, name: str, low: int, high: int) -> int:
        """Return an integer from `low` to `high` (both inclusive)."""
        value = self.take(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.refused(name, value, f"an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float) -> float:
        """Return a number from `low` to `high` (both inclusive)."""
        value = self.take(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise self.refused(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def optional_number(self, name: str, low: float, high: float, *, default: float) -> float:
        """Return a number from `low` to `high`; `default` if the field is missing."""
        return self.number(name, low, high) if name in self._document else default

    def share(self, name: str) -> float | None:
        """Return a number from 0 to 1, or None for null."""
        return None if self.take(name) is None else self.number(name, 0, 1)

    def ids(self, name: str) -> tuple[int, ...]:
        """Return a list of one to four token ids."""
        value = self.take(name)
        if not _are_integers(value, 0, LARGEST_ID) or len(value) > _MOST_SPECIAL:
            raise self.refused(name, value, f"a list of 1 to {_MOST_SPECIAL} token ids")
        return tuple(value)

    def names(self, name: str) -> tuple[str, ...]:
        """Return a non-empty list of distinct texts."""
        value = self.take(name)
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise self.refused(name, value, "a non-empty list of strings")
        if len(set(value)) != len(value):
            raise self.refused(name, value, "a list without repetition")
        return tuple(value)

    def sizes(self, name: str, high: int) -> tuple[int, ...]:
        """Return a non-empty list of distinct integers from 1 to `high`."""
        value = self.take(name)
        if not _are_integers(value, 1, high) or len(set(value)) != len(value):
            raise self.refused(name, value, f"a non-empty list of different integers from 1 to {high}")
        return tuple(value)

    def items(self, name: str) -> list[object]:
        """Return a list of any values."""
        value = self.take(name)
        if not isinstance(value, list):
            raise self.refused(name, value, "a list")
        return value

    def inner(self, name: str) -> FieldReader:
        """Return a `FieldReader` for the object that is the value of a field."""
        return FieldReader(self.take(name), f"{self._where} field {name!r}")

    def texts(self, name: str) -> dict[str, str]:
        """Return an object whose values are texts."""
        value = self.take(name)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise self.refused(name, value, "an object of strings")
        return value

    def refused(self, name: str, value: object, expected: str) -> ModelError:
        """Return the error for the field `name` with the wrong value `value`. `expected` describes right values."""
        return ModelError(f"{self._where} field {name!r} is {_shown(value)}, must be {expected}")

    def finish(self) -> None:
        """Raise ModelError if the object has a field that was not read."""
        unknown = sorted(set(self._document) - self._seen)
        if unknown:
            raise ModelError(f"{self._where} has an unknown field {unknown[0]!r}")


def _are_integers(value: object, low: int, high: int) -> TypeGuard[list[int]]:
    """Return whether a value is a non-empty list of integers from `low` to `high`."""
    return isinstance(value, list) and bool(value) and all(type(item) is int and low <= item <= high for item in value)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def read_shapes(reader: FieldReader, max_tokens: int) -> Shapes:
    """Return the shapes in the object that `reader` reads. A length above `max_tokens` raises ModelError."""
    shapes = Shapes(lengths=reader.sizes("lengths", max_tokens), batches=reader.sizes("batches", 1024))
    reader.finish()
    return shapes


def read_revision(reader: FieldReader, model_sha256: str) -> None:
    """Raise ModelError if the field `revision` is not the start of `model_sha256`, the hash of the model file."""
    revision = reader.take("revision")
    if revision != model_sha256[:REVISION_DIGITS]:
        raise reader.refused("revision", revision, f"the first {REVISION_DIGITS} digits of 'model_sha256'")


def parse_object(text: str | bytes) -> FieldReader:
    """Parse a manifest in JSON and return a `FieldReader` for it."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: JSONDecodeError and UnicodeDecodeError
        raise ModelError(f"manifest is not JSON: {error}") from error
    return FieldReader(document, "manifest")
