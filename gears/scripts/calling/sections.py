"""Sections run the code of functions on a thread, and let another thread interrupt the code.

The interruption is an exception. The interpreter raises it when the section's thread runs the next bytecode. So an
interruption cannot end a call into C that never returns (a long `time.sleep`, a socket without a timeout). The caller
of `interrupt` must check whether the section has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")
LOOK_SECONDS = 0.0001

_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Aborted(asyncio.CancelledError):
    """Raised inside a user function that must end, for example after an abort of its execution or at its time limit.

    `except Exception` in the function does not catch this exception.
    """


class CodeSection:
    """Runs code that another thread may interrupt. A section runs one call at a time, on one thread.

    The exception of an interruption (`Aborted`) may occur at any point of the section's thread, even between taking a
    lock and the `try` that would release the lock. So the section's thread never takes the lock of the `CodeSection`.
    This thread only reads and writes single attributes, and waits until no other thread is inside `interrupt`.

    Attributes:
        interrupted: whether `interrupt` was called while code of the section was running. It stays True from then on.
    """

    __slots__ = ("_interrupting", "_shielded", "_thread", "interrupted")

    def __init__(self) -> None:
        self._interrupting = threading.Lock()
        self._thread: int | None = None
        self._shielded = False
        self.interrupted = False

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function; return its result or raise its exception. No interruption occurs after the return.

        Raises:
            Aborted: the function was interrupted.
        """
        outer = _local.section  # a finalizer may run another section in the middle of this section
        try:
            self._thread = threading.get_ident()
            _local.section = self
            return function(*arguments)
        finally:
            # The interpreter raises a pending exception only at the start of a Python function, after a call into C,
            # and in backward jumps. So no exception can occur between the end of the code and these assignments. After
            # the assignments, two exceptions are still possible: a pending exception, and an exception from a thread
            # that is inside `interrupt` now.
            self._thread = None
            _local.section = outer
            try:
                self._await_pending()
            except Aborted:
                try:  # noqa: SIM105 the exception could occur in the call that creates a `suppress`
                    self._await_pending()
                except Aborted:
                    pass

    def _await_pending(self) -> None:
        """Wait until no other thread is inside `interrupt`, so that a pending exception occurs here.

        The interpreter raises a pending exception after a call into C. So the exception occurs at the latest after the
        last check of the lock `_interrupting`, and not in later code. (`PyThreadState_SetAsyncExc` with NULL would
        clear the pending exception. But CPython 3.11 would then slowly check for exceptions after every call.)
        """
        while self._interrupting.locked():
            time.sleep(LOOK_SECONDS)

    @property
    def running(self) -> bool:
        """Whether the section's code is running on a thread."""
        return self._thread is not None

    def interrupt(self) -> bool:
        """Raise `Aborted` in the code if it is running.

        Any thread outside a section may call this method, and may repeat the call.

        `Aborted` may occur twice: at the start or end of a shielded block, and again as the pending exception.

        Returns:
            Whether the code was running. If so, `Aborted` occurs when the section's thread runs its next bytecode, or
                at the end of a shielded block. If the code ends earlier, `Aborted` does not occur.
        """
        with self._interrupting:
            thread = self._thread
            if thread is None:
                return False
            self.interrupted = True  # set before the check of the shield, because `shield` uses the reverse order
            if not self._shielded:
                _set_async_exc(ctypes.c_ulong(thread), ctypes.py_object(Aborted))
            return True

    @property
    def is_shielded(self) -> bool:
        """Whether the code is between `shield` and `unshield`, so that interruptions are postponed."""
        return self._shielded

    def shield(self, *, late: bool = False) -> None:
        """Postpone interruptions until `unshield`.

        If the code was already interrupted, raise `Aborted`. With `late`, discard the pending exception instead; then
        `unshield` raises `Aborted`.
        """
        self._shielded = True
        if not self.interrupted:
            return
        if not late:
            self._shielded = False
            raise Aborted
        try:  # a copy of the code in `run`, because a pending exception also occurs at the call of a function
            self._await_pending()
        except Aborted:
            try:  # noqa: SIM105  as in `run`
                self._await_pending()
            except Aborted:
                pass

    def unshield(self) -> None:
        """Allow interruptions; raises `Aborted` if the code was interrupted."""
        self._shielded = False
        if self.interrupted:
            raise Aborted


class _ThreadLocal(threading.local):
    section: CodeSection | None = None


_local = _ThreadLocal()


def current_section() -> CodeSection | None:
    """Return the section whose code runs on this thread; None if no section runs on it."""
    return _local.section


@contextlib.contextmanager
def shielded(*, late: bool = False) -> Generator[None]:
    """Run a short block that must not be interrupted in the middle, such as the start of an atomic block.

    If the code was already interrupted, raise `Aborted` and do not run the block. With `late`, run the block in this
    case too, and raise `Aborted` at its end. Use `late` for work that an interruption must not prevent.

    If no section runs on this thread, or if the thread is already inside a shielded block, only run the block.
    """
    section = _local.section
    if section is None or section.is_shielded:  # no section, or already inside a shield, for example in a finalizer
        yield
        return
    section.shield(late=late)
    try:
        yield
    finally:
        section.unshield()
