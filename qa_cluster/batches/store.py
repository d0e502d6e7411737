"""Stores the files and batches of all owners in the cluster.

A worker in this module is a batch worker: a process that answers the requests of batches.

An owner is an API key, or all clients without an API key together. All Redis keys of an owner have the same hash tag,
so one atomic script can change several of them. The keys have no TTL, because a server at its memory limit evicts keys
with a TTL first. (Only the lease has a TTL.) Instead, each record has a time of expiry: reads ignore expired records,
and `prune` deletes them.

If a shard has a replica, a method that changes records of files or batches with a script returns after a replica has
the change, or at the latest after `REPLICA_WAIT_MS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from time import time
from typing import Any

import orjson

from qa_cluster import keys
from qa_cluster.errors import ClusterError, InvalidInput, LimitReached, NotFound, QAError, ReplyError
from qa_cluster.routing.connection import ConnectionLost
from qa_cluster.routing.shards import Shards
from qa_cluster.scripts.calls import ScriptCall

from .records import (
    BATCH,
    OPEN,
    PART_BYTES,
    STATUSES,
    Batch,
    BatchCounts,
    BatchFile,
    BatchLimits,
    BatchRequest,
    is_batch_id,
    is_file_id,
    is_owner,
    new_batch_fields,
    new_batch_id,
    new_file_id,
)

MAX_FILES = 1000
MAX_BATCHES = 1000
# The lease of a worker that runs an owner's batches. It expires after this time unless the worker renews it.
LEASE_MS = 15_000
REPLICA_WAIT_MS = 1000
# The fields of a batch that `BatchStore.counts` adds up.
_COUNTED = ("status", "keep_until", "created_at", "total", "done", "completed", "failed")
# The limit of parts in a command that deletes parts, and of records in a pipeline that reads records.
_PARTS_AT_ONCE = 64


class BatchConflict(QAError):
    """The state of the file or batch does not allow the request."""

    resp_code = "CONFLICT"
    http_status = 409


class LeaseLost(ClusterError):
    """Another worker runs the owner's batches, or the batch is not stored any more. The caller must stop."""


class StoreFull(ClusterError):
    """The results of a batch would exceed the limit for the files of its owner."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The reply of the script that records results: the stored number of done lines, and the status of the batch."""

    done: int
    status: str


