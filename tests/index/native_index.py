"""The native index, driven by ctypes through native/tests/test_index_shim.c."""

from __future__ import annotations

import ctypes
import math
import os
import struct
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.module.indexes import packed

from .oracle import BothHit, Condition, Fields, Meaning, Sentence, pack_condition, pack_fields
from .vectors import Passage, pack_passages

NATIVE = Path(__file__).resolve().parents[2] / "native"
ID_BYTES = 64
OK, INVALID, EXISTS, MISSING = range(4)

_TYPES = {
    "v": None,
    "p": ctypes.c_void_p,
    "z": ctypes.c_size_t,
    "i": ctypes.c_int,
    "u": ctypes.c_uint32,
    "U": ctypes.c_uint64,
    "I": ctypes.c_int64,
    "d": ctypes.c_double,
}
# The types of the result and of the arguments.
_FUNCTIONS = """
    held z, code_weight di, new pU, free vp, begin ippzpzp, add ippz, keep_open vp, open_at ppU, make_room vp,
    abort_id ippz, commit ip, abort vp, remove ippz, maintain ipI, filter pppz, filter_free vpp, rank
    ippzziUpppupipppppp, embed ippzpuuupzp, dot vippzzp, list zpppzzp, counts vpp, digest Up, next_id Up, again ppU,
    watch_new pU, watch_free vp, watch_dropped zp, watch_add ipppdppzpzpzppup, watch_token UppI, watch_removing vpppz,
    watch_adding vppppzpz, watch_embedded vpppz, watch_committing vpp, watch_settle vpp, watch_review ippI,
    watch_free_left ipI, watch_clear vp, watch_count zp, watch_memory zp
"""
# What tests have made and not yet closed. A fixture closes it.
made: list[Native] = []


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
    for name, (result, *arguments) in (each.split() for each in _FUNCTIONS.split(",")):
        function = getattr(lib, f"shim_{name}")
        function.restype, function.argtypes = _TYPES[result], [_TYPES[each] for each in arguments]
    return lib


def _ids(buffer: ctypes.Array[ctypes.c_char], count: int) -> list[str]:
    return [buffer.raw[i * ID_BYTES : (i + 1) * ID_BYTES].rstrip(b"\0").decode() for i in range(count)]


def pack_named(named: Mapping[str, Sequence[int]]) -> bytes:
    """Texts, each after its numbers and its length."""
    return b"".join(
        struct.pack(f"<{len(numbers)}QI", *numbers, len(name.encode())) + name.encode()
        for name, numbers in named.items()
    )


def vector_arguments(meaning: Meaning | None) -> tuple[object, ...]:
    """Digest, packed vector, dimensions, and the numbers of the vector."""
    if meaning is None:
        return (None, None, 0, None)
    numbers = (ctypes.c_double * 3)(meaning.weight, meaning.missing, meaning.scan_bytes)
    return (meaning.digest, meaning.vector.packed(), len(meaning.vector.values), numbers)


class Native:
    """Something of the library, which `close` frees."""

    free = ""

    def __init__(self, pointer: int) -> None:
        """Keeps the pointer, to free it at the end of the test."""
        self.lib, self.pointer = library(), pointer
        made.append(self)

    def close(self) -> None:
        """Frees it."""
        made.remove(self)
        getattr(self.lib, self.free)(self.pointer)


class NativeIndex(Native):
    """One index."""

    free = "shim_free"

    def __init__(self, key: int, pointer: int = 0) -> None:
        """Makes an empty index whose hash tables use the key."""
        super().__init__(pointer or library().shim_new(key))
        self.key = key

    def begin(self, identifier: str, fields: Fields | bytes) -> ctypes.c_void_p:
        """The handle of a new document. Its fields may be in binary form."""
        handle, name = ctypes.c_void_p(), identifier.encode()
        packed_fields = fields if isinstance(fields, bytes) else pack_fields(fields)
        status = self.lib.shim_begin(
            self.pointer, name, len(name), packed_fields, len(packed_fields), ctypes.byref(handle)
        )
        assert status == OK, identifier
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
        return int(self.lib.shim_add(handle, (rows := packed(sentences)), len(rows)))

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
        found, frequencies, totals = self._rank(terms, k, None, corpus, condition)
        return [(hit.document, hit.sentence, hit.score, hit.weights) for hit in found], frequencies, totals

    def rank_by_both(
        self,
        terms: Sequence[str],
        k: int,
        meaning: Meaning,
        corpus: tuple[int, Sequence[int]] | None = None,
        condition: Condition | None = None,
    ) -> list[BothHit]:
        """The hits of a ranking with a vector."""
        return self._rank(terms, k, meaning, corpus, condition)[0]

    def _rank(
        self,
        terms: Sequence[str],
        k: int,
        meaning: Meaning | None,
        corpus: tuple[int, Sequence[int]] | None,
        condition: Condition | None,
    ) -> tuple[list[BothHit], list[int], tuple[int, int]]:
        n = len(terms)
        sentences, given = corpus or (0, [0] * n)
        ids = ctypes.create_string_buffer(k * ID_BYTES + 1)
        scores, places = (ctypes.c_double * (3 * k + 1))(), (ctypes.c_uint32 * (3 * k + 1))()
        weights, frequencies = (ctypes.c_double * (k * n + 1))(), (ctypes.c_uint64 * (n + 1))()
        totals = (ctypes.c_uint64 * 2)()
        compiled = self.filter(condition) if condition else None
        count = self.lib.shim_rank(
            *(self.pointer, pack_named({term: (df,) for term, df in zip(terms, given, strict=True)}), n, k),
            *(corpus is not None, sentences, compiled, *vector_arguments(meaning)),
            *(meaning.distinct if meaning else False, ids, scores, places, weights, frequencies, totals),
        )
        self.lib.shim_filter_free(self.pointer, compiled)
        assert count >= 0
        hits = [
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
        return hits, list(frequencies[:n]), (totals[0], totals[1])

    def embed(
        self, identifier: str, digest: bytes, passages: Sequence[Passage], dims: int, *, done: int = 0, rest: int = 0
    ) -> int:
        """Attach passages; `rest` is the number of passages that are still missing. Return the status."""
        name, rows, problem = identifier.encode(), pack_passages(passages), ctypes.create_string_buffer(200)
        total = done + len(passages) + rest
        return int(
            self.lib.shim_embed(self.pointer, name, len(name), digest, dims, done, total, rows, len(rows), problem)
        )

    def filter(self, condition: Condition | bytes) -> int:
        """A compiled filter. Its condition may be in binary form."""
        rows = condition if isinstance(condition, bytes) else pack_condition(condition)
        compiled = self.lib.shim_filter(self.pointer, rows, len(rows))
        assert compiled, condition
        return int(compiled)

    def list(
        self, cursor: int, steps: int, count: int, condition: Condition | bytes | None = None
    ) -> tuple[list[str], int]:
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
        pointer = self.lib.shim_again(self.pointer, self.key + 1)
        assert pointer
        return NativeIndex(self.key + 1, pointer)
