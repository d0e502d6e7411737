"""Builds the requests of the REST clients and parses the responses. Both REST clients share this module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, inf
from pathlib import Path
from typing import Any, TypedDict, TypeVar
from urllib.parse import quote

import httpx
import orjson

from qa_cluster.documents.metadata_change import MetadataChange
from qa_cluster.errors import (
    LEAVES,
    AccessDenied,
    ClusterError,
    CollectionBusy,
    DeadlineExceeded,
    InputTooLong,
    InvalidInput,
    LimitReached,
    NotFound,
    ProtocolError,
    QAError,
    QueueFull,
    VersionConflict,
)
from qa_cluster.keys import DEFAULT_COLLECTION, check_collection
from qa_cluster.options.documents import ChoiceArguments, choice_of
from qa_cluster.options.questions import (
    AskArguments,
    AskOptions,
    SearchArguments,
    SearchOptions,
    ask_options,
    search_options,
)
from qa_cluster.security.tls import explain_failure
from qa_cluster.types import (
    CollectionEntry,
    Document,
    FeedbackEntry,
    LoadedModel,
    Pin,
    UnansweredQuestion,
    UploadedFile,
)

from .retry_policy import retry_after

TIMEOUT_SECONDS = 30.0
UPLOAD_SECONDS = 120.0
SUBMIT_SECONDS = 600.0
FIRST_POLL_SECONDS, LAST_POLL_SECONDS = 0.05, 1.0
NETWORK_MARGIN_SECONDS = 2.0

# A dictionary with question and context, or a list of such dictionaries.
PipelineInputs = Mapping[str, str] | Sequence[Mapping[str, str]]
_Listed = TypeVar("_Listed", CollectionEntry, FeedbackEntry, Pin, UnansweredQuestion, UploadedFile)
_Query = dict[str, str | list[str]]
# A list of paths, or a dictionary from file names to contents or paths.
UploadFiles = Sequence[str | Path] | Mapping[str, bytes | str | Path]

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


class UploadArguments(TypedDict, total=False):
    """The options of an upload.

    Attributes:
        collection: the collection of the documents.
        prefix: precedes the name of each file in the id of its document.
        metadata: metadata of all documents. Metadata that a file contains has priority.
        format: the format of all files. If it is empty, the format of each file is detected.
        base_url: the address of the site that has a page for each file.
        url_style: how the pages' addresses below `base_url` are formed: html, dirhtml or file.
        wait: whether to return when the documents are indexed.
        timeout: seconds for the call.
    """

    collection: str
    prefix: str
    metadata: Mapping[str, Any]
    format: str
    base_url: str
    url_style: str
    wait: bool
    timeout: float


def check_timeout(seconds: float) -> float:
    """Return a timeout if it is a positive, finite number of seconds; otherwise raise InvalidInput."""
    if not isinstance(seconds, int | float) or not 0 < seconds < inf:
        raise InvalidInput(f"timeout must be a positive number of seconds, got {seconds!r}", place="timeout")
    return seconds


@dataclass(frozen=True, slots=True)
class RestCall:
    """One request to the service.

    Attributes:
        content: the JSON body; None if the request has no body or has `files`.
        query: the parameters of the query string. A parameter with a list is repeated.
        timeout: limits the request with all its retries, in seconds; None means the timeout of the client.
        files: the names and contents of the files of a form; None if the body is not a form.
    """

    method: str
    path: str
    content: bytes | None = None
    query: Mapping[str, str | list[str]] | None = None
    headers: Mapping[str, str] | None = None
    timeout: float | None = None
    files: Sequence[tuple[str, bytes]] | None = None

    def arguments(self, left: float) -> dict[str, Any]:
        """Return the arguments of httpx for an attempt, when `left` seconds of the timeout of the call are left."""
        headers = dict(self.headers or {})
        if self.content is not None:
            headers["content-type"] = "application/json"
        body: dict[str, Any] = {"content": self.content}
        if self.files is not None:
            body = {"files": [("file", (name, data)) for name, data in self.files]}
        return {
            "method": self.method,
            "url": self.path,
            **body,
            "params": self.query,
            "headers": headers,
            "timeout": max(0.05, left) + NETWORK_MARGIN_SECONDS,
        }


def ask_call(question: str, arguments: AskArguments) -> RestCall:
    """Return the request that asks a question."""
    options = ask_options(arguments)
    # Only the given options are sent: the service has its own defaults for the others. An empty model is also not
    # sent: in the options it means the default model, but the service refuses it.
    given = _given(options, arguments)
    if not options.model:
        given.pop("model", None)
    return RestCall("POST", "/qa", as_json({"question": question, **given}), timeout=options.timeout)


def submit_call(question: str, arguments: AskArguments) -> RestCall:
    """Return the request that submits a question, which the service answers later."""
    return replace(ask_call(question, arguments), headers={"prefer": "respond-async"}, timeout=None)


def pending_result(content: bytes) -> tuple[str, str] | None:
    """Return the path of a pending result, and its last error; None if the content is a finished result.

    The error is a colon and a text, for the end of an error message. It is empty if there was no error.
    """
    value = parsed_object(content)
    if value.get("object") != "qa.submission":
        return None
    detail = str(value.get("detail") or "")
    return f"/qa/results/{quote(str(value.get('id')), safe='')}", f": {detail}" if detail else ""


def search_call(query: str, arguments: SearchArguments) -> RestCall:
    """Return the request that searches."""
    options = search_options(arguments)
    content = as_json({"query": query, **_given(options, arguments)})
    return RestCall("POST", "/search", content, timeout=options.timeout)


def _given(options: AskOptions | SearchOptions, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options in the form that the service expects, with the timeout in milliseconds."""
    given = {name: getattr(options, name) for name, value in arguments.items() if value is not None}
    if "timeout" in given:
        given["timeout_ms"] = _milliseconds(given.pop("timeout"))
    return given


