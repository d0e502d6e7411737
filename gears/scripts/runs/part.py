"""One shard's part of a run over all shards: the packets for its stages, and the routing of its records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle

from qa_cluster.keys import slot
from qa_cluster.topology import Topology

from ...shard.failures import GearsError
from ...shard.messages import sent
from ..calling.strands import Strand
from ..calling.threads import FunctionPool
from ..host.executions import Execution
from .pipeline import Chain, Turns, key_text
from .plan import ExecutionPlan, Step, StepKind

RECORDS_PER_MESSAGE = 200
MAX_WAITING_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class StartRun:
    """What a shard needs to take part in a run. The origin pickles it into a `RunRequest`.

    Attributes:
        id: the id of the run, which is also the id of the execution on each shard.
        origin: the node id of the shard where the run starts.
        session_id: the id of the session whose functions run; None if they belong to no session.
        topology: the table of slots that all shards use for the whole run.
        max_idle_seconds: the time without progress after which the run ends with an error.
        user: the ACL user whose rights the functions have; empty if they have the worker's rights.
    """

    id: str
    origin: str
    session_id: str | None
    plan: ExecutionPlan
    topology: Topology
    max_idle_seconds: float
    user: str
    pool: FunctionPool = FunctionPool.RUNS
    # the id of the registration that has the steps; empty if `plan` has the steps
    registration_id: str = ""
    # whether the history of each shard lists the run only until its end
    until_end: bool = False


@sent
@dataclass(frozen=True, slots=True)
class Packet:
    """Pickled records for a stage. A packet without records is the end marker of the shard that sends it.

    Attributes:
        id: the id of the run.
        stage: the number of the stage in the plan, from 0.
        records: the pickled list of records; None for an end marker.
        number: the number of the message (`delivery.py`).
    """

    id: str
    stage: int
    records: bytes | None
    number: int = 0

    @property
    def size(self) -> int:
        """The size of the pickled records in bytes; 0 for an end marker."""
        return len(self.records or b"")


@sent
@dataclass(frozen=True, slots=True)
class PartState:
    """A shard's report to the origin of a run: the shard is working, is done, or refuses to take part.

    A report that a shard is working has the number 0, so it is not resent, because the next report replaces it.

    Attributes:
        id: the id of the run.
        done: whether this is the last report of the shard.
        errors: the errors of the shard's part.
        failure: the first error as one line; None without an error.
        refused: whether the shard does not take part, and sends no records and end markers.
        number: the number of the message (`delivery.py`).
    """

    id: str
    done: bool
    errors: tuple[str, ...] = ()
    failure: str | None = None
    refused: bool = False
    number: int = 0

    @property
    def size(self) -> int:
        """0, because a report has no records."""
        return 0


class RunPart:
    """This shard's part of a run.

    The stages, with the functions and the sending of records, run on the strand. Received messages and time limits are
    handled on the worker's event loop.

    Attributes:
        own: the node id of this shard.
        nodes: the node ids of all shards that take part; `others` has the same ids without this shard.
        last_progress: the time of the last progress, on the clock of `time.monotonic`.
        unfinished: on the origin, the ids of the other shards that have not reported their end; empty on other shards.
        responding: on the origin, the ids of the other shards that have accepted the request to take part or sent a
            report.
        all_done: is set when `unfinished` is empty.
    """

    def __init__(self, start: StartRun, own: str, execution: Execution, strand: Strand) -> None:
        self.start = start
        self.strand = strand
        self.own = own
        self.execution = execution
        self.nodes = [shard.node_id for shard in start.topology.shards]
        self.others = [node for node in self.nodes if node != own]
        self.is_origin = own == start.origin
        self.turns = Turns()
        self.last_progress = time.monotonic()
        self.last_led = 0.0  # the time (`time.monotonic`) of the origin's last reply that the origin leads the run
        # two numbers, because the worker's event loop counts arrivals, and the strand counts taken bytes
        self.arrived_bytes = self.taken_bytes = 0
        self.unfinished = set(self.others) if self.is_origin else set()
        self.responding: set[str] = set()
        self.all_done = asyncio.Event()
        # Has a result when a shard refuses to take part: the error, or None if the shard has reported the error itself.
        self.refusal: asyncio.Future[GearsError | None] = asyncio.get_running_loop().create_future()
        self.receipts_due = False
        self.beginning = False  # whether the part waits for `onRegistered` of its registration
        self.chain: Chain | None = None  # the steps of the current stage
        self._inboxes: dict[int, asyncio.Queue[bytes | None]] = {}
        if not self.unfinished:
            self.all_done.set()

    @property
    def at_work(self) -> bool:
        """Whether a function of this part runs on a thread, or waits for something other than records.

        A function may wait for a thread, a coroutine, a future or the `onRegistered` of its registration.
        """
        return self.beginning or self.strand.is_running() or (self.chain is not None and self.chain.waits)

    def refuse(self, error: GearsError | None = None) -> None:
        """End the run, because a shard refuses to take part.

        `error` becomes the error of the run; None means that the shard has reported the error itself.
        """
        if not self.refusal.done():
            self.refusal.set_result(error)

    def inbox(self, stage: int) -> asyncio.Queue[bytes | None]:
        """Return the queue of the received packets for a stage: pickled records, or None for an end marker."""
        return self._inboxes.setdefault(stage, asyncio.Queue())

    def put(self, stage: int, records: bytes | None) -> None:
        """Add pickled records, or an end marker (None), to the queue of a stage.

        If more than `MAX_WAITING_BYTES` of records would wait in this part, raise GearsError and drop the records.
        """
        self.last_progress = time.monotonic()
        self.arrived_bytes += len(records or b"")
        if self.arrived_bytes - self.taken_bytes > MAX_WAITING_BYTES:
            raise GearsError(f"ERR run {self.start.id} has more than {MAX_WAITING_BYTES >> 20} MiB of records waiting")
        self.strand.call_soon_threadsafe(self.inbox(stage).put_nowait, records)


class Outbox:
    """Sends the records from a stage to the shards of the next stage.

    `boundary` is the step between the two stages, and `stage` is the number of the next stage. `send` sends a packet to
    the shard with a node id.
    """

    def __init__(self, part: RunPart, boundary: Step, stage: int, send: Callable[[str, Packet], None]) -> None:
        self._part = part
        self._boundary = boundary
        self._stage = stage
        self._send = send
        self._records: dict[str, list[Any]] = {}
        self._targets = part.nodes if boundary.kind is StepKind.REPARTITION else [part.start.origin]

    def add(self, record: Any) -> None:
        """Add a record to the next message for its receiver, and send the message if it has enough records.

        The receiver is a shard: for a repartition the owner of the record's key, and for a collect the origin.
        """
        node = self._targets[0]
        if self._boundary.kind is StepKind.REPARTITION and self._boundary.key is not None:
            node = self._part.start.topology.shard_of(slot(key_text(self._boundary.key(record)))).node_id
        batch = self._records.setdefault(node, [])
        batch.append(record)
        if len(batch) >= RECORDS_PER_MESSAGE:
            self._flush(node)

    def _flush(self, node: str) -> None:
        batch = self._records.pop(node, None)
        if not batch:
            return
        try:
            packed = cloudpickle.dumps(batch)
        except Exception as error:  # code of users' objects failed; other records must still be sent
            self._part.execution.fail(error)
            return
        self._deliver(node, packed)

    def close(self) -> None:
        """Send the remaining records, and an end marker to each shard that can get records from this stage."""
        for node in self._targets:
            self._flush(node)
            self._deliver(node, None)

    def _deliver(self, node: str, records: bytes | None) -> None:
        if node == self._part.own:
            self._part.put(self._stage, records)
        else:
            self._send(node, Packet(self._part.start.id, self._stage, records))
