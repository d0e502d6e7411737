"""The asynchronous client that asks the cluster directly, without the REST service.

>>> async with AsyncClusterClient("redis://127.0.0.1:7000") as client:
...     await client.put_document("ada", "Ada Lovelace wrote the first program.")
...     print((await client.ask("Who wrote the first program?")).best.answer)
Ada Lovelace
"""

from __future__ import annotations

import asyncio
import threading
import time
from asyncio import Future
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, Unpack
from uuid import uuid4

from qa_cluster.access.records import ApiKey, KeyLimits, new_key
from qa_cluster.asking.connecting import target_of
from qa_cluster.asking.document_removal import remove_all
from qa_cluster.asking.engine import Engine
from qa_cluster.asking.loaded_readers import read_manifest
from qa_cluster.asking.metadata_updates import update_all
from qa_cluster.config import Settings
from qa_cluster.documents.metadata_change import MetadataChange
from qa_cluster.errors import ClusterError, InvalidInput, RequestError
from qa_cluster.huggingface.request import SHARD_LIMITS, parse_request
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.options.documents import DEFAULT_PAGE, DEFAULT_SHOWN_VALUES, ChoiceArguments, choice_of
from qa_cluster.options.questions import AskArguments, SearchArguments, ask_options, search_options
from qa_cluster.security.local_password import password_at
from qa_cluster.types import (
    AskResult,
    CollectionEntry,
    Document,
    DocumentCounts,
    DocumentEntry,
    DocumentPage,
    Feedback,
    FeedbackEntry,
    FieldList,
    FieldValues,
    LoadedModel,
    MetadataUpdate,
    Pin,
    Removal,
    SearchResult,
    Synonyms,
    UnansweredQuestion,
    WriteResult,
)

from .submitting import AsyncSubmissions

WRITE_TIMEOUT_SECONDS = 30.0
REMOVE_SECONDS = 600.0
MAX_CONCURRENCY = 256

