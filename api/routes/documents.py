"""`/documents`, `/documents/count` and `/documents/{id}`. The ETag of a document is its version."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from qa_cluster.asking.document_removal import remove_all
from qa_cluster.asking.metadata_updates import update_all
from qa_cluster.documents.metadata_change import MetadataChange
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.off_loop import off_loop
from qa_cluster.options.documents import DocumentChoice
from qa_cluster.types import Document, WriteResult
from qa_cluster.vectors.prepared import PreparedVectors

from ..description.schemas import (
    COUNT_PARAMETERS,
    DOCUMENT_PARAMETERS,
    LIST_PARAMETERS,
    METADATA_FIELDS,
    document_fields,
    metadata_parameters,
    parse_body,
    parse_query,
    removal_parameters,
    update_parameters,
    write_parameters,
)
from ..http.error_map import HttpProblem, RawHeaders
from ..http.messages import (
    JSON,
    READ,
    Receive,
    Scope,
    Send,
    about,
    check_size,
    condition,
    decoded,
    has_version,
    permit,
    raw_path,
    read_body,
    require_json,
    require_method,
    send_json,
    send_response,
)
from ..service.lifespan import ServiceState
from .document_writes import write_document

PREFIX = b"/documents/"
LIST_PATH = PREFIX.removesuffix(b"/")
# A document with the id `count` has the path `/documents/%63ount`.
_COUNT_PATH = PREFIX + b"count"
# The approximate number of bytes that an entry adds to the JSON, without its title.
_ENTRY_BYTES = 256


class DocumentListRoute:
    """Lists documents page by page, counts documents, and deletes or updates many documents."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._timeout_ms = state.options.limits.timeout_ms
        self._removal = removal_parameters(state.options.limits)
        self._update = update_parameters(state.options.limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """List, count, delete or update documents."""
        require_method(scope, *READ, "PATCH", "DELETE")
        if scope["method"] == "DELETE":
            await send_json(send, await self._delete_matching(scope))
        elif scope["method"] == "PATCH":
            await send_json(send, await self._update_matching(scope, receive))
        else:
            async with asyncio.timeout(self._timeout_ms / 1000):
                body = await (self._count(scope) if counts(scope) else self._list(scope))
            await send_json(send, body)

    async def _list(self, scope: Scope) -> bytes:
        values = parse_query(scope["query_string"], LIST_PARAMETERS)
        choice = _choice(scope, values)
        page = await self._state.engine.listing.page(**values, choice=choice)
        limit = self._state.options.limits.answer_max_bytes
        body = await off_loop(sum(_ENTRY_BYTES + len(entry.title) for entry in page.documents), page.to_json)
        check_size(body, limit, "page", ": lower limit")
        return body

    async def _count(self, scope: Scope) -> bytes:
        values = parse_query(scope["query_string"], COUNT_PARAMETERS)
        choice = _choice(scope, values)
        return (await self._state.engine.listing.count(**values, choice=choice)).to_json()

    async def _delete_matching(self, scope: Scope) -> dict[str, Any]:
        values = parse_query(scope["query_string"], self._removal)
        choice = _choice(scope, values)
        engine = self._state.engine
        seconds = values.get("timeout_ms", self._timeout_ms) / 1000
        removal = await remove_all(engine.listing, engine.documents, choice, seconds=seconds)
        about(scope, deleted=removal.deleted)
        self._state.metrics.document_writes.inc("delete", by=removal.deleted)
        return removal.to_dict()

    async def _update_matching(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        values = parse_query(scope["query_string"], self._update)
        choice = _choice(scope, values)
        change = await _change(scope, receive, self._state)
        engine = self._state.engine
        seconds = values.get("timeout_ms", self._timeout_ms) / 1000
        update = await update_all(
            engine.listing, engine.documents, choice, change, cursor=values.get("cursor") or "", seconds=seconds
        )
        about(scope, updated=update.updated, skipped=update.skipped)
        self._state.metrics.document_writes.inc("update", by=update.updated)
        return update.to_dict()


async def _change(scope: Scope, receive: Receive, state: ServiceState) -> MetadataChange:
    """Read the change of metadata from the body of a request."""
    require_json(scope)
    body = await read_body(scope, receive, state.options)
    values = await off_loop(len(body), parse_body, body, METADATA_FIELDS)
    return MetadataChange.of(values.get("metadata"), values.get("remove") or ())


def _choice(scope: Scope, values: dict[str, Any]) -> DocumentChoice:
    """Remove the parameters that select documents from `values`, and return the selection.

    Raise HttpProblem if the key does not allow the collection.
    """
    permit(scope, values.get("collection", DEFAULT_COLLECTION))
    prefix, filters, filter = values.pop("prefix", None) or "", values.pop("filters", None), values.pop("filter", ())
    collection, failed = values.pop("collection", DEFAULT_COLLECTION), values.pop("failed", False)
    return DocumentChoice.of(prefix, filters, filter, collection, failed)


def counts(scope: Scope) -> bool:
    """Return whether a request asks for the number of documents. A percent-encoded path names a document."""
    return raw_path(scope) == _COUNT_PATH and scope["method"] in READ


class DocumentRoute:
    """Serves one document by its id. The id is the rest of the path, percent-encoded."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        limits = state.options.limits
        self._fields = document_fields(state.options.body_max_bytes)
        self._parameters = write_parameters(limits)
        self._metadata_parameters = metadata_parameters(limits)
        self._timeout_ms = limits.timeout_ms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatch by method."""
        document_id = _document_id(scope)
        method = scope["method"]
        require_method(scope, *READ, "PUT", "PATCH", "DELETE")
        if method == "PUT":
            await self._put(scope, receive, send, document_id)
            return
        if method == "PATCH":
            await self._patch(scope, receive, send, document_id)
            return
        parameters = parse_query(scope["query_string"], DOCUMENT_PARAMETERS)
        collection = parameters.get("collection", DEFAULT_COLLECTION)
        permit(scope, collection)
        async with asyncio.timeout(self._timeout_ms / 1000):
            if method in READ:
                await self._get(scope, send, document_id, collection)
            else:
                await self._delete(scope, send, document_id, collection)

    async def _put(self, scope: Scope, receive: Receive, send: Send, document_id: str) -> None:
        parameters = parse_query(scope["query_string"], self._parameters)
        collection = parameters.get("collection", DEFAULT_COLLECTION)
        permit(scope, collection)
        if_version = condition(scope)
        require_json(scope)
        timeout_ms = parameters.get("timeout_ms", self._timeout_ms)
        body = await read_body(scope, receive, self._state.options)
        values = await off_loop(len(body), parse_body, body, self._fields)
        given = values.get("vectors")
        vectors = None if given is None else await off_loop(len(body), PreparedVectors.from_dict, given)
        written = await write_document(
            scope,
            self._state,
            Document(document_id, values["text"], values.get("title") or "", values.get("metadata") or {}),
            collection=collection,
            if_version=if_version,
            wait=parameters.get("wait", True),
            timeout=timeout_ms / 1000,
            vectors=vectors,
        )
        await _send_written(scope, send, written)

    async def _patch(self, scope: Scope, receive: Receive, send: Send, document_id: str) -> None:
        parameters = parse_query(scope["query_string"], self._metadata_parameters)
        collection = parameters.get("collection", DEFAULT_COLLECTION)
        permit(scope, collection)
        if_version = condition(scope)
        change = await _change(scope, receive, self._state)
        written = await self._state.engine.documents.change_metadata(
            document_id,
            change,
            collection=collection,
            if_version=if_version,
            timeout=parameters.get("timeout_ms", self._timeout_ms) / 1000,
        )
        self._state.metrics.document_writes.inc("update")
        await _send_written(scope, send, written)

    async def _get(self, scope: Scope, send: Send, document_id: str, collection: str) -> None:
        document = await self._state.engine.documents.get(document_id, collection)
        etag = f'"{document.version}"'
        headers: RawHeaders = [(b"etag", etag.encode()), (b"cache-control", b"private, no-cache")]
        if has_version(scope, etag):
            await send_response(send, 304, headers, b"")
            return
        headers.append((b"content-type", JSON))
        body = await off_loop(len(document.text), document.to_json)
        await send_response(send, 200, headers, body)

    async def _delete(self, scope: Scope, send: Send, document_id: str, collection: str) -> None:
        await self._state.engine.documents.delete(
            document_id, collection=collection, if_version=condition(scope), timeout=self._timeout_ms / 1000
        )
        self._state.metrics.document_writes.inc("delete")
        await send_response(send, 204, [], b"")


async def _send_written(scope: Scope, send: Send, written: WriteResult) -> None:
    about(scope, version=written.version, changed=written.changed)
    headers: RawHeaders = [(b"content-type", JSON), (b"etag", b'"%b"' % written.version.encode())]
    await send_response(send, 201 if written.created else 200, headers, orjson.dumps(written.to_dict()))


def _document_id(scope: Scope) -> str:
    """Return the document id from the raw path. In the decoded path, a ``%2F`` in an id would look like a separator."""
    raw = raw_path(scope)
    if not raw.startswith(PREFIX):
        raise HttpProblem("route-not-found", f"no such route: {scope['path'][:200]}")
    return decoded(raw.removeprefix(PREFIX), "document id", "id")
