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
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")
LOOK_SECONDS = 0.0001

_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Aborted(asyncio.CancelledError):
    """Raised inside a function whose execution was aborted, or whose time is up; `except Exception` lets it pass."""


class CodeSection:
    """Runs code that another thread may interrupt; on one thread, and one piece of code at a time.

    The thread that runs the code does not take this object's lock: the exception may come at any call, so also between
    a lock's acquisition and the `try` that would release it. It only reads and writes single attributes, and then
    waits until no other thread is inside `interrupt`.
    """

    __slots__ = ("_interrupting", "_shielded", "_thread", "interrupted")

    def __init__(self) -> None:
        self._interrupting = threading.Lock()
        self._thread: int | None = None
        self._shielded = False
        self.interrupted = False

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """The function's result, or the exception that it raised; after that no interruption comes any more.

        Raises:
            Aborted: it was interrupted.
        """
        outer = _here.section  # a finalizer may run a section of its own in the middle of this one
        try:
            self._thread = threading.get_ident()
            _here.section = self
            return function(*arguments)
        finally:
            # The interpreter raises at the beginning of a Python function, after a call into C and in jumps back, so
            # nothing can come between the end of the code and these assignments. Two exceptions can come after them:
            # one that is pending already, and one of a thread that is inside `interrupt` now.
            self._thread = None
            _here.section = outer
            try:
                self._await_pending()
            except Aborted:
                try:  # noqa: SIM105  to make a `suppress` is a call, too, in which one can come
                    self._await_pending()
                except Aborted:
                    pass

    def _await_pending(self) -> None:
        """Let what is pending come, here; called when the code is over, so that nothing comes after it.

        The interpreter raises what is pending after a call into C, so also after the last look at the lock. (To clear
        it with a null exception would leave CPython 3.11 looking for one, slowly, after every call from then on.)
        """
        while self._interrupting.locked():
            time.sleep(LOOK_SECONDS)

    @property
    def running(self) -> bool:
        """Whether its code is on a thread now."""
        return self._thread is not None

    def interrupt(self) -> bool:
        """Raise `Aborted` in the code if it runs; may be called again, from any thread that is not in a section.

        It may come twice: where a shielded piece begins or ends, and once more as the exception that is under way.

        Returns:
            Whether the code ran. Then the exception comes, at once or at the end of a shielded piece, unless the code
            ends before.
        """
        with self._interrupting:
            thread = self._thread
            if thread is None:
                return False
            self.interrupted = True  # before the look at the shield: `shield` does it the other way round
            if not self._shielded:
                _set_async_exc(ctypes.c_ulong(thread), ctypes.py_object(Aborted))
            return True

    @property
    def is_shielded(self) -> bool:
        """Whether interruptions are put off."""
        return self._shielded

    def shield(self, *, late: bool = False) -> None:
        """Put interruptions off until `unshield`.

        If one has come already, it raises `Aborted`, unless `late`: then what is pending comes here, and is dropped,
        because `unshield` raises it again.
        """
        self._shielded = True
        if not self.interrupted:
            return
        if not late:
            self._shielded = False
            raise Aborted
        try:  # no piece that `run` could share: what is pending comes at the call of a function, too
            self._await_pending()
        except Aborted:
            try:  # noqa: SIM105  as in `run`
                self._await_pending()
            except Aborted:
                pass

    def unshield(self) -> None:
        """Allow interruptions; raises `Aborted` if one has come."""
        self._shielded = False
        if self.interrupted:
            raise Aborted


class _Here(threading.local):
    section: CodeSection | None = None


_here = _Here()


def current_section() -> CodeSection | None:
    """The section whose code runs on this thread."""
    return _here.section


@contextlib.contextmanager
def shielded(*, late: bool = False) -> Generator[None]:
    """Code that must not be interrupted half-way, such as the beginning of an atomic block; it must end by itself.

    If an interruption has come already, it raises `Aborted` and the code does not run. With `late` the code runs even
    then, and `Aborted` comes at its end: for what has to be done after an interruption, too.
    """
    section = _here.section
    if section is None or section.is_shielded:  # the outer shield ends it: a finalizer may come in the middle of one
        yield
        return
    section.shield(late=late)
    try:
        yield
    finally:
        section.unshield()
