"""Messages between the workers of a cluster, over the shards' own bus (`QA.SEND` and `message` jobs).

The bus acknowledges nothing, so a request waits for an answering message up to a deadline. Messages are cloudpickle:
they come only from workers of the same cluster, which the module vouches for.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import cloudpickle

from qa_cluster.topology import Address, Topology, parse_slots

from .failures import GearsError, error_line
from .link import Argument, Reply
from .shard import ShardInfo

if TYPE_CHECKING:
    from .runtime import Runtime

logger = logging.getLogger(__name__)
Handler = Callable[[str, Any], Any]
MAX_PART_BYTES = 1_000_000  # the module takes messages up to 1 MiB
MAX_UNFINISHED = 64
RESEND_SECONDS = 2.0  # the bus of a young cluster loses messages; handlers of requests may get one twice


@dataclass(frozen=True, slots=True)
class Message:
    """What one worker tells another: `request` is 0 unless an answer is wanted; answers have the kind ``answer``."""

    kind: str
    body: Any
    request: int = 0


@dataclass(frozen=True, slots=True)
class MessagePart:
    """A piece of a pickled message that is too long for one; pieces of one sender arrive in order."""

    number: int
    last: bool
    data: bytes


class Executor(Protocol):
    """What can run a command on the shard."""

    def execute(self, *arguments: Argument) -> Reply:
        """Run a command and return its reply."""


def read_topology(shard: Executor, info: ShardInfo) -> Topology | None:
    """The primaries and their slots; None outside a cluster."""
    return parse_slots(shard.execute("CLUSTER", "SLOTS"), Address("127.0.0.1", 1)) if info.cluster else None


class Peers:
    """The workers of the other primaries."""

    def __init__(self, runtime_of: Callable[[], Runtime]) -> None:
        self._runtime_of = runtime_of
        self._handlers: dict[str, Handler] = {}
        self._numbers = itertools.count(1)
        self._waiting: dict[tuple[int, str], asyncio.Future[Any]] = {}
        self._parts: dict[tuple[str, int], list[bytes]] = {}

    def on(self, kind: str, handler: Handler) -> None:
        """Let `handler(sender, body)` take the messages of a kind; what it returns answers a request."""
        self._handlers[kind] = handler

    def topology(self) -> Topology | None:
        """The primaries and their slots; None outside a cluster."""
        runtime = self._runtime_of()
        return read_topology(runtime, runtime.info)

    def others(self) -> list[str]:
        """Node ids of the other primaries."""
        topology = self.topology()
        own = self._runtime_of().info.shard_id
        return [shard.node_id for shard in topology.shards if shard.node_id != own] if topology else []

    def send(self, node: str, kind: str, body: Any, request: int = 0) -> None:
        """Hand a message to the worker of a node."""
        payload: bytes = cloudpickle.dumps(Message(kind, body, request))
        runtime = self._runtime_of()
        if len(payload) <= MAX_PART_BYTES:
            runtime.execute("QA.SEND", node, payload)
            return
        number = next(self._numbers)
        for start in range(0, len(payload), MAX_PART_BYTES):
            end = start + MAX_PART_BYTES
            part = MessagePart(number, end >= len(payload), payload[start:end])
            runtime.execute("QA.SEND", node, cloudpickle.dumps(part))

    async def request_all(self, nodes: list[str], kind: str, body: Any, timeout_seconds: float) -> None:
        """Ask all `nodes` at once; GearsError that names each one that refused or did not answer in time."""
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        waiting = {node: loop.create_future() for node in nodes}
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
                await asyncio.wait(asked, timeout=min(left, RESEND_SECONDS))
        finally:
            for node in nodes:
                self._waiting.pop((number, node), None)
        problems = []
        for node, future in waiting.items():
            if not future.done():
                problems.append(f"shard {node} did not answer within {timeout_seconds:.0f} s")
            elif future.result() is not None:
                problems.append(f"shard {node}: {future.result()}")
        if problems:
            raise GearsError("ERR " + "; ".join(problems))

    def receive(self, sender: str, payload: bytes) -> None:
        """Take a `message` job."""
        message = self._whole(sender, cloudpickle.loads(payload))
        if message is None:
            return
        if message.kind == "answer":
            future = self._waiting.get((message.request, sender))
            if future is not None and not future.done():
                future.set_result(message.body)
            return
        handler = self._handlers.get(message.kind)
        refusal: str | None = None
        try:
            if handler is None:
                raise GearsError(f"ERR worker does not know messages of kind {message.kind!r}")
            handler(sender, message.body)
        except Exception as error:  # a request is told; anything else can only be logged
            refusal = error_line(error)
            logger.warning("message %s of shard %s failed: %s", message.kind, sender, refusal)
        if message.request:
            self.send(sender, "answer", refusal, message.request)

    def _whole(self, sender: str, received: Message | MessagePart) -> Message | None:
        """The message that `received` is or completes; None while parts are missing."""
        if isinstance(received, Message):
            return received
        parts = self._parts.setdefault((sender, received.number), [])
        parts.append(received.data)
        if not received.last:
            while len(self._parts) > MAX_UNFINISHED:  # their senders died half-way
                del self._parts[next(iter(self._parts))]
            return None
        del self._parts[sender, received.number]
        message: Message = cloudpickle.loads(b"".join(parts))
        return message
