"""`POST /documents/upload`: extracts text from files in a process with limits, and stores the text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from qa_cluster.documents.addresses import STYLES, PageAddresses
from qa_cluster.documents.corpus import read_given
from qa_cluster.documents.files import without_gz
from qa_cluster.documents.folder_reading import ErrorObserver, FolderReading
from qa_cluster.documents.given_files import GivenFile
from qa_cluster.documents.source_map import read_map
from qa_cluster.errors import DeadlineExceeded, InvalidInput, NotFound, QAError, QueueFull, RequestError
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.sources.process.extractor import Extractor
from qa_cluster.types import Document, UploadedFile

from ..description.schemas import parse_query, upload_parameters
from ..http.error_map import HttpProblem
from ..http.messages import Receive, Scope, Send, about, permit, raw_path, send_json, while_connected
from ..http.multipart import UploadLimits, read_files, require_multipart
from ..service.lifespan import ServiceState
from .document_writes import sentences_of, write_document

PATH = b"/documents/upload"
_JSON_FILES = (".json", ".jsonl")
# The limit of documents that the audit log names for one request.
_MAX_NAMED = 100


def uploads(scope: Scope) -> bool:
    """Return whether a request uploads files. With other methods, the path names the document `upload`."""
    return scope["method"] == "POST" and raw_path(scope) == PATH


@dataclass(frozen=True, slots=True)
class _Target:
    """Where and how the documents of a request are stored.

    Attributes:
        collection: the collection of the documents.
        prefix: precedes the name of each file in the id of its document.
        reading: the options for extracting text from the files.
        wait: whether to wait until each document is indexed.
    """

    collection: str
    prefix: str
    reading: FolderReading
    wait: bool


def _addresses(values: Mapping[str, Any]) -> PageAddresses | None:
    base = values.get("base_url", "")
    try:
        return PageAddresses.below(base, values.get("url_style", STYLES[0])) if base else None
    except InvalidInput as error:
        raise InvalidInput(str(error), place="base_url") from error


class UploadRoute:
    """Stores the documents of uploaded files. It serves only a few requests at a time, because each needs much
    memory.
    """

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        options = state.options
        self._limits = UploadLimits(options.upload_max_bytes, options.upload_max_files, options.upload_timeout_ms)
        self._parameters = upload_parameters(options.limits, options.upload_timeout_ms)
        self._most = options.upload_max_requests
        self._active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the files, and store a document for each file."""
        values = parse_query(scope["query_string"], self._parameters)
        collection = values.get("collection", DEFAULT_COLLECTION)
        permit(scope, collection)
        require_multipart(scope)
        reading = FolderReading(addresses=_addresses(values), metadata=values.get("metadata") or {})
        target = _Target(collection, values.get("prefix", ""), reading, values.get("wait", True))
        _ = self._state.engine  # raises the error of a missing cluster before the body is read
        if self._active >= self._most:
            raise QueueFull(
                f"the service is at its limit of {self._most} concurrent uploads (upload_max_requests): try again later"
            )
        self._active += 1
        try:
            files = await read_files(scope, receive, self._limits)
            seconds = values.get("timeout_ms", self._limits.timeout_ms) / 1000
            with Extractor(forced=values.get("format", "")) as extractor, ThreadPoolExecutor(1, "upload") as pool:
                upload = _Upload(self._state, scope, target, extractor, pool)
                try:
                    found = await while_connected(receive, upload.store(files, seconds), extractor.kill)
                finally:
                    extractor.kill()  # so that the thread of `pool` ends, even if the request failed
        finally:
            self._active -= 1
        stored = [file.id for file in found if not file.error]
        about(scope, files=len(found), stored=len(stored), documents=stored[:_MAX_NAMED])
        if not stored:
            raise upload.failure(found)
        await send_json(send, {"object": "list", "data": [file.to_dict() for file in found], "stored": len(stored)})


