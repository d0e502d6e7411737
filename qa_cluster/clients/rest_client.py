"""Clients of the REST service: `AsyncClient` and `Client`, typed, with retries where the service asks for them.

>>> with Client("http://127.0.0.1:8080") as client:
...     result = client.ask("Who wrote the first program?")
...     print(result.best.answer if result.answerable else "no answer")
Ada Lovelace

A request that got status 503 or 429, or whose connection was lost, is sent again within the call's own deadline; the
service's `Retry-After` sets the pause, and a 429 with a longer one than `MAX_PAUSE_SECONDS` is raised at once. A
problem document becomes the exception of `qa_cluster.errors` that the service raised. If no connection can be opened
for `CONNECT_SECONDS`, the call fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Self, Unpack
from urllib.parse import quote

import httpx
import orjson

from qa_cluster.asking.collections import CollectionBusy
from qa_cluster.asking.document_list import (
    DEFAULT_PAGE,
    MAX_PAGE,
    ChoiceArguments,
    choice_of,
    entries,
    entries_async,
)
from qa_cluster.asking.document_store import VersionConflict
from qa_cluster.asking.loaded_readers import LoadedModel
from qa_cluster.asking.questions import AskArguments, SearchArguments, ask_options, search_options
from qa_cluster.errors import (
    LEAVES,
    AccessDenied,
    ClusterError,
    DeadlineExceeded,
    InputTooLong,
    InvalidInput,
    LimitReached,
    NotFound,
    ProtocolError,
    QAError,
    QueueFull,
)
from qa_cluster.keys import DEFAULT_COLLECTION, check_collection
from qa_cluster.security.tls import meaning, trusted
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

TIMEOUT_SECONDS = 30.0
NETWORK_MARGIN_SECONDS = 2.0
DEFAULT_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 5.0
# A service that restarts listens again after a moment; beyond that, it is probably not running.
CONNECT_SECONDS = 2.0

# A dictionary with question and context, or a list of such dictionaries.
PipelineInputs = Mapping[str, str] | Sequence[Mapping[str, str]]

_RAISED: tuple[type[QAError], ...] = (*LEAVES, VersionConflict, CollectionBusy)
_BY_CODE = {leaf.resp_code: leaf for leaf in _RAISED}
_BY_STATUS: Mapping[int, type[QAError]] = {
    401: AccessDenied,
    403: AccessDenied,
    404: NotFound,
    409: CollectionBusy,
    412: VersionConflict,
    413: InputTooLong,
    429: LimitReached,
    503: QueueFull,
    504: DeadlineExceeded,
}


@dataclass(frozen=True, slots=True)
class _Call:
    """One request, for either client to send."""

    method: str
    path: str
    content: bytes | None = None
    query: Mapping[str, str | list[str]] | None = None
    headers: Mapping[str, str] | None = None
    timeout: float = TIMEOUT_SECONDS

    def arguments(self, left: float) -> dict[str, Any]:
        headers = dict(self.headers or {})
        if self.content is not None:
            headers["content-type"] = "application/json"
        return {
            "method": self.method,
            "url": self.path,
            "content": self.content,
            "params": self.query,
            "headers": headers,
            "timeout": max(0.05, left) + NETWORK_MARGIN_SECONDS,
        }


def _ask_call(question: str, arguments: AskArguments) -> _Call:
    options = ask_options(arguments)
    # The service has defaults for options that are not sent. It refuses an empty model, which here means the default.
    given = {name: getattr(options, name) for name, value in arguments.items() if value is not None}
    if not options.model:
        given.pop("model", None)
    timeout = options.timeout_ms / 1000 if options.timeout_ms is not None else TIMEOUT_SECONDS
    return _Call("POST", "/qa", _as_json({"question": question, **given}), timeout=timeout)


def _search_call(query: str, arguments: SearchArguments) -> _Call:
    options = search_options(arguments)
    given = {name: getattr(options, name) for name, value in arguments.items() if value is not None}
    timeout = options.timeout_ms / 1000 if options.timeout_ms is not None else TIMEOUT_SECONDS
    return _Call("POST", "/search", _as_json({"query": query, **given}), timeout=timeout)


def _as_json(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise InvalidInput(f"the options cannot be written as JSON: {error}") from error


def _pipeline_call(inputs: PipelineInputs, model: str, timeout: float, parameters: Mapping[str, Any]) -> _Call:
    body = {"inputs": inputs, "parameters": parameters}
    try:
        content = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise InvalidInput(f"inputs and parameters cannot be written as JSON: {error}") from error
    query = {"timeout_ms": str(max(1, int(timeout * 1000)))}
    return _Call("POST", f"/models/{quote(model or 'default', safe='')}", content, query, timeout=timeout)


def _document_path(document_id: str) -> str:
    # `GET /documents/count` counts the documents: a document of that name needs an escaped letter.
    return "/documents/%63ount" if document_id == "count" else f"/documents/{quote(document_id, safe='')}"


def _choice(arguments: ChoiceArguments) -> dict[str, str | list[str]]:
    """The query parameters of a choice of documents; InvalidInput says what is wrong with it."""
    choice_of(arguments)
    filters, short = arguments.get("filters"), arguments.get("filter") or ()
    given: dict[str, str | list[str]] = {
        "prefix": arguments.get("prefix") or "",
        "filters": "" if filters is None else _as_json(filters).decode(),
        "filter": [short] if isinstance(short, str) else list(short),
        "collection": arguments.get("collection") or "",
    }
    return {name: value for name, value in given.items() if value}


def _page_call(cursor: str, limit: int, arguments: ChoiceArguments) -> _Call:
    given: dict[str, str | list[str]] = {"limit": str(limit), **({"cursor": cursor} if cursor else {})}
    return _Call("GET", "/documents", query=given | _choice(arguments))


def _count_call(waiting: bool, arguments: ChoiceArguments) -> _Call:
    given: dict[str, str | list[str]] = {"waiting": "true" if waiting else "false"}
    return _Call("GET", "/documents/count", query=given | _choice(arguments))


def _removal_call(timeout: float, arguments: ChoiceArguments) -> _Call:
    given: dict[str, str | list[str]] = {"timeout_ms": str(max(1, int(timeout * 1000)))}
    return _Call("DELETE", "/documents", query=given | _choice(arguments), timeout=timeout)


def _condition(if_version: str | None) -> dict[str, str]:
    if if_version is None:
        return {}
    return {"if-match": f'"{if_version}"'} if if_version else {"if-none-match": "*"}


def _of(collection: str) -> dict[str, str | list[str]]:
    """The query parameter that names a collection; the service need not be told of the default one."""
    return {} if check_collection(collection) == DEFAULT_COLLECTION else {"collection": collection}


def _collection_call(method: str, name: str, timeout: float | None = None) -> _Call:
    path = f"/collections/{check_collection(name)}"
    if timeout is None:
        return _Call(method, path)
    return _Call(method, path, query={"timeout_ms": str(max(1, int(timeout * 1000)))}, timeout=timeout)


def _collections(content: bytes) -> tuple[CollectionEntry, ...]:
    found = _object(content).get("data")
    if not isinstance(found, list):
        raise ProtocolError("the service's list of collections cannot be read")
    return tuple(map(CollectionEntry.from_dict, found))


def _created(content: bytes) -> bool:
    return _object(content).get("created") is True


def _put_call(document: Document, collection: str, if_version: str | None, wait: bool, timeout: float) -> _Call:
    body = {"text": document.text, "title": document.title, "metadata": dict(document.metadata)}
    query = {"wait": "true" if wait else "false", "timeout_ms": str(max(1, int(timeout * 1000))), **_of(collection)}
    try:
        content = orjson.dumps(body)
    except TypeError as error:
        raise InvalidInput(f"document {document.id[:100]!r} cannot be written as JSON: {error}") from error
    return _Call("PUT", _document_path(document.id), content, query, _condition(if_version), timeout)


def _error_of(response: httpx.Response) -> QAError:
    """The exception that a response reports."""
    try:
        problem = orjson.loads(response.content)
        code, detail = problem["code"], problem["detail"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        code, detail = "", f"HTTP {response.status_code} {response.text[:200]}"
    kind = _BY_CODE.get(code) or _BY_STATUS.get(response.status_code)
    if kind is None:
        kind = InvalidInput if 400 <= response.status_code < 500 else ClusterError
    error = kind(detail)
    error.retry_after_seconds = _retry_after(response)
    return error


def _retry_after(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdigit() else None


def _pause(
    response: httpx.Response | None, lost: httpx.TransportError | None, attempt: int, begun: float, until: float
) -> float | None:
    """How long to wait before the request is sent again; None if it is not."""
    if isinstance(lost, httpx.ConnectError):
        until = min(until, begun + CONNECT_SECONDS)
    if response is not None and response.status_code not in (429, 503):
        return None
    asked = _retry_after(response) if response is not None else None
    if response is not None and response.status_code == 429 and (asked is None or asked > MAX_PAUSE_SECONDS):
        return None  # a day's limit, say
    pause = min(asked if asked is not None else DEFAULT_PAUSE_SECONDS * 2**attempt, MAX_PAUSE_SECONDS)
    return pause if time.monotonic() + pause < until else None


def _unreachable(url: httpx.URL, lost: httpx.TransportError | None, tries: int) -> ClusterError:
    if found := meaning(lost, of_service=True):
        return ClusterError(f"the service at {url} cannot be reached: {found}")
    hint = ": is it running (`qa-cluster serve`)?" if isinstance(lost, httpx.ConnectError) else ""
    return ClusterError(f"the service at {url} cannot be reached ({lost}, {tries} tries){hint}")


def _key_header(api_key: str) -> dict[str, str]:
    """The header that has the key. A text that could not be one is refused without being repeated."""
    if not api_key:
        return {}
    if not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise InvalidInput("api_key must be a key as `qa-cluster keys create` prints it: qac_, an id and a secret")
    return {"authorization": f"Bearer {api_key}"}


def _read(response: httpx.Response) -> bytes:
    if not response.is_success:
        raise _error_of(response)
    return response.content


def _json(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"the service's response is not JSON: {error}") from error


def _object(content: bytes) -> dict[str, Any]:
    value = _json(content)
    if not isinstance(value, dict):
        raise ProtocolError("the service's response is not a JSON object")
    return value


def _models(content: bytes) -> list[LoadedModel]:
    known = {entry.name for entry in fields(LoadedModel)}
    try:
        models = _object(content)["data"]
        return [LoadedModel(**{name: value for name, value in model.items() if name in known}) for model in models]
    except (KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"the service's list of models cannot be read: {error!r}") from error


class AsyncClient:
    """The asynchronous client. `api_key` is for services that want one; `transport` is for tests and proxies.

    `tls_ca` is the file of the authority (PEM) that signed the certificate of a service at ``https://..``; without it
    those count that the system trusts. ConfigError if the file cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        tls_ca: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=base_url, headers=_key_header(api_key), verify=trusted(tls_ca), transport=transport
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _send(self, call: _Call) -> bytes:
        begun = time.monotonic()
        until = begun + call.timeout
        attempt = 0
        while True:
            response: httpx.Response | None = None
            lost: httpx.TransportError | None = None
            try:
                response = await self._http.request(**call.arguments(until - time.monotonic()))
            except httpx.TimeoutException as error:
                raise DeadlineExceeded(f"no response from {self._http.base_url} in {call.timeout:g} s") from error
            except httpx.TransportError as error:
                lost = error
            pause = _pause(response, lost, attempt, begun, until)
            if pause is None:
                if response is None:
                    raise _unreachable(self._http.base_url, lost, attempt + 1) from lost
                return _read(response)
            attempt += 1
            await asyncio.sleep(pause)

    async def ask(self, question: str, **options: Unpack[AskArguments]) -> AskResult:
        """Answer a question; `qa_cluster.asking.questions.AskOptions` says what the options mean."""
        return AskResult.from_json(await self._send(_ask_call(question, options)))

    async def search(self, query: str, **options: Unpack[SearchArguments]) -> SearchResult:
        """The sentences that match best; `qa_cluster.asking.questions.SearchOptions` says what the options mean."""
        return SearchResult.from_json(await self._send(_search_call(query, options)))

    async def pipeline(
        self, inputs: PipelineInputs, *, model: str = "default", timeout: float = TIMEOUT_SECONDS, **parameters: Any
    ) -> Any:
        """Read answers from given contexts, as `POST /models/{id}` does.

        Args:
            inputs: a dictionary with question and context, or a list of such.
            parameters: those of `qa_cluster.pipeline`: top_k, doc_stride, max_answer_len, ..

        Returns:
            ``{"score", "start", "end", "answer"}``, or a list of up to `top_k` of them; for a list a list of these.
        """
        return _json(await self._send(_pipeline_call(inputs, model, timeout, parameters)))

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
        timeout: float = TIMEOUT_SECONDS,
    ) -> WriteResult:
        """Store a document in a collection and, with `wait`, return when questions are answered from it."""
        call = _put_call(Document(id, text, title or "", metadata or {}), collection, if_version, wait, timeout)
        return WriteResult.from_dict(_object(await self._send(call)))

    async def get_document(self, id: str, *, collection: str = DEFAULT_COLLECTION) -> Document:
        """The stored document; NotFound when there is none."""
        return Document.from_json(await self._send(_Call("GET", _document_path(id), query=_of(collection))))

    async def delete_document(
        self, id: str, *, collection: str = DEFAULT_COLLECTION, if_version: str | None = None
    ) -> None:
        """Remove a document; NotFound when there is none."""
        call = _Call("DELETE", _document_path(id), query=_of(collection), headers=_condition(if_version))
        await self._send(call)

    async def delete_documents(self, *, timeout: float = TIMEOUT_SECONDS, **choice: Unpack[ChoiceArguments]) -> Removal:
        """Remove the documents that `list_documents` lists for the same choice, for `timeout` seconds at most.

        InvalidInput for a choice of all documents. One that is written meanwhile stays: `complete` is false then.
        """
        return Removal.from_dict(_object(await self._send(_removal_call(timeout, choice))))

    async def document_page(
        self, cursor: str = "", *, limit: int = DEFAULT_PAGE, **choice: Unpack[ChoiceArguments]
    ) -> DocumentPage:
        """A part of `list_documents`; the next one begins at its `next_cursor`."""
        return DocumentPage.from_dict(_object(await self._send(_page_call(cursor, limit, choice))))

    def list_documents(self, **choice: Unpack[ChoiceArguments]) -> AsyncIterator[DocumentEntry]:
        """The documents that questions are answered from, whose ids begin with `prefix` and that the filter admits.

        They come in a stable order; `filters` and `filter` are those of `ask`.
        """
        return entries_async(lambda cursor: self.document_page(cursor, limit=MAX_PAGE, **choice))

    async def count_documents(self, *, waiting: bool = False, **choice: Unpack[ChoiceArguments]) -> DocumentCounts:
        """How many documents and sentences answers come from; with `waiting` also how many documents are not ready.

        With a choice as in `list_documents` it counts those; `waiting` is then refused.
        """
        return DocumentCounts.from_dict(_object(await self._send(_count_call(waiting, choice))))

    async def collections(self) -> tuple[CollectionEntry, ...]:
        """All collections with what they hold, the default one first."""
        return _collections(await self._send(_Call("GET", "/collections")))

    async def collection(self, name: str) -> CollectionEntry:
        """One collection; NotFound where there is none."""
        return CollectionEntry.from_dict(_object(await self._send(_collection_call("GET", name))))

    async def create_collection(self, name: str) -> bool:
        """Make a collection; whether it was new."""
        return _created(await self._send(_Call("POST", "/collections", _as_json({"name": name}))))

    async def delete_collection(self, name: str, *, timeout: float = TIMEOUT_SECONDS) -> Removal:
        """Remove a collection with all its documents, for `timeout` seconds at most; it takes no more from the start.

        Until the removal is complete, the collection is listed as one that is being deleted; removing it again goes on.
        """
        return Removal.from_dict(_object(await self._send(_collection_call("DELETE", name, timeout))))

    async def models(self) -> list[LoadedModel]:
        """The models on the shards, the default one first."""
        return _models(await self._send(_Call("GET", "/models")))

    async def ready(self) -> Mapping[str, Any]:
        """The service's report on whether every shard can answer; it does not raise when one cannot."""
        response = await self._http.get("/readyz", timeout=TIMEOUT_SECONDS)
        return _object(response.content)


