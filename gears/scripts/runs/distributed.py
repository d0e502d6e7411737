"""Runs over all shards: each shard runs the plan's stages on its records, and boundaries move records between shards.

*Boundaries* are the steps that move records, and a *stage* is the steps between two boundaries (`plan.py`). The
*origin* is the shard where the run starts. The work of one shard in a run is its *part*.

The origin sends the plan to all primaries, with one table of slots that is valid for the whole run. A *repartition*
sends a record to the owner of its key's slot. A *collect* sends a record to the origin. After a stage, a shard sends an
end marker to all possible receivers of its records. A stage ends on a shard when all end markers for it have arrived.

The bus loses messages when a link breaks, and in a new cluster. So messages are resent until they are acknowledged. A
run starts once on each shard (`invitations.py`), and its messages are processed once and in order (`delivery.py`).
After `ExecutionMaxIdleTime` without progress, a run ends with an error on every shard. A part also ends if its origin
does not exist any more, even if its functions still run (`origin.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

import cloudpickle

from qa_cluster.errors import ClusterError
from qa_cluster.topology import Topology

from ...shard.failures import GearsError, error_line
from ...shard.peers import Peers
from ..calling.strands import Strand
from ..calling.threads import FunctionPool, TooManyCalls
from ..host.executions import Execution, Owner, current
from ..host.script_host import ScriptHost
from .delivery import UP_TO_ALL, Arrivals, Receipt, Recent, Sending
from .history import ExecutionHistory
from .invitations import Invitations, RunRequest
from .origin import SILENCE_SECONDS, abandoned
from .part import Outbox, Packet, PartState, RunPart, StartRun
from .pipeline import Chain, feed, run_local
from .plan import ExecutionPlan, Step, StepKind, split_stages
from .settings import GearsSettings

logger = logging.getLogger(__name__)
IDLE_ERROR = "Execution max idle reached"
TICK_SECONDS = 0.5
RECEIPT_SECONDS = 0.05
"""One receipt acknowledges all messages that arrive within this time."""


class Planned(Protocol):
    """A registration. This room needs only its plan."""

    def plan(self) -> ExecutionPlan:
        """Return the plan of the run that each event of the registration starts."""


class Sessions(Protocol):
    """The sessions of this shard: scripts with their registrations. Runs of other shards use the sessions' functions.

    None as `session_id` means that the value or plan belongs to no session.
    """

    def get(self, session_id: str) -> Owner | None:
        """Return the session with this id; None if this shard has no such session."""

    def registration(self, registration_id: str) -> tuple[Owner, Planned]:
        """Return a pair: the session of a registration, and the registration.

        Raise GearsError if this shard has no registration with this id.
        """

    def pack(self, value: Any, session_id: str | None) -> bytes:
        """Pickle a value that may contain functions of a session."""

    def unpack(self, packed: bytes, session_id: str | None) -> Any:
        """Return the value that `pack` has pickled on another shard for the same session."""

    def with_local_globals(self, plan: ExecutionPlan, session_id: str | None) -> ExecutionPlan:
        """Return a copy of the plan whose functions use the globals that the session has on this shard."""

    async def until_started(self, registration_id: str) -> None:
        """Wait until the functions of a registration may start on this shard.

        They may start when the function `onRegistered` of the registration has returned.
        """


class Distributor:
    """Starts runs, and takes part in runs of other shards."""

    def __init__(
        self,
        host: ScriptHost,
        peers: Peers,
        history: ExecutionHistory,
        settings: GearsSettings,
        sessions: Sessions,
    ) -> None:
        self._host = host
        self._peers = peers
        self._history = history
        self._settings = settings
        self._sessions = sessions
        self._parts: dict[str, RunPart] = {}
        self._invitations = Invitations(peers)
        self._sending = Sending(self._send)
        self._arrivals = Arrivals()
        self._expiring: asyncio.TimerHandle | None = None
        self._ended = Recent()
        self._restored = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    def messages(self) -> dict[str, Callable[[str, Any], Any]]:
        """Return the handlers of messages from other shards. The keys are the kinds of the messages."""
        return {
            "worker": self.worker,
            "run": self.join,
            "leads": self.leads,
            "receipt": self._sending.confirmed,
            "records": self._arrived,
            "state": self.state,
            "abort": self.abort,
        }

    def take_part(self) -> None:
        """Start to take part in runs of other shards. Call this after this shard's sessions were restored.

        Requests that arrived earlier have waited for this call.
        """
        self._restored.set()

    def worker(self, sender: str, body: None) -> str:
        """Return the name of this worker for other shards (message ``worker``)."""
        return self._invitations.worker

    def leads(self, sender: str, run_id: str) -> bool:
        """Return whether this shard still leads a run (message ``leads``)."""
        return run_id in self._parts

    def start(self, plan: ExecutionPlan, execution: Execution) -> asyncio.Task[None]:
        """Run a plan in the background; return the task, which can be cancelled."""
        task = execution.task = self._keep(self.run(plan, execution))
        return task

    async def run(
        self,
        plan: ExecutionPlan,
        execution: Execution,
        records: AsyncIterable[Any] | None = None,
        registration_id: str = "",
    ) -> None:
        """Run a plan to its end. Store the results and errors in the execution.

        Args:
            records: the only input of the run, such as the record of an event. If it is None, every shard that takes
                part reads the source of the plan.
            registration_id: the id of the registration that has the plan; empty if the plan belongs to no registration.
                With an id, each other shard uses its own copy of the functions.
        """
        if execution.end_if_aborted():
            return
        token = current.set(execution)
        execution.task = asyncio.current_task()
        strand = self._strand(execution)
        limit = self._limit(execution)
        status = "aborted"
        try:
            self._settings.keep_fresh()
            topology = self._peers.topology() if self.leaves_shard(plan, records) else None
            if topology is None or len(topology.shards) < 2:
                source = records if records is not None else plan.source.records(self._host)
                await _on(strand, run_local(source, plan.steps, execution))
            else:
                await self._lead(plan, execution, topology, records, registration_id)
            status = "done"
        except asyncio.CancelledError:
            if not execution.aborted or execution.task is None:
                raise
            # an abort, for example by RG.ABORTEXECUTION, ends only the run, not the job or function that waits for it
            execution.task.uncancel()
            execution.add_error(execution.abort_reason)
        except (GearsError, ClusterError) as error:  # for example, another shard cannot be reached
            execution.fail(error)
        finally:
            if limit is not None:
                limit.cancel()
            current.reset(token)
            execution.finish(status)

    def _strand(self, execution: Execution) -> Strand:
        """Return the strand that runs the functions of an execution on threads. The first call creates the strand."""
        if execution.strand is None:
            execution.strand = Strand.of(self._host.threads, execution.pool, execution.owner)
        return execution.strand

    def _limit(self, execution: Execution) -> asyncio.TimerHandle | None:
        """Start a timer that aborts an execution for which no client waits; return the timer.

        Return None if such executions have no time limit, or if a client waits, because the client's job has a limit.
        """
        if execution.pool is FunctionPool.CLIENTS or not self._host.background_seconds:
            return None
        seconds = self._host.background_seconds
        reason = f"ERR it ran for {seconds * 1000:.0f} ms, the limit of qa.background-timeout-ms"
        return self._host.loop.call_later(seconds, execution.abort, reason)

    @staticmethod
    def leaves_shard(plan: ExecutionPlan, records: AsyncIterable[Any] | None) -> bool:
        """Return whether other shards of a cluster take part in a run of the plan.

        They never take part in the mode ``async_local``. If the run gets its `records` as an argument (`run`), they
        take part only if the plan has a repartition, which can move records to other shards.
        """
        if plan.mode != "async":
            return False
        return records is None or any(step.kind is StepKind.REPARTITION for step in plan.steps)

    async def _lead(
        self,
        plan: ExecutionPlan,
        execution: Execution,
        topology: Topology,
        records: AsyncIterable[Any] | None,
        registration_id: str,
    ) -> None:
        session_id = execution.session.id if execution.session else None
        own, max_idle_seconds = self._host.info.shard_id, self._settings.max_idle_seconds
        start = StartRun(
            *(execution.id, own, session_id, plan, topology, max_idle_seconds),
            *(execution.user, execution.pool, registration_id, execution.leave_list is not None),
        )
        part = RunPart(start, own, execution, self._strand(execution))
        sent = replace(start, plan=replace(plan, steps=())) if registration_id else start
        packed = self._sessions.pack((sent, records is not None), session_id)
        request = RunRequest(start.id, session_id, packed)
        inviting = [asyncio.ensure_future(self._invite(part, node, request)) for node in part.others]
        source = records if records is not None else plan.source.records(self._host)
        try:
            await asyncio.sleep(0)  # lets the tasks of `inviting` send their requests before the first records
            await self._with_watchdog(part, self._lead_part(part, source))
        finally:
            for task in inviting:
                task.cancel()
            self._sending.forget(start.id)
            for node in part.unfinished:
                self._tell(node, "abort", start.id, start.id, "the order to stop")
        if part.refusal.done() and (error := part.refusal.result()) is not None:
            raise error

    async def _invite(self, part: RunPart, node: str, request: RunRequest) -> None:
        try:
            await self._invitations.send(node, request)
        except Exception as error:  # any error must end the run, because other shards would wait for the shard `node`
            part.refuse(error if isinstance(error, GearsError) else GearsError(error_line(error)))
        else:
            part.last_progress = time.monotonic()
            part.responding.add(node)
            part.execution.shards_received = len(part.responding)

    async def _lead_part(self, part: RunPart, source: AsyncIterable[Any]) -> None:
        await _on(part.strand, self._run_part(part, source))
        part.execution.status = "pending_cluster"
        await part.all_done.wait()

    async def _with_watchdog(self, part: RunPart, work: Any) -> None:
        """Do the work of a part. Cancel the work if a shard refuses to take part, or without progress for too long.

        In the second case, the execution gets the error `IDLE_ERROR`. If the work fails, raise its error.
        """
        self._parts[part.start.id] = part
        task = asyncio.ensure_future(work)
        seen = (-1, -1)
        # Only the origin ends a run because the run is idle: another part may wait for the records of a part that
        # works. On another shard, an idle part ends itself only if the origin has also not confirmed for `patience`
        # seconds that the origin leads the run.
        patience = part.start.max_idle_seconds
        if not part.is_origin:
            patience = max(2 * patience, SILENCE_SECONDS)
        try:
            self._arrivals.begin(part.start.id)
            for sender in self._arrivals.senders(part.start.id):
                self._take(part, sender)
            tick = min(TICK_SECONDS, part.start.max_idle_seconds / 4)
            while not task.done() and not part.refusal.done():
                await asyncio.wait([task, part.refusal], timeout=tick, return_when=asyncio.FIRST_COMPLETED)
                self._sending.resend(part.start.id)
                if part.at_work or (part.turns.pushed, part.execution.beats) != seen:
                    seen = (part.turns.pushed, part.execution.beats)
                    part.last_progress = time.monotonic()
                if not part.is_origin and part.last_progress > time.monotonic() - TICK_SECONDS and not task.done():
                    self._report(part, done=False)
                if time.monotonic() - max(part.last_progress, part.last_led) > patience and not task.done():
                    part.execution.add_error(IDLE_ERROR)
                    for problem in self._sending.problems(part.start.id):
                        part.execution.add_error(problem)
                    return
            if task.done():
                task.result()
        finally:
            task.cancel()
            self._over(part)

    async def _run_part(self, part: RunPart, source: AsyncIterable[Any] | None) -> None:
        execution = part.execution
        execution.begin([step.outline for step in part.start.plan.steps])
        stages = split_stages(part.start.plan.steps)
        arriving: Step | None = None
        first = 0
        for number, (steps, boundary) in enumerate(stages):
            outbox = Outbox(part, boundary, number + 1, self._send_packet) if boundary else None
            sink = outbox.add if outbox else execution.results.append
            chain = Chain(steps, sink, execution, first, moves=boundary is not None)
            part.chain = chain
            first += len(steps) + 1
            try:
                if number == 0:
                    if source is not None:
                        await feed(source, chain, execution, part.turns)
                elif arriving is not None:
                    execution.status = "pending_receive"
                    await self._receive(part, number, arriving, chain)
                    execution.status = "running"
                await chain.finish()
            finally:
                await chain.end()
            if outbox:
                outbox.close()
            arriving = boundary

    @staticmethod
    async def _receive(part: RunPart, stage: int, boundary: Step, chain: Chain) -> None:
        """Run the steps of a stage on its arriving records, until all end markers have arrived.

        `stage` is the number of the stage in the plan, and `boundary` is the step before the stage. After a collect,
        records arrive only on the origin, so the stage ends at once on the other shards.
        """
        expected = len(part.nodes) if boundary.kind is StepKind.REPARTITION or part.is_origin else 0
        inbox = part.inbox(stage)
        while expected:
            packed = await inbox.get()
            if packed is None:
                expected -= 1
                continue
            part.taken_bytes += len(packed)
            for record in cloudpickle.loads(packed):
                rest = chain.push(record)
                if rest is not None:
                    await chain.suspend(rest)
                if part.turns.is_over(chain.clocked):
                    await part.turns.yield_now()

    def join(self, sender: str, request: RunRequest) -> str | Awaitable[str]:
        """Take part in a run of another shard (message ``run``), if the request names this worker.

        The answer is this worker's name. If the request names this worker, the answer waits until the worker has
        restored its sessions. If the request names a different worker, the worker answers at once, before it answers
        later messages.
        """
        own = self._invitations.worker
        return self._join(sender, request) if request.worker == own else own

    async def _join(self, sender: str, request: RunRequest) -> str:
        await self._restored.wait()
        if self._invitations.take(request):
            start: StartRun
            try:
                start, records_at_origin = self._sessions.unpack(request.packed, request.session_id)
            except Exception as error:  # so that the origin does not wait for this shard
                self._refuse(request.id, sender, error)
            else:
                self._keep(self._follow(start, reads=not records_at_origin))
        return self._invitations.worker

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do work in the background; return its task.

        `_tasks` refers to the task until its end, because asyncio itself does not keep a task alive.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _follow(self, start: StartRun, *, reads: bool) -> None:
        session = self._sessions.get(start.session_id) if start.session_id else None
        execution = Execution(
            *(start.id, session),
            registered=bool(start.registration_id),
            user=start.user,
            pool=start.pool,
            owner=start.registration_id,
        )
        execution.task = asyncio.current_task()
        if start.registration_id:
            self._history.add_registered(start.registration_id, execution)
        elif getattr(start, "until_end", False):  # a worker of an earlier version does not send this field
            self._history.add_until_end(execution)
        else:
            self._history.add(execution)
        current.set(execution)
        try:
            start = replace(start, plan=self._own_plan(start))
        except GearsError as error:
            execution.fail(error)
            execution.finish("aborted")
            self._refuse(start.id, start.origin, error)
            return
        part = RunPart(start, self._host.info.shard_id, execution, self._strand(execution))
        source = start.plan.source.records(self._host) if reads else None
        watching = self._host.loop.create_task(self._end_without_origin(part))
        try:
            if start.id in self._ended:  # the abort message has arrived before the start of this task
                execution.abort()
            await self._with_watchdog(part, self._follow_part(part, source))
        except asyncio.CancelledError:
            execution.add_error(execution.abort_reason)
        except Exception as error:  # the waiting origin must get the error
            execution.fail(error)
        finally:
            watching.cancel()
            execution.finish("aborted" if execution.aborted else "done")
        self._report(part, done=True)
        await self._until_confirmed(start.id, 2 * start.max_idle_seconds)

    async def _end_without_origin(self, part: RunPart) -> None:
        start = part.start

        def led() -> None:
            part.last_led = time.monotonic()

        reason = await abandoned(self._peers, start.origin, start.id, 2 * start.max_idle_seconds, led)
        logger.warning("run %s ends here: %s", start.id, reason)
        part.execution.abort(f"ERR {reason}")

    async def _follow_part(self, part: RunPart, source: AsyncIterable[Any] | None) -> None:
        if part.start.registration_id:
            part.beginning = True
            await self._sessions.until_started(part.start.registration_id)
            part.beginning = False
        await _on(part.strand, self._run_part(part, source))

    def _own_plan(self, start: StartRun) -> ExecutionPlan:
        """Return the plan of another shard's run with the functions and globals of this shard.

        Raise GearsError if this shard does not have the registration of the plan.
        """
        if not start.registration_id:
            return self._sessions.with_local_globals(start.plan, start.session_id)
        try:
            _, registration = self._sessions.registration(start.registration_id)
        except GearsError as error:
            raise GearsError(
                f"TRYAGAIN the registration {start.registration_id} is being replaced or loaded on shard "
                f"{self._host.info.shard_id}"
            ) from error
        return replace(start.plan, steps=registration.plan().steps)

    def _refuse(self, run_id: str, origin: str, error: Exception) -> None:
        """Refuse to take part in a run, and send its origin the reason."""
        self._ended.add(run_id)
        self._arrivals.forget(run_id)
        line = error_line(error)
        logger.warning("run %s of shard %s is refused: %s", run_id, origin, line)
        self._sending.send(origin, "state", PartState(run_id, True, (line,), line, refused=True))
        self._keep(self._until_confirmed(run_id, self._settings.max_idle_seconds))

    def _report(self, part: RunPart, *, done: bool) -> None:
        run_id, origin = part.start.id, part.start.origin
        if done:
            state = PartState(run_id, True, tuple(part.execution.errors), part.execution.failure)
            self._sending.send(origin, "state", state)
            return
        # a lost report is replaced by the next report
        self._tell(origin, "state", PartState(run_id, False), run_id, "a report")

    async def _until_confirmed(self, run_id: str, seconds: float) -> None:
        """Resend the messages of a run until they are acknowledged, even after this shard's part of the run has ended.

        After `seconds`, or when all messages are acknowledged, drop the messages of the run.
        """
        deadline = self._host.loop.time() + seconds
        try:
            while self._sending.resend(run_id) and self._host.loop.time() < deadline:
                await asyncio.sleep(min(TICK_SECONDS, seconds / 4))
        finally:
            self._sending.forget(run_id)

    def state(self, sender: str, state: PartState) -> None:
        """Record that another shard is working, is done, or refuses to take part (message ``state``)."""
        part = self._parts.get(state.id)
        if state.number and part is not None:
            self._arrived(sender, state)
        elif state.number:  # this shard is the origin, and the run has already ended here
            self._confirm(sender, Receipt(state.id, UP_TO_ALL))
        elif part is not None:
            self._note(part, sender, state)

    def _arrived(self, sender: str, message: Packet | PartState) -> None:
        """Process a numbered message of a shard: records, an end marker or the last report of the shard.

        A message that arrives too early is stored until all messages with smaller numbers have arrived.
        """
        if message.id in self._ended:
            self._confirm(sender, Receipt(message.id, UP_TO_ALL))
            return
        self._arrivals.hold(sender, message)
        part = self._parts.get(message.id)
        if part is not None:
            self._take(part, sender)
        else:
            self._expire_early()

    def _expire_early(self) -> None:
        """Drop old messages of runs that have not started on this shard. Repeat this when the next messages expire."""
        if self._expiring is None and (left := self._arrivals.expire()) is not None:
            self._expiring = self._host.loop.call_later(left, self._expire_again)

    def _expire_again(self) -> None:
        self._expiring = None
        self._expire_early()

    def _take(self, part: RunPart, sender: str) -> None:
        """Process the messages of a shard that are next in order.

        Send the receipt `RECEIPT_SECONDS` later, so that one receipt acknowledges several messages.
        """
        for message in self._arrivals.due(part.start.id, sender):
            if isinstance(message, PartState):
                self._note(part, sender, message)
                continue
            try:
                part.put(message.stage, message.records)
            except GearsError as error:
                part.execution.add_error(str(error))
                self.abort(sender, message.id)
        if not part.receipts_due:
            part.receipts_due = True
            self._host.loop.call_later(RECEIPT_SECONDS, self._send_receipts, part)

    def _send_receipts(self, part: RunPart) -> None:
        part.receipts_due = False
        if self._parts.get(part.start.id) is part:
            for sender in self._arrivals.senders(part.start.id):
                self._confirm(sender, Receipt(part.start.id, self._arrivals.taken(part.start.id, sender)))

    def _confirm(self, sender: str, receipt: Receipt) -> None:
        self._tell(sender, "receipt", receipt, receipt.id, "a receipt")

    def _over(self, part: RunPart) -> None:
        """Acknowledge and drop all messages of a part that has ended, including messages that were not processed."""
        run_id = part.start.id
        del self._parts[run_id]
        self._ended.add(run_id)
        for sender in self._arrivals.senders(run_id):
            self._confirm(sender, Receipt(run_id, UP_TO_ALL))
        self._arrivals.forget(run_id)

    def _note(self, part: RunPart, sender: str, state: PartState) -> None:
        part.last_progress = time.monotonic()
        part.responding.add(sender)
        part.execution.shards_received = len(part.responding)
        if state.done:
            for text in state.errors:
                part.execution.add_error(text)
            part.execution.first_failure = part.execution.first_failure or state.failure
            if state.refused:
                part.refuse()
            part.unfinished.discard(sender)
            part.execution.shards_completed = len(part.others) - len(part.unfinished)
            if not part.unfinished:
                part.all_done.set()

    def abort(self, sender: str, run_id: str) -> None:
        """End this shard's part of a run (message ``abort``). If the part has not begun, it ends when it begins."""
        part = self._parts.get(run_id)
        if part is not None:
            part.execution.abort()
        else:
            self._ended.add(run_id)
            self._arrivals.forget(run_id)

    def _send(self, node: str, kind: str, body: Any) -> None:
        self._peers.send(node, kind, body)

    def _send_packet(self, node: str, packet: Packet) -> None:
        self._sending.send(node, "records", packet)

    def _tell(self, node: str, kind: str, body: Any, run_id: str, what: str) -> None:
        """Send a message once. If the message cannot be sent, only log this, with `what` as the name of the message."""
        try:
            self._peers.send(node, kind, body)
        except GearsError as error:
            logger.warning("run %s: %s did not reach shard %s: %s", run_id, what, node, error)


async def _on(strand: Strand, work: Coroutine[Any, Any, None]) -> None:
    """Do work on the threads of a strand. If the queue of threads is full, raise GearsError."""
    try:
        await strand.run(work)
    except TooManyCalls as error:
        raise GearsError(str(error)) from error