def _milliseconds(seconds: float) -> int:
    return ceil(check_timeout(seconds) * 1000)


def as_json(value: object, what: str = "the options", option: int | None = None) -> bytes:
    """Encode a value as JSON; InvalidInput names `what` if the value has no JSON form.

    `option` are the options of orjson; None means its defaults.
    """
    try:
        return orjson.dumps(value, option=option)
    except TypeError as error:
        raise InvalidInput(f"{what} cannot be written as JSON: {error}") from error


def pipeline_call(inputs: PipelineInputs, model: str, timeout: float, parameters: Mapping[str, Any]) -> RestCall:
    """Return the request that finds answers in given contexts.

    `model` is the id of a reader; empty means the default reader. `timeout` is in seconds.
    """
    body = {"inputs": inputs, "parameters": parameters}
    content = as_json(body, "inputs and parameters", orjson.OPT_SERIALIZE_NUMPY)
    path = f"/models/{quote(model or 'default', safe='')}"
    return RestCall("POST", path, content, _timeout_query(timeout), timeout=timeout)


def _timeout_query(seconds: float) -> _Query:
    return {"timeout_ms": str(_milliseconds(seconds))}


def document_path(document_id: str) -> str:
    """Return the path of a document."""
    # `GET /documents/count` counts the documents, so the path of a document with the id `count` escapes a letter.
    return "/documents/%63ount" if document_id == "count" else f"/documents/{quote(document_id, safe='')}"


def _choice(arguments: ChoiceArguments) -> _Query:
    """Return the query parameters that select documents; raise InvalidInput or InputTooLong for invalid arguments."""
    choice_of(arguments)
    filters, short = arguments.get("filters"), arguments.get("filter") or ()
    given: _Query = {
        "prefix": arguments.get("prefix") or "",
        "filters": "" if filters is None else as_json(filters).decode(),
        "filter": [short] if isinstance(short, str) else list(short),
        "collection": arguments.get("collection") or "",
        "failed": "true" if arguments.get("failed") else "",
    }
    return {name: value for name, value in given.items() if value}


