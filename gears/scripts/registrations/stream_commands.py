"""Builds the commands to read streams in a consumer group, and parses their replies."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from ...shard.link import Argument, Reply, raise_on_error
from ...shard.replies import decode_reply
from ..host.script_host import ScriptHost
from ..runs.sources import StreamSource, stream_record
from .stream_state import CONSUMERS, Delivery, Entry, Stream

logger = logging.getLogger(__name__)
GROUP = "__gears_consumer_group__"


def has_group(host: ScriptHost, stream: Stream) -> bool:
    """Return whether the stream exists, and create its consumer group if the group is missing.

    If `stream.has_group` is True, return True without a command.
    """
    if not stream.has_group:
        if host.execute("TYPE", stream.key) != b"stream":
            return False
        (made,) = host.execute_many([("XGROUP", "CREATE", stream.key, GROUP, "0")])
        if not str(made).startswith("BUSYGROUP"):
            raise_on_error(made)
        stream.has_group = True
    return True


def read_command(stream: Stream, source: StreamSource) -> tuple[Argument, ...]:
    """Return the command to read the missing entries of the batch, from the stream's current position on."""
    wanted = source.batch - len(stream.entries)
    start = b">" if stream.delivery is Delivery.NEW else stream.cursor
    return ("XREADGROUP", "GROUP", GROUP, CONSUMERS[stream.delivery], "COUNT", wanted, "STREAMS", stream.key, start)


def take_new(stream: Stream, reply: Reply) -> None:
    """Add the new entries of a reply to the stream's entries."""
    arrived = reply[0][1] if reply else []
    if arrived and not stream.entries:
        stream.waiting_since = time.monotonic()
    stream.entries += [(entry_id, fields) for entry_id, fields in arrived if fields is not None]


class Records:
    """The records of a batch, and the number of records that a run has taken."""

    def __init__(self, key: bytes, batch: list[Entry]) -> None:
        self._key = key
        self._batch = batch
        self.taken = 0

    async def read(self) -> AsyncIterator[Any]:
        """Yield each record."""
        name = decode_reply(self._key)
        for entry_id, fields in self._batch:
            self.taken += 1
            yield stream_record(name, entry_id, fields)


def known_statuses(host: ScriptHost) -> dict[str, str]:
    """Return the status of each stream registration in the module, from an earlier worker or from replication."""
    statuses: dict[str, str] = {}
    for entry in decode_reply(host.execute_own("RG.DUMPREGISTRATIONS")):
        values = dict(zip(entry[::2], entry[1::2], strict=False))
        data = values["RegistrationData"]
        status = dict(zip(data[::2], data[1::2], strict=False)).get("status")
        if status is not None:
            statuses[str(values["id"])] = str(status)
    return statuses


def check_report(reply: Reply) -> None:
    """Log a refused report of a batch, except if its registration was removed meanwhile."""
    if isinstance(reply, Exception) and not str(reply).startswith("NOREG"):
        logger.error("the module refused the report of a batch: %s", reply)
