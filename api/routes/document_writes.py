"""Writes one document for a request, and counts its sentences against the limit of the key."""

from __future__ import annotations

from qa_cluster.errors import QAError, RequestError
from qa_cluster.types import Document, WriteResult
from qa_cluster.vectors.prepared import PreparedVectors

from ..http.messages import Scope
from ..http.metering import reserve_sentences, settle_sentences
from ..service.lifespan import ServiceState


async def write_document(
    scope: Scope,
    state: ServiceState,
    document: Document,
    *,
    collection: str,
    if_version: str | None = None,
    wait: bool = True,
    timeout: float,
    vectors: PreparedVectors | None = None,
) -> WriteResult:
    """Store a document. Raises HttpProblem (429) if the API key has already reached its daily limit of sentences.

    `if_version` is the version that the document must have now. If it is empty, the document must not exist; None
    accepts any version. With `wait`, return when the document is indexed. `timeout` is in seconds.
    """
    engine = state.engine
    reserved = await reserve_sentences(scope, engine.key_use, document.text)
    try:
        written = await engine.documents.put(
            document.id,
            document.text,
            title=document.title,
            metadata=document.metadata,
            collection=collection,
            if_version=if_version,
            wait=wait,
            timeout=timeout,
            vectors=vectors,
        )
    except RequestError:
        # The document was not stored or is not indexable, so its sentences do not count. After other errors, the
        # document may be stored, so the reserved sentences stay counted.
        await settle_sentences(scope, engine.key_use, reserved, 0)
        raise
    if reserved is not None:
        added = await sentences_of(state, written, collection) if written.changed else 0
        await settle_sentences(scope, engine.key_use, reserved, reserved.sentences if added is None else added)
    state.metrics.document_writes.inc("put")
    return written


async def sentences_of(state: ServiceState, written: WriteResult, collection: str) -> int | None:
    """Return the number of sentences of the version that was written; None if it is unknown."""
    if not written.tokenized:
        return None
    try:
        document = await state.engine.documents.get(written.id, collection)
    except QAError:
        return None
    return document.sentences if document.version == written.version else None
