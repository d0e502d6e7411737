"""The commands that functions run on their shard, with replies in the types for functions.

qa-cluster's own functions use `ShardCommands` with the rights of the worker. User functions use it with the rights of
the user of their execution (`ScriptHost`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

from qa_cluster.hashtags import hashtag_for_slot, shard_tag
from qa_cluster.scripts.calls import ScriptCall

from .failures import GearsError
from .forbidden import refuse_forbidden
from .host import Host
from .link import Argument, raise_on_error
from .peers import RESEND_SECONDS, Peers
from .replies import decode_reply

_LEVELS = ("debug", "verbose", "notice", "warning")


def _argument(value: object) -> Argument:
    return value if isinstance(value, (str, bytes, bytearray, memoryview)) else str(value)


def _packed(command: object, args: Sequence[object]) -> tuple[Argument, ...]:
    if not isinstance(command, str):
        raise GearsError("the given command must be a string")
    refuse_forbidden(command)
    return (command, *[_argument(value) for value in args])


class ShardCommands:
    """Commands, scripts, settings and log of the shard, and requests to other shards."""

    def __init__(self, host: Host, peers: Peers) -> None:
        self._host = host
        self._peers = peers

    def execute(self, command: str, *args: object) -> Any:
        """Run a command. Replies are str (bytearray if not UTF-8), int, list or None.

        Raises GearsError for an error reply, and for a command that functions must not run (`forbidden`). For a key of
        another shard, the error starts with ``Operation not permitted``.
        """
        return decode_reply(self._host.execute(*_packed(command, args)))

    def execute_many(self, commands: Sequence[Sequence[object]], *, keep_errors: bool = False) -> list[Any]:
        """Run commands in one round trip; return their replies.

        If commands fail, raise the first error after all commands have run.

        With `keep_errors`, raise no error. A failed command's item in the list is then a `GearsError`.
        """
        replies = self._host.execute_many([_packed(command, args) for command, *args in commands])
        failed = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if failed is not None and not keep_errors:
            raise GearsError(str(failed))
        return [_decoded(reply) for reply in replies]

    def indexing(
        self, batch: int, documents: Iterable[tuple[str, str]], commands: Sequence[Sequence[object]] = ()
    ) -> list[Any]:
        """Send the module the documents that are being indexed (``QA.INDEXING``), and run commands in the same round
        trip.

        `batch` is the number of the calling thread's group of documents. The documents replace the previous documents
        of this group. Each document is a pair of its name in keys and its tag. Return the replies of `commands` like
        `execute_many` with `keep_errors`.
        """
        named = ("QA.INDEXING", str(batch), *(word for document in documents for word in document))
        replies = self._host.execute_many([named, *(_packed(command, args) for command, *args in commands)])
        raise_on_error(replies[0])
        return [_decoded(reply) for reply in replies[1:]]

    def execute_later(self, command: str, *args: object) -> None:
        """Run a command without waiting for its reply. An error reply is only logged.

        The command runs before the client of the current job gets its reply.
        """

        def failed(text: str) -> None:
            self.log(f"{command} failed: {text}", "warning")

        self._host.execute_later(failed, *_packed(command, args))

    async def commands_sent(self) -> None:
        """Wait until every command of `execute_later` has run. Call this on the worker's event loop."""
        await self._host.reporting.ping()

    def run_script(self, call: ScriptCall) -> Any:
        """Run a Lua script and return its reply. Raise GearsError for an error reply."""
        (reply,) = self.run_scripts([call])
        if isinstance(reply, GearsError):
            raise reply
        return reply

    def run_scripts(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run Lua scripts in one round trip; return the replies. A failed script's item is a `GearsError`.

        The scripts are not atomic as a whole: commands of other clients may run between them.
        """
        replies = self.execute_many([call.short() for call in calls], keep_errors=True)
        unknown = [number for number, reply in enumerate(replies) if is_unknown_script(reply)]
        if unknown:
            again = self.execute_many([calls[number].command() for number in unknown], keep_errors=True)
            for number, reply in zip(unknown, again, strict=True):
                replies[number] = reply
        return replies

    def run_script_later(self, call: ScriptCall) -> None:
        """Run a Lua script without waiting for its reply. The script runs before the job's client gets its reply."""
        self.execute_later("EVAL", call.source, len(call.keys), *call.keys, *call.args)

    def with_references(
        self, commands: Sequence[Sequence[Argument]], keys: Sequence[str]
    ) -> tuple[list[Any], list[int | None]]:
        """Run read commands; return the replies, and the reference of the model at each key (None: no model).

        A reference is the module's number for the bytes of a stored model (`QA.MODELREF`). The method needs one round
        trip, and also works on a replica. If a command fails, its error is raised as GearsError.
        """
        # The caller's last command repeats the first command (a scan of the models), to detect keys that were renamed
        # in between.
        *others, last = commands
        references = [("QA.MODELREF", key) for key in keys]
        replies = self._host.links.link().execute_many(
            [("READONLY",), *others, *references, last, ("READWRITE",)],
        )
        found = [decode_reply(raise_on_error(reply)) for reply in (*replies[1 : len(others) + 1], replies[-2])]
        return found, [_reference(reply) for reply in replies[len(others) + 1 : -2]]

    def hashtag(self) -> str:
        """Return a string whose hash slot is this shard's lowest slot. Outside a cluster, it is ``06S`` (slot 0)."""
        if not self._host.info.cluster:
            return hashtag_for_slot(0)
        reply = self._host.execute_own("CLUSTER", "SLOTS")
        own = self._host.info.shard_id.encode()
        return shard_tag([(int(first), int(last)) for first, last, primary, *_ in reply if primary[2] == own])

    def config_get(self, key: str) -> str | None:
        """Return an option of the module (`RG.CONFIGSET`); None if it is unset."""
        reply = decode_reply(self._host.execute_own("RG.CONFIGGET", key))
        value = reply[0] if isinstance(reply, list) and reply else None
        if value is None or (isinstance(value, str) and value.startswith(("(error)", "-"))):
            return None
        return str(value)

    def setting(self, name: str) -> str:
        """Return a setting ``qa.*`` of the server, with the value that it had when this worker started."""
        return self._host.info.text(name)

    def keyed_digest(self, text: str, size: int) -> str:
        """Return a digest of a text in hex, of `size` bytes (1 to 64), with the cluster's common key.

        All workers of a cluster compute the same digest, and clients cannot compute it. Without a common key
        (`qa.bus-key-file`), the digest is a plain BLAKE2b, which clients can also compute.
        """
        return blake2b(text.encode(), digest_size=size, key=self._host.info.secret).hexdigest()

    @staticmethod
    def log(message: object, level: str = "notice") -> None:
        """Write the text `message` to the server's log, in as many lines as it has. `level` is a log level of Redis."""
        if level not in _LEVELS:
            raise GearsError(f"unknown log level {level!r}, must be one of {', '.join(_LEVELS)}")
        mark = "" if level == "notice" else f"[{level}] "
        sys.stdout.write("".join(f"GEARS: {mark}{line}\n" for line in str(message).splitlines() or [""]))
        sys.stdout.flush()

    async def ask(
        self, node: str, kind: str, body: Any, timeout_seconds: float, resend_seconds: float = RESEND_SECONDS
    ) -> Any:
        """Send a request to another shard; return the result of that shard's handler for `kind` (`answer`).

        The bus may lose messages, so the request is repeated every `resend_seconds`. The other shard may get the
        request twice. Body and result consist of None, booleans, numbers, texts, bytes, lists and dicts. A tuple
        arrives as a list.
        """
        return await self._peers.ask(node, kind, body, timeout_seconds, resend_seconds)

    def answer(self, kind: str, handler: Callable[[str, Any], Any]) -> None:
        """Set the handler for other shards' requests of a kind.

        `handler(sender, body)` is a function or a coroutine function. Its result is the answer to the request.
        """
        self._peers.on(kind, handler)


def _decoded(reply: Any) -> Any:
    return GearsError(str(reply)) if isinstance(reply, Exception) else decode_reply(reply)


def as_bytes(value: Any) -> bytes:
    """Return a reply as bytes (None: empty). Replies are str if they are valid UTF-8."""
    return value.encode() if isinstance(value, str) else bytes(value or b"")


def is_unknown_script(reply: Any) -> bool:
    """Return whether the reply is the error of a server that does not have the called script yet (``NOSCRIPT``)."""
    return isinstance(reply, GearsError) and str(reply).startswith("NOSCRIPT")


def is_wrong_type(reply: Any) -> bool:
    """Return whether the reply is the error for a value of the wrong type.

    A retry does not help until a client changes the key.
    """
    return isinstance(reply, GearsError) and "WRONGTYPE" in str(reply)


def _reference(reply: Any) -> int | None:
    if isinstance(reply, Exception):
        if "is empty" in str(reply):
            return None
        raise GearsError(str(reply))
    return int(reply[0])
