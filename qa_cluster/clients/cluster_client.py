"""Clients that ask the cluster directly, without the REST service: `AsyncClusterClient` and `ClusterClient`.

>>> with ClusterClient("redis://127.0.0.1:7000") as client:
...     client.put_document("ada", "Ada Lovelace wrote the first program.")
...     print(client.ask("Who wrote the first program?").best.answer)
Ada Lovelace

The synchronous client runs the asynchronous one in a thread of its own; it may be shared by threads.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelled
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack
from uuid import uuid4

from qa_cluster.access.records import ApiKey, KeyLimits, new_key
from qa_cluster.asking.connecting import target_of
from qa_cluster.asking.document_list import DEFAULT_PAGE, MAX_PAGE, ChoiceArguments, choice_of, entries
from qa_cluster.asking.document_removal import remove_all
from qa_cluster.asking.engine import Engine
from qa_cluster.asking.loaded_readers import LoadedModel, read_manifest
from qa_cluster.asking.questions import AskArguments, SearchArguments, ask_options, search_options
from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, InvalidInput, RequestError
from qa_cluster.huggingface.request import SHARD_LIMITS, parse_request
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.security.local_password import password_at
from qa_cluster.types import (
    AskResult,
    CollectionEntry,
    Document,
    DocumentCounts,
    DocumentEntry,
    DocumentPage,
    Removal,
    SearchResult,
    WriteResult,
)

WRITE_TIMEOUT_SECONDS = 30.0
REMOVE_SECONDS = 600.0
MAX_CONCURRENCY = 256
CLOSE_SECONDS = 10.0
CLOSE_POLL_SECONDS = 0.02

_Result = TypeVar("_Result")
# Callbacks of `put_documents`: one gets the result of each document, one each refused document and the reason.
OnWritten = Callable[[WriteResult], None]
OnRefused = Callable[[Document, RequestError], None]
# Where a document comes from, for `WriteResult.source_before` of the write that replaces it.
SourceOf = Callable[[Document], str]


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster as a client sees it."""

    shards: Sequence[Mapping[str, str]]
    partitions: int
    model_id: str
    model_revision: str
    tracking: bool


def _settings_of(cluster_url: str) -> Settings:
    """The settings of a client that is given nothing but an address."""
    settings = Settings()
    return replace(settings, cluster_url=cluster_url, cluster_password=password_at(cluster_url, settings.data_dir))


