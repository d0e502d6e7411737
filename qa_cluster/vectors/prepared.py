"""Vectors of a document's passages that a client has computed.

A shard uses such vectors only if it has the same encoder, the same version of the document and the same sentences. This
module runs no model; `local_encoder` computes the vectors.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Self

import numpy as np

from qa_cluster.errors import InputTooLong, InvalidInput

from .encoder_manifest import DIGEST_BYTES, MAX_DIMS
from .packing import packed_bytes

# The maximum number of passages of one document: about 18,000 sentences. For longer documents, the shards compute the
# vectors.
MAX_PREPARED_PASSAGES = 4096
MAX_SPLITTER_CHARS = 200

# The results for the vectors that a writer sends with a document (`WriteResult.vectors`). `STORED`: the vectors are
# stored. All other results say why they are not stored:
# - `OTHER_ENCODER`: the shards use no encoder, or a different encoder.
# - `OTHER_DOCUMENT`: the vectors belong to a different version of the document.
# - `OTHER_SENTENCES`: the shard has split the text into different sentences.
# - `STALE`: the document was changed or deleted before its vectors were stored.
# - `REFUSED`: the shard refused the vectors, or did not reply in time.
STORED, OTHER_ENCODER, OTHER_DOCUMENT, OTHER_SENTENCES, STALE, REFUSED = (
    "stored",
    "other_encoder",
    "other_document",
    "other_sentences",
    "stale",
    "refused",
)

_HEAD = Struct("<IIf")
_FIELDS = {"encoder": str, "dims": int, "version": str, "splitter": str, "sentences": int, "passages": str}
_DIGEST = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}")
_VERSION = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class PreparedVectors:
    """The vectors of all passages of a document.

    Attributes:
        encoder: the digest of the encoder, which also identifies the rules that cut documents.
        dims: the number of values in a vector.
        version: the version of the document, a hash of its title, metadata and text.
        splitter: the version of the code that splits texts into sentences.
        sentences: the number of sentences of the document.
        passages: packed passages (`packing`), in order. Each sentence is in exactly one passage.
    """

    encoder: bytes
    dims: int
    version: str
    splitter: str
    sentences: int
    passages: bytes

    @property
    def count(self) -> int:
        """The number of passages."""
        return len(self.passages) // self._size

    @property
    def _size(self) -> int:
        return 8 + packed_bytes(self.dims)

    def part(self, first: int, count: int) -> bytes:
        """Return `count` packed passages, starting with the passage number `first`, counted from 0."""
        return self.passages[first * self._size : (first + count) * self._size]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form, which `from_dict` reads."""
        return {
            "encoder": self.encoder.hex(),
            "dims": self.dims,
            "version": self.version,
            "splitter": self.splitter,
            "sentences": self.sentences,
            "passages": base64.b64encode(self.passages).decode(),
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Parse and check vectors.

        Raises:
            InvalidInput: a field is missing, unknown or invalid; the error names the first such field.
            InputTooLong: there are more than `MAX_PREPARED_PASSAGES` passages.
        """
        for name in given:
            if name not in _FIELDS:
                raise _wrong(name, f"is unknown, the known fields are {', '.join(_FIELDS)}")
        for name, kind in _FIELDS.items():
            value = given.get(name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise _wrong(name, f"must be {'an integer' if kind is int else 'a string'}")
        if not _DIGEST.fullmatch(given["encoder"]):
            raise _wrong("encoder", f"must be {2 * DIGEST_BYTES} hexadecimal digits")
        if not 1 <= given["dims"] <= MAX_DIMS:
            raise _wrong("dims", f"is {given['dims']}, must be from 1 to {MAX_DIMS}")
        if not _VERSION.fullmatch(given["version"]):
            raise _wrong("version", "must be 16 hexadecimal digits")
        if len(given["splitter"]) > MAX_SPLITTER_CHARS:
            raise _wrong("splitter", f"has {len(given['splitter'])} characters, the limit is {MAX_SPLITTER_CHARS}")
        try:
            passages = base64.b64decode(given["passages"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise _wrong("passages", "is not base64") from error
        found = cls(
            bytes.fromhex(given["encoder"]),
            given["dims"],
            given["version"],
            given["splitter"],
            given["sentences"],
            passages,
        )
        found._check_passages()
        return found

    def _check_passages(self) -> None:
        """Check that the passages contain each sentence once and in order, and that their scales are finite."""
        if not self.passages or len(self.passages) % self._size:
            raise _wrong(
                "passages",
                f"has {len(self.passages)} bytes, must have a multiple of {self._size} bytes: 12, and 1 for each of"
                f" {self.dims} dimensions",
            )
        if self.count > MAX_PREPARED_PASSAGES:
            raise InputTooLong(
                f"vectors.passages has {self.count} passages, the limit is {MAX_PREPARED_PASSAGES}: leave the vectors"
                " out, and the shards compute them"
            )
        at = 0
        for number in range(self.count):
            first, sentences, scale = _HEAD.unpack_from(self.passages, number * self._size)
            if first != at or not sentences:
                raise _wrong("passages", f"has passage {number} with the first sentence {first}, must be {at}")
            if not np.isfinite(scale) or scale < 0:
                raise _wrong("passages", f"has passage {number} with the scale {scale}, must be finite and at least 0")
            at += sentences
        if at != self.sentences:
            raise _wrong("sentences", f"is {self.sentences}, the passages have {at} sentences")


def _wrong(name: str, fault: str) -> InvalidInput:
    return InvalidInput(f"vectors.{name[:100]} {fault}", place=f"vectors/{name[:100]}")