class BatchStore:
    """Reads and changes files and batches. All methods raise ClusterError while the owner's shard cannot be reached."""

    def __init__(self, shards: Shards, limits: BatchLimits) -> None:
        self._shards = shards
        self.limits = limits

    # Files

    async def begin_file(self, owner: str, filename: str, most_bytes: int, seconds: float) -> BatchFile:
        """Reserve space for an upload and return the record of the new file.

        Args:
            owner: the owner of the file.
            filename: the name of the file.
            most_bytes: the largest possible size of the upload.
            seconds: the time limit of the upload.

        Raises:
            LimitReached: the owner has too many files or bytes.
        """
        await self._shards.execute(keys.BATCH_OWNERS_KEY, "SADD", keys.BATCH_OWNERS_KEY, owner)
        await self.prune(owner)
        now, limit = int(time()), self.limits.key_bytes
        file = BatchFile(new_file_id(), 0, 0, now, now + self.limits.ttl_seconds, filename, BATCH)
        until = now + ceil(seconds) + 60
        call = ScriptCall(
            "reserve_batch_file",
            (keys.batch_sizes_key(owner),),
            (file.id, most_bytes, until, now, limit, MAX_FILES),
        )
        fits, total, files = await self._shards.run(call)
        if not fits and files + 1 > MAX_FILES:
            raise LimitReached(f"the key has {files} files, the limit is {MAX_FILES}: delete some")
        if not fits:
            raise LimitReached(
                f"the files of the key have {total} bytes, and {most_bytes} more exceed the limit of {limit}"
                " (batch_key_max_bytes): delete some"
            )
        return file

    async def put_part(self, owner: str, file_id: str, part: int, data: bytes) -> None:
        """Store part number `part` (from 0) of a file. Each part except the last has `PART_BYTES` bytes."""
        key = keys.batch_part_key(file_id, part, owner)
        await self._shards.execute(key, "SET", key, data)

    async def end_file(self, owner: str, file: BatchFile) -> BatchFile:
        """Make an uploaded file visible, and return its record. All parts of the file must be stored.

        Raises ClusterError if the upload took so long that its reservation has expired and was removed.
        """
        args = (file.id, file.bytes, file.expires_at, ceil(time() * 1e6), *file.fields())
        names = (keys.batch_sizes_key(owner), keys.batch_files_key(owner), keys.batch_file_key(file.id, owner))
        if not await self._acknowledged(ScriptCall("store_batch_file", names, args)):
            raise ClusterError(f"the upload of {file.filename[:100]!r} took too long: repeat it")
        return file

    async def file(self, owner: str, file_id: str) -> BatchFile:
        """Return a file; raise NotFound if the owner has no such file."""
        if is_file_id(file_id):
            found = await self._hash(keys.batch_file_key(file_id, owner))
            if found and int(found["expires_at"]) > time():
                return BatchFile.from_fields(file_id, found)
        raise NotFound(f"no such file: {file_id[:100]!r}; files expire {self.limits.ttl_seconds} s after their upload")

    async def files(self, owner: str) -> list[BatchFile]:
        """Return all files of an owner, the newest first."""
        ids = await self._newest_first(keys.batch_files_key(owner))
        found = await self._hashes([keys.batch_file_key(file_id, owner) for file_id in ids])
        files = [BatchFile.from_fields(*pair) for pair in zip(ids, found, strict=True) if pair[1]]
        return [file for file in files if file.expires_at > time()]

    async def read_parts(self, owner: str, file: BatchFile, first: int = 0) -> AsyncIterator[bytes]:
        """Yield the parts of a file, starting with part `first` (counted from 0).

        Raises ClusterError if a part is missing.
        """
        for part in range(first, file.parts):
            key = keys.batch_part_key(file.id, part, owner)
            data = await self._shards.execute(key, "GET", key)
            if data is None:
                raise ClusterError(f"part {part} of file {file.id} is missing")
            yield data

    async def delete_file(self, owner: str, file_id: str) -> None:
        """Delete a file; raise BatchConflict if an open batch reads it."""
        file = await self.file(owner, file_id)
        for batch in await self.open_batches(owner):
            if batch.request.input_file_id == file_id:
                raise BatchConflict(f"batch {batch.id} reads file {file_id}: cancel the batch, or wait for its end")
        await self._remove_file(owner, file.id, file.parts)

    async def discard_file(self, owner: str, file_id: str, parts: int) -> None:
        """Delete the stored parts of an upload that failed, and release its reserved space.

        `parts` is at least the number of parts that may be stored.
        """
        await self._remove_file(owner, file_id, parts)

    async def _remove_file(self, owner: str, file_id: str, parts: int) -> None:
        """Delete the record of a file, its entry in the list of files, its parts, and finally its recorded size.

        The record is deleted first, so that no client finds a file without all its parts.
        """
        files, sizes, record = (
            keys.batch_files_key(owner),
            keys.batch_sizes_key(owner),
            keys.batch_file_key(file_id, owner),
        )
        await self._shards.execute(record, "UNLINK", record)
        await self._shards.execute(files, "ZREM", files, file_id)
        for first in range(0, parts, _PARTS_AT_ONCE):
            names = [
                keys.batch_part_key(file_id, part, owner) for part in range(first, min(parts, first + _PARTS_AT_ONCE))
            ]
            await self._shards.execute(names[0], "UNLINK", *names)
        await self._shards.execute(sizes, "HDEL", sizes, file_id)

    # Batches

    async def create(self, owner: str, request: BatchRequest) -> Batch:
        """Create a batch.

        Raises:
            NotFound: the input file does not exist.
            InvalidInput: the file is not an input file.
            LimitReached: the owner has too many batches.
        """
        await self.prune(owner)
        file = await self.file(owner, request.input_file_id)
        if file.purpose != BATCH:
            raise InvalidInput(
                f"input_file_id must be a file with the purpose {BATCH}, {file.id} has {file.purpose}",
                place="input_file_id",
            )
        batch_id, now = new_batch_id(), int(time())
        names = (
            keys.batch_key(batch_id, owner),
            keys.batches_key(owner),
            keys.open_batches_key(owner),
            keys.batch_file_key(file.id, owner),
            keys.batch_sizes_key(owner),
        )
        fields = new_batch_fields(request, now, self.limits.ttl_seconds)
        until = now + request.window_seconds + 3600
        args = (batch_id, ceil(time() * 1e6), self.limits.open, MAX_BATCHES, file.id, until, *fields)
        made = await self._acknowledged(ScriptCall("create_batch", names, args))
        if made == 0:
            raise LimitReached(
                f"the key has {self.limits.open} unfinished batches, which is the limit (batch_open_max): wait for the"
                " end of one"
            )
        if made == -2:
            raise LimitReached(f"the key has {MAX_BATCHES} batches, which is the limit: the oldest expire first")
        if made == -1:
            raise NotFound(f"no such file: {file.id!r}")
        return await self.batch(owner, batch_id)

    async def batch(self, owner: str, batch_id: str) -> Batch:
        """Return a batch; raise NotFound if the owner has no such batch."""
        if is_batch_id(batch_id):
            found = await self._hash(keys.batch_key(batch_id, owner))
            if found and int(found["keep_until"]) > time():
                return Batch.from_fields(batch_id, owner, found)
        raise NotFound(f"no such batch: {batch_id[:100]!r}")

    async def batches(self, owner: str, *, after: str = "", limit: int = MAX_BATCHES) -> tuple[list[Batch], bool]:
        """Return at most `limit` of an owner's batches, the newest first, and whether older batches follow.

        The list starts after the batch with the id `after`; raise NotFound if this batch does not exist. If `after` is
        empty, the list starts with the newest batch.
        """
        ids = await self._newest_first(keys.batches_key(owner))
        if after:
            if after not in ids:
                raise NotFound(f"no such batch: {after[:100]!r} (after)")
            ids = ids[ids.index(after) + 1 :]
        shown: list[Batch] = []
        while ids and len(shown) <= limit:
            some, ids = ids[: limit + 1], ids[limit + 1 :]
            found = await self._hashes([keys.batch_key(batch_id, owner) for batch_id in some])
            shown += [
                Batch.from_fields(batch_id, owner, fields)
                for batch_id, fields in zip(some, found, strict=True)
                if fields and int(fields["keep_until"]) > time()
            ]
        return shown[:limit], len(shown) > limit

    async def open_batches(self, owner: str) -> list[Batch]:
        """Return the unfinished batches of an owner, the oldest first."""
        ids = await self._newest_first(keys.open_batches_key(owner))
        found = await self._hashes([keys.batch_key(batch_id, owner) for batch_id in reversed(ids)])
        return [
            Batch.from_fields(batch_id, owner, fields)
            for batch_id, fields in zip(reversed(ids), found, strict=True)
            if fields
        ]

    async def cancel(self, owner: str, batch_id: str) -> Batch:
        """Cancel a batch; raise BatchConflict if it has ended.

        If a worker runs the owner's batches, this worker ends the batch soon. Otherwise, the batch ends at once.
        """
        batch = await self.batch(owner, batch_id)
        changed, status = await self._end(batch, "", "cancelled", [])
        if not changed:
            raise BatchConflict(f"batch {batch_id} has ended with status {status}: it cannot be cancelled")
        return await self.batch(owner, batch_id)

    # Work

    async def owners(self) -> list[str]:
        """Return all owners that have ever started to upload a file, sorted."""
        found = await self._shards.execute(keys.BATCH_OWNERS_KEY, "SMEMBERS", keys.BATCH_OWNERS_KEY)
        return sorted(name for each in found if is_owner(name := each.decode()))

    async def has_work(self, owner: str) -> bool:
        """Return whether the owner has open batches and no worker has the lease for them."""
        opened, lease = keys.open_batches_key(owner), keys.batch_lease_key(owner)
        count, worker = await self._shards.execute_many([(opened, ("ZCARD", opened)), (lease, ("EXISTS", lease))])
        return bool(count) and not worker

    async def counts(self) -> BatchCounts:
        """Return the numbers of the stored batches of all owners."""
        batches = dict.fromkeys(STATUSES, 0)
        oldest: int | None = None
        pending = completed = failed = 0
        for owner in await self.owners():
            names = [keys.batch_key(batch_id, owner) for batch_id in await self._newest_first(keys.batches_key(owner))]
            found = await self._shards.execute_many([(name, ("HMGET", name, *_COUNTED)) for name in names])
            for fields in found:
                if None in fields or int(fields[1]) <= time():
                    continue
                status, created, total, done, good, bad = fields[0].decode(), *map(int, fields[2:])
                batches[status] = batches.get(status, 0) + 1
                completed += good
                failed += bad
                if status in OPEN:
                    oldest = created if oldest is None else min(oldest, created)
                    pending += max(0, total - done)
        return BatchCounts(batches, oldest, pending, completed, failed)

    async def claim(self, owner: str, token: str) -> bool:
        """Acquire the lease for the owner's batches for `LEASE_MS`; return false if another worker has the lease.

        `token` identifies the worker.
        """
        lease = keys.batch_lease_key(owner)
        return bool(await self._shards.execute(lease, "SET", lease, token, "NX", "PX", LEASE_MS))

    async def release(self, owner: str, token: str) -> None:
        """Release the lease, so that another worker can start at once. If `token` has no lease, nothing changes."""
        await self._shards.run(ScriptCall("release_batches", (keys.batch_lease_key(owner),), (token,)))

    async def start(self, batch: Batch, token: str, total: int) -> Recorded:
        """Record that the batch is valid, has `total` requests, and starts now.

        Raises LeaseLost if another worker has the lease. If a client has cancelled the batch, nothing is recorded.
        """
        return await self._record(batch, token, batch.done, [
            "status", "in_progress", "in_progress_at", int(time()), "total", total,
        ])  # fmt: skip

    async def renew(self, batch: Batch, token: str) -> Recorded:
        """Renew the lease, and return the stored state of the batch.

        Raises LeaseLost if another worker has the lease, or if the batch is not stored any more.
        """
        return await self._record(batch, token, batch.done, [])

    async def record(
        self, batch: Batch, token: str, *, done: int, offset: int, results: Mapping[bool, Sequence[bytes]]
    ) -> Batch:
        """Record the results of the next lines, and return the updated batch.

        Args:
            batch: the batch before these lines.
            token: the token of the worker.
            done: the number of lines that are done after these lines.
            offset: the offset in the input file after these lines, in bytes.
            results: the lines for the output file (true) and for the error file (false).

        Raises:
            LeaseLost: another worker has the lease, or has recorded other lines.
            StoreFull: the results exceed the limit for the owner's files.
        """
        fields: list[str | int] = ["offset", offset]
        texts: list[tuple[str, bytes]] = []
        files = {True: batch.output, False: batch.error}
        for good, name in ((True, "output"), (False, "error")):
            text, file = b"".join(results[good]), files[good]
            if not text:
                continue
            opens = file.parts == 0 or file.last >= PART_BYTES
            grown = files[good] = replace(
                file,
                bytes=file.bytes + len(text),
                parts=file.parts + opens,
                last=len(text) + (0 if opens else file.last),
            )
            fields += [f"{name}_bytes", grown.bytes, f"{name}_parts", grown.parts, f"{name}_last", grown.last]
            texts.append((keys.batch_part_key(file.id, grown.parts - 1, batch.owner), text))
        completed, failed = batch.completed + len(results[True]), batch.failed + len(results[False])
        fields += ["completed", completed, "failed", failed]
        new = replace(
            batch, done=done, offset=offset, completed=completed, failed=failed, output=files[True], error=files[False]
        )
        recorded = await self._record(new, token, batch.done, fields, *texts)
        if recorded.done != done:
            raise LeaseLost(f"batch {batch.id} has {recorded.done} lines done, not {batch.done}")
        return replace(new, status=recorded.status)

    async def end(self, batch: Batch, token: str, status: str, errors: Sequence[Mapping[str, Any]] = ()) -> None:
        """End a batch with this status, and make its results visible; raise LeaseLost if another worker has the lease.

        `errors` are the errors that the batch lists. If the batch has already ended, nothing changes.
        """
        changed, _ = await self._end(batch, token, status, errors)
        if changed < 0:
            raise LeaseLost(f"another worker runs the batches of {batch.owner}")

    async def prune(self, owner: str) -> int:
        """Delete the expired files and batches of an owner, and return their number."""
        sizes, now = keys.batch_sizes_key(owner), int(time())
        flat = await self._shards.execute(sizes, "HGETALL", sizes)
        found = _text(flat)
        removed = 0
        for file_id, size in found.items():
            number, _, expires = size.partition(":")
            if int(expires) <= now:
                await self._remove_file(owner, file_id, int(number) // PART_BYTES + 1)
                removed += 1
        opened, listed = keys.open_batches_key(owner), keys.batches_key(owner)
        ids = await self._newest_first(listed)
        records = [keys.batch_key(batch_id, owner) for batch_id in ids]
        ends = await self._shards.execute_many([(record, ("HGET", record, "keep_until")) for record in records])
        for batch_id, record, until in zip(ids, records, ends, strict=True):
            if until is None or int(until) <= now:
                await self._shards.execute(record, "UNLINK", record)
                await self._shards.execute(opened, "ZREM", opened, batch_id)
                await self._shards.execute(listed, "ZREM", listed, batch_id)
                removed += 1
        return removed

    async def _record(
        self,
        batch: Batch,
        token: str,
        before: int,
        fields: Sequence[str | int],
        *texts: tuple[str, bytes],
    ) -> Recorded:
        """Run the script that records lines and renews the lease.

        `before` is the expected number of done lines. `fields` are the fields to set. Each of `texts` is the key of a
        part and the text to append to it.
        """
        owner = batch.owner
        call = ScriptCall(
            "record_batch_lines",
            (
                keys.batch_lease_key(owner), keys.batch_key(batch.id, owner), keys.batch_sizes_key(owner),
                *(key for key, _ in texts),
            ),
            (
                token, LEASE_MS, before, batch.done, self.limits.key_bytes, batch.keep_until, batch.output.id,
                batch.error.id, batch.output.bytes, batch.error.bytes, len(fields), *fields,
                *(text for _, text in texts),
            ),
        )  # fmt: skip
        outcome, number, status = await self._acknowledged(call)
        if outcome == -1:
            raise LeaseLost(f"another worker runs the batches of {owner}")
        if outcome == -2:
            raise StoreFull(
                f"the files of the key would have {number} bytes, the limit is {self.limits.key_bytes}"
                " (batch_key_max_bytes): delete files, and create a batch with the requests that have no result"
            )
        return Recorded(number, status.decode())

    async def _end(self, batch: Batch, token: str, status: str, errors: Sequence[Mapping[str, Any]]) -> tuple[int, str]:
        owner, now = batch.owner, time()
        names = (
            keys.batch_lease_key(owner),
            keys.batch_key(batch.id, owner),
            keys.open_batches_key(owner),
            keys.batch_files_key(owner),
            keys.batch_file_key(batch.output.id, owner),
            keys.batch_file_key(batch.error.id, owner),
            keys.batch_sizes_key(owner),
        )
        text = orjson.dumps(list(errors)).decode() if errors else ""
        changed, found = await self._acknowledged(
            ScriptCall("end_batch", names, (token, batch.id, status, int(now), ceil(now * 1e6), text))
        )
        return changed, found.decode()

    async def _acknowledged(self, call: ScriptCall) -> Any:
        """Run a script and return its reply.

        If the shard has a replica, wait until a replica has the change, but at most `REPLICA_WAIT_MS`.
        """

        async def attempt() -> Any:
            shard = self._shards.shard_of_key(call.keys[0])
            if shard not in self._shards.topology.spared:
                return await self._shards.run(call)
            for command in (call.short(), call.command()):
                reply, _ = await self._shards.pool(shard.address).execute_pipeline(
                    [command, ("WAIT", 1, REPLICA_WAIT_MS)], admitted=True
                )
                if not isinstance(reply, ReplyError) or reply.code != "NOSCRIPT":
                    break
            if isinstance(reply, ReplyError) and reply.code == "ASK":
                return await self._shards.run(call)
            if isinstance(reply, ReplyError | ConnectionLost):
                raise reply
            return reply

        return await self._shards.retrying(attempt)

    async def _newest_first(self, key: str) -> list[str]:
        return [each.decode() for each in await self._shards.execute(key, "ZREVRANGE", key, 0, -1)]

    async def _hash(self, key: str) -> dict[str, str]:
        return _text(await self._shards.execute(key, "HGETALL", key))

    async def _hashes(self, names: Sequence[str]) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        for first in range(0, len(names), _PARTS_AT_ONCE):
            some = names[first : first + _PARTS_AT_ONCE]
            found += [
                _text(reply) for reply in await self._shards.execute_many([(name, ("HGETALL", name)) for name in some])
            ]
            await asyncio.sleep(0)
        return found


def _text(reply: Any) -> dict[str, str]:
    """Convert the reply to HGETALL to a dictionary. Some servers send a map, others a list."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): value.decode() for name, value in pairs}