class AsyncClusterClient:
    """Asks and writes on the shards. Use as ``async with``, or call `open` and `aclose`.

    `cluster` is a URL ``redis://host:port`` or the settings, whose `cluster_url` is used. With a URL of the local
    cluster whose folder is in the current one, the client finds the password there.
    """

    def __init__(self, cluster: str | Settings) -> None:
        settings = _settings_of(cluster) if isinstance(cluster, str) else cluster
        self._target = target_of(settings)
        self._engine: Engine | None = None

    async def open(self) -> Self:
        """Connect; ClusterError names what is missing."""
        if self._engine is None:
            self._engine = await self._target.open()
        return self

    async def aclose(self) -> None:
        """Close all connections."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.aclose()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def engine(self) -> Engine:
        """The open engine."""
        if self._engine is None:
            raise ClusterError("the client is not open: use it in an `async with` block")
        return self._engine

    async def ask(self, question: str, **options: Unpack[AskArguments]) -> AskResult:
        """Answer a question; `qa_cluster.asking.questions.AskOptions` says what the options mean."""
        return (await self.engine.ask(question, ask_options(options))).result(f"qa_{uuid4().hex}")

    async def search(self, query: str, **options: Unpack[SearchArguments]) -> SearchResult:
        """The sentences that match best; `qa_cluster.asking.questions.SearchOptions` says what the options mean."""
        return (await self.engine.search(query, search_options(options))).result(f"qa_{uuid4().hex}")

    async def pipeline(
        self,
        inputs: Mapping[str, str] | Sequence[Mapping[str, str]],
        *,
        model: str = "",
        timeout: float = WRITE_TIMEOUT_SECONDS,
        **parameters: Any,
    ) -> Any:
        """Read answers from given contexts on a shard; `qa_cluster.pipeline` says what the parameters mean.

        `inputs` is a dictionary with question and context, or a list of such; so is the result.
        """
        request = parse_request({"inputs": inputs, "parameters": parameters}, SHARD_LIMITS)
        _, results = await self.engine.pipeline.read(model, request, timeout_seconds=timeout)
        return results[0] if request.single else results

    async def put_document(
        self,
        id: str,
        text: str,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        collection: str = DEFAULT_COLLECTION,
        if_version: str | None = None,
        wait: bool = True,
        timeout: float = WRITE_TIMEOUT_SECONDS,
    ) -> WriteResult:
        """Store a document in a collection and, with `wait`, return when questions are answered from it.

        `if_version` names the version it must have now; ``""`` means that it must not exist yet.
        """
        return await self.engine.documents.put(
            id,
            text,
            title=title or "",
            metadata=metadata,
            collection=collection,
            if_version=if_version,
            wait=wait,
            timeout=timeout,
        )

    async def put_documents(
        self,
        documents: Iterable[Document],
        *,
        collection: str = DEFAULT_COLLECTION,
        concurrency: int = 16,
        on_progress: Callable[[int], None] | None = None,
        on_written: OnWritten | None = None,
        on_refused: OnRefused | None = None,
        source_of: SourceOf | None = None,
        wait: bool = False,
        timeout: float = WRITE_TIMEOUT_SECONDS,
    ) -> int:
        """Store many documents, `concurrency` at a time; return their number. `on_progress` gets the count so far.

        It writes no faster than the shards index: DeadlineExceeded if a shard indexes nothing for `timeout` seconds.
        The first error ends it, after the writes under way; what was stored stays stored. With `on_refused`, a document
        that is itself at fault (a RequestError) is passed to it, and the others are stored.
        """
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise InvalidInput(f"concurrency must be from 1 to {MAX_CONCURRENCY}, got {concurrency}")
        iterator, done = iter(documents), 0

        async def store() -> None:
            nonlocal done
            # It may take long to get the next document (from a file or a generator); the loop must run meanwhile.
            while (document := await asyncio.to_thread(next_document)) is not None:
                try:
                    written = await self.engine.documents.put(
                        document.id,
                        document.text,
                        title=document.title,
                        metadata=document.metadata,
                        collection=collection,
                        source=source_of(document) if source_of is not None else "",
                        wait=wait,
                        timeout=timeout,
                    )
                except RequestError as error:
                    if on_refused is None:
                        raise
                    on_refused(document, error)
                    continue
                if on_written is not None:
                    on_written(written)
                done += 1
                if on_progress is not None:
                    on_progress(done)
                await self.engine.documents.caught_up(document.id, timeout)

        lock = threading.Lock()

        def next_document() -> Document | None:
            with lock:
                return next(iterator, None)

        async with first_error(), asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(store())
        return done

    async def get_document(self, id: str, *, collection: str = DEFAULT_COLLECTION) -> Document:
        """The stored document; NotFound when there is none."""
        return await self.engine.documents.get(id, collection)

    async def delete_document(
        self,
        id: str,
        *,
        collection: str = DEFAULT_COLLECTION,
        if_version: str | None = None,
        timeout: float = WRITE_TIMEOUT_SECONDS,
    ) -> str:
        """Remove a document; returns the version it had."""
        return await self.engine.documents.delete(id, collection=collection, if_version=if_version, timeout=timeout)

    async def delete_documents(self, *, timeout: float = REMOVE_SECONDS, **choice: Unpack[ChoiceArguments]) -> Removal:
        """Remove the documents that `list_documents` lists for the same choice, for `timeout` seconds at most.

        InvalidInput for a choice of all documents. One that is written meanwhile stays: `complete` is false then.
        """
        engine = self.engine
        return await remove_all(engine.listing, engine.documents, choice_of(choice), seconds=timeout)

    async def document_page(
        self, cursor: str = "", *, limit: int = DEFAULT_PAGE, **choice: Unpack[ChoiceArguments]
    ) -> DocumentPage:
        """A part of `list_documents`; the next one begins at its `next_cursor`."""
        return await self.engine.listing.page(cursor, limit=limit, choice=choice_of(choice))

    def list_documents(self, **choice: Unpack[ChoiceArguments]) -> AsyncIterator[DocumentEntry]:
        """The documents that questions are answered from, whose ids begin with `prefix` and that the filter admits.

        They come in a stable order; `filters` and `filter` are those of `ask`.

        A document that does not change meanwhile is listed exactly once, whatever happens to the others.
        """
        return self.engine.listing.all(choice_of(choice))

    async def count_documents(self, *, waiting: bool = False, **choice: Unpack[ChoiceArguments]) -> DocumentCounts:
        """How many documents and sentences answers come from; with `waiting` also how many documents are not ready.

        With a choice as in `list_documents` it counts those; `waiting` is then refused.
        """
        return await self.engine.listing.count(waiting=waiting, choice=choice_of(choice))

    async def collections(self) -> tuple[CollectionEntry, ...]:
        """All collections with what they hold, the default one first."""
        return await self.engine.collections.entries()

    async def collection(self, name: str) -> CollectionEntry:
        """One collection; NotFound where there is none."""
        return await self.engine.collections.entry(name)

    async def api_keys(self) -> list[ApiKey]:
        """The API keys of the REST service, the oldest first; those that are not valid any more, too."""
        return await self.engine.api_keys.all()

    async def create_api_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        collections: Sequence[str] = (),
        limits: KeyLimits | None = None,
        expires_in_seconds: int | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key; the record of it, and its text, which is stored nowhere.

        From the first key on, the REST services of the cluster take no request without one.
        """
        key, text = new_key(
            name,
            scopes,
            collections=collections,
            limits=limits,
            expires_in_seconds=expires_in_seconds,
            now=time.time(),
        )
        await self.engine.api_keys.add(key)
        return key, text

    async def ensure_api_keys(self, keys: Sequence[ApiKey]) -> tuple[list[ApiKey], list[ApiKey]]:
        """Store keys whose texts were made elsewhere, as far as they are not there: the new ones, and the revoked ones.

        InvalidInput, before anything is stored, where a key of the same id has another secret or other rights.
        """
        return await self.engine.api_keys.ensure(keys)

    async def revoke_api_key(self, id: str) -> ApiKey:
        """Make a key invalid in every service; NotFound where there is none."""
        return await self.engine.api_keys.revoke(id)

    async def clear_api_keys(self) -> int:
        """Remove all keys, with their records: from now on the services ask for none. How many there were."""
        return await self.engine.api_keys.clear()

    async def create_collection(self, name: str) -> bool:
        """Make a collection; whether it was new."""
        return await self.engine.collections.create(name)

    async def delete_collection(self, name: str, *, timeout: float = REMOVE_SECONDS) -> Removal:
        """Remove a collection with all its documents, for `timeout` seconds at most; it takes no more from the start.

        Until the removal is complete, the collection is listed as one that is being deleted; removing it again goes on.
        """
        return await self.engine.collection_removal.run(name, seconds=timeout)

    async def models(self) -> list[LoadedModel]:
        """The models on the shards, the default one first."""
        return await self.engine.models()

    async def status(self) -> ClusterStatus:
        """The shards, partitions and default model of the cluster."""
        engine = self.engine
        topology = await engine.shards.refresh()
        manifest = await read_manifest(engine.shards)
        shards = [
            {"shard": shard.name, "node_id": shard.node_id, "address": str(shard.address)} for shard in topology.shards
        ]
        model, revision = (manifest.model_id, manifest.revision) if manifest is not None else ("", "")
        return ClusterStatus(shards, engine.partitions, model, revision, engine.freshness.ready)


