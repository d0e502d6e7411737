"""The worker's memory limit (`qa.worker-memory-mb`, RLIMIT_DATA): what fits, and the error when it does not.

The limit is lifted while a large reply is being received: a connection that runs out of memory half-way is lost, and
its worker with it, where an object that is there whole can be refused in words.
"""

from __future__ import annotations

import gc
import os
import resource
import threading

from qa_cluster.errors import ModelError

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_EXHAUSTED = ("bad_alloc", "bad allocation", "can't allocate memory", "failed to allocate memory", "not enough memory")


class _Limit:
    """The limit in force, and how many lift it now."""

    def __init__(self) -> None:
        self.bytes = 0  # 0: none
        self._highest = 0
        self._lifted = 0
        self._lock = threading.Lock()

    def set(self, megabytes: int, spare_megabytes: int) -> None:
        self.bytes = megabytes << 20
        self._highest = (megabytes + spare_megabytes) << 20
        self._apply()

    def lift(self, by: int) -> None:
        with self._lock:
            self._lifted += by
            self._apply()

    def _apply(self) -> None:
        if self.bytes:
            resource.setrlimit(resource.RLIMIT_DATA, (self._highest if self._lifted else self.bytes, self._highest))


_limit = _Limit()


def limit_memory(megabytes: int, spare_megabytes: int) -> None:
    """Let allocations beyond `megabytes` fail (0: no limit); `spare_megabytes` more may be had by what is received."""
    _limit.set(megabytes, spare_megabytes)


def begin_receiving() -> None:
    """Lift the limit: something large is coming."""
    _limit.lift(1)


def end_receiving() -> None:
    """It is here."""
    _limit.lift(-1)


def resident_bytes() -> int:
    """Resident memory of this process."""
    return _statm(1)


def data_bytes() -> int:
    """The memory that counts against RLIMIT_DATA."""
    return _statm(5)


def _statm(position: int) -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[position]) * _PAGE_BYTES


def check_fits(what: str, size: int, copies: int = 1) -> None:
    """Raise when memory for copies of what has `size` cannot be had: running out of it may take the worker along."""
    if not _limit.bytes or data_bytes() + size * copies <= _limit.bytes:
        return
    gc.collect()
    if data_bytes() + size * copies > _limit.bytes:
        raise too_large(what, size, copies)


def too_large(what: str, size: int, copies: int = 1) -> ModelError:
    """The error for what does not fit; reading it takes so many `copies` of it."""
    of_limit = f" of its limit of {_limit.bytes >> 20} MB" if _limit.bytes else ""
    return ModelError(
        f"the {what} of {size} bytes does not fit into the worker: it takes about {-(-size * copies >> 20)} MB to load "
        f"and {data_bytes() >> 20} MB{of_limit} are in use, "
        "raise qa.worker-memory-mb or store a smaller one"
    )


def is_exhaustion(error: BaseException) -> bool:
    """Whether an error of a runtime means that memory ran out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(mark in text for mark in _EXHAUSTED)
