"""Commands that the worker answers, inside functions: this worker answers them itself, with the function's rights.

Functions run in the thread of the event loop, which cannot wait there for anything. So such a command does what can be
done at once: of executions it knows and changes this shard's part (other shards are told to drop or abort theirs), and
it runs triggers whose functions do not wait. In a thread of its own, a function may wait for all of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any

import hiredis

from ..shard import replies
from ..shard.executions import Execution, current
from ..shard.failures import GearsError
from ..shard.replies import decode_reply
from .commands import run_at_once, run_command
from .runtime import Runtime, current_runtime

TRIGGERS = frozenset({"RG.TRIGGER", "RG.TRIGGERONKEY"})
ANSWERED_INSIDE = TRIGGERS | {
    *("RG.DUMPEXECUTIONS", "RG.GETEXECUTION", "RG.DROPEXECUTION", "RG.ABORTEXECUTION", "RG.GETRESULTS"),
    *("RG.PYDUMPSESSIONS", "RG.PYDUMPREQS"),
}
# what the module answers a caller that may run the command but may not wait for it, as no function may
_WOULD_WAIT = ("Can not run gears inside", "ERR can not run a non-sync execution")


def answer_inside(name: str, arguments: Sequence[str]) -> Any:
    """The reply to a command of `ANSWERED_INSIDE`, as `execute` returns it."""
    runtime = current_runtime()
    if runtime.host.atomic.entered_here:
        raise GearsError(f"ERR {name} can not run inside an atomic block: run it before")
    _check_rights(runtime, name, arguments)
    if name in TRIGGERS:
        packed = _outcome(runtime, name, _trigger(runtime, arguments, waits=_may_wait()))
    elif _may_wait():
        packed = _outcome(runtime, name, run_command(runtime, name, list(arguments)))
    else:
        packed = _outcome(runtime, name, run_at_once(runtime, name, list(arguments)))
    reader = hiredis.Reader()
    reader.feed(packed)
    return decode_reply(reader.gets())


def _may_wait() -> bool:
    return threading.current_thread() is not threading.main_thread()


def _check_rights(runtime: Runtime, name: str, arguments: Sequence[str]) -> None:
    """Raise if the user whose rights the function has may not send the command, or if its arguments are wrong."""
    execution = current.get()
    user = execution.user if execution is not None else ""
    if not user:
        return
    try:
        runtime.host.execute(name, *arguments)
    except GearsError as error:
        if not str(error).startswith(_WOULD_WAIT):
            raise


def _outcome(runtime: Runtime, name: str, work: Coroutine[Any, Any, bytes]) -> bytes:
    """The result of a coroutine; in the thread of the event loop it must not wait for anything."""
    if _may_wait():
        future = asyncio.run_coroutine_threadsafe(work, runtime.host.loop)
        try:
            return future.result(runtime.host.job_seconds)
        except TimeoutError:
            future.cancel()
            raise GearsError(f"DEADLINE {name} took longer than {runtime.host.job_seconds:g} s") from None
    try:
        work.send(None)
    except StopIteration as stop:
        packed: bytes = stop.value
        return packed
    work.close()
    raise GearsError(f"ERR {name} would have to wait, and a function may not: call it in a thread of its own")


async def _trigger(runtime: Runtime, arguments: Sequence[str], *, waits: bool) -> bytes:
    if not arguments:
        raise GearsError("ERR wrong number of arguments for 'rg.trigger' command")
    session, registration = runtime.sessions.trigger(arguments[0])
    caller = current.get()
    user = caller.user if caller is not None and registration.rights == "caller" else ""
    execution = Execution(runtime.host.ids.next(), session, registered=True, user=user)
    plan = registration.trigger_plan(arguments)
    if not waits and runtime.distributor.leaves_shard(plan, None):
        raise GearsError(
            f"ERR the trigger {arguments[0]} runs on all shards, for which a function may not wait: "
            "call it in a thread of its own, or register it with mode='async_local'"
        )
    runtime.history.add_registered(registration.id, execution)
    await runtime.distributor.run(plan, execution, registration_id=registration.id)
    if execution.failure is not None:
        raise GearsError(execution.failure)
    return replies.encode_reply(execution.results)
