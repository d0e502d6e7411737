"""Marks documents that have ended two workers as failed, and sends the module the names of the documents that are being
indexed.

A text can end the worker that indexes it: the indexing may use all memory, or block the interpreter until the module
kills the worker. The document would stay pending and end the next worker too. So the worker sends the module the names
of the documents that it is indexing (`QA.INDEXING`). When the worker ends, the module adds 1 to the entry of each of
these documents in `failures:{tag}`, unless the end has a known cause that is not a document. While the next worker
indexes a document that has an entry, it indexes no other document. So if this worker ends meanwhile, only this document
can be the cause. When the entry has counted `MAX_ENDS` ends, the worker marks the document as failed in the document's
record, with the reason. A new write of the document removes the mark.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from qa_cluster.gears.shard.commands import ShardCommands
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import DOCUMENT_PREFIX, document_name, failures_key, parse_tagged

MAX_ENDS = 2
# The module accepts batch numbers below this limit.
BATCHES = 8

Name = tuple[str, str]
_FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The entry of a document in `failures:{tag}`: the number of workers that ended while they indexed it, and the last
    reason.

    Attributes:
        given_up: whether a worker has marked the document as failed.
    """

    ends: int
    reason: str
    given_up: bool

    @classmethod
    def parse(cls, value: str) -> Suspicion:
        """Read an entry: ``<ends> <reason>``, or for a failed document ``failed <version> <reason>``.

        For a failed document, `ends` of the result is 0.

        >>> Suspicion.parse("1 signal 9")
        Suspicion(ends=1, reason='signal 9', given_up=False)
        """
        first, _, rest = value.partition(" ")
        if first == _FAILED:
            return cls(0, rest.partition(" ")[2], True)
        return cls(int(first) if first.isdecimal() and first.isascii() else 0, rest, False)

    @property
    def is_enough(self) -> bool:
        """Whether the document must be marked as failed: `MAX_ENDS` workers have ended while they indexed it."""
        return self.ends >= MAX_ENDS

    def explained(self) -> str:
        """Return the reason of the failure as a text for people: the number of ended workers, and the last reason."""
        return f"{self.ends} workers ended while they indexed it (the last worker: {_in_words(self.reason)})"


def _in_words(reason: str) -> str:
    """Return the meaning of a worker's exit, for people.

    >>> _in_words("signal 9")
    'it was killed, as when memory runs out'
    """
    if reason in ("signal 9", "control socket closed"):  # the module may report the end before it knows the cause
        return "it was killed, as when memory runs out"
    return reason


class Failures:
    """The entries in `failures:{tag}` of this shard's partitions, and the number of failed documents."""

    def __init__(self, commands: ShardCommands) -> None:
        self._commands = commands
        self._failed: dict[str, set[str]] = {}

    @property
    def count(self) -> int:
        """Return the number of failed documents. Any thread may call it."""
        return sum(map(len, tuple(self._failed.values())))

    def commands_of(self, names: Sequence[Name]) -> tuple[list[str], list[tuple[str, ...]]]:
        """Return the partitions of documents, and for each partition the command that reads the entries of its
        documents.
        """
        by_tag: dict[str, list[str]] = {}
        for name, tag in names:
            by_tag.setdefault(tag, []).append(str(document_name(name)))
        return list(by_tag), [("HMGET", failures_key(tag), *found) for tag, found in by_tag.items()]

    def parse(self, names: Sequence[Name], tags: Sequence[str], replies: Sequence[Any]) -> dict[Name, Suspicion]:
        """Return the entries by document, from the replies to `commands_of`. Skip documents without an entry, and
        failed commands.
        """
        values = {
            tag: iter(() if isinstance(reply, GearsError) else reply) for tag, reply in zip(tags, replies, strict=True)
        }
        found = {}
        for name in names:
            if (value := next(values[name[1]], None)) is not None:
                found[name] = Suspicion.parse(str(value))
        return found

    def names_in(self, tag: str) -> list[Name]:
        """Return all documents with an entry in a partition. Also update the number of failed documents."""
        reply = self._commands.execute("HGETALL", failures_key(tag))
        entries = dict(zip(reply[::2], reply[1::2], strict=True))
        self._set(tag, {name for name, value in entries.items() if Suspicion.parse(str(value)).given_up})
        keys = (f"{DOCUMENT_PREFIX}{name}:{{{tag}}}" for name in entries)
        return [name for key in keys if (name := parse_tagged(key, DOCUMENT_PREFIX)) is not None]

    def names_of(self, tag: str) -> list[str]:
        """Return the names, as in the entries, of the failed documents of a partition that this worker knows, sorted.

        The worker knows the documents that `names_in` has read, and the documents that it has marked itself.
        """
        return sorted(self._failed.get(tag, ()))

    def failed(self, name: Name) -> None:
        """Count a document that this worker has just marked as failed."""
        self._failed.setdefault(name[1], set()).add(str(document_name(name[0])))

    def remove(self, names: Collection[Name]) -> None:
        """Delete the entries of documents that were indexed or refused without ending the worker, or that no longer
        exist. These documents also no longer count as failed.
        """
        if not names:
            return
        self._commands.execute_many(
            [("HDEL", failures_key(tag), document_name(name)) for name, tag in names], keep_errors=True
        )
        for name, tag in names:
            self._failed.get(tag, set()).discard(str(document_name(name)))

    def forget(self, tags: Collection[str]) -> None:
        """Stop counting the failed documents of the partitions `tags`, which are no longer on this shard."""
        for tag in tags:
            self._failed.pop(tag, None)

    def _set(self, tag: str, names: set[str]) -> None:
        if names:
            self._failed[tag] = names
        else:
            self._failed.pop(tag, None)


class DocumentsInHand:
    """Sends the module the names of the documents that each thread is indexing.

    Either several threads work at the same time, or one thread works alone.
    """

    def __init__(self, commands: ShardCommands) -> None:
        self._commands = commands
        self._turn = threading.Condition()
        self._free = list(range(BATCHES))
        self._together = 0
        self._alone = False
        self._waiting = 0

    @contextmanager
    def together(self) -> Iterator[int]:
        """Index documents in the ``with`` block while other threads may do the same; yield the number of this thread's
        batch.

        First wait until no thread works alone, and no thread waits to work alone. With the number, `begin` tells the
        module which documents are in the batch.
        """
        with self._turn:
            self._turn.wait_for(lambda: not self._alone and not self._waiting and self._free)
            self._together += 1
            batch = self._free.pop()
        try:
            yield batch
        finally:
            self._end(batch, alone=False)

    @contextmanager
    def alone(self) -> Iterator[int]:
        """Wait until no other thread indexes documents; yield the number of this thread's batch.

        In the ``with`` block, this thread indexes one document. Other threads wait before they index documents.
        """
        with self._turn:
            self._waiting += 1
            self._turn.wait_for(lambda: not self._alone and not self._together)
            self._waiting -= 1
            self._alone = True
            batch = self._free.pop()
        try:
            yield batch
        finally:
            self._end(batch, alone=True)

    def begin(self, batch: int, names: Iterable[Name], commands: Sequence[Sequence[object]]) -> list[Any]:
        """Send the module the documents of a batch, then run commands; return the replies, with errors as values."""
        return self._commands.indexing(batch, [(document_name(name), tag) for name, tag in names], commands)

    def _end(self, batch: int, *, alone: bool) -> None:
        try:
            self._commands.indexing(batch, ())
        finally:
            with self._turn:
                self._free.append(batch)
                if alone:
                    self._alone = False
                else:
                    self._together -= 1
                self._turn.notify_all()
