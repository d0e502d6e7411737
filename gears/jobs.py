"""Jobs: what each kind does. A handler returns the arguments of `QA.DONE` after the id, a notification nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from qa_cluster.errors import InferenceFailed

from . import replies
from .commands import run_command
from .executions import Execution
from .link import Argument
from .readers import KeysReader
from .replies import decode_reply
from .runtime import Runtime
from .scripts import ScriptRequest, run_script
from .sessions import Plan, Registration, Session
from .tensors import read_wire, to_wire

Outcome = tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """A job as `QA.NEXT` hands it out."""

    id: int
    kind: str
    attempt: int
    timeout_ms: int
    arguments: list[Any]

    @classmethod
    def parse(cls, reply: list[Any]) -> Job:
        """Read a job's array."""
        job_id, kind, attempt, timeout_ms, *arguments = reply
        return cls(int(job_id), kind.decode(), int(attempt), int(timeout_ms), arguments)


async def one_record(record: Any) -> AsyncIterator[Any]:
    """A reader of one record."""
    yield record


class Jobs:
    """The handlers of all kinds."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.handlers: dict[str, Callable[[Job], Awaitable[Outcome]]] = {
            "script": self._script,
            "trigger": self._trigger,
            "event": self._event,
            "onregistered": self._on_registered,
            "command": self._command,
            "model.load": self._model_load,
            "model.run": self._model_run,
        }
        self.notifications: dict[str, Callable[[Job], None]] = {
            "model.drop": lambda job: runtime.models.drop(int(job.arguments[0])),
            "unregister": lambda job: runtime.registrar.unregister(job.arguments[0].decode()),
            "message": lambda job: runtime.peers.receive(job.arguments[0].decode(), job.arguments[1]),
        }

    async def _script(self, job: Job) -> Outcome:
        return ("OK", await run_script(self._runtime, ScriptRequest.parse(job.arguments)))

    def _registration(self, job: Job) -> tuple[Session, Registration]:
        return self._runtime.sessions.registration(job.arguments[0].decode())

    async def _run(self, session: Session, registration: Registration, execution: Execution, record: Any) -> None:
        self._runtime.history.add_registered(registration.id, execution)
        plan = Plan(registration.reader, registration.steps, registration.mode, registration.description)
        await self._runtime.distributor.run(plan, execution, one_record(record))

    async def _trigger(self, job: Job) -> Outcome:
        session, registration = self._registration(job)
        execution = Execution(self._runtime.ids.next(), session, registered=True)
        await self._run(session, registration, execution, [decode_reply(item) for item in job.arguments[1:]])
        if execution.failure is not None:
            return ("ERR", execution.failure)
        return ("OK", replies.encode_reply(execution.results))

    async def _event(self, job: Job) -> Outcome:
        session, registration = self._registration(job)
        _, event, key, has_client = job.arguments
        if not isinstance(registration.reader, KeysReader):
            return ("ERR", f"ERR registration {registration.id} takes no key events")
        record = registration.reader.event_record(self._runtime, key, event.decode())
        if record is None:
            return ("SKIP",)
        execution = Execution(self._runtime.ids.next(), session, registered=True, can_override=has_client in (1, b"1"))
        await self._run(session, registration, execution, record)
        if execution.overriding is not None:
            return ("OVERRIDE", execution.overriding)
        if execution.failure is not None:
            return ("ERR", execution.failure)
        return ("OK",)

    async def _on_registered(self, job: Job) -> Outcome:
        self._runtime.registrar.repair(job.arguments[0].decode())
        return ("OK",)

    async def _command(self, job: Job) -> Outcome:
        name, *arguments = (argument.decode("utf-8", "replace") for argument in job.arguments)
        return ("OK", await run_command(self._runtime, name.upper(), arguments))

    async def _model_load(self, job: Job) -> Outcome:
        ref, backend, device, blob = job.arguments
        model = await self._runtime.models.load(int(ref), backend.decode(), device.decode(), blob)
        names = [[port.name for port in ports] for ports in (model.compiled.inputs, model.compiled.outputs)]
        return ("OK", replies.encode_data(names))

    async def _model_run(self, job: Job) -> Outcome:
        ref, _backend, _device, inputs, outputs, *tensors = job.arguments
        arrays = await self._runtime.models.run(int(ref), list(read_wire(tensors, int(inputs))))
        if len(arrays) != int(outputs):
            raise InferenceFailed(f"the model has {len(arrays)} outputs, {int(outputs)} were asked for")
        packed: list[Argument] = []
        for array in arrays:
            packed += to_wire(array)
        return ("TENSORS", len(arrays), *packed)