def page_call(cursor: str, limit: int, arguments: ChoiceArguments) -> RestCall:
    """Return the request for a page of the list of documents."""
    given: _Query = {"limit": str(limit), **({"cursor": cursor} if cursor else {})}
    return RestCall("GET", "/documents", query=given | _choice(arguments))


def count_call(waiting: bool, arguments: ChoiceArguments) -> RestCall:
    """Return the request that counts documents."""
    given: _Query = {"waiting": "true" if waiting else "false"}
    return RestCall("GET", "/documents/count", query=given | _choice(arguments))


def removal_call(timeout: float, arguments: ChoiceArguments) -> RestCall:
    """Return the request that deletes the selected documents."""
    return RestCall("DELETE", "/documents", query=_timeout_query(timeout) | _choice(arguments), timeout=timeout)


def update_call(
    document_id: str,
    metadata: Mapping[str, Any] | None,
    remove: str | Iterable[str],
    collection: str,
    if_version: str | None,
) -> RestCall:
    """Return the request that changes the metadata of one document."""
    content = _change(metadata, remove)
    return RestCall("PATCH", document_path(document_id), content, collection_query(collection), condition(if_version))


def updates_call(
    metadata: Mapping[str, Any] | None,
    remove: str | Iterable[str],
    cursor: str,
    timeout: float,
    arguments: ChoiceArguments,
) -> RestCall:
    """Return the request that changes the metadata of the selected documents."""
    content = _change(metadata, remove)
    query: _Query = {**_timeout_query(timeout), **({"cursor": cursor} if cursor else {}), **_choice(arguments)}
    return RestCall("PATCH", "/documents", content, query, timeout=timeout)


def _change(metadata: Mapping[str, Any] | None, remove: str | Iterable[str]) -> bytes:
    change = MetadataChange.of(metadata, remove)
    return as_json({"metadata": dict(change.fields), "remove": sorted(change.remove)}, "metadata")


def field_values_call(
    name: str,
    collection: str,
    filters: Mapping[str, Any] | None,
    filter: str | Iterable[str],
    limit: int,
) -> RestCall:
    """Return the request for the values of a field."""
    arguments: ChoiceArguments = {"filters": filters, "filter": filter}
    path = f"/collections/{check_collection(collection)}/fields/{quote(name, safe='')}"
    return RestCall("GET", path, query={"limit": str(limit), **_choice(arguments)})


def condition(if_version: str | None) -> dict[str, str]:
    """Return the header of a conditional write.

    An empty version means that the document must not exist. Without a version (None), there is no header.
    """
    if if_version is None:
        return {}
    return {"if-match": f'"{if_version}"'} if if_version else {"if-none-match": "*"}


def collection_query(collection: str) -> _Query:
    """Return the query parameter that names a collection; empty for the default collection."""
    return {} if check_collection(collection) == DEFAULT_COLLECTION else {"collection": collection}


def collection_call(method: str, name: str, timeout: float | None = None) -> RestCall:
    """Return a request with this method about one collection. `timeout` is in seconds; None: the client's timeout."""
    path = f"/collections/{check_collection(name)}"
    if timeout is None:
        return RestCall(method, path)
    return RestCall(method, path, query=_timeout_query(timeout), timeout=timeout)


def put_call(
    document: Document,
    collection: str,
    if_version: str | None,
    wait: bool,
    timeout: float,
    *,
    vectors: Mapping[str, Any] | None = None,
) -> RestCall:
    """Return the request that stores a document.

    `if_version` is as in `condition`, and `timeout` is in seconds. `vectors` are the prepared vectors of the document
    in their JSON form; None means that the shard makes the vectors.
    """
    body: dict[str, Any] = {"text": document.text, "title": document.title, "metadata": dict(document.metadata)}
    if vectors is not None:
        body["vectors"] = dict(vectors)
    query = {"wait": "true" if wait else "false", **_timeout_query(timeout), **collection_query(collection)}
    content = as_json(body, f"document {document.id[:100]!r}")
    return RestCall("PUT", document_path(document.id), content, query, condition(if_version), timeout)