@asynccontextmanager
async def first_error() -> AsyncIterator[None]:
    """Raise the first error of a task group as it is, not wrapped in a group."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def _others() -> set[asyncio.Task[Any]]:
    """The tasks of this loop, without the current one."""
    current = asyncio.current_task()
    return {task for task in asyncio.all_tasks() if task is not current}


async def _cancelled_ended(until: float) -> None:
    """Wait until cancelled tasks have ended; ClusterError names one that has not by `until`, in the loop's time.

    The tasks are collected anew each time: one whose `asyncio.timeout` expires counts as cancelled for a moment only,
    and then goes on.
    """
    while tasks := {task for task in _others() if task.cancelling()}:
        if asyncio.get_running_loop().time() > until:
            raise ClusterError(f"closing the client: {tasks.pop().get_name()} did not end in {CLOSE_SECONDS:g} s")
        await asyncio.wait(tasks, timeout=CLOSE_POLL_SECONDS)


class ClusterClient:
    """The synchronous client: the same calls as `AsyncClusterClient`, from any thread. Use as ``with``."""

    def __init__(self, cluster: str | Settings) -> None:
        self._client = AsyncClusterClient(cluster)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> Self:
        """Connect; ClusterError names what is missing."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="qa-cluster-client", daemon=True)
            self._thread.start()
            try:
                self._run(self._client.open())
            except BaseException:
                self.close()
                raise
        return self

    def close(self) -> None:
        """Close all connections and end the thread."""
        if self._loop is None or self._thread is None:
            return
        loop = self._loop
        try:
            self._run(self._shut())
        finally:
            self._loop = None
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            self._thread = None
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    async def _shut(self) -> None:
        """Close the client and end every task of the loop: a task that is pending when its loop closes never ends."""
        clock = asyncio.get_running_loop()
        await _cancelled_ended(clock.time() + CLOSE_SECONDS)
        await self._client.aclose()
        until = clock.time() + CLOSE_SECONDS
        while tasks := _others():
            for task in tasks:
                task.cancel()
            await _cancelled_ended(until)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        if self._loop is None:
            work.close()
            raise ClusterError("the client is not open: use it in a `with` block")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except FutureCancelled as error:
            raise ClusterError("the client was closed meanwhile") from error
        except BaseException:  # such as KeyboardInterrupt in the waiting thread: the result is no longer wanted
            future.cancel()
            raise

    def ask(self, question: str, **options: Unpack[AskArguments]) -> AskResult:
        """Answer a question; `qa_cluster.asking.questions.AskOptions` says what the options mean."""
        return self._run(self._client.ask(question, **options))

    def search(self, query: str, **options: Unpack[SearchArguments]) -> SearchResult:
        """The sentences that match best; `qa_cluster.asking.questions.SearchOptions` says what the options mean."""
        return self._run(self._client.search(query, **options))

    def pipeline(
        self,
        inputs: Mapping[str, str] | Sequence[Mapping[str, str]],
        *,
        model: str = "",
        timeout: float = WRITE_TIMEOUT_SECONDS,
        **parameters: Any,
    ) -> Any:
        """Read answers from given contexts on a shard."""
        return self._run(self._client.pipeline(inputs, model=model, timeout=timeout, **parameters))

    def put_document(
        self,
        id: str,
        text: str,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        collection: str = DEFAULT_COLLECTION,
        if_version: str | None = None,
        wait: bool = True,
        timeout: float = WRITE_TIMEOUT_SECONDS,
    ) -> WriteResult:
        """Store a document and, with `wait`, return when questions are answered from it."""
        return self._run(
            self._client.put_document(
                id, text, title, metadata, collection=collection, if_version=if_version, wait=wait, timeout=timeout
            )
        )

    def put_documents(
        self,
        documents: Iterable[Document],
        *,
        collection: str = DEFAULT_COLLECTION,
        concurrency: int = 16,
        on_progress: Callable[[int], None] | None = None,
        on_written: OnWritten | None = None,
        on_refused: OnRefused | None = None,
        source_of: SourceOf | None = None,
        wait: bool = False,
        timeout: float = WRITE_TIMEOUT_SECONDS,
    ) -> int:
        """Store many documents, `concurrency` at a time; the callbacks are called in the client's thread."""
        return self._run(
            self._client.put_documents(
                documents,
                collection=collection,
                concurrency=concurrency,
                on_progress=on_progress,
                on_written=on_written,
                on_refused=on_refused,
                source_of=source_of,
                wait=wait,
                timeout=timeout,
            )
        )

    def get_document(self, id: str, *, collection: str = DEFAULT_COLLECTION) -> Document:
        """The stored document; NotFound when there is none."""
        return self._run(self._client.get_document(id, collection=collection))

    def delete_document(
        self,
        id: str,
        *,
        collection: str = DEFAULT_COLLECTION,
        if_version: str | None = None,
        timeout: float = WRITE_TIMEOUT_SECONDS,
    ) -> str:
        """Remove a document; returns the version it had."""
        return self._run(
            self._client.delete_document(id, collection=collection, if_version=if_version, timeout=timeout)
        )

    def delete_documents(self, *, timeout: float = REMOVE_SECONDS, **choice: Unpack[ChoiceArguments]) -> Removal:
        """Remove the documents that `list_documents` lists for the same choice, for `timeout` seconds at most.

        InvalidInput for a choice of all documents. One that is written meanwhile stays: `complete` is false then.
        """
        return self._run(self._client.delete_documents(timeout=timeout, **choice))

    def document_page(
        self, cursor: str = "", *, limit: int = DEFAULT_PAGE, **choice: Unpack[ChoiceArguments]
    ) -> DocumentPage:
        """A part of `list_documents`; the next one begins at its `next_cursor`."""
        return self._run(self._client.document_page(cursor, limit=limit, **choice))

    def list_documents(self, **choice: Unpack[ChoiceArguments]) -> Iterator[DocumentEntry]:
        """The documents that questions are answered from, whose ids begin with `prefix` and that the filter admits.

        They come in a stable order; `filters` and `filter` are those of `ask`.
        """
        return entries(lambda cursor: self.document_page(cursor, limit=MAX_PAGE, **choice))

    def count_documents(self, *, waiting: bool = False, **choice: Unpack[ChoiceArguments]) -> DocumentCounts:
        """How many documents and sentences answers come from; with `waiting` also how many documents are not ready.

        With a choice as in `list_documents` it counts those; `waiting` is then refused.
        """
        return self._run(self._client.count_documents(waiting=waiting, **choice))

    def collections(self) -> tuple[CollectionEntry, ...]:
        """All collections with what they hold, the default one first."""
        return self._run(self._client.collections())

    def collection(self, name: str) -> CollectionEntry:
        """One collection; NotFound where there is none."""
        return self._run(self._client.collection(name))

    def api_keys(self) -> list[ApiKey]:
        """The API keys of the REST service, the oldest first; those that are not valid any more, too."""
        return self._run(self._client.api_keys())

    def create_api_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        collections: Sequence[str] = (),
        limits: KeyLimits | None = None,
        expires_in_seconds: int | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key; the record of it, and its text, which is stored nowhere.

        From the first key on, the REST services of the cluster take no request without one.
        """
        return self._run(
            self._client.create_api_key(
                name, scopes, collections=collections, limits=limits, expires_in_seconds=expires_in_seconds
            )
        )

    def ensure_api_keys(self, keys: Sequence[ApiKey]) -> tuple[list[ApiKey], list[ApiKey]]:
        """Store keys whose texts were made elsewhere, as far as they are not there: the new ones, and the revoked ones.

        InvalidInput, before anything is stored, where a key of the same id has another secret or other rights.
        """
        return self._run(self._client.ensure_api_keys(keys))

    def revoke_api_key(self, id: str) -> ApiKey:
        """Make a key invalid in every service; NotFound where there is none."""
        return self._run(self._client.revoke_api_key(id))

    def clear_api_keys(self) -> int:
        """Remove all keys, with their records: from now on the services ask for none. How many there were."""
        return self._run(self._client.clear_api_keys())

    def create_collection(self, name: str) -> bool:
        """Make a collection; whether it was new."""
        return self._run(self._client.create_collection(name))

    def delete_collection(self, name: str, *, timeout: float = REMOVE_SECONDS) -> Removal:
        """Remove a collection with all its documents, for `timeout` seconds at most; it takes no more from the start.

        Until the removal is complete, the collection is listed as one that is being deleted; removing it again goes on.
        """
        return self._run(self._client.delete_collection(name, timeout=timeout))

    def models(self) -> list[LoadedModel]:
        """The models on the shards, the default one first."""
        return self._run(self._client.models())

    def status(self) -> ClusterStatus:
        """The shards, partitions and default model of the cluster."""
        return self._run(self._client.status())
