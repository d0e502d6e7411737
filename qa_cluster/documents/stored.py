"""Builds the commands that write, read and delete stored documents, and parses their replies.

The functions `check_..` check the input of users. A builder, such as `put_document`, returns a call. A parser takes the
reply of the call. This module never calls a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from qa_cluster import keys
from qa_cluster.errors import ClusterError, InputTooLong, InvalidInput
from qa_cluster.scripts.calls import ModuleCall, ScriptCall
from qa_cluster.shard_functions import SENTENCE_ANSWERS_MB

from .metadata_limits import canonical_metadata
from .sentence_limit import MAX_SENTENCES, end_of_limit
from .sentence_offsets import LocatedSentence, cut_sentences
from .unicode import is_unicode

MAX_ID_BYTES = 512
MAX_TITLE_BYTES = 4096
MAX_TEXT_LENGTH = 5_000_000
MAX_SOURCE_BYTES = 4096
# A document and its cached answers are deleted in the same step. With this number of answers and bytes of their keys,
# the step takes 2 to 3 ms.
MAX_ANSWERS = 1000
MAX_ANSWER_NAMES_BYTES = 256_000
BLOCK_SENTENCES = 64
"""The number of sentences whose tokens are stored together."""

ANY_VERSION = "*"
NO_VERSION = ""
ANY_NOTE = "*"


class DocumentFailed(InvalidInput):
    """A document is stored, but the worker has given up indexing this version."""


@dataclass(frozen=True, slots=True)
class DocumentInput:
    """A checked document. `metadata` is canonical JSON (`canonical_metadata`).

    `version` is a hash of title, metadata and text (`document_version`).
    """

    document_id: str
    title: str
    metadata: str
    text: str
    version: str
    collection: str = keys.DEFAULT_COLLECTION

    @property
    def name(self) -> keys.DocumentName:
        """The name of the document in keys."""
        return keys.DocumentName.of(self.document_id, self.collection)


@dataclass(frozen=True, slots=True)
class DocumentRecord:
    """The stored record of a document.

    Attributes:
        metadata: the metadata as JSON.
        length: the length of the text in code points.
        sentences: the number of sentences; None while the document is not split.
        splitter: the version of the splitter; empty if it is not recorded.
        tokenized: whether this version is indexed.
        analyzer: the version of the analyzer that created the postings; empty if it is not recorded.
        failure: why the worker has given up indexing this version; empty if it is indexed or pending.
    """

    document_id: str
    title: str
    metadata: str
    version: str
    length: int
    sentences: int | None
    splitter: str
    tokenized: bool
    analyzer: str
    failure: str = ""

    def is_current(self, splitter: str, analyzer: str) -> bool:
        """Return whether this version is indexed with this splitter and this analyzer."""
        return self.tokenized and self.splitter == splitter and self.analyzer == analyzer


@dataclass(frozen=True, slots=True)
class SentenceRecord:
    """A stored sentence and its neighbours.

    Attributes:
        start: the first code point of the sentence in the document.
        answer: the cached answer to the question that `read_sentence` got; empty if it is missing.
        left, right: the neighbours, the nearest first.
        blocks: the stored tokens of `BLOCK_SENTENCES` sentences each, in order; empty for a missing block.
        first_block: the number of the first block.
        metadata: the metadata of the document as JSON; empty unless requested.
    """

    index: int
    text: str
    start: int
    version: str
    document_id: str
    title: str
    answer: str
    left: tuple[LocatedSentence, ...] = ()
    right: tuple[LocatedSentence, ...] = ()
    blocks: tuple[bytes, ...] = ()
    first_block: int = 0
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """A document with some of its sentences.

    Attributes:
        epoch: the epoch of the document's partition.
        passages: each requested sentence with its neighbours; sentences that do not exist are left out.
    """

    epoch: int
    version: str
    title: str
    metadata: str
    passages: tuple[tuple[LocatedSentence, ...], ...]


@dataclass(frozen=True, slots=True)
class PutResult:
    """The result of a put.

    Attributes:
        status: stored, unchanged, conflict, stale, or no_collection (the document's collection does not exist). Stale
            (only from `adopt_document`): the stored text is no longer the text that the client wrote with ``SET``, so
            nothing was written.
        version: the current version; empty if the document does not exist.
        created: whether this put has created the document.
        tokenized: whether the current version is indexed.
        pending_bytes: the size of the pending documents in the partition.
        source: where the text of the previous version came from, such as a path (`put_document`); empty if it is
            unknown.
    """

    status: str
    version: str
    created: bool
    tokenized: bool
    pending_bytes: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The result of a delete or of `set_metadata`.

    Attributes:
        status: of a delete: deleted, missing, conflict or stale. Of `set_metadata`: stored, unchanged, conflict,
            missing, busy or no_collection. Stale (only of `forget_document`): the document has a text again, so
            nothing was deleted. Busy: a client has changed the text, and the worker has not updated the record yet.
        version: the version before a delete, or the current version; empty if the document has no record.
    """

    status: str
    version: str


@dataclass(frozen=True, slots=True)
class IndexedText:
    """The data that indexing computes from a text.

    Attributes:
        splitter, analyzer: the versions of the splitter and of the analyzer.
        sentences: the number of sentences.
        offsets: the result of `pack_offsets`.
        packed: the result of `pack_sentences`; empty for a long text.
        parts: for a long text, the packed sentences in parts, each with the number of its sentences.
    """

    splitter: str
    analyzer: str
    sentences: int
    offsets: bytes
    packed: bytes
    parts: tuple[tuple[int, bytes], ...] = ()


def check_document_id(document_id: object) -> str:
    """Return the id if it is valid; otherwise raise InvalidInput or InputTooLong, which says what is wrong."""
    if not isinstance(document_id, str) or not document_id:
        raise InvalidInput(f"document id must be a non-empty string, got {document_id!r}"[:200], place="id")
    if not is_unicode(document_id):
        raise InvalidInput(f"document id is not valid Unicode: {ascii(document_id)[:100]}", place="id")
    size = len(document_id.encode())
    if size > MAX_ID_BYTES:
        raise InputTooLong(f"document id {document_id[:40]!r}.. has {size} bytes, the limit is {MAX_ID_BYTES}")
    return document_id


def check_document(
    document_id: object,
    text: object,
    title: object = "",
    metadata: Mapping[str, Any] | None = None,
    collection: object = keys.DEFAULT_COLLECTION,
) -> DocumentInput:
    """Return the document if it is valid and within all limits; otherwise raise InvalidInput or InputTooLong.

    The error names the wrong value and the limit.

    >>> check_document("a", "A cat.", "Cats").version
    'bf85ebfc8ac05950'
    """
    checked_id = check_document_id(document_id)
    what = f"of document {checked_id[:100]!r}"
    checked_text, checked_title = _check_text(f"text {what}", text), _check_text(f"title {what}", title)
    check_length(checked_text, what)
    title_bytes = len(checked_title.encode())
    if title_bytes > MAX_TITLE_BYTES:
        raise InputTooLong(f"title {what} has {title_bytes} bytes, the limit is {MAX_TITLE_BYTES}")
    canonical = canonical_metadata(metadata if metadata is not None else {}, what)
    version = document_version(checked_title, canonical, checked_text)
    return DocumentInput(checked_id, checked_title, canonical, checked_text, version, keys.check_collection(collection))


def check_length(text: str, what: str) -> None:
    """Raise InputTooLong if a text has too many code points or sentences. For a long text, the check may take 1 s.

    `what` says in the error which text is too long, such as ``of document 'a'``.
    """
    length = len(text)
    if length > MAX_TEXT_LENGTH:
        raise InputTooLong(
            f"text {what} has {length} code points, the limit is {MAX_TEXT_LENGTH}: divide it into several documents"
        )
    end = end_of_limit(text)
    if end is not None:
        raise InputTooLong(
            f"text {what} has more than {MAX_SENTENCES} sentences, the limit: its first {end} of {length} code"
            " points reach the limit. Divide it into several documents"
        )


def check_source(source: object) -> str:
    """Return the name of a document's source if it is valid; otherwise raise InvalidInput or InputTooLong."""
    checked = _check_text("source", source)
    if (size := len(checked.encode())) > MAX_SOURCE_BYTES:
        raise InputTooLong(f"source {checked[:40]!r}.. has {size} bytes, the limit is {MAX_SOURCE_BYTES}")
    return checked


def _check_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be a string, got {type(value).__name__}", place=name.partition(" ")[0])
    if not is_unicode(value):
        raise InvalidInput(f"{name} is not valid Unicode", place=name.partition(" ")[0])
    return value


def document_version(title: str, metadata: str, text: str) -> str:
    """Return the version of a document: 16 hex digits of a hash of its title, metadata and text."""
    digest = blake2b(digest_size=8)
    for part in (title, metadata, text):
        data = part.encode()
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


def document_keys(document: str, tag: str) -> tuple[str, ...]:
    """Return the keys that every document script takes, in the order of its KEYS."""
    collection = keys.document_name(document).collection
    return (
        keys.paragraphs_key(document, tag),
        keys.document_key(document, tag),
        keys.offsets_key(document, tag),
        keys.tokens_key(document, tag),
        keys.sentence_key(document, tag),
        keys.answers_key(document, tag),
        keys.index_key(tag, collection),
        keys.pending_key(tag),
        keys.epoch_key(tag, collection),
        keys.flight_key(tag),
    )


def put_document(document: DocumentInput, tag: str, if_version: str = ANY_VERSION, source: str = "") -> ModuleCall:
    """Store a document if its current version is ``if_version``.

    `ANY_VERSION` means any version, and also that the document need not exist. `NO_VERSION` means that the document
    must not exist. `source` says where the document comes from, such as a path; empty if unknown. The version of the
    document does not depend on `source`.
    """
    key = keys.paragraphs_key(document.name, tag)
    return ModuleCall("QA.PUTDOCUMENT", (key,), (if_version, *_put_arguments(document), source))


def adopt_document(document: DocumentInput, tag: str, if_version: str) -> ScriptCall:
    """Write the record of a text that a client wrote with ``SET``. If the text has changed again, do nothing.

    `if_version` is the version that the old record must have, as in `put_document`.
    """
    args = ("adopt", if_version, *_put_arguments(document), "")
    return ScriptCall("put_document", document_keys(document.name, tag), args)


def _put_arguments(document: DocumentInput) -> tuple[str | int, ...]:
    return (
        document.document_id,
        document.title,
        document.metadata,
        document.version,
        len(document.text),
        document.text,
    )


def parse_put(reply: Sequence[Any]) -> PutResult:
    """Parse the reply to `put_document` or `adopt_document`."""
    if len(reply) != 6:
        raise ClusterError(f"put of a document got an unexpected reply: {reply!r}"[:200])
    status, version, created, tokenized, pending_bytes, source = reply
    return PutResult(
        _text(status), _text(version), int(created) == 1, int(tokenized) == 1, int(pending_bytes), _text(source)
    )


def delete_document(document: str, tag: str, if_version: str = ANY_VERSION) -> ModuleCall:
    """Delete a document and all data that is derived from it, if its version is `if_version` (as in `put_document`)."""
    return ModuleCall("QA.DELDOCUMENT", (keys.paragraphs_key(document, tag),), (if_version,))


def set_metadata(document: str, tag: str, if_version: str, metadata: str, fields: bytes) -> ModuleCall:
    """Replace the metadata of a document without changing its text, if its version is `if_version`.

    `metadata` is canonical JSON. `fields` is the same metadata in the binary form of the index.
    """
    return ModuleCall("QA.SETMETADATA", (keys.paragraphs_key(document, tag),), (if_version, metadata, fields))


def parse_metadata(reply: Sequence[Any]) -> ChangeResult:
    """Parse the reply to `set_metadata`."""
    if len(reply) != 2:
        raise ClusterError(f"a change of metadata got an unexpected reply: {reply!r}"[:200])
    return ChangeResult(_text(reply[0]), _text(reply[1]))


def forget_document(document: str, tag: str) -> ScriptCall:
    """Delete the derived data of a document whose text a client deleted. If the text exists again, do nothing."""
    return ScriptCall("delete_document", document_keys(document, tag), ("gone", ANY_VERSION, ANY_NOTE))


def forget_version(document: str, tag: str, version: str, note: str = ANY_NOTE) -> ScriptCall:
    """Delete the derived data and the record of the version `version`, but keep the text.

    This is for a text that a client has replaced with bytes that are not UTF-8. The document stays pending if it has
    changed since the change note `note` (`read_note`). With `ANY_NOTE`, the document never stays pending.
    """
    return ScriptCall("delete_document", document_keys(document, tag), ("unreadable", version, note))


def read_note(document: str, tag: str) -> tuple[str, str, str]:
    """Return the command that reads a document's change note.

    The note is the value of the document's field in `keys.pending_key`; `scripts/keys.lua` explains it. Read the note
    before the text. The text then contains all changes that the note records.
    """
    return "HGET", keys.pending_key(tag), keys.document_name(document)


def settle_note(document: str, tag: str, version: str, note: str) -> ScriptCall:
    """Mark the changes that the change note `note` records as processed, if `version` is still current.

    `NO_VERSION` means that no record may exist. If the document has changed since `note`, it stays pending.
    """
    return ScriptCall("settle_note", document_keys(document, tag), (version, note))


def parse_delete(reply: Sequence[Any]) -> ChangeResult:
    """Parse the reply to `delete_document`, `forget_document` or `forget_version`."""
    if len(reply) != 2:
        raise ClusterError(f"removal of a document got an unexpected reply: {reply!r}"[:200])
    return ChangeResult(_text(reply[0]), _text(reply[1]))


def index_document(
    document: str,
    tag: str,
    version: str,
    made: IndexedText,
    fields: bytes,
    *,
    place: str = "",
    note: str = ANY_NOTE,
) -> ScriptCall:
    """Index a version and store its sentence offsets, so that questions find it. The reply is ``[stored | stale]``.

    If the document was sent in parts, `place` identifies its open entry in the index; otherwise, `place` is empty. The
    script commits this entry, or aborts it if the version is stale. The document stays pending if it has changed since
    the change note `note` (`read_note`). `made` is the data to store, and `fields` the metadata in the binary form of
    the index.
    """
    args = (version, made.splitter, made.analyzer, made.sentences, made.offsets, fields, made.packed, place, note)
    return ScriptCall("index_document", document_keys(document, tag), args)


def fail_document(document: str, tag: str, version: str, reason: str, *, note: str = ANY_NOTE) -> ScriptCall:
    """Mark a version as failed, so that no worker tries to index it again. The reply is ``[failed | stale]``.

    The document stays pending if it has changed since the change note `note`. Every write removes the mark.
    """
    names = (*document_keys(document, tag), keys.failures_key(tag))
    return ScriptCall("fail_document", names, (version, reason, note))


def repair_partition(tag: str) -> ScriptCall:
    """Delete the internal keys of a partition that have values of a wrong type.

    The reply is the number of deleted keys.
    """
    names = (keys.pending_key(tag), keys.failures_key(tag), keys.layout_key(tag), keys.flight_key(tag))
    return ScriptCall("repair_partition", names, ())


def store_tokens(document: str, tag: str, version: str, splitter: str, blocks: Mapping[int, bytes]) -> ScriptCall:
    """Store blocks of tokens (`pack_tokens`) of a version. The reply is ``[stored | stale]``.

    The keys of `blocks` are the numbers of the blocks, counted from 0. `splitter` is the version of the splitter that
    made the sentences.
    """
    args = (version, splitter, *(part for block in blocks.items() for part in block))
    return ScriptCall("store_tokens", document_keys(document, tag), args)


@dataclass(frozen=True, slots=True)
class Embedding:
    """Packed passages of a document (`vectors.packing`).

    Attributes:
        digest: identifies the encoder.
        dims: the number of values in a vector.
        done: the number of passages that are already stored; 0 replaces the vectors of the document.
        total: the number of passages of the document.
        passages: the next passages with their vectors, in packed form.
    """

    digest: bytes
    dims: int
    done: int
    total: int
    passages: bytes


def embed_document(document: str, tag: str, version: str, splitter: str, made: Embedding) -> ScriptCall:
    """Attach vectors to passages of an indexed document. The reply is ``[stored | stale]``.

    The document is embedded when all passages are stored. The reply is stale in these cases:

    - The document has changed.
    - A different splitter than `splitter` made the sentences.
    - `made.done` is neither 0 nor the number of passages that are stored for this encoder.
    """
    args = (version, splitter, made.digest, made.dims, made.done, made.total, made.passages)
    return ScriptCall("embed_document", document_keys(document, tag), args)


def attach_vectors(document: str, tag: str, version: str, splitter: str, made: Embedding) -> ModuleCall:
    """Do the same as `embed_document`, for a client that may write the document but not its internal keys."""
    args = (version, splitter, made.digest, made.dims, made.done, made.total, made.passages)
    return ModuleCall("QA.EMBEDDOCUMENT", (keys.paragraphs_key(document, tag),), args)


def loose_sentences(document: str, tag: str) -> ScriptCall:
    """Delete the cached answers of sentences that a client stores without a document.

    If a document with this name exists, delete nothing. The reply is then 0, otherwise 1.
    """
    return ScriptCall("loose_sentences", document_keys(document, tag), ())


def read_sentence(
    sentence: keys.SentenceRef, question: str, model: str = "", *, around: int = 0, metadata: bool = False
) -> ScriptCall:
    """Fetch the data that is needed to answer from a sentence; `parse_sentence_record` parses the reply.

    The reply includes the cached answer to `question` from the reader `model` (empty: the default reader). `around` is
    the largest number of neighbours on each side. `metadata` says whether to fetch the document's metadata.
    """
    name = (sentence.document, sentence.tag)
    names = (
        keys.paragraphs_key(*name),
        keys.offsets_key(*name),
        keys.document_key(*name),
        keys.tokens_key(*name),
        keys.sentence_key(*name),
        keys.answer_key(sentence, question, model),
        keys.flight_key(sentence.tag),
    )
    return ScriptCall("read_sentence", names, (sentence.index, around, BLOCK_SENTENCES, int(metadata)))


def parse_sentence_record(index: int, reply: Sequence[Any] | None) -> SentenceRecord | None:
    """Parse the reply to `read_sentence` for sentence number `index`, counted from 0.

    Return None if the current text has no such sentence, or if the text has changed since it was split.
    """
    if reply is None:
        return None
    if len(reply) != 11:
        raise ClusterError(f"unexpected reply for a sentence: {reply!r}"[:200])
    first, width, records, text, version, document_id, title, answer, block, blocks, metadata = reply
    names = (_text(version), _text(document_id), _text(title), _text(answer))
    if not width:
        start = _blob(records).decode()
        return SentenceRecord(index, _text(text), int(start or 0), *names, metadata=_text(metadata))
    found = list(cut_sentences(int(first), int(width), _blob(records), _blob(text)))
    own = found[index - int(first)]
    if own is None:
        return None
    left, right = found[: index - int(first)][::-1], found[index - int(first) + 1 :]
    return SentenceRecord(
        index,
        own.text,
        own.start,
        *names,
        tuple(takewhile(_is_there, left)),  # type: ignore[arg-type]
        tuple(takewhile(_is_there, right)),  # type: ignore[arg-type]
        tuple(map(_blob, blocks)),
        int(block),
        _text(metadata),
    )


def _is_there(placed: LocatedSentence | None) -> bool:
    return placed is not None


def _blob(value: Any) -> bytes:
    # In the worker, a reply that is valid UTF-8 arrives as text.
    return value.encode() if isinstance(value, str) else bytes(value)


def read_hits(document: str, tag: str, sentences: Sequence[int], around: int, *, metadata: bool = True) -> ScriptCall:
    """Fetch sentences of a document, each with up to ``around`` neighbours on each side; `parse_hits` parses the reply.

    With `metadata` false, the reply has no metadata: a search fetches the metadata of a document only once.
    """
    names = (
        keys.paragraphs_key(document, tag),
        keys.offsets_key(document, tag),
        keys.document_key(document, tag),
        keys.epoch_key(tag, keys.document_name(document).collection),
        keys.flight_key(tag),
    )
    return ScriptCall("read_hits", names, (around, int(metadata), *sentences))


def parse_hits(reply: Sequence[Any] | None) -> FoundDocument | None:
    """Parse the reply to `read_hits`; None if the document does not exist."""
    if reply is None:
        return None
    if len(reply) != 6:
        raise ClusterError(f"unexpected reply for sentences of a document: {reply!r}"[:200])
    epoch, version, title, metadata, width, passages = reply
    return FoundDocument(
        int(epoch),
        _text(version),
        _text(title),
        _text(metadata) or "{}",
        tuple(_stretch(int(width), passage) for passage in passages),
    )


def _stretch(width: int, passage: Sequence[Any]) -> tuple[LocatedSentence, ...]:
    if not passage:
        return ()
    first, records, text = passage
    return tuple(filter(None, cut_sentences(int(first), width, _blob(records), _blob(text))))


def store_answer(
    sentence: keys.SentenceRef,
    question: str,
    model: str = "",
    *,
    version: str,
    text: str,
    answer: str | bytes,
    ttl_seconds: int,
    most_bytes: int = SENTENCE_ANSWERS_MB << 20,
) -> ScriptCall:
    """Cache the answer of a sentence if the sentence still has the text `text`, and its document the version `version`.

    The reply is 1 if the answer is cached, 0 if the text or the version differs. The answer expires after
    `ttl_seconds`. The cached sentence answers of the partition take about `most_bytes` at most: the oldest answers are
    evicted.
    """
    name = (sentence.document, sentence.tag)
    own = keys.answer_key(sentence, question, model)
    names = (
        keys.paragraphs_key(*name),
        keys.offsets_key(*name),
        keys.document_key(*name),
        keys.sentence_key(*name),
        own,
        keys.answers_key(*name),
        keys.sentence_answer_list_key(sentence.tag),
        keys.sentence_answer_bytes_key(sentence.tag),
        keys.flight_key(sentence.tag),
    )
    most = min(MAX_ANSWERS, MAX_ANSWER_NAMES_BYTES // len(own.encode()))
    args = (version, sentence.index, text, answer, ttl_seconds, most, most_bytes)
    return ScriptCall("store_answer", names, args)


def store_whole_answer(key: str, answer: bytes, ttl_seconds: int) -> ModuleCall:
    """Cache a whole answer at its key (`keys.whole_answer_key`) for `ttl_seconds`.

    The module limits the total size of a partition's whole answers.
    """
    return ModuleCall("QA.PUTANSWER", (key,), (answer, ttl_seconds))


def drop_whole_answers(names: tuple[str, ...]) -> ModuleCall:
    """Delete cached whole answers of one partition by their keys. The reply is the number of deleted answers."""
    return ModuleCall("QA.DELANSWER", names, ())


def drop_answers(tag: str, names: tuple[str, ...]) -> ScriptCall:
    """Delete cached sentence answers of one partition by their keys. The reply is the number of deleted answers."""
    return ScriptCall(
        "drop_answers",
        (keys.sentence_answer_list_key(tag), keys.sentence_answer_bytes_key(tag), keys.flight_key(tag), *names),
        (),
    )


RECORD_FIELDS = (
    *("id", "title", "metadata", "version", "length", "sentences", "splitter", "tokenized", "analyzer"),
    *("failed", "failure"),
)


def read_record(document: str, tag: str) -> tuple[str, ...]:
    """Return the command that reads a document's record."""
    return ("HMGET", keys.document_key(document, tag), *RECORD_FIELDS)


def failed_error(document: str, reason: str) -> DocumentFailed:
    """Return the error that names a failed document and the reason."""
    name = keys.document_name(document).id[:100]
    return DocumentFailed(
        f"document {name!r} is stored, but not indexed: {reason}. No question is answered from it until it is written"
        " again"
    )


def parse_record(reply: Sequence[Any]) -> DocumentRecord | None:
    """Parse the reply to `read_record`; None if the document does not exist."""
    values = [None if value is None else _text(value) for value in reply]
    if len(values) != len(RECORD_FIELDS):
        raise ClusterError(f"unexpected reply for the record of a document: {reply!r}"[:200])
    document_id, title, metadata, version, length, sentences, splitter, tokenized, analyzer, failed, failure = values
    if version is None:
        return None
    return DocumentRecord(
        document_id or "",
        title or "",
        metadata or "{}",
        version,
        int(length or 0),
        None if sentences is None else int(sentences),
        splitter or "",
        tokenized == version,
        analyzer or "",
        (failure or "unknown reason") if failed == version else "",
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes | bytearray) else str(value)