def upload_call(files: UploadFiles, options: UploadArguments) -> RestCall:
    """Return the request that uploads files; raise InvalidInput if a file cannot be read."""
    timeout = options.get("timeout", UPLOAD_SECONDS)
    collection = options.get("collection", DEFAULT_COLLECTION)
    given = {
        "prefix": options.get("prefix", ""),
        "format": options.get("format", ""),
        "base_url": options.get("base_url", ""),
        "url_style": options.get("url_style", ""),
        "metadata": as_json(metadata).decode() if (metadata := options.get("metadata")) else "",
    }
    query: _Query = {"wait": "true" if options.get("wait", True) else "false", **_timeout_query(timeout)}
    query |= {name: value for name, value in given.items() if value} | collection_query(collection)
    pairs = files.items() if isinstance(files, Mapping) else ((Path(path).name, path) for path in files)
    contents = [(name, data if isinstance(data, bytes) else _contents(Path(data))) for name, data in pairs]
    return RestCall("POST", "/documents/upload", query=query, timeout=timeout, files=contents)


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from error


def _error_of(response: httpx.Response) -> QAError:
    """Return the exception for the error that a response reports."""
    try:
        problem = orjson.loads(response.content)
        code, detail = problem["code"], problem["detail"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        code, detail = "", f"HTTP {response.status_code} {response.text[:200]}"
    kind = _BY_CODE.get(code) or _BY_STATUS.get(response.status_code)
    if kind is None:
        kind = InvalidInput if 400 <= response.status_code < 500 else ClusterError
    error = kind(detail)
    error.http_status = response.status_code
    error.retry_after_seconds = retry_after(response)
    return error


def unreachable(url: httpx.URL, lost: httpx.TransportError | None, tries: int) -> ClusterError:
    """Return the error for a service that cannot be reached.

    `lost` is the error of the last attempt, and `tries` is the number of all attempts.
    """
    if found := explain_failure(lost, of_service=True):
        return ClusterError(f"the service at {url} cannot be reached: {found}")
    hint = ": is it running (`qa-cluster serve`)?" if isinstance(lost, httpx.ConnectError) else ""
    return ClusterError(f"the service at {url} cannot be reached ({lost}, {tries} tries){hint}")


def key_header(api_key: str) -> dict[str, str]:
    """Return the header with the API key. The error for a malformed key does not repeat the key."""
    if not api_key:
        return {}
    if not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise InvalidInput("api_key must be a key as `qa-cluster keys create` prints it: qac_, an id and a secret")
    return {"authorization": f"Bearer {api_key}"}


def content_of(response: httpx.Response) -> bytes:
    """Return the body of a successful response; raise the error that any other response reports."""
    if not response.is_success:
        raise _error_of(response)
    return response.content


def parsed(content: bytes) -> Any:
    """Return the JSON value of a body; raise ProtocolError if the body is not JSON."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"the service's response is not JSON: {error}") from error


def parsed_object(content: bytes) -> dict[str, Any]:
    """Return the JSON object of a body; raise ProtocolError for any other value."""
    value = parsed(content)
    if not isinstance(value, dict):
        raise ProtocolError("the service's response is not a JSON object")
    return value


def parsed_list(content: bytes, kind: type[_Listed], what: str = "list") -> tuple[_Listed, ...]:
    """Return the items of a list in a body as objects of the type `kind`; `what` names the list in an error."""
    found = parsed_object(content).get("data")
    if not isinstance(found, list):
        raise ProtocolError(f"the service's {what} cannot be read")
    return tuple(map(kind.from_dict, found))


def parsed_models(content: bytes) -> list[LoadedModel]:
    """Return the models that a body lists; raise ProtocolError if it has no list. Unknown fields are ignored."""
    known = {entry.name for entry in fields(LoadedModel)}
    try:
        models = parsed_object(content)["data"]
        return [LoadedModel(**{name: value for name, value in model.items() if name in known}) for model in models]
    except (KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"the service's list of models cannot be read: {error!r}") from error