class _Upload:
    """Stores the files of one request, one after the other."""

    def __init__(
        self, state: ServiceState, scope: Scope, target: _Target, extractor: Extractor, pool: ThreadPoolExecutor
    ) -> None:
        self._state = state
        self._scope = scope
        self._target = target
        self._extractor = extractor
        self._pool = pool
        self._first: Exception | None = None

    async def store(self, files: list[tuple[str, bytes]], seconds: float) -> list[UploadedFile]:
        """Store the files, and return the result of each file, in the order of `files`.

        `files` are the names and contents of the files. The list is emptied to free its memory. `seconds` is the time
        limit for all files together. An error of one file is the result of this file.

        Raises:
            NotFound: the collection does not exist.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        found: list[UploadedFile] = []
        seen: set[str] = set()
        files.reverse()
        while files:
            name, data = files.pop()
            file = UploadedFile(name[:500], self._target.prefix + name[:500])
            try:
                if without_gz(name) in seen:
                    raise InvalidInput(f"{name[:100]!r} has the id of an earlier file of this request: rename one")
                seen.add(without_gz(name))
                file = await self._store_one(file, name, data, deadline)
            except NotFound:
                raise
            except (QAError, HttpProblem) as error:
                self._first = self._first or error
                code = error.resp_code if isinstance(error, QAError) else error.code
                file = replace(file, error=str(error), code=code)
            found.append(file)
        return found

    async def _store_one(self, file: UploadedFile, name: str, data: bytes, deadline: float) -> UploadedFile:
        left = deadline - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(left):
                document = await self._extracted(GivenFile.named(name, data))
        except TimeoutError as error:
            raise DeadlineExceeded(
                "the time limit of the request ended before this file was read (timeout_ms)"
            ) from error
        left = max(0.05, deadline - asyncio.get_running_loop().time())
        target = self._target
        written = await write_document(
            self._scope, self._state, document, collection=target.collection, wait=target.wait, timeout=left
        )
        remarks, self._extractor.remarks = self._extractor.remarks, []
        return replace(
            file,
            id=document.id,
            title=document.title,
            format=read_map(document.metadata).format,
            sentences=await sentences_of(self._state, written, target.collection),
            version=written.version,
            changed=written.changed,
            created=written.created,
            tokenized=written.tokenized,
            remarks=tuple(remark for _, remark in remarks),
        )

    async def _extracted(self, file: GivenFile) -> Document:
        """Return the document of a file. If the call is cancelled, the process that reads the file is killed."""
        if file.path.suffix.lower() in _JSON_FILES and not self._extractor.forced:
            raise InvalidInput("a JSON file has many documents: write each document with PUT /documents/{id}")
        working = asyncio.get_running_loop().run_in_executor(self._pool, self._read, file)
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError:
            self._extractor.kill()
            await asyncio.wait([working])
            working.exception()
            raise
        return working.result()

    def _read(self, file: GivenFile) -> Document:
        target, errors = self._target, list[RequestError]()
        found = read_given(
            [file],
            on_error="skip",
            observer=ErrorObserver(errors.append),
            max_bytes=self._state.options.body_max_bytes,
            id_prefix=target.prefix,
            extractor=self._extractor,
            reading=target.reading,
        )
        document = next(found, None)
        if document is None:
            raise errors[0] if errors else InvalidInput("contains no document")
        return document

    def failure(self, found: list[UploadedFile]) -> Exception:
        """Return the error for a request of which no file was stored. `found` are the results of its files.

        It is the first error of a file if there is only one file, or if this error is no RequestError. Otherwise, it is
        a problem that lists the errors of all files.
        """
        if self._first is not None and (len(found) == 1 or not isinstance(self._first, RequestError)):
            return self._first
        errors = [{"parameter": file.name, "detail": file.error} for file in found]
        return HttpProblem("validation", f"no file was stored: {found[0].name}: {found[0].error}", errors=errors)
