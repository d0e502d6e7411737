"""What scripts call: the module they import as `redisgears` or `rg`, whose names are also in every script's globals.

Both spellings of RedisGears 1.2 are here, snake case (globals) and camel case (module). Everything works in functions,
coroutines and `onRegistered` callbacks of a shard worker, and nowhere else.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from qa_cluster.hashtags import hashtag_for_slot, shard_tag

from . import redis_ai
from .atomic import atomic_block
from .builder import GearsBuilder
from .executions import current
from .failures import GearsError
from .futures import (
    GearsFuture,
    create_future,
    run_coroutine,
    set_future_exception,
    set_future_results,
)
from .link import Argument
from .replies import decode_reply
from .runtime import current_runtime

error = GearsError
_LEVELS = ("debug", "verbose", "notice", "warning")


def _argument(value: object) -> Argument:
    return value if isinstance(value, (str, bytes, bytearray, memoryview)) else str(value)


def execute(command: str, *args: object) -> Any:
    """Run a command on this shard: text comes as str (bytearray when it is not UTF-8), else int, list or None.

    >>> execute("HGET", "sentence:doc:{06S}", 0)  # doctest: +SKIP
    'The first sentence.'
    """
    if not isinstance(command, str):
        raise GearsError("the given command must be a string")
    runtime = current_runtime()
    runtime.refuse_self_wait(command)
    return decode_reply(runtime.execute(command, *[_argument(value) for value in args]))


def execute_many(commands: Sequence[Sequence[object]]) -> list[Any]:
    """Run several commands in one round trip; the first error is raised when all have run.

    >>> execute_many([("GET", "a"), ("HGETALL", "b")])  # doctest: +SKIP
    ['1', ['field', 'value']]
    """
    runtime = current_runtime()
    packed: list[tuple[Argument, ...]] = []
    for command, *args in commands:
        if not isinstance(command, str):
            raise GearsError("the given command must be a string")
        runtime.refuse_self_wait(command)
        packed.append((command, *[_argument(value) for value in args]))
    replies = runtime.execute_many(packed)
    failed = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if failed is not None:
        raise GearsError(str(failed))
    return [decode_reply(reply) for reply in replies]


def execute_later(command: str, *args: object) -> None:
    """Run a command on this shard without waiting for it; an error reply is only logged.

    It has run before the client of the job that sends it is answered.
    """
    runtime = current_runtime()
    runtime.refuse_self_wait(command)

    def failed(text: str) -> None:
        log(f"{command} failed: {text}", "warning")

    runtime.execute_later(failed, command, *[_argument(value) for value in args])


def log(message: object, level: str = "notice") -> None:
    """Write a line to the server's log."""
    if level not in _LEVELS:
        raise GearsError(f"unknown log level {level!r}, must be one of {', '.join(_LEVELS)}")
    mark = "" if level == "notice" else f"[{level}] "
    sys.stdout.write("".join(f"GEARS: {mark}{line}\n" for line in str(message).splitlines() or [""]))
    sys.stdout.flush()


def hashtag() -> str:
    """A constant string that hashes to the lowest slot of this shard.

    Outside a cluster it is ``06S`` (slot 0).
    """
    runtime = current_runtime()
    if not runtime.info.cluster:
        return hashtag_for_slot(0)
    reply = runtime.execute("CLUSTER", "SLOTS")
    own = runtime.info.shard_id.encode()
    return shard_tag([(int(first), int(last)) for first, last, primary, *_ in reply if primary[2] == own])


def override_reply(value: object) -> None:
    """Answer the client whose command started this execution with `value` instead of the command's own reply."""
    execution = current.get()
    if execution is None:
        raise GearsError("Can not get command ctx")
    execution.override(value)


def atomic() -> AbstractContextManager[None]:
    """The server serves only this function until the block ends, for the lease of `qa.atomic-lease-ms` at most.

    >>> with atomic():  # doctest: +SKIP
    ...     execute("SET", "a", int(execute("GET", "a")) + 1)
    """
    return atomic_block(current_runtime().atomic)


def is_in_atomic_block() -> bool:
    """Whether the caller is inside `atomic()`."""
    return current_runtime().atomic.entered_here


def is_async_allow() -> bool:
    """Whether coroutines and futures may be returned by steps: always, in a worker."""
    return True


def gears_config_get(key: str, default: Any = None) -> Any:
    """A setting of the module (`RG.CONFIGSET`), or `default`."""
    value = config_get(key)
    return default if value is None else value


def config_get(key: str) -> str | None:
    """A setting of the module (`RG.CONFIGSET`), or None."""
    reply = execute("RG.CONFIGGET", key)
    value = reply[0] if isinstance(reply, list) and reply else None
    if value is None or (isinstance(value, str) and value.startswith(("(error)", "-"))):
        return None
    return str(value)


def flat_error(message: object) -> GearsError:
    """An error that is told by its text alone, without a traceback."""
    return GearsError(str(message))


def gears_future() -> GearsFuture:
    """An object that suspends the step that returns it."""
    return GearsFuture()


_NAMES: dict[str, Any] = {
    **dict.fromkeys(("GearsBuilder", "GB"), GearsBuilder),
    **dict.fromkeys(("execute", "executeCommand"), execute),
    **dict.fromkeys(("execute_many", "executeMany"), execute_many),
    **dict.fromkeys(("execute_later", "executeLater"), execute_later),
    **dict.fromkeys(("override_reply", "overrideReply"), override_reply),
    **dict.fromkeys(("atomic",), atomic),
    **dict.fromkeys(("isInAtomicBlock", "is_in_atomic_block"), is_in_atomic_block),
    **dict.fromkeys(("isAsyncAllow", "is_async_allow"), is_async_allow),
    **dict.fromkeys(("hashtag",), hashtag),
    **dict.fromkeys(("log", "Log"), log),
    **dict.fromkeys(("configGet", "config_get", "ConfigGet"), config_get),
    **dict.fromkeys(("gearsConfigGet", "gears_config_get", "GearsConfigGet"), gears_config_get),
    **dict.fromkeys(("flat_error", "flatError"), flat_error),
    **dict.fromkeys(("gearsFuture", "gears_future"), gears_future),
    **dict.fromkeys(("GearsFuture",), GearsFuture),
    **dict.fromkeys(("createFuture",), create_future),
    **dict.fromkeys(("setFutureResults",), set_future_results),
    **dict.fromkeys(("setFutureException",), set_future_exception),
    **dict.fromkeys(("runCoroutine",), run_coroutine),
    **dict.fromkeys(("error", "GearsError"), GearsError),
}


def script_globals() -> dict[str, Any]:
    """The names that every script finds in its globals."""
    names = {name: value for name, value in _NAMES.items() if name != "error"}
    return {**names, "asyncio": asyncio, "redisAI": redis_ai}


def install_modules() -> None:
    """Make `redisgears`, `rg`, `gears` and `redisAI` importable in this process."""
    for module_name in ("redisgears", "rg", "gears"):
        module = ModuleType(module_name, __doc__)
        module.__dict__.update(_NAMES)
        sys.modules[module_name] = module
    sys.modules["redisAI"] = redis_ai
