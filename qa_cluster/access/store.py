"""Stores the API keys of a cluster. Every service reads them; administrators create and revoke them.

Every partition stores the whole list, as a hash from ids to records. So the list can be read while a shard is down, it
migrates with the slots, and it survives a failover that loses a write.

A record changes only when its key is revoked, or when a restore replaces it. If services read several lists, a key is
revoked if any list says so. Records of revoked keys remain, unless a full list needs their place for a new key. Once a
key has existed, the service requires a key until `clear` removes all records.

Services read the lists again after a shard has reported a change (`CLIENT TRACKING`). While a shard that is up does not
report its changes, a list in memory is used for at most one second (`KEEP_SECONDS`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic, time
from typing import Any, Protocol

from qa_cluster.errors import ClusterError, InvalidInput, NotFound, QAError
from qa_cluster.keys import Partitioning, api_keys_key, api_running_key, api_use_key
from qa_cluster.routing.shards import Shards

from .records import ApiKey, check_id

MAX_KEYS = 1000
# The time for which a list in memory is used while a shard that is up does not report its changes.
KEEP_SECONDS = 1.0
# `READ_SECONDS` is the timeout for reading the lists of keys. A read waits at most `PATIENCE_SECONDS` for all lists.
# After this time, one list is enough, because each list has all keys.
READ_SECONDS = 5.0
PATIENCE_SECONDS = 0.25

_log = logging.getLogger(__name__)


class Reports(Protocol):
    """The source of the shards' change reports (`qa_cluster.asking.freshness`).

    `key_changes` increases when keys may have changed.
    """

    key_changes: int

    async def drain(self, *, without_down: bool = False) -> bool:
        """Process the reports that have arrived.

        Return whether no report is unread and every shard reports its changes. With `without_down`, ignore the shards
        that are down.
        """


@dataclass(frozen=True, slots=True)
class KeyList:
    """All keys by their ids.

    `closed` is true if the cluster has any record, even an unreadable record. Requests then need a valid key.
    """

    keys: Mapping[str, ApiKey] = field(default_factory=dict)
    closed: bool = False


class ApiKeys:
    """The API keys of one cluster.

    >>> key, text = new_key("the shop", ["ask"], now=time())
    >>> await api_keys.add(key)
    >>> find((await api_keys.current()).keys, text.encode()) == key
    True
    """

    def __init__(self, shards: Shards, reports: Reports, partitions: Partitioning) -> None:
        self._shards = shards
        self._reports = reports
        self._partitions = partitions
        self.last = KeyList(closed=True)
        self._seen = -1
        self._read_at = 0.0
        self._lock = asyncio.Lock()

    def at_hand(self) -> KeyList | None:
        """Return the list in memory; None if the stored list may be newer.

        Before their next `await`, callers check `Freshness.drained`, because reports may be unread.
        """
        return self.last if self._seen == self._reports.key_changes else None

    async def current(self) -> KeyList:
        """Return the current list; raise ClusterError if no shard responds."""
        fresh = await self._reports.drain(without_down=True)
        if not self._holds(fresh):
            async with self._lock:
                if not self._holds(fresh):
                    changes, begun = self._reports.key_changes, monotonic()
                    self.last = _merged(await self._lists())
                    self._seen, self._read_at = changes, begun
        return self.last

    async def all(self) -> list[ApiKey]:
        """Read all keys from the shards, including expired and revoked keys, the oldest first."""
        found = _merged(await self._lists()).keys.values()
        return sorted(found, key=lambda key: (key.created, key.id))

    async def add(self, key: ApiKey, *, keep: Collection[str] = ()) -> None:
        """Store a new key.

        If a shard does not store it, the key is removed again and ClusterError is raised. Do not use the key then. If
        the list is full, the new key replaces the record of the key that was revoked first. If no key is revoked,
        InvalidInput is raised. Records with an id in `keep` are never replaced.
        """
        stored = await self.all()
        if len(stored) >= MAX_KEYS:
            await self._make_room([known for known in stored if known.id not in keep], len(stored))
        failed = await self._everywhere("HSETNX", key.id, key.to_json())
        if failed:
            left = await self._everywhere("HDEL", key.id)
            then = f", then revoke {key.id}, which some shards may have stored" if left else ""
            raise ClusterError(
                f"key {key.id} could not be stored on every shard, so it is not returned ({failed}): repeat the"
                f" command when all shards are up{then}"
            )

    async def ensure(self, keys: Sequence[ApiKey]) -> tuple[list[ApiKey], list[ApiKey]]:
        """Store the keys that are missing.

        Returns:
            the new keys, and the given keys that are revoked in the cluster and stay revoked.

        Raises:
            InvalidInput: a stored key with the same id has a different secret, name, rights, limits or time of expiry.
                In this case, no key is stored.
            ClusterError: a shard did not store a key. Repeat the call to complete it.
        """
        there = {key.id: key for key in await self.all()}
        for key in keys:
            known = there.get(key.id)
            if known is not None and key != replace(known, created=key.created, revoked=None):
                is_same = known.digest == key.digest
                what = "a different name, rights, limits or expiry" if is_same else "a different secret"
                raise InvalidInput(
                    f"key {key.id} ({key.name}) has {what} in the cluster, and keys do not change: give it a new"
                    " id and secret, or the values that are stored (`qa-cluster keys list`)"
                )
        incomplete = await self.incomplete()
        for key in keys:
            if key.id not in there:
                await self.add(key, keep=[each.id for each in keys])
            elif key.id in incomplete:
                await self.complete(there[key.id])
        return (
            [key for key in keys if key.id not in there],
            [there[key.id] for key in keys if key.id in there and there[key.id].revoked is not None],
        )

    async def incomplete(self) -> set[str]:
        """Return the ids of keys whose records differ between lists or are missing in a list, such as after an
        interruption.
        """
        lists = await self._lists()
        records = {found for one in lists for found in one.items()}
        return {key_id.decode() for key_id, raw in records if any(one.get(key_id) != raw for one in lists)}

    async def complete(self, key: ApiKey) -> None:
        """Store a key that `all` has returned in the lists that lack it; raise ClusterError if a shard failed.

        A revoked key replaces the records in all lists. A key that is not revoked replaces no record, because another
        client may revoke the key at the same time.
        """
        if failed := await self._everywhere("HSETNX" if key.revoked is None else "HSET", key.id, key.to_json()):
            raise ClusterError(f"key {key.id} is not stored on every shard ({failed}): repeat the command")

    async def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key permanently; raise NotFound if it does not exist.

        If a shard fails, ClusterError is raised. Repeat the call to complete it.
        """
        key = next((key for key in await self.all() if key.id == check_id(key_id)), None)
        if key is None:
            raise NotFound(f"no such key: {key_id!r}; `qa-cluster keys list` shows all")
        revoked = key.revoke(time())
        failed = await self._everywhere("HSET", key_id, revoked.to_json())
        if failed:
            raise ClusterError(
                f"key {key_id} is revoked, but not on every shard ({failed}): repeat the command when all shards are up"
            )
        return revoked

    async def replace(self, key: ApiKey) -> None:
        """Replace the record of an existing key; raise ClusterError if a shard failed."""
        if failed := await self._everywhere("HSET", key.id, key.to_json()):
            raise ClusterError(
                f"key {key.id} was replaced, but not on every shard ({failed}): repeat the command when all shards"
                " are up"
            )

    async def clear(self) -> int:
        """Delete all records and return their number.

        The services then require no key, except services with `keys_required`. These services refuse requests until the
        cluster has a key.
        """
        stored = await self.all()
        keys = list(map(api_keys_key, self._partitions.tags))
        await self._shards.execute_many([(key, ("UNLINK", key)) for key in keys])
        await self._forget_use(key.id for key in stored)
        return len(stored)

    async def _make_room(self, stored: list[ApiKey], count: int) -> None:
        """Remove the record of the key that was revoked first; raise InvalidInput if no key is revoked.

        `stored` are the keys that may be removed. `count` is the number of all keys, for the error.
        """
        revoked = [key for key in stored if key.revoked is not None]
        if not revoked:
            raise InvalidInput(f"there are {count} keys, the limit is {MAX_KEYS}: revoke one first")
        oldest = min(revoked, key=lambda key: key.revoked or 0)
        if failed := await self._everywhere("HDEL", oldest.id):
            raise ClusterError(f"the list of keys is full: the record of {oldest.id} could not be removed ({failed})")
        await self._forget_use([oldest.id])

    async def _forget_use(self, ids: Iterable[str]) -> None:
        keys = [name for key_id in ids for name in (api_use_key(key_id), api_running_key(key_id))]
        await self._shards.execute_many([(key, ("UNLINK", key)) for key in keys])

    async def _everywhere(self, command: str, key_id: str, *value: bytes) -> str:
        """Run a command on every list; return the errors as text, empty if all succeeded."""

        async def run(key: str) -> str:
            try:
                await self._shards.execute(key, command, key, key_id, *value)
            except QAError as error:
                return str(error)
            return ""

        return "; ".join(sorted({*await asyncio.gather(*map(run, self._names()))} - {""}))

    def _names(self) -> list[str]:
        return list(map(api_keys_key, self._partitions.tags))

    def _holds(self, fresh: bool) -> bool:
        if self._seen != self._reports.key_changes:
            return False
        return fresh or monotonic() - self._read_at < KEEP_SECONDS

    async def _lists(self) -> list[Mapping[bytes, bytes]]:
        """Return the lists that could be read in time: all lists, or the lists of the shards that respond.

        Raises ClusterError if no shard responds.
        """
        down = self._shards.down
        names = [name for name in self._names() if not down or self._shards.shard_of_key(name) not in down]
        reading = [asyncio.ensure_future(self._shards.execute(name, "HGETALL", name)) for name in names]
        if not reading:
            raise ClusterError(f"the API keys cannot be read: {self._shards.why_down(down)}")
        try:
            until = monotonic() + READ_SECONDS
            left: set[asyncio.Future[Any]] = set(reading)
            await asyncio.wait(left, timeout=PATIENCE_SECONDS)
            while not any(map(_succeeded, reading)):
                left = {future for future in reading if not future.done()}
                if not left or monotonic() >= until:
                    # Name the skipped shards, too: they may be the reason why the other shards refuse.
                    raise _unreadable(reading, self._shards.why_down(down & self._shards.down))
                await asyncio.wait(left, timeout=until - monotonic(), return_when=asyncio.FIRST_COMPLETED)
            return [_records(future.result()) for future in reading if _succeeded(future)]
        finally:
            for future in reading:
                future.cancel()
            await asyncio.gather(*reading, return_exceptions=True)


def _records(reply: Any) -> Mapping[bytes, bytes]:
    """Return the records of a list by their ids. Some servers reply with a map, others with a list."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def _succeeded(future: asyncio.Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _unreadable(reading: Iterable[asyncio.Future[Any]], down: str) -> ClusterError:
    reasons = {str(future.exception()) for future in reading if future.done() and not future.cancelled()}
    said = [down] * bool(down) + (sorted(reasons) or ["no shard responded in time"])
    return ClusterError(f"the API keys cannot be read: {'; '.join(said)}")


def _merged(lists: Iterable[Mapping[bytes, bytes]]) -> KeyList:
    """Merge the lists: a key is revoked if any list says so. Records that cannot be read are skipped."""
    found: dict[str, ApiKey] = {}
    closed = False
    for records in lists:
        for raw in records.values():
            closed = True
            try:
                key = ApiKey.from_json(raw)
            except InvalidInput as error:
                _log.warning("%s", error)
                continue
            known = found.get(key.id)
            if known is None or known.revoked is None:
                found[key.id] = key
    return KeyList(found, closed)
