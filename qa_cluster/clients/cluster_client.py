"""The synchronous client of a cluster.

>>> with ClusterClient("redis://127.0.0.1:7000") as client:
...     client.put_document("ada", "Ada Lovelace wrote the first program.")
...     print(client.ask("Who wrote the first program?").best.answer)
Ada Lovelace
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Unpack

from qa_cluster.access.records import ApiKey, KeyLimits
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.options.documents import (
    DEFAULT_PAGE,
    DEFAULT_SHOWN_VALUES,
    MAX_PAGE,
    ChoiceArguments,
    entries,
)
from qa_cluster.options.questions import AskArguments, SearchArguments
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

from .async_cluster_client import (
    REMOVE_SECONDS,
    WRITE_TIMEOUT_SECONDS,
    ClusterStatus,
    OnRefused,
    OnWritten,
    SourceOf,
)
from .client_thread import ClientThread


# Generated from async_cluster_client.py: change that file, then run `python -m tests.contract.sync_clients`.
class ClusterClient(ClientThread):
    """The calls of `AsyncClusterClient`, without async and for any thread. Use it in ``with``."""

    def ask(self, question: str, **options: Unpack[AskArguments]) -> AskResult:
        """Answer a question; `qa_cluster.client.AskOptions` describes the options."""
        return self._run(self._client.ask(question, **options))

    def submit(self, question: str, **options: Unpack[AskArguments]) -> Future[AskResult]:
        """Ask a question in the background and return the future of its result; `ask` describes the options.

        A limited number of questions run at the same time. Raises QueueFull if 10,000 submitted questions have no
        result yet.
        """
        return self._submissions.submit(self.ask, question, **options)

    def search(self, query: str, **options: Unpack[SearchArguments]) -> SearchResult:
        """Return the sentences that match the query best; `qa_cluster.client.SearchOptions` describes the options."""
        return self._run(self._client.search(query, **options))

    def pipeline(
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
        """Store a document in a collection. With `wait`, return when the document is indexed.

        `if_version` is the version that the document must have now. ``""`` means that the document must not exist, and
        None accepts any version.
        """
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
        """Return the stored document; raise NotFound if it does not exist."""
        return self._run(self._client.get_document(id, collection=collection))

    def delete_document(
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
        return self._run(
            self._client.delete_document(id, collection=collection, if_version=if_version, timeout=timeout)
        )

    def delete_documents(self, *, timeout: float = REMOVE_SECONDS, **choice: Unpack[ChoiceArguments]) -> Removal:
        """Delete the documents that `list_documents` lists for the same arguments, within `timeout` seconds.

        Raises InvalidInput if the arguments select all documents of the collection. `complete` of the result is false
        if the time was too short, or if a client changed or deleted a selected document meanwhile. A document that was
        changed meanwhile stays.
        """
        return self._run(self._client.delete_documents(timeout=timeout, **choice))

    def update_document(
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
        return self._run(
            self._client.update_document(
                id, metadata, remove=remove, collection=collection, if_version=if_version, timeout=timeout
            )
        )

    def update_documents(
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
        return self._run(
            self._client.update_documents(metadata, remove=remove, cursor=cursor, timeout=timeout, **choice)
        )

    def fields(self, collection: str = DEFAULT_COLLECTION) -> FieldList:
        """Return the metadata fields of the indexed documents of a collection, with their types and counts."""
        return self._run(self._client.fields(collection))

    def field_values(
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
        return self._run(
            self._client.field_values(name, collection=collection, filters=filters, filter=filter, limit=limit)
        )

    def document_page(
        self, cursor: str = "", *, limit: int = DEFAULT_PAGE, **choice: Unpack[ChoiceArguments]
    ) -> DocumentPage:
        """Return one page of `list_documents`, with at most `limit` documents.

        `cursor` is the `next_cursor` of the page before this page. If `cursor` is empty, this is the first page.
        """
        return self._run(self._client.document_page(cursor, limit=limit, **choice))

    def list_documents(self, **choice: Unpack[ChoiceArguments]) -> Iterator[DocumentEntry]:
        """List the indexed documents whose ids start with `prefix` and that satisfy the filter, in a stable order.

        A document that does not change during the listing is listed exactly once. With `failed`, list the failed
        documents instead.
        """
        return entries(lambda cursor: self.document_page(cursor, limit=MAX_PAGE, **choice))

    def count_documents(self, *, waiting: bool = False, **choice: Unpack[ChoiceArguments]) -> DocumentCounts:
        """Count the indexed documents that `list_documents` lists for `choice`, and their sentences.

        With `waiting`, pending documents are counted, too, and `choice` may contain only `collection`.
        """
        return self._run(self._client.count_documents(waiting=waiting, **choice))

    def collections(self) -> tuple[CollectionEntry, ...]:
        """Return all collections, each with its number of documents and of sentences, the default collection first."""
        return self._run(self._client.collections())

    def collection(self, name: str) -> CollectionEntry:
        """Return one collection; raise NotFound if it does not exist."""
        return self._run(self._client.collection(name))

    def api_keys(self) -> list[ApiKey]:
        """Return the API keys of the REST service, including expired and revoked keys, the oldest first."""
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
        """Create an API key and return its record and its text. The text is not stored.

        `qa_cluster.access.records.new_key` describes the arguments.
        As soon as a key exists, the REST services of the cluster refuse requests without a key.
        """
        return self._run(
            self._client.create_api_key(
                name, scopes, collections=collections, limits=limits, expires_in_seconds=expires_in_seconds
            )
        )

    def ensure_api_keys(self, keys: Sequence[ApiKey]) -> tuple[list[ApiKey], list[ApiKey]]:
        """Store the given keys that the cluster lacks; return the new keys, and the given keys that are revoked.

        Raises InvalidInput if a stored key with the same id differs. In this case, no key is stored.
        """
        return self._run(self._client.ensure_api_keys(keys))

    def revoke_api_key(self, id: str) -> ApiKey:
        """Revoke a key for all services; raise NotFound if it does not exist."""
        return self._run(self._client.revoke_api_key(id))

    def clear_api_keys(self) -> int:
        """Delete the records of all keys and return their number.

        The services then require no key, except services that other machines can reach. These services refuse all
        requests until the cluster has a key again, unless they run with `http_without_keys`.
        """
        return self._run(self._client.clear_api_keys())

    def pins(self, collection: str = DEFAULT_COLLECTION) -> tuple[Pin, ...]:
        """Return the pins of a collection, sorted by their questions."""
        return self._run(self._client.pins(collection))

    def put_pin(self, pin: Pin, *, collection: str = DEFAULT_COLLECTION) -> None:
        """Pin an answer to a question. The pin replaces a pin with the same normalised question."""
        return self._run(self._client.put_pin(pin, collection=collection))

    def delete_pin(self, question: str, *, collection: str = DEFAULT_COLLECTION) -> None:
        """Delete the pin of a question; raise NotFound if the question has no pin."""
        return self._run(self._client.delete_pin(question, collection=collection))

    def synonyms(self, collection: str = DEFAULT_COLLECTION) -> Synonyms:
        """Return the synonyms of a collection."""
        return self._run(self._client.synonyms(collection))

    def set_synonyms(self, synonyms: Synonyms, *, collection: str = DEFAULT_COLLECTION) -> None:
        """Replace the synonyms of a collection. If `synonyms` has no groups, the stored synonyms are deleted."""
        return self._run(self._client.set_synonyms(synonyms, collection=collection))

    def send_feedback(self, feedback: Feedback, *, collection: str = DEFAULT_COLLECTION) -> str:
        """Store a judgement of an answer and return the id of the entry."""
        return self._run(self._client.send_feedback(feedback, collection=collection))

    def feedback(self, collection: str = DEFAULT_COLLECTION) -> tuple[FeedbackEntry, ...]:
        """Return all feedback of a collection, the oldest first."""
        return self._run(self._client.feedback(collection))

    def unanswered_questions(self, collection: str = DEFAULT_COLLECTION) -> tuple[UnansweredQuestion, ...]:
        """Return the questions without a sure answer, the most frequent first."""
        return self._run(self._client.unanswered_questions(collection))

    def create_collection(self, name: str) -> bool:
        """Create a collection; return false if it exists already."""
        return self._run(self._client.create_collection(name))

    def delete_collection(self, name: str, *, timeout: float = REMOVE_SECONDS) -> Removal:
        """Delete a collection with all its documents.

        If the deletion takes longer than `timeout` seconds, `complete` of the result is false, and another call
        continues the deletion. Until all documents are deleted, the collection refuses new documents and has the state
        ``deleting``.
        """
        return self._run(self._client.delete_collection(name, timeout=timeout))

    def models(self) -> list[LoadedModel]:
        """Return the models on the shards, the default model first."""
        return self._run(self._client.models())

    def status(self) -> ClusterStatus:
        """Return the shards, the number of partitions and the default model of the cluster."""
        return self._run(self._client.status())
