"""The state of each stream registration, and of each stream that the worker reads for a registration."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field

from ..runs.sources import StreamSource
from .sessions import Registration, ScriptSession

Entry = tuple[bytes, list[bytes]]
CONSUMER = "__gears_client__"
SECOND_CONSUMER = "__gears_client__:second"


class Phase(enum.Enum):
    """The states of a stream.

    - IDLE: nothing is to be done.
    - QUEUED: the stream waits until the worker may read its next batch.
    - RUNNING: the worker reads or runs a batch.
    - RETRYING: the worker waits after an error.
    """

    IDLE = enum.auto()
    QUEUED = enum.auto()
    RUNNING = enum.auto()
    RETRYING = enum.auto()


class Delivery(enum.IntEnum):
    """The kinds of entries, in the order of reading.

    - SECOND: delivered entries whose second run has already started.
    - FIRST: other delivered entries that are not acknowledged.
    - NEW: entries that were not delivered.
    """

    SECOND = 0
    FIRST = 1
    NEW = 2


CONSUMERS = {Delivery.SECOND: SECOND_CONSUMER, Delivery.FIRST: CONSUMER, Delivery.NEW: CONSUMER}


@dataclass(slots=True, eq=False)
class Stream:
    """A stream of a registration, and its entries that were read but not acknowledged."""

    key: bytes
    phase: Phase = Phase.IDLE
    # whether entries were added while the phase was not IDLE
    again: bool = False
    entries: list[Entry] = field(default_factory=list)
    # whether an ended registration may have left unacknowledged entries, to be read when `entries` is empty
    left_over: bool = False
    has_group: bool = False
    delivery: Delivery = Delivery.SECOND
    # reading of delivered entries continues after this id
    cursor: bytes = b"0"
    waiting_since: float = 0.0
    timer: asyncio.TimerHandle | None = None
    # whether the entries are the rest of an aborted batch, which does not wait for a full batch
    cut_short: bool = False

    def start_over(self) -> None:
        """Make the next read start at the first unacknowledged entry."""
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
    """A registration that reads streams. All registrations share the consumers of the consumer group (`CONSUMERS`)."""

    session: ScriptSession
    registration: Registration
    source: StreamSource
    streams: dict[bytes, Stream] = field(default_factory=dict)
    paused: bool = False
    # whether it was unregistered, replaced, or stopped by `onFailedPolicy="abort"`
    ended: bool = False

    @property
    def stopped(self) -> bool:
        """Whether no batch may begin."""
        return self.paused or self.ended