class Client:
    """The synchronous client: the same calls as `AsyncClient`; it may be shared by threads."""

    def __init__(
        self, base_url: str, *, api_key: str = "", tls_ca: str = "", transport: httpx.BaseTransport | None = None
    ) -> None:
        self._http = httpx.Client(
            base_url=base_url, headers=_key_header(api_key), verify=trusted(tls_ca), transport=transport
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, call: _Call) -> bytes:
        begun = time.monotonic()
        until = begun + call.timeout
        attempt = 0
        while True:
            response: httpx.Response | None = None
            lost: httpx.TransportError | None = None
            try:
                response = self._http.request(**call.arguments(until - time.monotonic()))
            except httpx.TimeoutException as error:
                raise DeadlineExceeded(f"no response from {self._http.base_url} in {call.timeout:g} s") from error
            except httpx.TransportError as error:
                lost = error
            pause = _pause(response, lost, attempt, begun, until)
            if pause is None:
                if response is None:
                    raise _unreachable(self._http.base_url, lost, attempt + 1) from lost
                return _read(response)
            attempt += 1
            time.sleep(pause)

    def ask(self, question: str, **options: Unpack[AskArguments]) -> AskResult:
        """Answer a question; `qa_cluster.asking.questions.AskOptions` says what the options mean."""
        return AskResult.from_json(self._send(_ask_call(question, options)))

    def search(self, query: str, **options: Unpack[SearchArguments]) -> SearchResult:
        """The sentences that match best; `qa_cluster.asking.questions.SearchOptions` says what the options mean."""
        return SearchResult.from_json(self._send(_search_call(query, options)))

    def pipeline(
        self, inputs: PipelineInputs, *, model: str = "default", timeout: float = TIMEOUT_SECONDS, **parameters: Any
    ) -> Any:
        """Read answers from given contexts, as `POST /models/{id}` does.

        Args:
            inputs: a dictionary with question and context, or a list of such.
            parameters: those of `qa_cluster.pipeline`: top_k, doc_stride, max_answer_len, ..

        Returns:
            ``{"score", "start", "end", "answer"}``, or a list of up to `top_k` of them; for a list a list of these.
        """
        return _json(self._send(_pipeline_call(inputs, model, timeout, parameters)))

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
        timeout: float = TIMEOUT_SECONDS,
    ) -> WriteResult:
        """Store a document in a collection and, with `wait`, return when questions are answered from it."""
        call = _put_call(Document(id, text, title or "", metadata or {}), collection, if_version, wait, timeout)
        return WriteResult.from_dict(_object(self._send(call)))

    def get_document(self, id: str, *, collection: str = DEFAULT_COLLECTION) -> Document:
        """The stored document; NotFound when there is none."""
        return Document.from_json(self._send(_Call("GET", _document_path(id), query=_of(collection))))

    def delete_document(self, id: str, *, collection: str = DEFAULT_COLLECTION, if_version: str | None = None) -> None:
        """Remove a document; NotFound when there is none."""
        call = _Call("DELETE", _document_path(id), query=_of(collection), headers=_condition(if_version))
        self._send(call)

    def delete_documents(self, *, timeout: float = TIMEOUT_SECONDS, **choice: Unpack[ChoiceArguments]) -> Removal:
        """Remove the documents that `list_documents` lists for the same choice, for `timeout` seconds at most.

        InvalidInput for a choice of all documents. One that is written meanwhile stays: `complete` is false then.
        """
        return Removal.from_dict(_object(self._send(_removal_call(timeout, choice))))

    def document_page(
        self, cursor: str = "", *, limit: int = DEFAULT_PAGE, **choice: Unpack[ChoiceArguments]
    ) -> DocumentPage:
        """A part of `list_documents`; the next one begins at its `next_cursor`."""
        return DocumentPage.from_dict(_object(self._send(_page_call(cursor, limit, choice))))

    def list_documents(self, **choice: Unpack[ChoiceArguments]) -> Iterator[DocumentEntry]:
        """The documents that questions are answered from, whose ids begin with `prefix` and that the filter admits.

        They come in a stable order; `filters` and `filter` are those of `ask`.
        """
        return entries(lambda cursor: self.document_page(cursor, limit=MAX_PAGE, **choice))

    def count_documents(self, *, waiting: bool = False, **choice: Unpack[ChoiceArguments]) -> DocumentCounts:
        """How many documents and sentences answers come from; with `waiting` also how many documents are not ready.

        With a choice as in `list_documents` it counts those; `waiting` is then refused.
        """
        return DocumentCounts.from_dict(_object(self._send(_count_call(waiting, choice))))

    def collections(self) -> tuple[CollectionEntry, ...]:
        """All collections with what they hold, the default one first."""
        return _collections(self._send(_Call("GET", "/collections")))

    def collection(self, name: str) -> CollectionEntry:
        """One collection; NotFound where there is none."""
        return CollectionEntry.from_dict(_object(self._send(_collection_call("GET", name))))

    def create_collection(self, name: str) -> bool:
        """Make a collection; whether it was new."""
        return _created(self._send(_Call("POST", "/collections", _as_json({"name": name}))))

    def delete_collection(self, name: str, *, timeout: float = TIMEOUT_SECONDS) -> Removal:
        """Remove a collection with all its documents, for `timeout` seconds at most; it takes no more from the start.

        Until the removal is complete, the collection is listed as one that is being deleted; removing it again goes on.
        """
        return Removal.from_dict(_object(self._send(_collection_call("DELETE", name, timeout))))

    def models(self) -> list[LoadedModel]:
        """The models on the shards, the default one first."""
        return _models(self._send(_Call("GET", "/models")))

    def ready(self) -> Mapping[str, Any]:
        """The service's report on whether every shard can answer; it does not raise when one cannot."""
        return _object(self._http.get("/readyz", timeout=TIMEOUT_SECONDS).content)
