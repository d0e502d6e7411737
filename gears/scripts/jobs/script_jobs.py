"""The handlers for the jobs of user scripts and user functions, in the worker's table of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable
from typing import Any

from ...process.jobs import Capacity, Job, JobResult, JobTable
from ...shard import replies
from ...shard.failures import GearsError
from ...shard.replies import decode_reply
from ..calling.threads import FunctionPool
from ..host.executions import Execution
from ..interface.commands import run_command
from ..interface.runtime import Runtime
from ..registrations.sessions import Registration, ScriptSession, execution_of
from ..runs.plan import ExecutionPlan
from ..runs.sources import CommandSource, KeysSource, OneRecord
from . import graph_jobs
from .in_order import InOrder
from .pyexecute import ScriptFailed, ScriptRequest, run_script


class ScriptJobs:
    """Handles the jobs of user scripts and user functions. `add_to` registers the handlers."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._in_order = InOrder()

    def add_to(self, table: JobTable) -> None:
        """Add the handlers to the worker's table of jobs."""
        runtime = self._runtime
        table.add("script", self._script, lambda _: Capacity.FUNCTIONS)
        table.add("trigger", self._trigger, self._capacity)
        table.add("event", self._event, self._capacity)
        table.add("onregistered", self._on_registered)
        table.add("command", self._command)
        table.add("script.load", lambda job: graph_jobs.load_script(runtime.torch_scripts, job.arguments))
        table.add("dag.run", lambda job: graph_jobs.run_dag(runtime.models, runtime.torch_scripts, job.arguments))
        table.on_notification("model.drop", lambda job: self._drop_script(int(job.arguments[0])))
        table.on_notification("unregister", self._unregister)
        table.on_notification("stream", lambda job: runtime.streams.notice(job.registration, job.arguments[1]))
        table.on_notification(
            "pause", lambda job: runtime.streams.pause(job.registration, job.arguments[1] in (1, b"1"))
        )
        table.on_notification("promoted", lambda _: runtime.registrar.installed.promoted())

    def _unregister(self, job: Job) -> None:
        abort_pending = job.arguments[1] in (1, b"1")
        self._runtime.registrar.installed.unregister(job.registration, abort_pending=abort_pending)

    def _drop_script(self, ref: int) -> None:
        self._runtime.torch_scripts.drop(ref)
        self._runtime.model_keys.drop(ref)

    def _capacity(self, job: Job) -> Capacity:
        try:
            self._runtime.sessions.registration(job.registration)
        except GearsError:  # without a registration, the job ends at once with an error
            return Capacity.OWN
        return Capacity.FUNCTIONS if job.has_client else Capacity.BACKGROUND

    async def _script(self, job: Job) -> JobResult:
        try:
            return ("OK", await run_script(self._runtime, ScriptRequest.parse(job.arguments)))
        except ScriptFailed as error:
            return ("ERR", str(error))

    def _registration(self, job: Job) -> tuple[ScriptSession, Registration]:
        try:
            return self._runtime.sessions.registration(job.registration)
        except GearsError as error:
            # The module had the registration when the job arrived. Since then, a newer version has replaced it, or this
            # is a new worker that has not loaded it yet.
            raise GearsError(f"TRYAGAIN the registration {job.registration} is being replaced or loaded") from error

    async def _run(
        self,
        registration: Registration,
        plan: ExecutionPlan,
        execution: Execution,
        records: OneRecord | None = None,
    ) -> None:
        await self._runtime.on_registered.until_returned(registration.id)
        await self._runtime.distributor.run(plan, execution, records, registration.id)

    async def _until_end(
        self, registration: Registration, execution: Execution, run: Coroutine[Any, Any, None], name: Hashable = None
    ) -> None:
        """Add an execution to the history, and wait for its run.

        Runs with the same `name` run one after the other. None: the run does not wait for other runs.

        If the run is aborted before its start, the execution ends as aborted, but the job still sends a reply.
        """
        execution.task = asyncio.current_task()
        self._runtime.history.add_registered(registration.id, execution)
        try:
            await (run if name is None else self._in_order.run(name, execution, run))
        except asyncio.CancelledError:
            if execution.finished or not execution.aborted or execution.task is None:
                raise
            execution.task.uncancel()
            execution.end_if_aborted()
        finally:
            if not execution.finished:
                execution.finish("aborted")

    async def _trigger(self, job: Job) -> JobResult:
        session, registration = self._registration(job)
        if registration.own:
            return _missing_function(registration)
        caller = job.arguments[1].decode("utf-8", "surrogateescape")
        user = caller if registration.rights == "caller" else ""
        execution = execution_of(registration, session, self._runtime.host.ids, FunctionPool.CLIENTS, user=user)
        plan = registration.trigger_plan([decode_reply(item) for item in job.arguments[2:]])
        run = self._run(registration, plan, execution)
        inorder = isinstance(registration.source, CommandSource) and registration.source.inorder
        await self._until_end(registration, execution, run, registration.id if inorder else None)
        if execution.failure is not None:
            return (_failed(execution), execution.failure)
        return ("OK", replies.encode_reply(execution.results))

    async def _event(self, job: Job) -> JobResult:
        session, registration = self._registration(job)
        if registration.own:
            return _missing_function(registration)
        _, event, key, has_client = job.arguments
        if not isinstance(registration.source, KeysSource):
            return ("ERR", f"ERR registration {registration.id} does not handle key events")
        record = registration.source.event_record(self._runtime.host, key, event.decode())
        if record is None:
            return ("SKIP",)
        awaited = has_client in (1, b"1")
        pool = FunctionPool.CLIENTS if awaited else FunctionPool.BACKGROUND
        execution = execution_of(registration, session, self._runtime.host.ids, pool, can_override=awaited)
        run = self._run(registration, registration.plan(), execution, OneRecord(record))
        await self._until_end(registration, execution, run, None if awaited else (registration.id, key))
        if execution.can_override:
            # After the end of the run, coroutines of the execution may still set the reply to the client.
            await execution.until_released()
        if execution.overriding is not None:
            return ("OVERRIDE", execution.overriding)
        if execution.failure is not None:
            return (_failed(execution), execution.failure)
        return ("OK",)

    async def _on_registered(self, job: Job) -> JobResult:
        self._runtime.registrar.installed.repair(job.registration)
        return ("OK",)

    async def _command(self, job: Job) -> JobResult:
        name, *arguments = (argument.decode("utf-8", "replace") for argument in job.arguments)
        return ("OK", await run_command(self._runtime, name.upper(), arguments))


def _failed(execution: Execution) -> str:
    """Return the status of a job whose execution has an error: ABORTED if the execution was aborted, otherwise ERR."""
    return "ABORTED" if execution.aborted else "ERR"


def _missing_function(registration: Registration) -> JobResult:
    """Return the error for a registered own function of qa-cluster that this version of qa-cluster does not have."""
    return ("ERR", f"ERR this version of qa-cluster has no function {registration.own}: run `qa-cluster up`")
