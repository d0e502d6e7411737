"""The functions that scripts call: scripts import this module as `redisgears` or `rg`, and have its names as globals.

Both spellings of RedisGears 1.2 exist, snake case (globals) and camel case (module). Everything works in functions,
coroutines and `onRegistered` callbacks of a shard worker, and nowhere else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from typing import Any

from qa_cluster.hashtags import hashtag_for_slot, shard_tag

from ..inference.served import RunTimes
from ..registrations.script_source import running_script
from ..registrations.sessions import session_of
from ..registrations.timers import check_timer
from ..runs.futures import GearsFuture
from ..runs.key_values import SCAN_COUNT
from ..runs.sources import KeysOnlySource
from ..shard.atomic import atomic_block
from ..shard.executions import current
from ..shard.failures import FlatError, GearsError
from ..shard.forbidden import refuse_forbidden
from ..shard.host import current_host
from ..shard.link import Argument
from ..shard.peers import RESEND_SECONDS, RESEND_SOON_SECONDS
from ..shard.replies import decode_reply
from .builder import GearsBuilder
from .held_model import HeldModel, with_references
from .inside import ANSWERED_INSIDE, answer_inside
from .runtime import current_runtime

# Names from other modules that functions may use.
__all__ = ["RESEND_SOON_SECONDS", "GearsBuilder", "HeldModel", "RunTimes", "with_references"]

error = GearsError
_LEVELS = ("debug", "verbose", "notice", "warning")


def _argument(value: object) -> Argument:
    return value if isinstance(value, (str, bytes, bytearray, memoryview)) else str(value)


def _text(value: object) -> str:
    return bytes(value).decode("utf-8", "replace") if isinstance(value, (bytes, bytearray, memoryview)) else str(value)


def execute(command: str, *args: object) -> Any:
    """Run a command on this shard. Replies are str (bytearray if not UTF-8), int, list or None.

    The command has the worker's rights or, if the function is registered that way, those of the client that triggered
    it. A key of another shard is an error: ``Operation not permitted``.

    >>> execute("HGET", "sentence:doc:{06S}", 0)  # doctest: +SKIP
    'The first sentence.'
    """
    if not isinstance(command, str):
        raise GearsError("the given command must be a string")
    host = current_host()
    name = command.upper()
    if name in ANSWERED_INSIDE:
        return answer_inside(name, [_text(value) for value in args])
    refuse_forbidden(command)
    return decode_reply(host.execute(command, *[_argument(value) for value in args]))


def execute_many(commands: Sequence[Sequence[object]], *, keep_errors: bool = False) -> list[Any]:
    """Run several commands in one round trip; the first error is raised after all have run.

    With `keep_errors` none is raised: an `error` stands in the place of its command's reply.

    >>> execute_many([("GET", "a"), ("HGETALL", "b")])  # doctest: +SKIP
    ['1', ['field', 'value']]
    """
    host = current_host()
    packed: list[tuple[Argument, ...]] = []
    for command, *args in commands:
        if not isinstance(command, str):
            raise GearsError("the given command must be a string")
        refuse_forbidden(command)
        packed.append((command, *[_argument(value) for value in args]))
    replies = host.execute_many(packed)
    failed = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if failed is not None and not keep_errors:
        raise GearsError(str(failed))
    return [GearsError(str(reply)) if isinstance(reply, Exception) else decode_reply(reply) for reply in replies]


def execute_later(command: str, *args: object) -> None:
    """Run a command on this shard without waiting for it; an error reply is only logged.

    It runs before the client of the current job gets its answer.
    """
    host = current_host()
    refuse_forbidden(command)

    def failed(text: str) -> None:
        log(f"{command} failed: {text}", "warning")

    host.execute_later(failed, command, *[_argument(value) for value in args])


async def commands_sent() -> None:
    """Wait until every command of `execute_later` has run (not in RedisGears)."""
    reporting = current_host().reporting
    if reporting is not None:
        await current_host().await_on_loop(reporting.ping())


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
    host = current_host()
    if not host.info.cluster:
        return hashtag_for_slot(0)
    reply = host.execute_own("CLUSTER", "SLOTS")
    own = host.info.shard_id.encode()
    return shard_tag([(int(first), int(last)) for first, last, primary, *_ in reply if primary[2] == own])


def waited_seconds() -> float:
    """How long ago the command that called this function came to the server; 0.0 if none did (not in RedisGears).

    At the beginning of a function, that is how long it has waited: in the shard's queue, and for the worker's turn.
    """
    execution = current.get()
    if execution is None or not execution.came_us:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_MONOTONIC) - execution.came_us / 1e6)


def override_reply(value: object) -> None:
    """Answer the client whose command started this execution with `value` instead of the command's own reply."""
    execution = current.get()
    if execution is None:
        raise GearsError("Can not get command ctx")
    execution.override(value)


