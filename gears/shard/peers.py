"""Messages between the workers of a cluster, over the servers' cluster bus (`QA.SEND` and `message` jobs).

The bus does not acknowledge messages. So a request waits for an answer message until its deadline. The module ensures
that messages come only from workers of the same cluster.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from qa_cluster.topology import Address, Topology, parse_slots

from .failures import GearsError, error_line
from .host import Host
from .link import Reply
from .messages import Message, MessagePart, decode, encode, encode_part, sent
from .shard import ShardInfo

logger = logging.getLogger(__name__)
Handler = Callable[[str, Any], Any]
MAX_PART_BYTES = 1_000_000  # the module accepts messages up to 1 MiB
# The maximum number of messages that have not arrived completely. A worker can send several long messages at once, one
# from each thread of functions.
MAX_UNFINISHED = 256
# A request without an answer is sent again after this time, because the bus can lose messages, for example in a new
# cluster. So a handler may get the same request twice.
RESEND_SECONDS = 2.0
RESEND_SOON_SECONDS = 0.25  # instead of `RESEND_SECONDS`, if the answer is cheap and a client waits for it


@sent
@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """A worker's answer to a request.

    If the request failed, `refusal` is the reason. Otherwise `refusal` is None, and `value` is the handler's result.
    """

    refusal: str | None
    value: Any = None


def read_topology(execute: Callable[..., Reply], info: ShardInfo) -> Topology | None:
    """Return the primaries and their slots; None outside a cluster. `execute` runs a command on the shard."""
    return parse_slots(execute("CLUSTER", "SLOTS"), Address("127.0.0.1", 1)) if info.cluster else None


class Peers:
    """Sends messages to the workers of the other primaries, and handles the messages that these workers send."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._handlers: dict[str, Handler] = {}
        # The first number is random, so that a late answer for the previous worker of this shard matches no request.
        self._numbers = itertools.count(secrets.randbits(48))
        self._waiting: dict[tuple[int, str], asyncio.Future[PeerAnswer]] = {}
        self._parts: dict[tuple[str, int], list[bytes]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    def on(self, kind: str, handler: Handler) -> None:
        """Handle the messages of a kind with `handler(sender, body)`.

        If the sender expects an answer, the result of the handler is the answer.
        """
        self._handlers[kind] = handler

    def topology(self) -> Topology | None:
        """Return the primaries and their slots; None outside a cluster."""
        return read_topology(self._host.execute_own, self._host.info)

    def others(self) -> list[str]:
        """Return the node ids of the other primaries."""
        topology = self.topology()
        own = self._host.info.shard_id
        return [shard.node_id for shard in topology.shards if shard.node_id != own] if topology else []

    def send(self, node: str, kind: str, body: Any, request: int = 0) -> None:
        """Send a message to the worker of a node, without waiting for an answer. A long message is sent in parts.

        `request` is the number of the request that the message makes or answers; 0 if the message does neither.
        """
        payload = encode(Message(kind, body, request))
        if len(payload) <= MAX_PART_BYTES:
            self._host.execute("QA.SEND", node, payload)
            return
        number = next(self._numbers)
        for start in range(0, len(payload), MAX_PART_BYTES):
            end = start + MAX_PART_BYTES
            part = MessagePart(number, end >= len(payload), payload[start:end])
            self._host.execute("QA.SEND", node, encode_part(part))

    async def request_all(self, nodes: list[str], kind: str, body: Any, timeout_seconds: float) -> None:
        """Ask all `nodes` at once. If nodes refuse or do not answer in time, raise a GearsError that names them."""
        answers = await self.ask_all(nodes, kind, body, timeout_seconds)
        silent = f"did not answer within {timeout_seconds:.0f} s"
        problems = [f"shard {node} {silent}" for node in nodes if node not in answers]
        problems += [
            f"shard {node}: {answer.refusal}" for node, answer in answers.items() if answer.refusal is not None
        ]
        if problems:
            raise GearsError("ERR " + "; ".join(problems))

    async def ask(
        self, node: str, kind: str, body: Any, timeout_seconds: float, resend_seconds: float = RESEND_SECONDS
    ) -> Any:
        """Ask one node; return the result of its handler. Raise GearsError if it refuses or does not answer in time."""
        answer = (await self.ask_all([node], kind, body, timeout_seconds, resend_seconds)).get(node)
        if answer is None:
            raise GearsError(f"ERR shard {node} did not answer within {timeout_seconds:g} s")
        if answer.refusal is not None:
            raise GearsError(answer.refusal)
        return answer.value

    async def ask_all(
        self,
        nodes: list[str],
        kind: str,
        body: Any,
        timeout_seconds: float,
        resend_seconds: float = RESEND_SECONDS,
    ) -> dict[str, PeerAnswer]:
        """Ask all `nodes` at once, and repeat unanswered requests; return the answers that arrive in time."""
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        waiting: dict[str, asyncio.Future[PeerAnswer]] = {node: loop.create_future() for node in nodes}
        self._waiting.update({(number, node): future for node, future in waiting.items()})
        try:
            deadline = loop.time() + timeout_seconds
            while (left := deadline - loop.time()) > 0:
                silent = [node for node, future in waiting.items() if not future.done()]
                if not silent:
                    break
                for node in silent:
                    self.send(node, kind, body, number)
                asked = [waiting[node] for node in silent]
                await asyncio.wait(asked, timeout=min(left, resend_seconds))
        finally:
            for node in nodes:
                self._waiting.pop((number, node), None)
        return {node: future.result() for node, future in waiting.items() if future.done()}

    @contextmanager
    def asked_once(self, node: str, kind: str, body: Any) -> Iterator[asyncio.Future[PeerAnswer]]:
        """Send a request to a node once; yield a future, which gets an answer that arrives within the `with` block."""
        number = next(self._numbers)
        answer: asyncio.Future[PeerAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[number, node] = answer
        try:
            self.send(node, kind, body, number)
            yield answer
        finally:
            del self._waiting[number, node]

    def receive(self, sender: str, payload: bytes) -> None:
        """Handle a message of another worker, from a `message` job.

        `sender` is the node id of the other worker's shard, and `payload` has the bytes of the message or of a part.
        """
        try:
            message = self._whole(sender, decode(payload))
        except GearsError as error:
            logger.error(
                "a message of shard %s cannot be read; its worker may have a different version: %s", sender, error
            )
            return
        if message is None:
            return
        if message.kind == "answer":
            future = self._waiting.get((message.request, sender))
            if future is not None and not future.done():
                future.set_result(message.body)
            return
        handler = self._handlers.get(message.kind)
        answer = PeerAnswer(None)
        try:
            if handler is None:
                raise GearsError(f"ERR worker does not know messages of kind {message.kind!r}")
            value = handler(sender, message.body)
            if inspect.isawaitable(value):
                task = asyncio.ensure_future(self._answer_later(sender, message, value))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
                return
            answer = PeerAnswer(None, value)
        except Exception as error:  # the error is the answer to a request; for other messages, it is only logged
            answer = self._refusal(sender, message, error)
        if message.request:
            self.send(sender, "answer", answer, message.request)

    async def _answer_later(self, sender: str, message: Message, value: Awaitable[Any]) -> None:
        try:
            answer = PeerAnswer(None, await value)
        except Exception as error:
            answer = self._refusal(sender, message, error)
        try:
            if message.request:
                self.send(sender, "answer", answer, message.request)
        except GearsError as error:  # the asking shard has left the cluster
            logger.info("shard %s cannot be answered: %s", sender, error)

    @staticmethod
    def _refusal(sender: str, message: Message, error: Exception) -> PeerAnswer:
        refusal = error_line(error)
        logger.warning("message %s of shard %s failed: %s", message.kind, sender, refusal)
        return PeerAnswer(refusal)

    def _whole(self, sender: str, received: Message | MessagePart) -> Message | None:
        """Return a whole message, or the message that a last part completes; None while parts are missing."""
        if isinstance(received, Message):
            return received
        parts = self._parts.setdefault((sender, received.number), [])
        parts.append(received.data)
        if not received.last:
            while len(self._parts) > MAX_UNFINISHED:  # the oldest parts are from dead senders
                del self._parts[next(iter(self._parts))]
            return None
        del self._parts[sender, received.number]
        message = decode(b"".join(parts))
        if isinstance(message, MessagePart):
            raise GearsError("ERR a message cannot be read: it is made of parts of parts")
        return message
