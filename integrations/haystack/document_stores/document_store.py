"""The document store: stores Haystack's documents in a collection of qa-cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from haystack import Document, default_to_dict
from haystack.document_stores.errors import DocumentStoreError, DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack.utils import Secret

from qa_cluster.client import Document as StoredDocument
from qa_cluster.client import InvalidInput, NotFound, VersionConflict
from qa_cluster.integrations.haystack.connected import Connected
from qa_cluster.integrations.haystack.filters import FilterProblem, Filters, every_document, service_filters
from qa_cluster.integrations.service.connection import DEFAULT_URL, KEY_VARIABLE, TIMEOUT_SECONDS

# The maximum number of concurrent requests to the service.
_AT_ONCE = 8
# The maximum number of rounds of an update. Each further round updates the documents that other clients wrote during
# the round before it.
_UPDATE_ROUNDS = 5
_In = TypeVar("_In")
_Out = TypeVar("_Out")


class QAClusterDocumentStore(Connected):
    """Stores documents in a collection of a qa-cluster service, which indexes and ranks them.

    The service splits texts into sentences and computes its own vectors. So documents need no splitting, and their
    `embedding` is not stored.

    Args:
        base_url: the address of the service.
        api_key: the API key; by default the environment variable QA_CLUSTER_API_KEY, if it is set. None: no key.
        collection: the collection of the documents, which must exist. `default` always exists.
        tls_ca: the PEM file of the certificate authority of an `https` service; empty: the authorities that the system
            trusts.
        timeout: the time limit for a call with all its retries, in seconds.
        attempts: the maximum number of attempts for a call; None: as many as the timeout allows.
        wait: whether a write returns only when questions can find the documents.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: Secret | None = Secret.from_env_var(KEY_VARIABLE, strict=False),  # noqa: B008 - a Secret is immutable
        collection: str = "default",
        tls_ca: str = "",
        timeout: float = TIMEOUT_SECONDS,
        attempts: int | None = None,
        wait: bool = True,
    ) -> None:
        self._connect_to(base_url, api_key, tls_ca, timeout, attempts)
        self.collection = collection
        self.wait = wait

    def to_dict(self) -> dict[str, Any]:
        """Return the store as a dictionary, with the name of the environment variable instead of the key."""
        return default_to_dict(
            self,
            **self._service(),
            collection=self.collection,
            wait=self.wait,
        )

    def count_documents(self) -> int:
        """Return the number of documents that questions can find."""
        return self.connection.client.count_documents(collection=self.collection).documents

    def count_documents_by_filter(self, filters: Filters) -> int:
        """Return the number of documents that match a filter. An empty filter matches all documents."""
        chosen = _checked(filters)
        with _filter_errors():
            return self.connection.client.count_documents(collection=self.collection, filters=chosen).documents

    def filter_documents(self, filters: Filters | None = None) -> list[Document]:
        """Return the documents that match a filter, with one request for each document.

        None or an empty filter matches all documents.
        To find documents for a question, use a retriever instead.
        """
        client = self.connection.client
        chosen = _checked(filters)
        with _filter_errors():
            ids = [entry.id for entry in client.list_documents(collection=self.collection, filters=chosen)]

        def read(document_id: str) -> Document | None:
            try:
                return _from_stored(client.get_document(document_id, collection=self.collection))
            except NotFound:  # the document was deleted after the listing
                return None

        return [document for document in _each(read, ids) if document is not None]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Store documents, and return the number of written documents.

        `policy` says what to do with a document whose id exists. OVERWRITE replaces it, and SKIP keeps it. FAIL and
        NONE raise DuplicateDocumentError.
        Each document is a separate request, so a failure may leave some documents stored. The service stores id,
        content and metadata. `meta["title"]` is also the title, which the reader of the service uses.

        Raises:
            ValueError: an element is not a document with text.
            DuplicateDocumentError: the policy is FAIL or NONE, and a document with the same id exists.
        """
        if not isinstance(documents, list) or not all(isinstance(document, Document) for document in documents):
            raise ValueError("documents must be a list of haystack.Document")
        for document in documents:
            if not document.content:
                raise ValueError(f"document {document.id!r} has no content: qa-cluster stores texts only")
        client = self.connection.client

        def write(document: Document) -> int:
            title = document.meta.get("title")
            overwrite = policy == DuplicatePolicy.OVERWRITE
            try:
                written = client.put_document(
                    document.id,
                    document.content,
                    title if isinstance(title, str) else "",
                    document.meta,
                    collection=self.collection,
                    if_version=None if overwrite else "",
                    wait=self.wait,
                )
                # A write that changes nothing succeeds, even if the request requires a different version.
                exists = not written.created
            except VersionConflict:
                exists = True
            if exists and policy in (DuplicatePolicy.NONE, DuplicatePolicy.FAIL):
                raise DuplicateDocumentError(f"document {document.id!r} exists: use SKIP or OVERWRITE")
            return int(overwrite or not exists)

        return sum(_each(write, documents))

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents; ids that do not exist are ignored."""
        client = self.connection.client

        def delete(document_id: str) -> None:
            with suppress(NotFound):
                client.delete_document(document_id, collection=self.collection)

        for _ in _each(delete, document_ids):
            pass

    def delete_all_documents(self) -> None:
        """Delete all documents of the collection; the collection stays."""
        self._delete(every_document())

    def delete_by_filter(self, filters: Filters) -> int:
        """Delete the documents that match a filter, and return their number. An empty filter matches all documents."""
        return self._delete(_checked(filters) or every_document())

    def _delete(self, filters: Filters) -> int:
        deleted = 0
        while True:
            with _filter_errors():
                removal = self.connection.client.delete_documents(collection=self.collection, filters=filters)
            deleted += removal.deleted
            if removal.complete:
                return deleted
            if not removal.deleted:
                raise DocumentStoreError(
                    f"documents of collection {self.collection!r} remain after {self.timeout:g} s: another client"
                    " is writing them, or the timeout is too short"
                )

    def update_by_filter(self, filters: Filters, meta: dict[str, Any]) -> int:
        """Set metadata fields of the documents that match a filter, and return the number of changed documents.

        An empty filter matches all documents. If another client writes a matching document at the same time, the update
        of this document is repeated.

        Raises:
            DocumentStoreError: Other clients have written matching documents during each of `_UPDATE_ROUNDS` rounds.
        """
        chosen = _checked(filters) or every_document()
        updated = 0
        for _ in range(_UPDATE_ROUNDS):
            cursor: str | None = ""
            skipped = 0
            while cursor is not None:
                with _filter_errors():
                    done = self.connection.client.update_documents(
                        meta, collection=self.collection, filters=chosen, cursor=cursor
                    )
                updated, skipped = updated + done.updated, skipped + done.skipped
                if cursor and done.next_cursor == cursor:
                    raise DocumentStoreError(
                        f"an update of documents of collection {self.collection!r} makes no progress within"
                        f" {self.timeout:g} s: the timeout is too short"
                    )
                cursor = done.next_cursor
            if not skipped:
                return updated
        raise DocumentStoreError(
            f"{skipped} documents of collection {self.collection!r} were not updated, because other clients write them"
            f" ({updated} were updated): repeat the call"
        )


def _checked(filters: Filters | None) -> Filters | None:
    try:
        return service_filters(filters)
    except FilterProblem as error:
        raise FilterError(str(error)) from error


@contextmanager
def _filter_errors() -> Iterator[None]:
    """A context that converts the service's errors about a filter to Haystack's FilterError."""
    try:
        yield
    except InvalidInput as error:
        if "filter" in str(error):
            raise FilterError(str(error)) from error
        raise


def _each(call: Callable[[_In], _Out], values: Iterable[_In]) -> Iterator[_Out]:
    """Call a function with each value, at most `_AT_ONCE` times concurrently. Yield the results in the order of the
    values."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(call, values)


def _from_stored(stored: StoredDocument) -> Document:
    return Document(id=stored.id, content=stored.text, meta=dict(stored.metadata))
