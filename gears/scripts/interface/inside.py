"""Runs some commands that a function sends, because the server would only pass these commands back to this worker. The
commands run without the server, but with the function's rights.

The worker's event loop runs these commands. A function on a thread waits for the answer until the function is aborted,
or until the time limit of the command. Coroutines share one event loop, so no coroutine may block this loop. Therefore
a command of a coroutine never waits:

- `RG.GETEXECUTION` returns only this shard's part of an execution. With ``CLUSTER``, it raises an error if
  it must ask other shards.
- `RG.DROPEXECUTION` and `RG.ABORTEXECUTION` change only this shard's part. The other shards get a message to drop or
  abort their parts.
- `RG.TRIGGER` and `RG.TRIGGERONKEY` do not run triggers of user functions.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import hiredis

from ...functions.calls import TriggerCall
from ...functions.own_functions import OwnTrigger
from ...shard import replies
from ...shard.failures import GearsError
from ...shard.replies import decode_reply
from ..calling.threads import FunctionPool
from ..host.executions import as_worker, current
from ..registrations.sessions import Registration, ScriptSession, execution_of
from ..runs.sources import CommandSource
from .commands import run_at_once, run_command
from .runtime import Runtime, current_runtime

TRIGGERS = frozenset({"RG.TRIGGER", "RG.TRIGGERONKEY"})
ANSWERED_INSIDE = TRIGGERS | {
    *("RG.DUMPEXECUTIONS", "RG.GETEXECUTION", "RG.DROPEXECUTION", "RG.ABORTEXECUTION", "RG.GETRESULTS"),
    *("RG.PYDUMPSESSIONS", "RG.PYDUMPREQS"),
}
# `_check_rights` sends the command to the module only to check the user's rights. If the user may run the command, the
# module refuses it with one of these errors, because the command would have to wait.
_WOULD_WAIT = ("Can not run gears inside", "ERR can not run a non-sync execution")
_CALL_ELSEWHERE = "call it in a function that is not a coroutine, or with asyncio.to_thread"
# The interval at which a waiting function runs bytecode, because only bytecode can be interrupted.
_SLICE_SECONDS = 0.2


def answer_inside(name: str, arguments: Sequence[str]) -> Any:
    """Return the reply to the command `name` of `ANSWERED_INSIDE`, as `execute` returns it.

    Raises GearsError if the command fails, or if the caller is inside an atomic block.
    """
    runtime = current_runtime()
    if runtime.host.atomic.entered_here:
        raise GearsError(f"ERR {name} can not run inside an atomic block: run it before")
    _check_rights(runtime, name, arguments)
    if name in TRIGGERS:
        packed = _answer_trigger(runtime, name, arguments)
    elif _may_wait(runtime):
        packed = _wait(runtime, name, run_command(runtime, name, list(arguments)), runtime.host.job_seconds)
    else:
        packed = runtime.host.on_loop(_at_once, name, run_at_once(runtime, name, list(arguments)))
    reader = hiredis.Reader()
    reader.feed(packed)
    return decode_reply(reader.gets())


def _may_wait(runtime: Runtime) -> bool:
    return threading.current_thread() is not threading.main_thread() and not runtime.host.coroutines.entered_here()


def _check_rights(runtime: Runtime, name: str, arguments: Sequence[str]) -> None:
    """Raise an error if the user of the running function may not send the command, or if the arguments are wrong.

    A function with the worker's rights has no user, and is not checked.
    """
    execution = current.get()
    user = execution.user if execution is not None else ""
    if not user:
        return
    try:
        runtime.host.execute(name, *arguments)
    except GearsError as error:
        if not str(error).startswith(_WOULD_WAIT):
            raise


def _wait(runtime: Runtime, name: str, work: Coroutine[Any, Any, bytes], seconds: float | None) -> bytes:
    """Do the work on the worker's event loop; wait for the result and return it.

    The waiting caller may be interrupted. After `seconds` (None: no limit), cancel the work and raise GearsError.
    `name` is the command for the text of this error.
    """
    until = None if seconds is None else time.monotonic() + seconds
    future = asyncio.run_coroutine_threadsafe(work, runtime.host.loop)
    try:
        while True:
            try:
                return future.result(_SLICE_SECONDS)
            except TimeoutError:
                if future.done():  # the error comes from the work itself
                    raise
                if until is not None and time.monotonic() > until:
                    raise GearsError(f"DEADLINE {name} took longer than {seconds:g} s") from None
    finally:
        future.cancel()


def _at_once(name: str, work: Coroutine[Any, Any, bytes]) -> bytes:
    """Return the result of a coroutine on the worker's event loop. If the coroutine would wait, raise an error."""
    try:
        work.send(None)
    except StopIteration as stop:
        packed: bytes = stop.value
        return packed
    work.close()
    raise GearsError(f"ERR {name} would wait, but a coroutine must not wait: {_CALL_ELSEWHERE}")


def _answer_trigger(runtime: Runtime, name: str, arguments: Sequence[str]) -> bytes:
    if not arguments:
        raise GearsError("ERR wrong number of arguments for 'rg.trigger' command")
    session, registration = runtime.host.on_loop(runtime.sessions.trigger, arguments[0])
    own = runtime.functions.registered(registration.id)
    if isinstance(own, OwnTrigger):
        work = as_worker(_call_own(own, arguments[1:]))
    else:
        work = _trigger(runtime, session, registration, arguments)
    if _may_wait(runtime):
        return _wait(runtime, name, work, _limit_seconds(runtime, registration))
    if own is None:
        work.close()
        raise GearsError(
            f"ERR the trigger {arguments[0]} runs on other threads, for which a coroutine may not wait: "
            f"{_CALL_ELSEWHERE}"
        )
    packed: bytes = runtime.host.on_loop(_at_once, name, work)
    return packed


async def _call_own(function: OwnTrigger, arguments: Sequence[str]) -> bytes:
    value = await function.call(TriggerCall(arguments))
    return replies.encode_reply(value if isinstance(value, list) else [value])


def _limit_seconds(runtime: Runtime, registration: Registration) -> float | None:
    """Return the time limit of a trigger in seconds: its own limit, or the default; None if it has no limit."""
    source = registration.source
    own_ms = source.timeout_ms if isinstance(source, CommandSource) else 0
    if own_ms < 0:
        return None
    return own_ms / 1000 if own_ms else runtime.host.job_seconds


async def _trigger(
    runtime: Runtime, session: ScriptSession, registration: Registration, arguments: Sequence[str]
) -> bytes:
    caller = current.get()
    user = caller.user if caller is not None and registration.rights == "caller" else ""
    pool = caller.pool if caller is not None else FunctionPool.BACKGROUND
    execution = execution_of(registration, session, runtime.host.ids, pool, user=user)
    # `onRegistered` may call the trigger of its own registration. This call must not wait until `onRegistered` returns.
    if caller is None or caller.id != registration.id:
        await runtime.on_registered.until_returned(registration.id)
    runtime.history.add_registered(registration.id, execution)
    plan = registration.trigger_plan(arguments)
    await runtime.distributor.run(plan, execution, registration_id=registration.id)
    if execution.failure is not None:
        raise GearsError(execution.failure)
    return replies.encode_reply(execution.results)
