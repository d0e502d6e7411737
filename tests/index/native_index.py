"""The native index, driven by ctypes through native/tests/test_index_shim.c."""

from __future__ import annotations

import ctypes
import math
import os
import struct
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from .oracle import BothHit, Condition, Fields, Meaning, Sentence, pack_condition, pack_fields, pack_sentences
from .vectors import Passage, pack_passages

NATIVE = Path(__file__).resolve().parents[2] / "native"
ID_BYTES = 64
OK, INVALID, EXISTS, MISSING = range(4)


@cache
def library() -> ctypes.CDLL:
    """Builds and opens the library; a file lock lets one test process build at a time."""
    subprocess.run(
        ["flock", ".", "make", "--silent", "--no-print-directory", "build/check/libindex.so"],
        cwd=NATIVE,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
    )
    lib = ctypes.CDLL(str(NATIVE / "build/check/libindex.so"))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, result, arguments in (
        ("held", size, []),
        ("code_weight", ctypes.c_double, [ctypes.c_int]),
        ("new", pointer, [ctypes.c_uint64]),
        ("free", None, [pointer]),
        ("begin", ctypes.c_int, [pointer, ctypes.c_char_p, size, ctypes.c_char_p, size, pointer]),
        ("add", ctypes.c_int, [pointer, ctypes.c_char_p, size]),
        ("keep_open", None, [pointer]),
        ("open_at", pointer, [pointer, ctypes.c_uint64]),
        ("make_room", None, [pointer]),
        ("abort_id", ctypes.c_int, [pointer, ctypes.c_char_p, size]),
        ("commit", ctypes.c_int, [pointer]),
        ("abort", None, [pointer]),
        ("remove", ctypes.c_int, [pointer, ctypes.c_char_p, size]),
        ("maintain", ctypes.c_int, [pointer, ctypes.c_int64]),
        ("filter", pointer, [pointer, ctypes.c_char_p, size]),
        ("filter_free", None, [pointer, pointer]),
        (
            "rank",
            ctypes.c_int,
            [pointer, ctypes.c_char_p, size, size, ctypes.c_int, ctypes.c_uint64, pointer, *[pointer] * 6],
        ),
        (
            "embed",
            ctypes.c_int,
            [pointer, ctypes.c_char_p, size, ctypes.c_char_p, *[ctypes.c_uint32] * 3, ctypes.c_char_p, size, pointer],
        ),
        (
            "rank_by_both",
            ctypes.c_int,
            [
                *[pointer, ctypes.c_char_p, size, size, ctypes.c_int, ctypes.c_uint64, pointer],
                *[ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32, pointer, ctypes.c_int, *[pointer] * 4],
            ],
        ),
        ("dot", None, [ctypes.c_int, pointer, pointer, size, size, pointer]),
        ("list", size, [pointer, pointer, pointer, size, size, pointer]),
        ("counts", None, [pointer, pointer]),
        ("digest", ctypes.c_uint64, [pointer]),
        ("next_id", ctypes.c_uint64, [pointer]),
        ("again", pointer, [pointer, ctypes.c_uint64]),
    ):
        function = getattr(lib, f"shim_{name}")
        function.restype, function.argtypes = result, arguments
    return lib


def _ids(buffer: ctypes.Array[ctypes.c_char], count: int) -> list[str]:
    return [buffer.raw[i * ID_BYTES : (i + 1) * ID_BYTES].rstrip(b"\0").decode() for i in range(count)]


