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
    """

    session: ScriptSession
    plan: ExecutionPlan | None = None
    restoring: bool = False
    has_ended: bool = False
    timers: list[tuple[float, Callable[[], Any]]] = field(default_factory=list)

    def request_run(self, plan: ExecutionPlan) -> None:
        """Record the script's run. A script has at most one run."""
        if self.plan is not None:
            raise GearsError("Can not run more then 1 executions in a single script")
        self.plan = plan


script_run: ContextVar[ScriptRun | None] = ContextVar("script_run", default=None)


def running_script() -> ScriptRun | None:
    """Return the running script of the caller; None for code that a script has scheduled for later."""
    script = script_run.get()
    return script if script is not None and not script.has_ended else None


def remember_source(session_id: str, source: str) -> str:
    """Store a script's lines for later tracebacks; return the script's file name."""
    file_name = f"<script {session_id}>"
    linecache.cache[file_name] = (len(source), None, source.splitlines(keepends=True), file_name)
    return file_name


def forget_source(session_id: str) -> None:
    """Drop the lines of a script."""
    linecache.cache.pop(f"<script {session_id}>", None)


def execute_source(session: ScriptSession, names: Mapping[str, Any], *, restoring: bool = False) -> ScriptRun:
    """Run a session's source in a new namespace with `names`; return its requests."""
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
    """Rebuild a stored session from its source, and ignore the source's `run()`."""
    return execute_source(ScriptSession(session_id, description, source), names, restoring=True).session
