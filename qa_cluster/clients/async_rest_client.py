"""The asynchronous client of the REST service. It retries failed requests.

>>> async with AsyncClient("http://127.0.0.1:8080") as client:
...     result = await client.ask("Who wrote the first program?")
...     print(result.best.answer if result.answerable else "no answer")
Ada Lovelace

A timeout, in seconds, limits a call with all its retries (`RetryPolicy`). If the service responds with a problem
document, the client raises the corresponding exception of `qa_cluster.errors`.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import Future
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Any, Self, Unpack

import httpx

from qa_cluster.errors import DeadlineExceeded, QAError
from qa_cluster.keys import DEFAULT_COLLECTION, check_collection
from qa_cluster.options.documents import DEFAULT_PAGE, DEFAULT_SHOWN_VALUES, MAX_PAGE, ChoiceArguments, entries_async
from qa_cluster.options.questions import AskArguments, SearchArguments
from qa_cluster.security.tls import trusted
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
    UploadedFile,
    WriteResult,
)

from .rest_calls import (
    FIRST_POLL_SECONDS,
    LAST_POLL_SECONDS,
    SUBMIT_SECONDS,
    TIMEOUT_SECONDS,
    PipelineInputs,
    RestCall,
    UploadArguments,
    UploadFiles,
    as_json,
    ask_call,
    check_timeout,
    collection_call,
    collection_query,
    condition,
    content_of,
    count_call,
    document_path,
    field_values_call,
    key_header,
    page_call,
    parsed,
    parsed_list,
    parsed_models,
    parsed_object,
    pending_result,
    pipeline_call,
    put_call,
    removal_call,
    search_call,
    submit_call,
    unreachable,
    update_call,
    updates_call,
    upload_call,
)
from .retry_policy import DEFAULT_RETRY, RetryPolicy
from .submitting import AsyncSubmissions


class AsyncClient:
    """The asynchronous client of the REST service at `base_url`, such as ``http://127.0.0.1:8080``.

    Args:
        api_key: the key, if the service requires one.
        tls_ca: the PEM file of the authority that signed the certificate of an ``https`` service; by default, the
            authorities that the system trusts. Raises ConfigError if the file cannot be used.
        timeout: the default timeout of calls, in seconds.
        retry: when a call is retried; ``RetryPolicy(attempts=1)`` never retries.
        transport: a transport of httpx, for tests and proxies.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        tls_ca: str = "",
        timeout: float = TIMEOUT_SECONDS,
        retry: RetryPolicy = DEFAULT_RETRY,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._timeout = check_timeout(timeout)
        self._retry = retry
        self._http = httpx.AsyncClient(
            base_url=base_url, headers=key_header(api_key), verify=trusted(tls_ca), transport=transport
        )
        self._submissions = AsyncSubmissions()

    async def aclose(self) -> None:
        """Close all connections. Unfinished submitted questions are cancelled or fail."""
        self._submissions.cancel()
        await self._http.aclose()
        await self._submissions.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout

    async def _send(self, call: RestCall) -> bytes:
        begun = time.monotonic()
        timeout = self._seconds(call.timeout)
        until = begun + timeout
        attempt = 0
        while True:
            response: httpx.Response | None = None
            lost: httpx.TransportError | None = None
            try:
                response = await self._http.request(**call.arguments(until - time.monotonic()))
            except httpx.TimeoutException as error:
                raise DeadlineExceeded(f"no response from {self._http.base_url} in {timeout:g} s") from error
            except httpx.TransportError as error:
                lost = error
            pause = self._retry.pause(response, lost, attempt, begun, until)
            if pause is None:
                if response is None:
                    raise unreachable(self._http.base_url, lost, attempt + 1) from lost
                return content_of(response)
            attempt += 1
            await asyncio.sleep(pause)

    async def ask(self, question: str, **options: Unpack[AskArguments]) -> AskResult:
        """Answer a question; `qa_cluster.client.AskOptions` describes the options."""
        return AskResult.from_json(await self._send(ask_call(question, options)))

    def submit(
        self, question: str, *, wait: float = SUBMIT_SECONDS, **options: Unpack[AskArguments]
    ) -> Future[AskResult]:
        """Submit a question and return the future of its result; `ask` describes the options.

        The service answers the question in the background, even if the service restarts. A limited number of questions
        are sent at the same time. The option `timeout` limits the time for computing the answer.

        Raises:
            DeadlineExceeded: the future has no result `wait` seconds after the question was sent.
            QueueFull: 10,000 submitted questions have no result yet.
        """
        return self._submissions.submit(self._submitted, submit_call(question, options), wait)

    async def _submitted(self, call: RestCall, wait: float) -> AskResult:
        until = time.monotonic() + wait
        content = await self._send(call)
        pause, path = FIRST_POLL_SECONDS, ""
        while (pending := pending_result(content)) is not None:
            path, detail = pending
            if time.monotonic() + pause > until:
                raise DeadlineExceeded(f"the submitted question has no result after {wait:g} s (wait){detail}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_POLL_SECONDS)
            content = await self._send(RestCall("GET", path))
        if path:
            with suppress(QAError):  # if the deletion fails, the result expires
                await self._send(RestCall("DELETE", path))
        return AskResult.from_json(content)

    async def search(self, query: str, **options: Unpack[SearchArguments]) -> SearchResult:
        """Return the sentences that match the query best; `qa_cluster.client.SearchOptions` describes the options."""
        return SearchResult.from_json(await self._send(search_call(query, options)))

    async def pipeline(
        self, inputs: PipelineInputs, *, model: str = "default", timeout: float | None = None, **parameters: Any
    ) -> Any:
        """Find answers in given contexts, as `POST /models/{id}` does; `qa_cluster.pipeline` describes the parameters.

        `inputs` is a dictionary with question and context, or a list of such dictionaries. The result of one
        dictionary is its only answer, ``{"score", "start", "end", "answer"}``, or a list of several answers, at most
        `top_k`. The result of a list is the list of the results of its dictionaries.
        """
        return parsed(await self._send(pipeline_call(inputs, model, self._seconds(timeout), parameters)))

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
        timeout: float | None = None,
        vectors: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Store a document in a collection. With `wait`, return when the document is indexed.

        `if_version` is the version that the document must have now. ``""`` means that the document must not exist, and
        None accepts any version. `vectors` are the vectors of the document's passages, from
        ``qa_cluster.vectors.prepared.PreparedVectors.to_dict``.
        """
        document = Document(id, text, title or "", metadata or {})
        call = put_call(document, collection, if_version, wait, self._seconds(timeout), vectors=vectors)
        return WriteResult.from_dict(parsed_object(await self._send(call)))

    async def upload(self, files: UploadFiles, **options: Unpack[UploadArguments]) -> tuple[UploadedFile, ...]:
        """Extract the text of files, and store it as documents. Return for each file its document or its error.

        `files` is a list of paths, or a dictionary from file names to contents or paths.
        `qa_cluster.client.UploadArguments` describes the options. If no file was stored, an error is raised.
        """
        return parsed_list(await self._send(upload_call(files, options)), UploadedFile, "list of uploaded files")

    async def get_document(self, id: str, *, collection: str = DEFAULT_COLLECTION) -> Document:
        """Return the stored document; raise NotFound if it does not exist."""
        return Document.from_json(
            await self._send(RestCall("GET", document_path(id), query=collection_query(collection)))
        )

    async def delete_document(
        self, id: str, *, collection: str = DEFAULT_COLLECTION, if_version: str | None = None
    ) -> None:
        """Delete a document; raise NotFound if it does not exist.

        `if_version` is the version that the document must have now; None accepts any version.
        """
        query, headers = collection_query(collection), condition(if_version)
        await self._send(RestCall("DELETE", document_path(id), query=query, headers=headers))

    async def delete_documents(self, *, timeout: float | None = None, **choice: Unpack[ChoiceArguments]) -> Removal:
        """Delete the documents that `list_documents` lists for the same arguments, within `timeout` seconds.

        Raises InvalidInput if the arguments select all documents of the collection. `complete` of the result is false
        if the time was too short, or if a client changed or deleted a selected document meanwhile. A document that was
        changed meanwhile stays.
        """
        return Removal.from_dict(parsed_object(await self._send(removal_call(self._seconds(timeout), choice))))

    async def update_document(
        self,
        id: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        remove: str | Iterable[str] = (),
        collection: str = DEFAULT_COLLECTION,
        if_version: str | None = None,
    ) -> WriteResult:
        """Set and remove fields of the metadata of a document; its text is not indexed again.

        `metadata` has the fields to set, and `remove` has the names of the fields to remove. `if_version` is the
        version that the document must have now; None accepts any version. Raises NotFound if the document does not
        exist.
        """
        call = update_call(id, metadata, remove, collection, if_version)
        return WriteResult.from_dict(parsed_object(await self._send(call)))

    async def update_documents(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        remove: str | Iterable[str] = (),
        cursor: str = "",
        timeout: float | None = None,
        **choice: Unpack[ChoiceArguments],
    ) -> MetadataUpdate:
        """Change the metadata of each document that `list_documents` lists for `choice`, as `update_document` does.

        Raises InvalidInput if `choice` selects all documents of the collection. Documents that are written meanwhile
        are skipped. If not all documents are changed after `timeout` seconds, the call ends. To continue, pass the
        `next_cursor` of the result to the next call.
        """
        call = updates_call(metadata, remove, cursor, self._seconds(timeout), choice)
        return MetadataUpdate.from_dict(parsed_object(await self._send(call)))

    async def fields(self, collection: str = DEFAULT_COLLECTION) -> FieldList:
        """Return the metadata fields of the indexed documents of a collection, with their types and counts."""
        call = RestCall("GET", f"/collections/{check_collection(collection)}/fields")
        return FieldList.from_dict(parsed_object(await self._send(call)))

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
        call = field_values_call(name, collection, filters, filter, limit)
        return FieldValues.from_dict(parsed_object(await self._send(call)))

    async def document_page(
        self, cursor: str = "", *, limit: int = DEFAULT_PAGE, **choice: Unpack[ChoiceArguments]
    ) -> DocumentPage:
        """Return one page of `list_documents`, with at most `limit` documents.

        `cursor` is the `next_cursor` of the page before this page. If `cursor` is empty, this is the first page.
        """
        return DocumentPage.from_dict(parsed_object(await self._send(page_call(cursor, limit, choice))))

    def list_documents(self, **choice: Unpack[ChoiceArguments]) -> AsyncIterator[DocumentEntry]:
        """List the indexed documents whose ids start with `prefix` and that satisfy the filter, in a stable order.

        With `failed`, list the failed documents instead.
        """
        return entries_async(lambda cursor: self.document_page(cursor, limit=MAX_PAGE, **choice))

    async def count_documents(self, *, waiting: bool = False, **choice: Unpack[ChoiceArguments]) -> DocumentCounts:
        """Count the indexed documents that `list_documents` lists for `choice`, and their sentences.

        With `waiting`, pending documents are counted, too, and `choice` may contain only `collection`.
        """
        return DocumentCounts.from_dict(parsed_object(await self._send(count_call(waiting, choice))))

    async def collections(self) -> tuple[CollectionEntry, ...]:
        """Return all collections, each with its number of documents and of sentences, the default collection first."""
        content = await self._send(RestCall("GET", "/collections"))
        return parsed_list(content, CollectionEntry, "list of collections")

    async def collection(self, name: str) -> CollectionEntry:
        """Return one collection; raise NotFound if it does not exist."""
        return CollectionEntry.from_dict(parsed_object(await self._send(collection_call("GET", name))))

    async def pins(self, collection: str = DEFAULT_COLLECTION) -> tuple[Pin, ...]:
        """Return the pins of a collection, sorted by their questions."""
        call = RestCall("GET", "/pins", query=collection_query(collection))
        return parsed_list(await self._send(call), Pin)

    async def put_pin(self, pin: Pin, *, collection: str = DEFAULT_COLLECTION) -> None:
        """Pin an answer to a question. The pin replaces a pin with the same normalised question."""
        await self._send(RestCall("PUT", "/pins", as_json({**pin.to_dict(), "collection": collection})))

    async def delete_pin(self, question: str, *, collection: str = DEFAULT_COLLECTION) -> None:
        """Delete the pin of a question; raise NotFound if the question has no pin."""
        query = {"question": question, **collection_query(collection)}
        await self._send(RestCall("DELETE", "/pins", query=query))

    async def synonyms(self, collection: str = DEFAULT_COLLECTION) -> Synonyms:
        """Return the synonyms of a collection."""
        call = RestCall("GET", "/synonyms", query=collection_query(collection))
        return Synonyms.from_dict(parsed_object(await self._send(call)))

    async def set_synonyms(self, synonyms: Synonyms, *, collection: str = DEFAULT_COLLECTION) -> None:
        """Replace the synonyms of a collection. If `synonyms` has no groups, the stored synonyms are deleted."""
        if not synonyms.groups:
            await self._send(RestCall("DELETE", "/synonyms", query=collection_query(collection)))
            return
        await self._send(RestCall("PUT", "/synonyms", as_json({**synonyms.to_dict(), "collection": collection})))

    async def send_feedback(self, feedback: Feedback, *, collection: str = DEFAULT_COLLECTION) -> str:
        """Store a judgement of an answer and return the id of the entry."""
        body = as_json({**feedback.to_dict(), "collection": collection})
        return str(parsed_object(await self._send(RestCall("POST", "/feedback", body)))["id"])

    async def feedback(self, collection: str = DEFAULT_COLLECTION) -> tuple[FeedbackEntry, ...]:
        """Return all feedback of a collection, the oldest first."""
        call = RestCall("GET", "/feedback", query=collection_query(collection))
        return parsed_list(await self._send(call), FeedbackEntry)

    async def unanswered_questions(self, collection: str = DEFAULT_COLLECTION) -> tuple[UnansweredQuestion, ...]:
        """Return the questions without a sure answer, the most frequent first."""
        call = RestCall("GET", "/unanswered", query=collection_query(collection))
        return parsed_list(await self._send(call), UnansweredQuestion)

    async def create_collection(self, name: str) -> bool:
        """Create a collection; return false if it exists already."""
        body = as_json({"name": name})
        return parsed_object(await self._send(RestCall("POST", "/collections", body))).get("created") is True

    async def delete_collection(self, name: str, *, timeout: float | None = None) -> Removal:
        """Delete a collection with all its documents.

        If the deletion takes longer than `timeout` seconds, `complete` of the result is false, and another call
        continues the deletion. Until all documents are deleted, the collection refuses new documents and has the state
        ``deleting``.
        """
        return Removal.from_dict(
            parsed_object(await self._send(collection_call("DELETE", name, self._seconds(timeout))))
        )

    async def models(self) -> list[LoadedModel]:
        """Return the models on the shards, the default model first."""
        return parsed_models(await self._send(RestCall("GET", "/models")))

    async def ready(self) -> Mapping[str, Any]:
        """Return the service's report on whether every shard can answer. A shard that is not ready raises no error."""
        response = await self._http.get("/readyz", timeout=self._timeout)
        return parsed_object(response.content)
