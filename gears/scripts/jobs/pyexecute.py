"""The job of `RG.PYEXECUTE`: executes a script once, and then publishes its registrations and starts its run."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from ...shard import replies
from ...shard.failures import GearsError
from ..calling.strands import Strand
from ..calling.threads import FunctionPool, TooManyCalls
from ..host.executions import Execution
from ..host.script_errors import traceback_text
from ..interface.names import script_globals
from ..interface.runtime import Runtime
from ..registrations.script_source import ScriptRun, execute_source, forget_source
from ..registrations.sessions import ScriptSession
from ..runs.plan import ExecutionPlan
from ..runs.sources import CommandSource

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


@dataclass(frozen=True, slots=True)
class ScriptRequest:
    """The arguments of a `script` job.

    Attributes:
        script_source: the text of the script.
        unblocking: whether the reply is the id of the script's run, sent before the end of the run.
        registers_only: whether to ignore the script's `run()`.
        id: the id of the script's session; empty: the worker creates an id.
        description: the description of the script's session.
        upgrade: whether the script may replace the session with the same id.
        replace_with: the id of another session that the script replaces; empty: no other session.
        requirements: the Python packages that the script needs, such as ``numpy>=2``.
    """

    script_source: str
    unblocking: bool
    registers_only: bool
    id: str
    description: str
    upgrade: bool
    replace_with: str
    requirements: tuple[str, ...]

    @classmethod
    def parse(cls, arguments: Sequence[Any]) -> ScriptRequest:
        """Read the job's arguments. Raise GearsError if the script is not valid UTF-8."""
        source, run, session_id, description, upgrade, replace_with, *requirements = (
            a.decode("utf-8", "surrogateescape") if isinstance(a, bytes) else str(a) for a in arguments
        )
        try:
            source.encode()
        except UnicodeEncodeError as error:
            raise GearsError("ERR the script is not valid UTF-8") from error
        return cls(
            source,
            run == "1",
            run == "2",
            session_id,
            description,
            upgrade == "1",
            replace_with,
            tuple(requirements),
        )


class ScriptFailed(Exception):
    """The script raised an exception; the text is the repr of its traceback's lines."""


def check_requirements(requirements: Sequence[str]) -> None:
    """Raise GearsError for the first requirement that is not installed in this worker's environment.

    Only the name of a requirement counts. The installed version is not compared.
    """
    for requirement in requirements:
        named = _REQUIREMENT.match(requirement)
        name = named.group(1) if named else requirement
        try:
            importlib.metadata.version(name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            module = name.replace("-", "_")
            if not module.isidentifier() or importlib.util.find_spec(module) is None:
                raise GearsError(
                    f"ERR Could not satisfy requirements: install {name!r} in the environment of the shard's worker"
                ) from None


def check_names(runtime: Runtime, request: ScriptRequest) -> None:
    """Raise an error if the script may not use its session's id, or may not replace the session `replace_with`.

    The errors are:

    - the session `replace_with` does not exist;
    - the script replaces the session `replace_with`, but the id for its own session belongs to a third session;
    - the script replaces no other session, the id for its own session is taken, and the request has no `upgrade`.
    """
    exists = bool(request.id) and _session_exists(runtime, request.id)
    if request.replace_with:
        if runtime.sessions.get(request.replace_with) is None:
            raise GearsError(f"ERR Can not replace with {request.replace_with}, session does not exists.")
        if exists and request.id != request.replace_with:
            raise GearsError(f"ERR Can not replace an existing session {request.id} with {request.replace_with}")
    elif exists and not request.upgrade:
        raise GearsError(f"ERR Session {request.id} already exists")


def _session_exists(runtime: Runtime, session_id: str) -> bool:
    """Return whether a session with this id has registrations or timers."""
    timed = any(session.id == session_id for session in runtime.timers.sessions())
    return timed or runtime.sessions.get(session_id) is not None


def check_triggers(runtime: Runtime, request: ScriptRequest, session: ScriptSession) -> None:
    """Raise an error if the script registers a trigger twice, or a trigger of a session that it does not replace.

    `session` is the script's session after the execution of the script. Clients get the error as an exception of the
    script.
    """
    others = [other for other in runtime.sessions.all() if other.id not in (session.id, request.replace_with)]
    taken = {trigger for other in others for trigger in _triggers(other)}
    own: set[str] = set()
    for trigger in _triggers(session):
        if trigger in taken:
            raise GearsError(f"trigger already registered: {trigger}")
        if trigger in own:
            raise GearsError(f"trigger already registered in this session: {trigger}")
        own.add(trigger)


def _triggers(session: ScriptSession) -> list[str]:
    sources = (registration.source for registration in session.registrations.values())
    return [source.trigger for source in sources if isinstance(source, CommandSource)]


async def run_script(runtime: Runtime, request: ScriptRequest) -> bytes:
    """Carry out a `script` job; return the reply to `RG.PYEXECUTE`.

    Raises:
        ScriptFailed: the script raised an exception, or registered a trigger that is taken.
        GearsError: the script was not executed, or its registrations could not be published on all shards.
    """
    check_names(runtime, request)
    check_requirements(request.requirements)
    runtime.settings.refresh()
    session_id = request.id or runtime.host.ids.next_session()
    session = ScriptSession(session_id, request.description, request.script_source, requirements=request.requirements)
    try:
        script = await _execute(runtime, session, registers_only=request.registers_only)
        check_triggers(runtime, request, session)
    except asyncio.CancelledError:
        forget_source(session.id)
        raise
    except BaseException as error:  # SystemExit of a script must not end the worker
        forget_source(session.id)
        raise ScriptFailed(traceback_text(error)) from error
    if session.registrations or runtime.sessions.get(session.id) is not None:
        await runtime.registrar.publish(session, request.replace_with or None)
    elif not script.timers:
        forget_source(session.id)
    _start_timers(runtime, session, script)
    if script.plan is None:
        return replies.OK
    return await _run(runtime, session, script.plan, unblocking=request.unblocking)


async def _execute(runtime: Runtime, session: ScriptSession, *, registers_only: bool) -> ScriptRun:
    """Execute the script's source on a function thread; return the requests of the script.

    With `registers_only`, `run()` in the script does nothing.
    """

    async def execute() -> ScriptRun:
        return execute_source(session, script_globals(), restoring=registers_only)

    try:
        return cast(ScriptRun, await Strand.of(runtime.host.threads, FunctionPool.CLIENTS, session.id).run(execute()))
    except TooManyCalls as error:
        raise GearsError(str(error)) from error


def _start_timers(runtime: Runtime, session: ScriptSession, script: ScriptRun) -> None:
    """Start the script's timers (`registerTE`), and end the timers of an earlier version of the session."""
    runtime.timers.stop_earlier(session)
    for seconds, function in script.timers:
        runtime.timers.start(session, seconds, function, session.id, "")


async def _run(runtime: Runtime, session: ScriptSession, plan: ExecutionPlan, *, unblocking: bool) -> bytes:
    pool = FunctionPool.RUNS if unblocking else FunctionPool.CLIENTS
    try:
        runtime.host.threads.check_capacity(pool)
    except TooManyCalls as error:
        raise GearsError(str(error)) from error
    execution = Execution(runtime.host.ids.next(), session, pool=pool)
    if unblocking:
        runtime.history.add(execution)
        runtime.distributor.start(plan, execution)
        return replies.encode_data(execution.id)
    runtime.history.add_until_end(execution)
    await runtime.distributor.run(plan, execution)
    if session.registrations:
        return replies.OK
    return replies.encode_results(execution.results, execution.errors)
