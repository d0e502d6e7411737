"""Makes each thread that a function starts run in the function's context, with its execution and its caller's rights.

In Python 3.11, a new thread has an empty context. Without this module, a function with its caller's rights could start
a thread with the worker's rights.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .executions import current

_start = threading.Thread.start
_submit = ThreadPoolExecutor.submit
_add_done_callback = Future.add_done_callback


def _start_in_context(self: threading.Thread) -> None:
    if current.get() is not None:
        context, run = contextvars.copy_context(), self.run
        self.run = lambda: context.run(run)  # type: ignore[method-assign]
    _start(self)


def _submit_in_context(
    self: ThreadPoolExecutor, fn: Callable[..., Any], /, *arguments: Any, **options: Any
) -> Future[Any]:
    # Without the copied context, the function would run in the context of the call that made the pool create its
    # thread.
    return _submit(self, contextvars.copy_context().run, fn, *arguments, **options)


def _add_done_callback_in_context(self: Future[Any], fn: Callable[[Future[Any]], object]) -> None:
    # A pool's thread calls `fn` outside of the submitted function, and so outside of the function's context.
    context = contextvars.copy_context()
    _add_done_callback(self, lambda done: context.run(fn, done))


def inherit_contexts() -> None:
    """Make threads, submitted functions and callbacks run in the context of the code that adds them."""
    threading.Thread.start = _start_in_context  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = _submit_in_context  # type: ignore[method-assign, assignment]
    Future.add_done_callback = _add_done_callback_in_context  # type: ignore[method-assign]
