"""Sections: code of a function that runs on one thread now and can be interrupted there by another thread.

The interruption is an exception that the interpreter raises in that thread when it runs bytecode again. So it does not
end a call into C that never returns (a long `time.sleep`, a socket without a timeout): whoever interrupts has to look
whether the section has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Generator
from types import TracebackType

_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Aborted(asyncio.CancelledError):
    """Raised inside a function whose execution was aborted, or whose time is up; `except Exception` lets it pass."""


class CodeSection:
    """A context manager around the code, which is entered and left on one thread, and not twice at once."""

    __slots__ = ("_lock", "_shielded", "_thread", "interrupted")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._shielded = False
        self.interrupted = False

    def __enter__(self) -> None:
        try:
            with self._lock:
                self._thread = threading.get_ident()
            _here.section = self
        except Aborted:
            self.__exit__(None, None, None)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        while True:
            # the exception may come at any place; once it is known that none comes any more, it must not stay pending
            try:
                with self._lock:
                    self._thread = None
                _drop_pending()
                _here.section = None
                return
            except Aborted:
                continue

    @property
    def running(self) -> bool:
        """Whether its code is on a thread now."""
        return self._thread is not None

    def interrupt(self) -> None:
        """Raise `Aborted` in the code if it runs; may be called again, from any thread but its own."""
        with self._lock:
            if self._thread is None:
                return
            self.interrupted = True
            if not self._shielded:
                _set_async_exc(ctypes.c_ulong(self._thread), ctypes.py_object(Aborted))

    def shield(self) -> None:
        """Put interruptions off until `unshield`; raises `Aborted` if one has come already."""
        with self._lock:
            self._shielded = True
        _drop_pending()
        if self.interrupted:
            self._shielded = False
            raise Aborted

    def unshield(self) -> None:
        """Allow interruptions; raises `Aborted` if one has come."""
        with self._lock:
            self._shielded = False
        if self.interrupted:
            raise Aborted


class _Here(threading.local):
    section: CodeSection | None = None


_here = _Here()


def _drop_pending() -> None:
    _set_async_exc(ctypes.c_ulong(threading.get_ident()), None)


@contextlib.contextmanager
def shielded() -> Generator[None]:
    """Code that must not be interrupted half-way, such as the beginning of an atomic block; it must be short."""
    section = _here.section
    if section is None:
        yield
        return
    section.shield()
    try:
        yield
    finally:
        section.unshield()