def atomic() -> AbstractContextManager[None]:
    """Make the server serve only this function until the block ends, for `qa.atomic-lease-ms` at most.

    >>> with atomic():  # doctest: +SKIP
    ...     execute("SET", "a", int(execute("GET", "a")) + 1)
    """
    return atomic_block(current_host().atomic)


def is_in_atomic_block() -> bool:
    """Whether the caller is inside `atomic()`."""
    return current_host().atomic.entered_here


def is_async_allow() -> bool:
    """Whether steps may return coroutines and futures: always true in a worker."""
    return True


def gears_config_get(key: str, default: Any = None) -> Any:
    """A setting of the module (`RG.CONFIGSET`), or `default`."""
    value = config_get(key)
    return default if value is None else value


def config_get(key: str) -> str | None:
    """A setting of the module (`RG.CONFIGSET`), or None."""
    reply = decode_reply(current_host().execute_own("RG.CONFIGGET", key))
    value = reply[0] if isinstance(reply, list) and reply else None
    if value is None or (isinstance(value, str) and value.startswith(("(error)", "-"))):
        return None
    return str(value)


def server_setting(name: str) -> str:
    """A setting ``qa.*`` of the server as it was when this worker started; empty: there is none (not in RedisGears)."""
    return current_host().info.settings.get(name, "") if name.startswith("qa.") else ""


def keyed_digest(text: str, size: int) -> str:
    """A digest of a text in hex, of `size` bytes (1 to 64), with the key that the cluster's servers share.

    All workers of a cluster make the same one, and nobody else can, unless the servers share no key
    (`qa.bus-key-file`): then it is a plain BLAKE2b. (not in RedisGears)
    """
    return blake2b(text.encode(), digest_size=size, key=current_host().info.secret).hexdigest()


def flat_error(message: object) -> GearsError:
    """An error that is shown as its text only, without a traceback."""
    return FlatError(str(message))


def register_time_event(seconds: float, f: Callable[[], Any], key: object = None) -> bool:
    """Call `f` every `seconds` until the session is unregistered or replaced; return True.

    The timer belongs to this worker: if a script starts it, it is on one shard and ends with the worker. To have it on
    every shard, also after a restart, start it in `onRegistered`.
    """
    if key is not None:
        raise GearsError(
            "registerTE with a key is left out: start the timer in onRegistered, and keep its state in a key"
        )
    check_timer(seconds, f)
    script = running_script()
    if script is not None:
        script.timers.append((seconds, f))
        return True
    execution = current.get()
    session = session_of(execution)
    if execution is None or session is None:
        raise GearsError("registerTE can only be called by a script or a function of a session")
    current_host().on_loop(current_runtime().timers.start, session, seconds, f, execution.id, execution.user)
    return True


def create_keys_only_reader(
    pattern: str = "*",
    count: int = SCAN_COUNT,
    noScan: bool = False,
    patternGenerator: Callable[[], tuple[str, bool]] | None = None,
) -> Callable[[], AsyncIterator[Any]]:
    """A generator function for a `PythonReader` that yields the names of the shard's keys."""

    def read() -> AsyncIterator[Any]:
        return KeysOnlySource(pattern, count, noScan, patternGenerator).records(current_host())

    return read


def shard_reader_callback() -> Iterator[str]:
    """A generator function for a `PythonReader` that yields the shard's id."""
    info = current_host().info
    yield info.shard_id if info.cluster else "1"


def gears_future() -> GearsFuture:
    """An object that suspends the step that returns it."""
    return GearsFuture()


async def ask_shard(
    node_id: str, kind: str, body: Any, timeout_seconds: float, resend_seconds: float = RESEND_SECONDS
) -> Any:
    """Call the function that `answer_shards` has set on another shard, and return its result (not in RedisGears).

    The bus may lose messages: the request is repeated every `resend_seconds`, and that function may get it twice. Body
    and result consist of None, booleans, numbers, texts, bytes, lists and dicts; a tuple arrives as a list.
    """
    asked = current_runtime().peers.ask(node_id, kind, body, timeout_seconds, resend_seconds)
    return await current_host().await_on_loop(asked)


def answer_shards(kind: str, handler: Callable[[str, Any], Any]) -> None:
    """Set `handler(sender, body)`, a function or coroutine function, to answer other shards (not in RedisGears)."""
    current_runtime().peers.on(kind, handler)
