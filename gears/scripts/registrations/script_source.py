"""Executes the source of scripts in a new namespace, records their requests, and stores the source for tracebacks."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ...shard.failures import GearsError
from ..runs.plan import ExecutionPlan
from .sessions import ScriptSession, module_name


@dataclass(slots=True)
class ScriptRun:
    """The requests of a running script: registrations, timers and at most one run.

    The worker carries out the requests after the end of the script. With `restoring`, `run()` in the script does
    nothing.

    Attributes:
        session: the session of the script, which collects the registrations.
        plan: the plan of the script's run; None: the script has called no `run()`.
        has_ended: whether the whole source was executed, or has raised an exception.
        timers: the interval in seconds and the function of each `registerTE`.
    """

    session: ScriptSession
    plan: ExecutionPlan | None = None
    restoring: bool = False
    has_ended: bool = False
    timers: list[tuple[float, Callable[[], Any]]] = field(default_factory=list)

    def request_run(self, plan: ExecutionPlan) -> None:
        """Record the script's run. Raise GearsError at the second call, because a script has at most one run."""
        if self.plan is not None:
            raise GearsError("Can not run more then 1 executions in a single script")
        self.plan = plan


script_run: ContextVar[ScriptRun | None] = ContextVar("script_run", default=None)


def running_script() -> ScriptRun | None:
    """Return the running script of the caller; None outside of a script.

    Code that a script has scheduled for a time after its end is also outside of the script.
    """
    script = script_run.get()
    return script if script is not None and not script.has_ended else None


def remember_source(session_id: str, source: str) -> str:
    """Store a script's lines for later tracebacks; return the script's file name."""
    file_name = f"<script {session_id}>"
    linecache.cache[file_name] = (len(source), None, source.splitlines(keepends=True), file_name)
    return file_name


def forget_source(session_id: str) -> None:
    """Drop the lines of a script that `remember_source` has stored."""
    linecache.cache.pop(f"<script {session_id}>", None)


def execute_source(session: ScriptSession, names: Mapping[str, Any], *, restoring: bool = False) -> ScriptRun:
    """Run a session's source in a new namespace; return the requests of the script.

    Args:
        session: the session, which gets the registrations of the script.
        names: the globals of every script (`script_globals`).
        restoring: whether to ignore `run()` in the script.

    Raises:
        BaseException: any exception that the script raises, even SystemExit.
    """
    file_name = remember_source(session.id, session.script_source)
    namespace: dict[str, Any] = {"__name__": module_name(session.id), "__builtins__": __builtins__}
    namespace.update(names)
    script = ScriptRun(session, restoring=restoring)
    token = script_run.set(script)
    try:
        exec(compile(session.script_source, file_name, "exec"), namespace)
    finally:
        script_run.reset(token)
        script.has_ended = True
    return script


def rerun(session_id: str, description: str, source: str, names: Mapping[str, Any]) -> ScriptSession:
    """Rebuild a stored session by running its source, and ignore the source's `run()`.

    `names` are the globals of every script. The registrations of the result have new ids.
    """
    return execute_source(ScriptSession(session_id, description, source), names, restoring=True).session
