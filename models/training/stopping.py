"""How a run stops at Ctrl-C or SIGTERM."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """The run was stopped. If the teacher was still computing outputs, the finished outputs are saved. Otherwise, the
    state of the run is saved.
    """


class StopRequest:
    """A request to stop the run. `received` is the number of the signal that asked for the stop; 0 if no signal has
    arrived yet.
    """

    received = 0


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Make the first Ctrl-C or SIGTERM request a stop, and yield the request. A second signal has its usual effect, so
    it ends the run at once. Outside the main thread, signals are not changed.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _frame: FrameType | None) -> None:
        stop.received = number
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
