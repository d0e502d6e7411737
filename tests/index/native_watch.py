"""The native watch, driven by ctypes through native/tests/test_index_shim.c."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .native_index import Native, NativeIndex, library, pack_named, vector_arguments
from .oracle import Meaning

MOST = 2**64 - 1


@dataclass
class Asked:
    """A question with the results of a ranking. The bounds are inclusive."""

    name: str
    terms: Mapping[str, tuple[int, int, int]]
    documents: Mapping[str, int]
    sentences: int
    score: float
    since: int
    bounds: tuple[int, int] = (0, MOST)
    token: int = 1
    expires: int = 2**62
    filter: bytes = b""
    meaning: Meaning | None = None


class NativeWatch(Native):
    """One watch."""

    free = "shim_watch_free"

    def __init__(self, key: int) -> None:
        """Makes an empty watch."""
        super().__init__(library().shim_watch_new(key))
        self.dropped()

    def add(self, index: NativeIndex, asked: Asked, limit: int = 1000, now: int = 0) -> bool:
        """Watch a question; return whether it is watched now."""
        numbers = (asked.sentences, *asked.bounds, asked.since, asked.token, asked.expires, limit, now)
        documents = {name: (place,) for name, place in asked.documents.items()}
        return bool(
            self.lib.shim_watch_add(
                *(self.pointer, index.pointer, asked.name.encode(), asked.score, (ctypes.c_uint64 * 8)(*numbers)),
                *(pack_named(asked.terms), len(asked.terms), pack_named(documents), len(documents)),
                *(asked.filter, len(asked.filter), *vector_arguments(asked.meaning)),
            )
        )

    def token(self, name: str, now: int = 0) -> int:
        """The token of a question; 0 if the question is not watched."""
        return int(self.lib.shim_watch_token(self.pointer, name.encode(), now))

    def removing(self, index: NativeIndex, name: str) -> None:
        """A writer calls this before it removes a document."""
        self.lib.shim_watch_removing(self.pointer, index.pointer, name.encode(), len(name.encode()))

    def adding(self, index: NativeIndex, name: str, fields: bytes, packed: bytes) -> None:
        """A writer calls this for the sentences of a new document."""
        self.lib.shim_watch_adding(self.pointer, index.pointer, name.encode(), fields, len(fields), packed, len(packed))

    def embedded(self, index: NativeIndex, name: str) -> None:
        """A writer calls this after it has changed the vectors of a document."""
        self.lib.shim_watch_embedded(self.pointer, index.pointer, name.encode(), len(name.encode()))

    def committing(self, handle: ctypes.c_void_p) -> None:
        """A writer calls this before it commits a document in parts."""
        self.lib.shim_watch_committing(self.pointer, handle)

    def settle(self, index: NativeIndex) -> None:
        """A writer calls this at the end of a write."""
        self.lib.shim_watch_settle(self.pointer, index.pointer)

    def review(self, index: NativeIndex, budget: int) -> bool:
        """Do a step of the review; return whether work is left."""
        return bool(self.lib.shim_watch_review(self.pointer, index.pointer, budget))

    def clear(self) -> None:
        """Drops all questions."""
        self.lib.shim_watch_clear(self.pointer)

    def free_left(self, budget: int) -> bool:
        """Free some memory of dropped questions; return whether more is left."""
        return bool(self.lib.shim_watch_free_left(self.pointer, budget))

    def dropped(self) -> Sequence[str]:
        """The names dropped since the last call, in any order. Many drops at once are a star and a number."""
        names = ctypes.create_string_buffer(1 << 16)
        length = self.lib.shim_watch_dropped(names)
        return names.raw[:length].decode().split()

    @property
    def count(self) -> int:
        """The number of watched questions."""
        return int(self.lib.shim_watch_count(self.pointer))

    @property
    def memory(self) -> int:
        """The memory in bytes."""
        return int(self.lib.shim_watch_memory(self.pointer))
