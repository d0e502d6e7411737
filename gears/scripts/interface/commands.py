"""Answers the `RG.*` commands about executions and sessions, whose state is in the worker.

Each shard has only its own part of an execution. So the worker forwards `RG.GETEXECUTION` (except with SHARD),
`RG.DROPEXECUTION` and `RG.ABORTEXECUTION` to the workers of all shards (`gears/shard/peers.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from qa_cluster.errors import ClusterError

from ...shard import replies
from ...shard.failures import GearsError
from ...shard.peers import RESEND_SOON_SECONDS
from ..host.executions import MISSING, Execution
from ..registrations.session_dump import SessionDump
from ..runs.history import MISSING_EXECUTION
from .runtime import Runtime

logger = logging.getLogger(__name__)
ASK_SECONDS = 2.0
PLAN, DROP, ABORT = "execution plan?", "drop execution", "abort execution"
_ORDERS = {"RG.DROPEXECUTION": DROP, "RG.ABORTEXECUTION": ABORT}


async def run_command(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    """Run the command `name` of a `command` job or of a function; return its reply in the form of the Redis protocol.

    Raises GearsError if the command fails.
    """
    handler = _COMMANDS.get(name)
    if handler is None:
        raise GearsError(f"ERR the worker does not know the command {name}")
    return await handler(runtime, name, arguments)


async def run_at_once(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    """Run a command without waiting for other shards.

    `RG.DROPEXECUTION` and `RG.ABORTEXECUTION` drop or abort this shard's part. The other shards get a message to do the
    same, and their answers are not awaited.
    `RG.GETEXECUTION` without SHARD or CLUSTER returns only this shard's part. `RG.GETEXECUTION` with
    CLUSTER still waits for other shards, so a caller that must not wait has to stop this coroutine.
    """
    if name not in _ORDERS:
        own_only = name == "RG.GETEXECUTION" and len(arguments) == 1
        return await run_command(runtime, name, [*arguments, "SHARD"] if own_only else arguments)
    execution_id, kind = _argument(name, arguments), _ORDERS[name]
    known = _carry_out(runtime, kind, execution_id)
    for node in _others(runtime):
        runtime.peers.send(node, kind, execution_id)
    # another shard may have the execution, but this shard cannot wait for its answer
    if not known and not _others(runtime):
        raise GearsError(f"ERR {MISSING_EXECUTION}")
    return replies.OK


def answer_about_executions(runtime: Runtime) -> None:
    """Set the handlers for requests of the other shards' workers: show, drop or abort this shard's part of an
    execution.
    """
    runtime.peers.on(PLAN, lambda _, execution_id: _own_plan(runtime, execution_id))
    runtime.peers.on(DROP, lambda _, execution_id: _carry_out(runtime, DROP, execution_id))
    runtime.peers.on(ABORT, lambda _, execution_id: _carry_out(runtime, ABORT, execution_id))


def _carry_out(runtime: Runtime, kind: str, execution_id: str) -> bool:
    history = runtime.history
    return history.drop(execution_id) if kind == DROP else history.abort(execution_id)


def _argument(name: str, arguments: list[str]) -> str:
    if not arguments:
        raise GearsError(f"ERR wrong number of arguments for '{name.lower()}' command")
    return arguments[0]


def _execution(runtime: Runtime, name: str, arguments: list[str]) -> Execution:
    execution = runtime.history.get(_argument(name, arguments))
    if execution is None:
        raise GearsError(f"ERR {MISSING}")
    return execution


async def _get_results(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    execution = _execution(runtime, name, arguments)
    if name == "RG.GETRESULTSBLOCKING":
        await execution.wait()
    if not execution.finished:
        raise GearsError("ERR execution is still running")
    return replies.encode_results(execution.results, execution.errors)


def _own_plan(runtime: Runtime, execution_id: str) -> list[Any] | None:
    """Return this shard's part of an execution in the form of `RG.GETEXECUTION`; None if this shard has no part."""
    execution = runtime.history.get(execution_id)
    if execution is None:
        return None
    steps = [
        ["type", kind, "duration", round(seconds * 1000), "name", function, "arg", ""]
        for (kind, function), seconds in zip(execution.steps, execution.step_seconds, strict=True)
    ]
    return [
        *("status", execution.status),
        *("shards_received", execution.shards_received),
        *("shards_completed", execution.shards_completed),
        *("results", len(execution.results)),
        *("errors", list(execution.errors)),
        *("total_duration", execution.duration_ms),
        *("read_duration", round(execution.read_seconds * 1000)),
        *("steps", steps),
    ]