# Callbacks of `put_documents`. `OnWritten` receives the result of each document. `OnRefused` receives each refused
# document and the reason.
OnWritten = Callable[[WriteResult], None]
OnRefused = Callable[[Document, RequestError], None]
# Returns the source of a document: a text that says where the document comes from, such as a path. The next write to
# the document reports this text as `WriteResult.source_before`.
SourceOf = Callable[[Document], str]


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster as a client sees it.

    Attributes:
        shards: for each shard, its name (``shard``), the id of its server (``node_id``) and its ``address``.
        partitions: the number of partitions of the cluster.
        model_id, model_revision: the default model; empty if the cluster has no default model.
        tracking: whether every shard reports its changes to this client.
    """

    shards: Sequence[Mapping[str, str]]
    partitions: int
    model_id: str
    model_revision: str
    tracking: bool


def _settings_of(cluster_url: str) -> Settings:
    """Return the settings of a client that is given only an address.

    If a local cluster runs at this address, the settings contain its password.
    """
    settings = Settings()
    return replace(settings, cluster_url=cluster_url, cluster_password=password_at(cluster_url, settings.data_dir))


class AsyncClusterClient:
    """Asks the shards and writes to them. Use it in ``async with``, or call `open` and `aclose`.

    `cluster` is a URL ``redis://host:port``, or settings with a `cluster_url`. For a URL of a local cluster, the client
    reads the password from the cluster's data folder in the working directory. Settings contain the password
    themselves, if the cluster has one.
    """

    def __init__(self, cluster: str | Settings) -> None:
        settings = _settings_of(cluster) if isinstance(cluster, str) else cluster
        self._target = target_of(settings)
        self._engine: Engine | None = None
        self._submissions = AsyncSubmissions()

    async def open(self) -> Self:
        """Connect to the cluster; raise ClusterError if the cluster cannot be reached or is not set up."""
        if self._engine is None:
            self._engine = await self._target.open()
        return self

    async def aclose(self) -> None:
        """Close all connections. Unfinished submitted questions are cancelled."""
        await self._submissions.aclose()
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.aclose()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def engine(self) -> Engine:
        """The engine of the open client. Raises ClusterError if the client is not open."""
        if self._engine is None:
            raise ClusterError("the client is not open: use it in an `async with` block")
        return self._engine

    async def ask(self, question: str, **options: Unpack[AskArguments]) -> AskResult:
        """Answer a question; `qa_cluster.client.AskOptions` describes the options."""
        return (await self.engine.ask(question, ask_options(options))).result(f"qa_{uuid4().hex}")

    def submit(self, question: str, **options: Unpack[AskArguments]) -> Future[AskResult]:
        """Ask a question in the background and return the future of its result; `ask` describes the options.

        A limited number of questions run at the same time. Raises QueueFull if 10,000 submitted questions have no
        result yet.
        """
        return self._submissions.submit(self.ask, question, **options)

    async def search(self, query: str, **options: Unpack[SearchArguments]) -> SearchResult:
        """Return the sentences that match the query best; `qa_cluster.client.SearchOptions` describes the options."""
        return (await self.engine.search(query, search_options(options))).result(f"qa_{uuid4().hex}")

    async def pipeline(
        self,
        inputs: Mapping[str, str] | Sequence[Mapping[str, str]],
        *,
        model: str = "",
        timeout: float = WRITE_TIMEOUT_SECONDS,
        **parameters: Any,
    ) -> Any:
        """Find answers in given contexts on a shard; `qa_cluster.pipeline` describes the parameters.

        `inputs` is a dictionary with question and context, or a list of such dictionaries. The result of a list is a
        list. `model` is the id of a loaded reader; if it is empty, the default reader answers.
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
        """Store a document in a collection. With `wait`, return when the document is indexed.

        `if_version` is the version that the document must have now. ``""`` means that the document must not exist, and
        None accepts any version.
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
        """Store many documents, `concurrency` at a time, and return the number of stored documents.

        The client writes no faster than the shards index. It raises DeadlineExceeded if a shard indexes nothing for
        `timeout` seconds. The first error that `on_refused` does not receive ends the call and cancels the writes in
        flight; documents that were stored before stay stored.

        Args:
            documents: the documents; the client iterates over them in another thread.
            on_progress: called with the number of documents stored so far.
            on_written: called with the result of each write.
            on_refused: called with each document that is refused as invalid, and the RequestError. None: the first
                refused document ends the call.
            source_of: returns a text that says where a document comes from, such as a path.
            wait: whether to wait until each document is indexed.
            timeout: seconds for each write.
        """
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise InvalidInput(f"concurrency must be from 1 to {MAX_CONCURRENCY}, got {concurrency}")
        iterator, done = iter(documents), 0

        async def store() -> None:
            nonlocal done
            # Another thread fetches the next document: reading a file or a generator may take long and must not block
            # the loop.
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

        await run_together(store() for _ in range(concurrency))
        return done

    async def get_document(self, id: str, *, collection: str = DEFAULT_COLLECTION) -> Document:
        """Return the stored document; raise NotFound if it does not exist."""
        return await self.engine.documents.get(id, collection)

    async def delete_document(
        self,
        id: str,
        *,
        collection: str = DEFAULT_COLLECTION,
        if_version: str | None = None,
        timeout: float = WRITE_TIMEOUT_SECONDS,
    ) -> str:
        """Delete a document and return its last version; raise NotFound if it does not exist.

        `if_version` is the version that the document must have now; None accepts any version.
        """
        return await self.engine.documents.delete(id, collection=collection, if_version=if_version, timeout=timeout)

    async def delete_documents(self, *, timeout: float = REMOVE_SECONDS, **choice: Unpack[ChoiceArguments]) -> Removal:
        """Delete the documents that `list_documents` lists for the same arguments, within `timeout` seconds.

        Raises InvalidInput if the arguments select all documents of the collection. `complete` of the result is false
        if the time was too short, or if a client changed or deleted a selected document meanwhile. A document that was
        changed meanwhile stays.
        """
        engine = self.engine
        return await remove_all(engine.listing, engine.documents, choice_of(choice), seconds=timeout)

    async def update_document(
        self,
        id: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        remove: str | Iterable[str] = (),
        collection: str = DEFAULT_COLLECTION,
        if_version: str | None = None,
        timeout: float = WRITE_TIMEOUT_SECONDS,
    ) -> WriteResult:
        """Set and remove fields of the metadata of a document; its text is not indexed again.

        `metadata` has the fields to set, and `remove` has the names of the fields to remove. `if_version` is the
        version that the document must have now; None accepts any version. Raises NotFound if the document does not
        exist.
        """
        change = MetadataChange.of(metadata, remove)
        return await self.engine.documents.change_metadata(
            id, change, collection=collection, if_version=if_version, timeout=timeout
        )

    async def update_documents(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        remove: str | Iterable[str] = (),
        cursor: str = "",
        timeout: float = REMOVE_SECONDS,
        **choice: Unpack[ChoiceArguments],
    ) -> MetadataUpdate:
        """Change the metadata of each document that `list_documents` lists for `choice`, as `update_document` does.

        Raises InvalidInput if `choice` selects all documents of the collection. Documents that are written meanwhile
        are skipped. If not all documents are changed after `timeout` seconds, the call ends. To continue, pass the
        `next_cursor` of the result to the next call.
        """
        engine, change = self.engine, MetadataChange.of(metadata, remove)
        return await update_all(
            engine.listing, engine.documents, choice_of(choice), change, cursor=cursor, seconds=timeout
        )

    async def fields(self, collection: str = DEFAULT_COLLECTION) -> FieldList:
        """Return the metadata fields of the indexed documents of a collection, with their types and counts."""
        return await self.engine.fields.entries(collection)

    async def field_values(
        self,
        name: str,
        *,
        collection: str = DEFAULT_COLLECTION,
        filters: Mapping[str, Any] | None = None,
        filter: str | Iterable[str] = (),
        limit: int = DEFAULT_SHOWN_VALUES,
    ) -> FieldValues:
        """Return the `limit` most frequent values of a field with their counts, and its least and greatest value.

        `filters` and `filter` select the documents, as in `ask`. Raises InvalidInput if no document has the field.
        """
        chosen = choice_of({"filters": filters, "filter": filter}).chosen
        return await self.engine.fields.values(name, collection=collection, chosen=chosen, limit=limit)

    async def document_page(
        self, cursor: str = "", *, limit: int = DEFAULT_PAGE, **choice: Unpack[ChoiceArguments]
    ) -> DocumentPage:
        """Return one page of `list_documents`, with at most `limit` documents.

        `cursor` is the `next_cursor` of the page before this page. If `cursor` is empty, this is the first page.
        """
        return await self.engine.listing.page(cursor, limit=limit, choice=choice_of(choice))

    def list_documents(self, **choice: Unpack[ChoiceArguments]) -> AsyncIterator[DocumentEntry]:
        """List the indexed documents whose ids start with `prefix` and that satisfy the filter, in a stable order.

        A document that does not change during the listing is listed exactly once. With `failed`, list the failed
        documents instead.
        """
        return self.engine.listing.all(choice_of(choice))

    async def count_documents(self, *, waiting: bool = False, **choice: Unpack[ChoiceArguments]) -> DocumentCounts:
        """Count the indexed documents that `list_documents` lists for `choice`, and their sentences.

        With `waiting`, pending documents are counted, too, and `choice` may contain only `collection`.
        """
        return await self.engine.listing.count(waiting=waiting, choice=choice_of(choice))

    async def collections(self) -> tuple[CollectionEntry, ...]:
        """Return all collections, each with its number of documents and of sentences, the default collection first."""
        return await self.engine.collections.entries()

    async def collection(self, name: str) -> CollectionEntry:
        """Return one collection; raise NotFound if it does not exist."""
        return await self.engine.collections.entry(name)

    async def api_keys(self) -> list[ApiKey]:
        """Return the API keys of the REST service, including expired and revoked keys, the oldest first."""
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
        """Create an API key and return its record and its text. The text is not stored.

        `qa_cluster.access.records.new_key` describes the arguments.
        As soon as a key exists, the REST services of the cluster refuse requests without a key.
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
        """Store the given keys that the cluster lacks; return the new keys, and the given keys that are revoked.

        Raises InvalidInput if a stored key with the same id differs. In this case, no key is stored.
        """
        return await self.engine.api_keys.ensure(keys)

    async def revoke_api_key(self, id: str) -> ApiKey:
        """Revoke a key for all services; raise NotFound if it does not exist."""
        return await self.engine.api_keys.revoke(id)

    async def clear_api_keys(self) -> int:
        """Delete the records of all keys and return their number.

        The services then require no key, except services that other machines can reach. These services refuse all
        requests until the cluster has a key again, unless they run with `http_without_keys`.
        """
        return await self.engine.api_keys.clear()

    async def pins(self, collection: str = DEFAULT_COLLECTION) -> tuple[Pin, ...]:
        """Return the pins of a collection, sorted by their questions."""
        return await self.engine.guidance.pins(collection)

    async def put_pin(self, pin: Pin, *, collection: str = DEFAULT_COLLECTION) -> None:
        """Pin an answer to a question. The pin replaces a pin with the same normalised question."""
        await self.engine.guidance.put_pin(pin, collection)

    async def delete_pin(self, question: str, *, collection: str = DEFAULT_COLLECTION) -> None:
        """Delete the pin of a question; raise NotFound if the question has no pin."""
        await self.engine.guidance.delete_pin(question, collection)

    async def synonyms(self, collection: str = DEFAULT_COLLECTION) -> Synonyms:
        """Return the synonyms of a collection."""
        return await self.engine.guidance.synonyms(collection)

    async def set_synonyms(self, synonyms: Synonyms, *, collection: str = DEFAULT_COLLECTION) -> None:
        """Replace the synonyms of a collection. If `synonyms` has no groups, the stored synonyms are deleted."""
        await self.engine.guidance.set_synonyms(synonyms, collection)

    async def send_feedback(self, feedback: Feedback, *, collection: str = DEFAULT_COLLECTION) -> str:
        """Store a judgement of an answer and return the id of the entry."""
        return await self.engine.feedback.add(feedback, collection)

    async def feedback(self, collection: str = DEFAULT_COLLECTION) -> tuple[FeedbackEntry, ...]:
        """Return all feedback of a collection, the oldest first."""
        return await self.engine.feedback.all(collection)

    async def unanswered_questions(self, collection: str = DEFAULT_COLLECTION) -> tuple[UnansweredQuestion, ...]:
        """Return the questions without a sure answer, the most frequent first."""
        return await self.engine.unanswered.all(collection)

    async def create_collection(self, name: str) -> bool:
        """Create a collection; return false if it exists already."""
        return await self.engine.collections.create(name)

    async def delete_collection(self, name: str, *, timeout: float = REMOVE_SECONDS) -> Removal:
        """Delete a collection with all its documents.

        If the deletion takes longer than `timeout` seconds, `complete` of the result is false, and another call
        continues the deletion. Until all documents are deleted, the collection refuses new documents and has the state
        ``deleting``.
        """
        return await self.engine.collection_removal.run(name, seconds=timeout)

    async def models(self) -> list[LoadedModel]:
        """Return the models on the shards, the default model first."""
        return await self.engine.models()

    async def status(self) -> ClusterStatus:
        """Return the shards, the number of partitions and the default model of the cluster."""
        engine = self.engine
        topology = await engine.shards.refresh()
        manifest = await read_manifest(engine.shards)
        shards = [
            {"shard": shard.name, "node_id": shard.node_id, "address": str(shard.address)} for shard in topology.shards
        ]
        model, revision = (manifest.model_id, manifest.revision) if manifest is not None else ("", "")
        return ClusterStatus(shards, engine.partitions.number, model, revision, engine.freshness.ready)


async def run_together(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at the same time. The first error ends all of them and is raised without its exception group.

    The body of the `async with` block waits for the coroutines. If the end of the block waited for them, an error would
    leave the calling task marked as cancelled (before Python 3.13), and later timeouts of this task would raise
    CancelledError (Python 3.11.2).
    """
    try:
        async with asyncio.TaskGroup() as group:
            if tasks := [group.create_task(job) for job in jobs]:
                await asyncio.wait(tasks)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
