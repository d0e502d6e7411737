"""Threads work in turns. The gate can stop all threads between two turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """A turn is a `with` block; while the gate is closed, no turn starts."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside = 0
        self.is_closed = False

    def __enter__(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: not self.is_closed)
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.inside -= 1
            self.changed.notify_all()

    @contextmanager
    def closed(self, seconds: float) -> Iterator[bool]:
        """Closes the gate and waits until no thread is in a turn; False if a turn did not end in time."""
        with self.changed:
            self.is_closed = True
            alone = self.changed.wait_for(lambda: not self.inside, seconds)
        try:
            yield alone
        finally:
            with self.changed:
                self.is_closed = False
                self.changed.notify_all()
