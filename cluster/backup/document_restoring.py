"""Stores the documents of a backup like new documents, so that the shards rebuild indexes, tokens and answers.

The restore compares the version of each document before it sends the text. If the cluster already has this version, the
restore skips the text. So a repeated restore quickly reaches the point where an interrupted one stopped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

from qa_cluster.asking.engine import Engine
from qa_cluster.clients.async_cluster_client import run_together
from qa_cluster.documents.stored import NO_VERSION
from qa_cluster.errors import DeadlineExceeded, RequestError, VersionConflict
from qa_cluster.keys import DocumentName, document_key, pending_key

from .lines import read_lines
from .manifest import DamagedBackup

FAIL, SKIP, REPLACE = "fail", "skip", "replace"
POLICIES = (FAIL, SKIP, REPLACE)

_CONCURRENT = 16
_BATCH_DOCUMENTS, _BATCH_CHARS = 64, 1 << 20
# The number of files that are read at the same time. Each file has one partition, and shards index partitions in
# parallel.
_FILES = 16
_POLL_SECONDS = 0.2
_TRIES = 3

_Line = dict[str, Any]


@dataclass(slots=True)
class RestoredDocuments:
    """The result of restoring documents: numbers of documents, and the names of some documents.

    Attributes:
        new: the number of stored documents that the cluster did not have.
        replaced: the number of stored documents that the cluster had in a different version.
        unchanged: the number of documents that the cluster already had in the version of the backup.
        skipped: the number of documents that the cluster has in a different version and keeps (policy `skip`).
        refused: for each document that could not be restored, the reason.
        other_version: the restored documents whose new version in the cluster differs from their version in the backup,
            each as a text for messages (`_shown`).
    """

    new: int = 0
    replaced: int = 0
    unchanged: int = 0
    skipped: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    other_version: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        """The number of finished documents: new, replaced, unchanged, skipped and refused."""
        return self.new + self.replaced + self.unchanged + self.skipped + len(self.refused)


class DocumentRestoring:
    """Restores the documents in some files of a backup: all documents, or the documents of the `chosen` collections.

    Args:
        patience: see `run`, in seconds.
        on_progress: after each batch, gets the number of finished documents (`RestoredDocuments.done`).
    """

    def __init__(
        self,
        engine: Engine,
        files: Iterable[Path],
        *,
        chosen: frozenset[str] | None,
        patience: float,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self._engine = engine
        self._files = tuple(files)
        self._chosen = chosen
        self._patience = patience
        self._on_progress = on_progress
        self.restored = RestoredDocuments()

    async def differing(self) -> list[str]:
        """Return the documents whose version in the cluster differs from the backup, without documents that the cluster
        lacks. Each document is a text for messages (`_shown`). This method writes nothing.
        """
        found = []
        async for batch in self._batches():
            versions = await self._versions(batch)
            found += [
                _shown(line)
                for line, version in zip(batch, versions, strict=True)
                if version not in (NO_VERSION, line["version"])
            ]
        return found

    async def run(self, policy: str) -> RestoredDocuments:
        """Store the documents and wait until they are indexed. `policy` is one of `POLICIES`.

        `policy` says what happens to a document that the cluster has in a different version: FAIL refuses the document,
        SKIP keeps the version of the cluster, and REPLACE stores the version of the backup. Raises DeadlineExceeded if
        the shards index no document for `patience` seconds.
        """
        limit = asyncio.Semaphore(_CONCURRENT)

        async def store(line: _Line, version: str) -> None:
            async with limit:
                try:
                    await self._store(line, version, policy)
                except RequestError as error:
                    self.restored.refused[_shown(line)] = str(error)

        async for batch in self._batches():
            versions = await self._versions(batch)
            await run_together(store(line, version) for line, version in zip(batch, versions, strict=True))
            self._on_progress(self.restored.done)
        await self._wait_indexed()
        return self.restored

    async def _store(self, line: _Line, version: str, policy: str) -> None:
        """Store the document of a line, and count it in `restored`.

        `version` is the document's current version in the cluster, or empty if the cluster does not have the document.
        If other clients change the document meanwhile, try again, `_TRIES` times in all. Then raise VersionConflict.
        """
        restored, documents = self.restored, self._engine.documents
        for _ in range(_TRIES):
            if version == line["version"]:
                restored.unchanged += 1
                return
            if version and policy != REPLACE:
                if policy == FAIL:  # another client has written the document since the call of `differing`
                    raise VersionConflict(f"not replaced: another client wrote version {version} meanwhile")
                restored.skipped += 1
                return
            try:
                written = await documents.put(
                    line["id"],
                    line["text"],
                    title=line["title"],
                    metadata=line["metadata"],
                    collection=line["collection"],
                    source=line["source"],
                    if_version=version,
                    wait=False,
                    timeout=self._patience,
                )
            except VersionConflict:
                (version,) = await self._versions([line])
                continue
            restored.new += written.created
            restored.replaced += not written.created
            if written.version != line["version"]:
                restored.other_version.append(_shown(line))
            await documents.caught_up(line["id"], self._patience)
            return
        raise VersionConflict(f"not replaced: other clients changed it {_TRIES} times meanwhile")

    async def _versions(self, lines: Iterable[_Line]) -> list[str]:
        names = [DocumentName.of(line["id"], line["collection"]) for line in lines]
        keys = [document_key(name, self._engine.documents.tag_of(name.id)) for name in names]
        replies = await self._engine.shards.execute_many([(key, ("HGET", key, "version")) for key in keys])
        return [NO_VERSION if reply is None else reply.decode() for reply in replies]

    async def _batches(self) -> AsyncIterator[list[_Line]]:
        """Yield the documents of all files in batches. Up to `_FILES` files are open. Successive batches come from
        different open files in turn, so that several shards index at the same time.
        """
        with ExitStack() as stack:
            left = iter(self._files)
            opened: deque[Generator[_Line, None, None]] = deque()
            while True:
                for path in islice(left, _FILES - len(opened)):
                    opened.append(documents_in(path, self._chosen))
                    stack.callback(_close, opened[-1])
                if not opened:
                    return
                lines = opened.popleft()
                batch = await asyncio.to_thread(_batch, lines)
                if batch:
                    opened.append(lines)
                    yield batch

    async def _wait_indexed(self) -> None:
        """Wait until no document of the cluster is pending, including documents that other clients write in the
        meantime. Raise DeadlineExceeded if the number of pending bytes stays the same for `patience` seconds.
        """
        tags = self._engine.partitions.tags
        keys = [pending_key(tag) for tag in tags]
        before, until = -1, monotonic() + self._patience
        while True:
            replies = await self._engine.shards.execute_many([(key, ("HGET", key, "")) for key in keys])
            pending = sum(int(reply or 0) for reply in replies)
            if not pending:
                return
            if pending != before:
                before, until = pending, monotonic() + self._patience
            elif monotonic() > until:
                raise DeadlineExceeded(
                    f"all documents are stored, but {pending} bytes of text are still pending, and no document was"
                    f" indexed for {self._patience:g} s (start_timeout_ms): see `qa-cluster status` and the server logs"
                )
            await asyncio.sleep(_POLL_SECONDS)


def _batch(lines: Iterator[_Line]) -> list[_Line]:
    found: list[_Line] = []
    chars = 0
    for line in lines:
        found.append(line)
        chars += len(line["text"])
        if len(found) == _BATCH_DOCUMENTS or chars >= _BATCH_CHARS:
            break
    return found


def _close(lines: Generator[_Line, None, None]) -> None:
    with suppress(ValueError):  # after an interruption, a thread may still read from `lines`
        lines.close()


def documents_in(path: Path, chosen: frozenset[str] | None = None) -> Generator[_Line, None, None]:
    """Yield the lines of a file of documents: all lines, or the lines of the `chosen` collections. Every line is
    checked; raises DamagedBackup at the first line that is not a document.
    """
    for number, line in enumerate(read_lines(path), start=1):
        texts = [line.get(name) for name in ("id", "collection", "title", "text", "version", "source")]
        if not all(isinstance(text, str) for text in texts) or not isinstance(line.get("metadata"), dict):
            raise DamagedBackup(path, f"damaged, line {number} is not a document")
        if chosen is None or line["collection"] in chosen:
            yield line


def _shown(line: _Line) -> str:
    return repr(line["id"][:100]) + (f" of {line['collection']}" if line["collection"] != "default" else "")
