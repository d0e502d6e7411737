"""The `RG.*` commands about executions and sessions, whose state the worker keeps."""

from __future__ import annotations

from collections.abc import Callable

from . import replies
from .executions import MISSING, Execution
from .failures import GearsError
from .runtime import Runtime


async def run_command(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    """Carry out a `command` job; returns the reply."""
    if name == "RG.GETRESULTSBLOCKING":
        execution = _execution(runtime, name, arguments)
        await execution.wait()
        return replies.encode_results(execution.results, execution.errors)
    handler = _COMMANDS.get(name)
    if handler is None:
        raise GearsError(f"ERR the worker does not know the command {name}")
    return handler(runtime, name, arguments)


def _argument(name: str, arguments: list[str]) -> str:
    if not arguments:
        raise GearsError(f"ERR wrong number of arguments for '{name.lower()}' command")
    return arguments[0]


def _execution(runtime: Runtime, name: str, arguments: list[str]) -> Execution:
    execution = runtime.history.get(_argument(name, arguments))
    if execution is None:
        raise GearsError(f"ERR {MISSING}")
    return execution


def _get_results(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    execution = _execution(runtime, name, arguments)
    if not execution.finished:
        raise GearsError("ERR execution is still running")
    return replies.encode_results(execution.results, execution.errors)


def _get_execution(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    execution = _execution(runtime, name, arguments)
    steps = [["type", kind, "duration", 0, "name", function, "arg", ""] for kind, function in execution.steps]
    plan = [
        *("status", execution.status),
        *("shards_received", 0),
        *("shards_completed", 0),
        *("results", len(execution.results)),
        *("errors", execution.errors),
        *("total_duration", execution.duration_ms),
        *("read_duration", 0),
        *("steps", steps),
    ]
    return replies.encode_data([["shard_id", runtime.info.shard_id, "execution_plan", plan]])


def _dump_executions(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    return replies.encode_data(
        [
            ["executionId", execution.id, "status", execution.status, "registered", int(execution.registered)]
            for execution in runtime.history.all()
        ]
    )


def _drop(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    runtime.history.drop(_argument(name, arguments))
    return replies.OK


def _abort(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    runtime.history.abort(_argument(name, arguments))
    return replies.OK


def _dump_sessions(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    return replies.encode_data(
        [
            [
                *("ID", session.id),
                *("sessionDescription", session.description or None),
                *("refCount", len(session.registrations)),
                *("linked", "primary"),
                *("dead", 0),
                *("requirementInstallationNeeded", 0),
                *("requirements", []),
                *("registrations", list(session.registrations)),
            ]
            for session in runtime.sessions.all()
        ]
    )


_COMMANDS: dict[str, Callable[[Runtime, str, list[str]], bytes]] = {
    "RG.GETRESULTS": _get_results,
    "RG.GETEXECUTION": _get_execution,
    "RG.DUMPEXECUTIONS": _dump_executions,
    "RG.DROPEXECUTION": _drop,
    "RG.ABORTEXECUTION": _abort,
    "RG.PYDUMPSESSIONS": _dump_sessions,
}