async def _get_execution(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    execution_id = _argument(name, arguments)
    where = arguments[1].upper() if len(arguments) > 1 else "CLUSTER"
    if where not in ("SHARD", "CLUSTER") or len(arguments) > 2:
        raise GearsError(f"ERR unknown argument of RG.GETEXECUTION: {arguments[-1][:100]}, expected SHARD or CLUSTER")
    plans = {runtime.host.info.shard_id: _own_plan(runtime, execution_id)}
    if where == "CLUSTER":
        plans.update(await _ask_others(runtime, PLAN, execution_id))
    known = {shard_id: plan for shard_id, plan in plans.items() if plan is not None}
    if not known:
        raise GearsError(f"ERR {MISSING}")
    return replies.encode_data([["shard_id", shard_id, "execution_plan", plan] for shard_id, plan in known.items()])


def _others(runtime: Runtime) -> list[str]:
    try:
        return runtime.peers.others()
    except ClusterError as error:  # a cluster without slots yet
        logger.info("the other shards cannot be asked about an execution: %s", error)
        return []


async def _ask_others(runtime: Runtime, kind: str, execution_id: str) -> dict[str, Any]:
    """Send a request about an execution to the other shards; return the answers by the shards' node ids.

    If a shard refuses the request, raise GearsError with the shard's reason. A shard that does not answer within
    `ASK_SECONDS` is missing in the result.
    """
    nodes = _others(runtime)
    answers = await runtime.peers.ask_all(nodes, kind, execution_id, ASK_SECONDS, RESEND_SOON_SECONDS)
    for node in nodes:
        if node not in answers:
            logger.warning("shard %s did not answer within %g s about execution %s", node, ASK_SECONDS, execution_id)
    for answer in answers.values():
        if answer.refusal is not None:
            raise GearsError(answer.refusal)
    return {node: answer.value for node, answer in answers.items()}


async def _dump_executions(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    return replies.encode_data(
        [
            ["executionId", execution.id, "status", execution.status, "registered", int(execution.registered)]
            for execution in runtime.history.all()
        ]
    )


async def _order(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    execution_id, kind = _argument(name, arguments), _ORDERS[name]
    known = _carry_out(runtime, kind, execution_id)
    answers = await _ask_others(runtime, kind, execution_id)
    # If the answer of a shard that has dropped the execution is lost, the shard gets the request again. Then the shard
    # does not know the execution, and this error may be wrong.
    if not known and not any(answers.values()):
        raise GearsError(f"ERR {MISSING_EXECUTION}")
    return replies.OK


async def _dump_sessions(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    return replies.encode_data(_sessions(runtime).dump(arguments))


async def _dump_requirements(runtime: Runtime, name: str, arguments: list[str]) -> bytes:
    return replies.encode_data(_sessions(runtime).requirements())


def _sessions(runtime: Runtime) -> SessionDump:
    return SessionDump(runtime.host, runtime.sessions, runtime.history, runtime.timers)


_COMMANDS: dict[str, Callable[[Runtime, str, list[str]], Awaitable[bytes]]] = {
    "RG.GETRESULTS": _get_results,
    "RG.GETRESULTSBLOCKING": _get_results,
    "RG.GETEXECUTION": _get_execution,
    "RG.DUMPEXECUTIONS": _dump_executions,
    "RG.DROPEXECUTION": _order,
    "RG.ABORTEXECUTION": _order,
    "RG.PYDUMPSESSIONS": _dump_sessions,
    "RG.PYDUMPREQS": _dump_requirements,
}
