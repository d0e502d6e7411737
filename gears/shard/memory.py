"""The worker's memory limit (`qa.worker-memory-mb`, RLIMIT_DATA), with checks before large objects are loaded.

The limit is raised while a large reply arrives. Without memory in the middle of a reply, the connection would be lost,
and the worker would end. When the reply is complete, an object that is too large can be refused with an error.
"""

from __future__ import annotations

import gc
import os
import resource
import threading

from qa_cluster.errors import ModelError

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_EXHAUSTED = ("bad_alloc", "bad allocation", "can't allocate memory", "failed to allocate memory", "not enough memory")


class TooLarge(ModelError):
    """An object does not fit into the memory limit of this process."""


class _Limit:
    """The limit, and the number of arriving replies that raise it."""

    def __init__(self) -> None:
        self.bytes = 0  # 0: no limit
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
    """Make allocations above `megabytes` fail (0: no limit). Large replies may use `spare_megabytes` more."""
    _limit.set(megabytes, spare_megabytes)


def begin_receiving() -> None:
    """Raise the memory limit of this process before a large reply arrives, until `end_receiving`."""
    _limit.lift(1)


def end_receiving() -> None:
    """Restore the memory limit after a large reply, unless another large reply is still arriving."""
    _limit.lift(-1)


def resident_bytes(process: int | str = "self") -> int:
    """Return the resident memory of this process, or of the process with this id, in bytes."""
    return _statm(1, process)


def data_bytes() -> int:
    """Return the memory of this process that counts against RLIMIT_DATA, in bytes."""
    return _statm(5)


def _statm(position: int, process: int | str = "self") -> int:
    with open(f"/proc/{process}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[position]) * _PAGE_BYTES


def check_fits(what: str, size: int, copies: int = 1) -> None:
    """Raise TooLarge if `copies` copies of an object of `size` bytes do not fit into the memory limit.

    Without a limit, every object fits. The check comes before a load, because the load could kill the worker.
    """
    if not _limit.bytes or data_bytes() + size * copies <= _limit.bytes:
        return
    gc.collect()
    if data_bytes() + size * copies > _limit.bytes:
        raise too_large(what, size, copies)


def too_large(what: str, size: int, copies: int = 1) -> TooLarge:
    """Return the error for an object that is too large. Loading the object takes memory for `copies` copies."""
    of_limit = f" of its limit of {_limit.bytes >> 20} MB" if _limit.bytes else ""
    return TooLarge(
        f"the {what} of {size} bytes does not fit into the worker: it takes about {-(-size * copies >> 20)} MB to load "
        f"and {data_bytes() >> 20} MB{of_limit} are in use, "
        "raise qa.worker-memory-mb or store a smaller one"
    )


def is_exhaustion(error: BaseException) -> bool:
    """Return whether a runtime's error means that memory ran out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(mark in text for mark in _EXHAUSTED)
