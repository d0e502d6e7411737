"""Does jobs of every kind. A handler returns the arguments of `QA.DONE` after the id; for a notification, nothing."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..calling.threads import Lane
from ..registrations.sessions import Registration, ScriptSession
from ..runs.plan import ExecutionPlan
from ..runs.sources import CommandSource, KeysSource, OneRecord
from ..scripting.commands import run_command
from ..scripting.runtime import Runtime
from ..shard import replies
from ..shard.executions import Execution
from ..shard.failures import GearsError
from ..shard.replies import decode_reply
from . import ai_jobs
from .ai_jobs import JobResult
from .pyexecute import ScriptRequest, run_script
from .turns import TakingTurns


@dataclass(frozen=True, slots=True)
class Job:
    """A job from a reply of `QA.NEXT`; `came_us` is when its command came, by the monotonic clock of the host."""

    id: int
    kind: str
    attempt: int
    timeout_ms: int
    came_us: int
    arguments: list[Any]

    @classmethod
    def parse(cls, reply: list[Any]) -> Job:
        """Read a job's array."""
        job_id, kind, attempt, timeout_ms, came_us, *arguments = reply
        return cls(int(job_id), kind.decode(), int(attempt), int(timeout_ms), int(came_us), arguments)

    @property
    def unawaited(self) -> bool:
        """Whether it is an event that no client waits for."""
        return self.kind == "event" and self.arguments[3:] in ([0], [b"0"])


class Room(enum.Enum):
    """What a job takes room of: a user's functions must not keep all else from being fetched."""

    OWN = "own"
    FUNCTIONS = "functions"
    BACKGROUND = "background"


class Jobs:
    """The handlers of all kinds."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._turns = TakingTurns()
        self.handlers: dict[str, Callable[[Job], Awaitable[JobResult]]] = {
            "script": self._script,
            "trigger": self._trigger,
            "event": self._event,
            "onregistered": self._on_registered,
            "command": self._command,
            "model.load": lambda job: ai_jobs.load_model(runtime.models, job.arguments),
            "model.run": lambda job: ai_jobs.run_model(runtime.models, job.arguments),
            "script.load": lambda job: ai_jobs.load_script(runtime.models, job.arguments),
            "dag.run": lambda job: ai_jobs.run_dag(runtime.models, job.arguments),
        }
        self.notifications: dict[str, Callable[[Job], None]] = {
            "model.drop": lambda job: runtime.models.drop(int(job.arguments[0])),
            "unregister": lambda job: runtime.registrar.installed.unregister(job.arguments[0].decode()),
            "message": lambda job: runtime.peers.receive(job.arguments[0].decode(), job.arguments[1]),
            "stream": lambda job: runtime.streams.notice(job.arguments[0].decode(), job.arguments[1]),
            "pause": lambda job: runtime.streams.pause(job.arguments[0].decode(), job.arguments[1] in (1, b"1")),
            "promoted": lambda _: runtime.registrar.installed.promoted(),
        }

    def room_of(self, job: Job) -> Room:
        """What a job takes room of."""
        if job.kind == "script":
            return Room.FUNCTIONS
        if job.kind not in ("trigger", "event"):
            return Room.OWN
        try:
            _, registration = self._runtime.sessions.registration(job.arguments[0].decode())
        except GearsError:
            return Room.OWN
        if registration.is_own:
            return Room.OWN
        return Room.BACKGROUND if job.unawaited else Room.FUNCTIONS

    async def _script(self, job: Job) -> JobResult:
        return ("OK", await run_script(self._runtime, ScriptRequest.parse(job.arguments)))

    def _registration(self, job: Job) -> tuple[ScriptSession, Registration]:
        registration_id = job.arguments[0].decode()
        try:
            return self._runtime.sessions.registration(registration_id)
        except GearsError as error:
            # The module had it when the job came: a newer version has just replaced it, or this worker is new.
            raise GearsError(f"TRYAGAIN the registration {registration_id} is being replaced or loaded") from error

    async def _run(
        self,
        registration: Registration,
        plan: ExecutionPlan,
        execution: Execution,
        records: OneRecord | None = None,
    ) -> None:
        await self._runtime.beginnings.over(registration.id)
        self._runtime.history.add_registered(registration.id, execution)
        await self._runtime.distributor.run(plan, execution, records, registration.id)

    async def _trigger(self, job: Job) -> JobResult:
        session, registration = self._registration(job)
        caller = job.arguments[1].decode("utf-8", "surrogateescape")
        user = caller if registration.rights == "caller" else ""
        execution = Execution(
            self._runtime.host.ids.next(),
            session,
            registered=True,
            user=user,
            lane=Lane.CLIENTS,
            owner=registration.id,
            came_us=job.came_us,
        )
        plan = registration.trigger_plan([decode_reply(item) for item in job.arguments[2:]])
        run = self._run(registration, plan, execution)
        if isinstance(registration.source, CommandSource) and registration.source.inorder:
            await self._turns.take(registration.id, execution, run)
        else:
            await run
        if execution.failure is not None:
            return ("ERR", execution.failure)
        return ("OK", replies.encode_reply(execution.results))

    async def _event(self, job: Job) -> JobResult:
        session, registration = self._registration(job)
        _, event, key, has_client = job.arguments
        if not isinstance(registration.source, KeysSource):
            return ("ERR", f"ERR registration {registration.id} takes no key events")
        record = registration.source.event_record(self._runtime.host, key, event.decode())
        if record is None:
            return ("SKIP",)
        awaited = has_client in (1, b"1")
        execution = Execution(
            self._runtime.host.ids.next(),
            session,
            registered=True,
            can_override=awaited,
            lane=Lane.CLIENTS if awaited else Lane.BACKGROUND,
            owner=registration.id,
        )
        run = self._run(registration, registration.plan(), execution, OneRecord(record))
        if awaited or registration.is_own:
            await run
        else:
            await self._turns.take((registration.id, key), execution, run)
        if execution.can_override:
            # coroutines of the execution may still answer the client
            await execution.released()
        if execution.overriding is not None:
            return ("OVERRIDE", execution.overriding)
        if execution.failure is not None:
            return ("ERR", execution.failure)
        return ("OK",)

    async def _on_registered(self, job: Job) -> JobResult:
        self._runtime.registrar.installed.repair(job.arguments[0].decode())
        return ("OK",)

    async def _command(self, job: Job) -> JobResult:
        name, *arguments = (argument.decode("utf-8", "replace") for argument in job.arguments)
        return ("OK", await run_command(self._runtime, name.upper(), arguments))
