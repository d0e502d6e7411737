"""Delivers each message of a run once and in order, over the servers' cluster bus, which loses messages.

The bus drops messages when the connection between two servers breaks. In a new cluster, it also drops messages from
nodes that are unknown to the receiver, or whose signing key the receiver does not have. So the messages of a run from
one shard to another are numbered from 1. The sender stores a message and resends it until the receiver acknowledges it.
A *receipt* for a number acknowledges all messages up to this number. The receiver processes each number once, and in
order. Before it takes part in the run, the receiver stores messages only for some seconds and acknowledges no message.
So the sender resends all dropped messages.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ...shard.failures import GearsError
from ...shard.messages import sent

logger = logging.getLogger(__name__)
AGAIN_SECONDS = 0.5
AT_ONCE = 64
"""The maximum number of messages of a run that are resent to one shard at a time. Usually one message was lost, and the
receiver has the rest.
"""
MAX_HELD_MESSAGES = 4096
MAX_HELD_RUNS = 64
EARLY_SECONDS = 5.0
"""Messages are dropped if their run has not started on this shard within this time after the first message. Usually the
request to start the run arrives only some ms after this message.
"""
MAX_BYTES = 512 << 20
MAX_KNOWN = 10_000


class Numbered(Protocol):
    """A message of a run. A message with the number 0 is sent once and not acknowledged."""

    @property
    def id(self) -> str:
        """The id of the run."""

    @property
    def number(self) -> int:
        """The number of the message among its sender's messages to this receiver in this run."""

    @property
    def size(self) -> int:
        """The size of the message's pickled records in bytes; 0 without records."""


@sent
@dataclass(frozen=True, slots=True)
class Receipt:
    """Acknowledges the messages of a run with the numbers 1 to `number`.

    With the number `UP_TO_ALL`, the receipt acknowledges all messages, because the run has ended on the shard that
    sends the receipt.
    """

    id: str
    number: int


UP_TO_ALL = 1 << 60


class Recent:
    """A set of the `most` newest names, which are ids of runs. Older names are dropped."""

    def __init__(self, most: int = MAX_KNOWN) -> None:
        self._most = most
        self._names: OrderedDict[str, None] = OrderedDict()

    def add(self, name: str) -> None:
        """Add a name, and drop the oldest names above the limit. A name that is already in the set keeps its age."""
        self._names[name] = None
        while len(self._names) > self._most:
            self._names.popitem(last=False)

    def __contains__(self, name: str) -> bool:
        return name in self._names


@dataclass(slots=True)
class _Unacknowledged:
    kind: str
    message: Any
    sent_at: float


@dataclass(slots=True)
class _Outgoing:
    """The messages of a run that a certain shard has not acknowledged.

    Attributes:
        last: the number of the last message to the shard; 0 before the first message.
        problem: the error of the last send to the shard; empty if this send succeeded.
        bytes: the size of the records in `kept`.
        kept: the messages without a receipt, by their numbers, in ascending order.
    """

    last: int = 0
    problem: str = ""
    bytes: int = 0
    kept: OrderedDict[int, _Unacknowledged] = field(default_factory=OrderedDict)


