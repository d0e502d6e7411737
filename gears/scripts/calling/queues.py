"""The queue of calls that wait for a thread. Owners (registrations, sessions and executions of pipelines) take turns.

The calls of one owner start in the order in which they were added.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Generic, Protocol, TypeVar


class Owned(Protocol):
    """A call that can wait in a `TurnQueue`."""

    @property
    def owner(self) -> str:
        """The id of the registration, session or execution that the call belongs to."""
        ...


T = TypeVar("T", bound=Owned)


class TurnQueue(Generic[T]):
    """A queue of calls. While an owner has `most_each` running calls, only calls of other owners can start.

    Attributes:
        length: the number of waiting calls of all owners.
    """

    def __init__(self, most_each: int) -> None:
        self._most_each = most_each
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        self._running: Counter[str] = Counter()
        self.length = 0

    def add(self, call: T) -> None:
        """Add a call to the queue, behind the waiting calls of the same owner."""
        self._waiting.setdefault(call.owner, deque()).append(call)
        self.length += 1

    def take(self) -> T | None:
        """Take the call that may run next out of the queue, and return this call. Return None if no call may run.

        The call is the oldest call of the first owner that has fewer than `most_each` running calls. After this, the
        owner is behind all other owners in the queue. The call counts as running until `ended` is called with it.
        """
        for owner, calls in self._waiting.items():
            if self._running[owner] < self._most_each:
                call = calls.popleft()
                self._running[owner] += 1
                self.length -= 1
                if calls:
                    self._waiting.move_to_end(owner)
                else:
                    del self._waiting[owner]
                return call
        return None

    def ended(self, call: T) -> None:
        """Record the end of a call that `take` has returned. The owner of the call may then run one more call."""
        self._running[call.owner] -= 1
        if not self._running[call.owner]:
            del self._running[call.owner]

    def remove(self, call: T) -> bool:
        """Remove a waiting call; return False if the call is not in the queue, for example because it is running."""
        calls = self._waiting.get(call.owner)
        if calls is None or call not in calls:
            return False
        calls.remove(call)
        self.length -= 1
        if not calls:
            del self._waiting[call.owner]
        return True
