"""The state of each stream registration, and of each stream that the worker reads for a registration."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field

from ..runs.sources import StreamSource
from .sessions import Registration, ScriptSession

# an entry of a stream: its id, and its fields and values in turn
Entry = tuple[bytes, list[bytes]]
# the names of consumers in the consumer group of each stream
CONSUMER = "__gears_client__"
SECOND_CONSUMER = "__gears_client__:second"


class Phase(enum.Enum):
    """The states of a stream.

    - IDLE: nothing is to be done.
    - QUEUED: the stream waits until the worker may read its next batch (`MAX_RUNNING` in `streams.py`).
    - RUNNING: the worker reads or runs a batch.
    - RETRYING: the worker waits before it reads the stream again, after an error or a failed batch.
    """

    IDLE = enum.auto()
    QUEUED = enum.auto()
    RUNNING = enum.auto()
    RETRYING = enum.auto()


class Delivery(enum.IntEnum):
    """The kinds of entries, in the order of reading. Redis delivers an entry when it sends the entry to a consumer.

    - SECOND: delivered but unacknowledged entries whose second run has already started.
    - FIRST: all other delivered but unacknowledged entries.
    - NEW: entries that were not delivered yet.
    """

    SECOND = 0
    FIRST = 1
    NEW = 2


# the consumer whose entries a read of each kind gets
CONSUMERS = {Delivery.SECOND: SECOND_CONSUMER, Delivery.FIRST: CONSUMER, Delivery.NEW: CONSUMER}


@dataclass(slots=True, eq=False)
class Stream:
    """A stream of a registration, and the entries that were read for the registration but not acknowledged."""

    key: bytes
    phase: Phase = Phase.IDLE
    # whether to read the stream again after the current phase, for example because entries were added meanwhile
    again: bool = False
    entries: list[Entry] = field(default_factory=list)
    # whether an ended registration may have left unacknowledged entries, to be read when `entries` is empty
    left_over: bool = False
    # whether the stream is known to have the consumer group
    has_group: bool = False
    # the kind of the entries that are in `entries` or are read next
    delivery: Delivery = Delivery.SECOND
    # reading of delivered entries continues after this id
    cursor: bytes = b"0"
    # the time (`time.monotonic`) when the first new entry of the unfinished batch arrived
    waiting_since: float = 0.0
    # wakes the stream when the option `duration` or the pause before a retry is over
    timer: asyncio.TimerHandle | None = None
    # whether the entries are the rest of an aborted batch, which does not wait for a full batch
    cut_short: bool = False

    def start_over(self) -> None:
        """Forget the entries that were read, and make the next read start at the first unacknowledged entry."""
        self.entries.clear()
        self.left_over = False
        self.delivery, self.cursor = Delivery.SECOND, b"0"

    def stop_timer(self) -> None:
        """Stop waiting for a batch to fill or for a retry."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@dataclass(slots=True, eq=False)
class Consumer:
    """A registration that reads streams, and the state of its streams by key.

    This class is not a consumer of the consumer group: all registrations share the consumers in `CONSUMERS`.
    """

    session: ScriptSession
    registration: Registration
    source: StreamSource
    streams: dict[bytes, Stream] = field(default_factory=dict)
    paused: bool = False
    # whether the registration was unregistered, replaced, or stopped by `onFailedPolicy="abort"`
    ended: bool = False

    @property
    def stopped(self) -> bool:
        """Whether no batch may start, because the registration is paused or has ended."""
        return self.paused or self.ended
