"""The functions that scripts call. Scripts import this module as `redisgears` or `rg`, and have its names as globals.

Both spellings of RedisGears 1.2 exist: snake case (globals) and camel case (module). The callers are scripts, and
their functions, coroutines and `onRegistered` callbacks, in a shard's worker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ...shard.commands import ShardCommands
from ...shard.failures import GearsError
from ..host.atomic import atomic_block
from ..host.executions import current
from ..host.script_errors import FlatError
from ..host.script_host import current_host
from ..registrations.script_source import running_script
from ..registrations.sessions import session_of
from ..registrations.timers import check_timer
from ..runs.futures import GearsFuture
from ..runs.key_values import SCAN_COUNT
from ..runs.sources import KeysOnlySource
from .inside import ANSWERED_INSIDE, answer_inside
from .runtime import current_runtime

error = GearsError


def _text(value: object) -> str:
    return bytes(value).decode("utf-8", "replace") if isinstance(value, (bytes, bytearray, memoryview)) else str(value)


def execute(command: str, *args: object) -> Any:
    """Run a command on this shard. Replies are str (bytearray if not UTF-8), int, list or None.

    In a function that is registered with its caller's rights, the command has the rights of the client that has
    triggered the function. Otherwise, the command has the worker's rights. Raises GearsError (``Operation not
    permitted``) for a key of another shard.

    >>> execute("HGET", "sentence:doc:{06S}", 0)  # doctest: +SKIP
    'The first sentence.'
    """
    name = command.upper() if isinstance(command, str) else ""
    if name in ANSWERED_INSIDE:
        return answer_inside(name, [_text(value) for value in args])
    return current_runtime().commands.execute(command, *args)


def execute_many(commands: Sequence[Sequence[object]], *, keep_errors: bool = False) -> list[Any]:
    """Run several commands in one round trip; return their replies.

    If commands fail, raise the first error after all commands have run.

    With `keep_errors`, raise no error. A failed command's item in the list is then an `error`.

    >>> execute_many([("GET", "a"), ("HGETALL", "b")])  # doctest: +SKIP
    ['1', ['field', 'value']]
    """
    return current_runtime().commands.execute_many(commands, keep_errors=keep_errors)


def execute_later(command: str, *args: object) -> None:
    """Run a command on this shard without waiting for its reply. An error reply is only logged.

    The command runs before the client of the current job gets its reply. Inside `atomic()`, this function waits for the
    reply, and raises GearsError for an error reply.
    """
    current_runtime().commands.execute_later(command, *args)


def log(message: object, level: str = "notice") -> None:
    """Write the text `message` to the server's log, in as many lines as it has.

    `level` is a log level of Redis. Raises GearsError for any other level.
    """
    ShardCommands.log(message, level)


def hashtag() -> str:
    """Return a constant string whose hash slot is the lowest slot of this shard.

    Outside a cluster, the string is ``06S``, whose slot is 0.
    """
    return current_runtime().commands.hashtag()


def override_reply(value: object) -> None:
    """Set the reply to the client whose command has started this execution. The value replaces the command's reply.

    Raises GearsError if the execution does not handle a key event for a waiting client, or if the reply was
    already set.
    """
    execution = current.get()
    if execution is None:
        raise GearsError("Can not get command ctx")
    execution.override(value)


def atomic() -> AbstractContextManager[None]:
    """Make the server serve only this function until the block ends, for at most `qa.atomic-lease-ms`.

    After this time, the server serves other clients again, and a command in the block raises GearsError.
    >>> with atomic():  # doctest: +SKIP
    ...     execute("SET", "a", int(execute("GET", "a")) + 1)
    """
    return atomic_block(current_host().atomic)


def is_in_atomic_block() -> bool:
    """Return whether the caller is inside `atomic()`."""
    return current_host().atomic.entered_here


def is_async_allow() -> bool:
    """Return True: in a worker, steps may always return coroutines and futures."""
    return True


def gears_config_get(key: str, default: Any = None) -> Any:
    """Return a setting of the module (`RG.CONFIGSET`), or `default` if the setting is unset."""
    value = config_get(key)
    return default if value is None else value


def config_get(key: str) -> str | None:
    """Return a setting of the module (`RG.CONFIGSET`), or None if the setting is unset."""
    return current_runtime().commands.config_get(key)


def flat_error(message: object) -> GearsError:
    """Return an error that is shown without a traceback."""
    return FlatError(str(message))


def register_time_event(seconds: float, f: Callable[[], Any], key: object = None) -> bool:
    """Call `f` every `seconds` until the session is unregistered or replaced; return True.

    A call starts `seconds` after the end of the previous call. The timer belongs to this worker. A script's timer runs
    on one shard and ends with the worker. For a timer on every shard that also exists after a restart, start the timer
    in `onRegistered`. Raises GearsError for a `key`, which RedisGears supports, but qa-cluster does not.
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
    """Return a generator function for a `PythonReader` that yields the names of the shard's keys.

    Args:
        pattern: the pattern of the names, as for ``SCAN``.
        count: the COUNT of each ``SCAN``.
        noScan: whether `pattern` is the name of one key. The function then yields this name if the key exists on this
            shard.
        patternGenerator: returns the pattern and `noScan` at the start of a run, instead of the two arguments; None:
            use the arguments.
    """

    def read() -> AsyncIterator[Any]:
        return KeysOnlySource(pattern, count, noScan, patternGenerator).records(current_host())

    return read


def shard_reader_callback() -> Iterator[str]:
    """Yield the shard's id (``1`` outside a cluster). Scripts pass this generator function to a `PythonReader`."""
    info = current_host().info
    yield info.shard_id if info.cluster else "1"


def gears_future() -> GearsFuture:
    """Return an object that suspends a step: a step that returns it waits until another thread continues the step."""
    return GearsFuture()
