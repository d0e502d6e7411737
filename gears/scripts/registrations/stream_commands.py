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
    """Return the command to read the entries that the next batch still lacks, from the stream's current position on.

    For the delivery NEW, the position is after the last delivered entry. For the other kinds, it is `stream.cursor`.
    """
    wanted = source.batch - len(stream.entries)
    start = b">" if stream.delivery is Delivery.NEW else stream.cursor
    return ("XREADGROUP", "GROUP", GROUP, CONSUMERS[stream.delivery], "COUNT", wanted, "STREAMS", stream.key, start)


def take_new(stream: Stream, reply: Reply) -> None:
    """Add the new entries of an XREADGROUP reply to the stream's entries.

    If the stream had no entries, remember the current time as the start of the wait for a full batch.
    """
    arrived = reply[0][1] if reply else []
    if arrived and not stream.entries:
        stream.waiting_since = time.monotonic()
    stream.entries += [(entry_id, fields) for entry_id, fields in arrived if fields is not None]


class Records:
    """The records of a batch of the stream `key`. `taken` is the number of records that a run has already read."""

    def __init__(self, key: bytes, batch: list[Entry]) -> None:
        self._key = key
        self._batch = batch
        self.taken = 0

    async def read(self) -> AsyncIterator[Any]:
        """Yield the record of each entry of the batch, and count it in `taken` before."""
        name = decode_reply(self._key)
        for entry_id, fields in self._batch:
            self.taken += 1
            yield stream_record(name, entry_id, fields)


def known_statuses(host: ScriptHost) -> dict[str, str]:
    """Return the status of each stream registration in the module, by the registration's id.

    An earlier worker of this shard or the previous primary has reported the status, such as ``PAUSED``.
    """
    statuses: dict[str, str] = {}
    for entry in decode_reply(host.execute_own("RG.DUMPREGISTRATIONS")):
        values = dict(zip(entry[::2], entry[1::2], strict=False))
        data = values["RegistrationData"]
        status = dict(zip(data[::2], data[1::2], strict=False)).get("status")
        if status is not None:
            statuses[str(values["id"])] = str(status)
    return statuses


def check_report(reply: Reply) -> None:
    """Log an error if `reply` is the module's refusal of a batch report (`QA.STREAM`).

    If the registration was removed meanwhile, the refusal is expected and is not logged.
    """
    if isinstance(reply, Exception) and not str(reply).startswith("NOREG"):
        logger.error("the module refused the report of a batch: %s", reply)