class NativeIndex:
    """One index; freed by `close`."""

    def __init__(self, key: int) -> None:
        """Makes an empty index whose hash tables use the key."""
        self.lib = library()
        self.key = key
        self.pointer = self.lib.shim_new(key)

    def close(self) -> None:
        """Frees the index with its open documents."""
        self.lib.shim_free(self.pointer)

    def begin(self, identifier: str, fields: Fields) -> ctypes.c_void_p:
        """The handle of a new document."""
        handle, packed, name = ctypes.c_void_p(), pack_fields(fields), identifier.encode()
        assert self.lib.shim_begin(self.pointer, name, len(name), packed, len(packed), ctypes.byref(handle)) == OK, (
            identifier
        )
        return handle

    def keep_open(self, handle: ctypes.c_void_p) -> None:
        """Keep the document open."""
        self.lib.shim_keep_open(handle)

    def open_at(self, place: int) -> ctypes.c_void_p:
        """The handle of the open document at a place; its value is None without an open document."""
        return ctypes.c_void_p(self.lib.shim_open_at(self.pointer, place))

    def make_room(self) -> None:
        """Abort the oldest open documents until another document can be opened."""
        self.lib.shim_make_room(self.pointer)

    def abort_id(self, identifier: str) -> bool:
        """Abort the open document with this id; return whether there was one."""
        name = identifier.encode()
        return bool(self.lib.shim_abort_id(self.pointer, name, len(name)))

    def add(self, handle: ctypes.c_void_p, sentences: Sequence[Sentence]) -> int:
        """Add sentences to an open document; return the status."""
        return int(self.lib.shim_add(handle, pack_sentences(sentences), len(sentences)))

    def commit(self, handle: ctypes.c_void_p) -> int:
        """Commit an open document; return the status."""
        return int(self.lib.shim_commit(handle))

    def abort(self, handle: ctypes.c_void_p) -> None:
        """Discards an open document."""
        self.lib.shim_abort(handle)

    def remove(self, identifier: str) -> int:
        """Remove a document; return the status."""
        return int(self.lib.shim_remove(self.pointer, identifier.encode(), len(identifier.encode())))

    def maintain(self, budget: int) -> bool:
        """Do a step of maintenance; return whether work is left."""
        return bool(self.lib.shim_maintain(self.pointer, budget))

    def rank(
        self,
        terms: Sequence[str],
        k: int,
        corpus: tuple[int, Sequence[int]] | None = None,
        condition: Condition | None = None,
    ) -> tuple[list[tuple[str, int, float, tuple[float, ...]]], list[int], tuple[int, int]]:
        """Hits, frequencies, and live sentences and terms."""
        n = len(terms)
        sentences, given = corpus or (0, [0] * n)
        packed = b"".join(
            struct.pack("<QI", df, len(term.encode())) + term.encode() for df, term in zip(given, terms, strict=True)
        )
        ids = ctypes.create_string_buffer(k * ID_BYTES + 1)
        numbers, scores = (ctypes.c_uint32 * (k + 1))(), (ctypes.c_double * (k + 1))()
        weights, df = (ctypes.c_double * (k * n + 1))(), (ctypes.c_uint64 * (n + 1))()
        totals = (ctypes.c_uint64 * 2)()
        compiled = self.filter(condition) if condition else None
        count = self.lib.shim_rank(
            self.pointer,
            packed,
            n,
            k,
            corpus is not None,
            sentences,
            compiled,
            ids,
            numbers,
            scores,
            weights,
            df,
            totals,
        )
        self.lib.shim_filter_free(self.pointer, compiled)
        assert count >= 0
        hits = [
            (name, numbers[i], scores[i], tuple(weights[i * n : (i + 1) * n]))
            for i, name in enumerate(_ids(ids, count))
        ]
        return hits, list(df[:n]), (totals[0], totals[1])

    def embed(
        self, identifier: str, digest: bytes, passages: Sequence[Passage], dims: int, *, done: int = 0, rest: int = 0
    ) -> int:
        """Attach passages; `rest` is the number of passages that are still missing. Return the status."""
        name, packed, problem = identifier.encode(), pack_passages(passages), ctypes.create_string_buffer(200)
        total = done + len(passages) + rest
        return int(
            self.lib.shim_embed(self.pointer, name, len(name), digest, dims, done, total, packed, len(packed), problem)
        )

    def rank_by_both(
        self,
        terms: Sequence[str],
        k: int,
        meaning: Meaning,
        corpus: tuple[int, Sequence[int]] | None = None,
        condition: Condition | None = None,
    ) -> list[BothHit]:
        """The hits of a ranking with a vector."""
        n = len(terms)
        sentences, given = corpus or (0, [0] * n)
        packed = b"".join(
            struct.pack("<QI", df, len(term.encode())) + term.encode() for df, term in zip(given, terms, strict=True)
        )
        ids = ctypes.create_string_buffer(k * ID_BYTES + 1)
        scores, places = (ctypes.c_double * (3 * k + 1))(), (ctypes.c_uint32 * (3 * k + 1))()
        weights = (ctypes.c_double * (k * n + 1))()
        compiled = self.filter(condition) if condition else None
        count = self.lib.shim_rank_by_both(
            self.pointer,
            packed,
            n,
            k,
            corpus is not None,
            sentences,
            compiled,
            meaning.digest,
            meaning.vector.packed(),
            len(meaning.vector.values),
            (ctypes.c_double * 3)(meaning.weight, meaning.missing, meaning.scan_bytes),
            meaning.distinct,
            ids,
            scores,
            places,
            weights,
        )
        self.lib.shim_filter_free(self.pointer, compiled)
        assert count >= 0
        return [
            BothHit(
                name,
                places[3 * i],
                scores[3 * i],
                scores[3 * i + 1],
                None if math.isnan(scores[3 * i + 2]) else scores[3 * i + 2],
                (places[3 * i + 1], places[3 * i + 2]),
                tuple(weights[i * n : (i + 1) * n]),
            )
            for i, name in enumerate(_ids(ids, count))
        ]

    def filter(self, condition: Condition) -> int:
        """A compiled filter."""
        packed = pack_condition(condition)
        compiled = self.lib.shim_filter(self.pointer, packed, len(packed))
        assert compiled, condition
        return int(compiled)

    def list(self, cursor: int, steps: int, count: int, condition: Condition | None = None) -> tuple[list[str], int]:
        """Ids of documents and the next cursor."""
        at, ids = ctypes.c_uint64(cursor), ctypes.create_string_buffer(count * ID_BYTES + 1)
        compiled = self.filter(condition) if condition else None
        found = self.lib.shim_list(self.pointer, ctypes.byref(at), compiled, steps, count, ids)
        self.lib.shim_filter_free(self.pointer, compiled)
        return _ids(ids, found), at.value

    def counts(self) -> dict[str, int]:
        """All counts."""
        out = (ctypes.c_uint64 * 9)()
        self.lib.shim_counts(self.pointer, out)
        names = "documents sentences terms distinct_terms postings dead_postings open_documents bytes id_bytes"
        return dict(zip(names.split(), out, strict=True))

    def digest(self) -> int:
        """A digest of the logical content."""
        return int(self.lib.shim_digest(self.pointer))

    def next_id(self) -> int:
        """The next id that the index gives."""
        return int(self.lib.shim_next_id(self.pointer))

    def again(self) -> NativeIndex:
        """A copy that was saved and loaded, with another hash key."""
        other = object.__new__(NativeIndex)
        other.lib, other.key = self.lib, self.key + 1
        other.pointer = self.lib.shim_again(self.pointer, other.key)
        assert other.pointer
        return other