class Sending:
    """Sends the numbered messages of this shard, and stores each message until it is acknowledged.

    Any thread may send. The constructor gets a function `send`, which is called with a node id, the kind of a message
    and the message. This function sends the message once, or raises GearsError.
    """

    def __init__(self, send: Callable[[str, str, Any], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, dict[str, _Outgoing]] = {}
        self._over = Recent()

    def send(self, node: str, kind: str, message: Any) -> None:
        """Send a message of a run with the next number to the shard `node`, now or as soon as possible (`resend`).

        Raise GearsError if the shard would then have more than `MAX_BYTES` of the run's records to acknowledge. Do
        nothing if the run has ended on this shard (`forget`).
        """
        with self._lock:
            if message.id in self._over:  # the sender is a thread that continues after its run
                return
            outgoing = self._runs.setdefault(message.id, {}).setdefault(node, _Outgoing())
            if outgoing.bytes + message.size > MAX_BYTES:
                raise GearsError(
                    f"ERR run {message.id} has more than {MAX_BYTES >> 20} MiB of records that shard {node} has not"
                    " confirmed"
                )
            outgoing.last += 1
            kept = _Unacknowledged(kind, replace(message, number=outgoing.last), self._clock())
            outgoing.kept[outgoing.last] = kept
            outgoing.bytes += message.size
        self._try(message.id, node, kept)

    def confirmed(self, node: str, receipt: Receipt) -> None:
        """Drop the messages that the shard `node` has acknowledged (message ``receipt``)."""
        with self._lock:
            outgoing = self._runs.get(receipt.id, {}).get(node)
            while outgoing is not None and outgoing.kept and next(iter(outgoing.kept)) <= receipt.number:
                _, kept = outgoing.kept.popitem(last=False)
                outgoing.bytes -= kept.message.size

    def resend(self, run_id: str) -> bool:
        """Resend the messages of a run that have no receipt `AGAIN_SECONDS` after their last send.

        Only the oldest `AT_ONCE` messages to each shard are resent. Return whether any message of the run has no
        receipt.
        """
        now = self._clock()
        due: list[tuple[str, _Unacknowledged]] = []
        waits = False
        with self._lock:
            for node, outgoing in self._runs.get(run_id, {}).items():
                waits = waits or bool(outgoing.kept)
                for kept in list(outgoing.kept.values())[:AT_ONCE]:
                    if now - kept.sent_at >= AGAIN_SECONDS:
                        kept.sent_at = now
                        due.append((node, kept))
        for node, kept in due:
            self._try(run_id, node, kept)
        return waits

    def _try(self, run_id: str, node: str, kept: _Unacknowledged) -> None:
        problem = ""
        try:
            self._send(node, kept.kind, kept.message)
        except GearsError as error:  # for example, this server does not know the node yet; `resend` tries again
            problem = str(error)
        with self._lock:
            outgoing = self._runs.get(run_id, {}).get(node)
            if outgoing is None or outgoing.problem == problem:
                return
            outgoing.problem = problem
        if problem:
            logger.warning("run %s: shard %s gets its messages later: %s", run_id, node, problem)

    def problems(self, run_id: str) -> list[str]:
        """Return a line of text for each shard to which the last send of a message of the run has failed.

        The line has the id of the shard and the error.
        """
        with self._lock:
            shards = self._runs.get(run_id, {}).items()
            return [f"shard {node}: {outgoing.problem}" for node, outgoing in shards if outgoing.problem]

    def forget(self, run_id: str) -> None:
        """Drop all messages of a run, and send no more messages of this run."""
        with self._lock:
            self._runs.pop(run_id, None)
            self._over.add(run_id)


@dataclass(slots=True)
class _Incoming:
    """The received but unprocessed messages of a run from one shard.

    Attributes:
        taken: the number of the last processed message; 0 before the first message.
        held: the messages that wait for a message with a smaller number, by their numbers.
    """

    taken: int = 0
    held: dict[int, Any] = field(default_factory=dict)


class Arrivals:
    """The received but unprocessed messages of all runs, in order and without duplicates.

    Only the worker's event loop uses this object. `sender` is the node id of the shard that has sent a message.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs: dict[str, dict[str, _Incoming]] = {}
        # the ids of the runs that have not started on this shard, and the arrival times of their first messages
        self._early: OrderedDict[str, float] = OrderedDict()
        self._bytes = 0

    def begin(self, run_id: str) -> None:
        """Record the start of a run on this shard.

        After this, the messages of the run do not expire, and are not dropped to make space for other runs.
        """
        self._runs.setdefault(run_id, {})
        self._early.pop(run_id, None)

    def hold(self, sender: str, message: Numbered) -> None:
        """Store a message until all messages with smaller numbers have arrived from its sender (`due`).

        Drop duplicates, and messages above the limits, which will be resent. If too many runs have not started on this
        shard, drop the messages of the oldest of these runs.
        """
        if message.id not in self._runs:
            self._early[message.id] = self._clock()
            if len(self._early) > MAX_HELD_RUNS:
                self.forget(next(iter(self._early)))
        incoming = self._runs.setdefault(message.id, {}).setdefault(sender, _Incoming())
        if message.number <= incoming.taken or message.number in incoming.held:
            return
        full = len(incoming.held) >= MAX_HELD_MESSAGES or self._bytes + message.size > MAX_BYTES
        if (
            full and message.number != incoming.taken + 1
        ):  # the next message in order is stored at the limit too, because other messages wait for it
            return
        incoming.held[message.number] = message
        self._bytes += message.size

    def expire(self) -> float | None:
        """Drop the messages of runs that have not started within `EARLY_SECONDS`.

        Return the seconds until the messages of the next run expire, or None if no messages can expire.

        No message is lost, because the sender resends messages without a receipt.
        """
        oldest = self._clock() - EARLY_SECONDS
        while self._early:
            run_id, came = next(iter(self._early.items()))
            if came > oldest:
                return came - oldest
            self.forget(run_id)
        return None

    def due(self, run_id: str, sender: str) -> list[Any]:
        """Return the messages of a sender that are next in order, and count these messages as processed.

        The list ends before the first number whose message has not arrived.
        """
        incoming = self._runs.get(run_id, {}).get(sender)
        found = []
        while incoming is not None and incoming.taken + 1 in incoming.held:
            incoming.taken += 1
            message = incoming.held.pop(incoming.taken)
            self._bytes -= message.size
            found.append(message)
        return found

    def senders(self, run_id: str) -> list[str]:
        """Return the node ids of the shards that have sent a message for a run."""
        return list(self._runs.get(run_id, {}))

    def taken(self, run_id: str, sender: str) -> int:
        """Return the number of the last processed message of a sender; 0 if no message was processed."""
        incoming = self._runs.get(run_id, {}).get(sender)
        return incoming.taken if incoming is not None else 0

    def forget(self, run_id: str) -> None:
        """Drop all messages of a run, and forget which of its messages were processed."""
        self._early.pop(run_id, None)
        for incoming in self._runs.pop(run_id, {}).values():
            self._bytes -= sum(message.size for message in incoming.held.values())
