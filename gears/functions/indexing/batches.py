"""Indexes documents: splits, analyses and writes those that wait, several at a time and away from the event loop.

A document is written by one script, which checks that its version still stands: questions find all of it or nothing.
Whoever asks for a document while it waits joins; one that changes while it is being indexed is indexed once more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from qa_cluster.documents.sentence_offsets import pack_offsets
from qa_cluster.documents.sentences import SPLITTER_VERSION, split_sentences
from qa_cluster.documents.source_map import filter_metadata
from qa_cluster.documents.stored import (
    NO_VERSION,
    DocumentInput,
    DocumentRecord,
    IndexedText,
    adopt_document,
    check_document,
    check_document_id,
    check_length,
    document_version,
    forget_document,
    forget_version,
    index_document,
    parse_record,
    read_note,
    read_record,
    settle_note,
)
from qa_cluster.errors import InputTooLong, InvalidInput, QAError
from qa_cluster.gears.functions.indexing import parts
from qa_cluster.gears.functions.shard import partitions
from qa_cluster.gears.functions.shard.calls import is_wrong_type, run_script, run_scripts
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import document_name, paragraphs_key
from qa_cluster.ranking.fields import fields_of
from qa_cluster.ranking.filters import pack_fields
from qa_cluster.ranking.postings import pack_parts
from qa_cluster.ranking.terms import ANALYZER_VERSION
from qa_cluster.scripts.calls import ScriptCall

# Batches at once: while one waits for the server, the other computes. Questions share the processor with them.
MAX_CONCURRENT = 2
MAX_BATCH = 64
MAX_BATCH_BYTES = 500_000
MAX_WAITING = 1000
MAX_ATTEMPTS = 5

# A document: its id and the tag of its partition.
Name = tuple[str, str]
_Outcome = str | Exception


@dataclass
class _Indexing:
    """The documents that wait, in the order in which they came, those that are being indexed, and the batches."""

    waiting: dict[Name, asyncio.Future[str]] = field(default_factory=dict)
    running: set[Name] = field(default_factory=set)
    batches: set[asyncio.Task[None]] = field(default_factory=set)


def is_full() -> bool:
    """Whether so many documents wait that no further one should be added before they are done."""
    return len(state.of(_Indexing).waiting) >= MAX_WAITING


def start(document_id: str, tag: str) -> asyncio.Future[str]:
    """Begin to index a document's current text; nobody may cancel the future, because others may wait for it too.

    Its result is ``stored``, ``unchanged`` (questions found it already), ``missing`` (there is no such document) or
    ``deleted`` (its text was removed).
    """
    partitions.saw(tag)
    indexing, name = state.of(_Indexing), (document_id, tag)
    future = indexing.waiting.get(name)
    if future is None:
        future = indexing.waiting[name] = asyncio.get_running_loop().create_future()
        # Retrieved, so that asyncio does not report an error as never retrieved when nobody waits any more.
        future.add_done_callback(lambda done: done.exception())
        if len(indexing.batches) < MAX_CONCURRENT:
            task = asyncio.get_running_loop().create_task(_work(indexing), context=Context())
            indexing.batches.add(task)
            task.add_done_callback(indexing.batches.discard)
    return future


async def index(document_id: str, tag: str) -> str:
    """`start`, and wait for the result; raise its error."""
    return await asyncio.shield(start(document_id, tag))


async def index_all(names: Sequence[Name]) -> list[_Outcome]:
    """Index documents; an error stands in the place of a result."""
    found = await asyncio.gather(*(index(*name) for name in names), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException) and not isinstance(each, Exception):
            raise each
    return [each for each in found if isinstance(each, str | Exception)]


async def _work(indexing: _Indexing) -> None:
    while names := _next(indexing):
        futures = [indexing.waiting.pop(name) for name in names]
        indexing.running.update(names)
        try:
            outcomes = await asyncio.to_thread(_index, names)
        except Exception as error:  # all who wait must hear of it
            outcomes = [error] * len(names)
        finally:
            indexing.running.difference_update(names)
        for future, outcome in zip(futures, outcomes, strict=True):
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


def _next(indexing: _Indexing) -> list[Name]:
    """The next documents, none of which is being indexed."""
    found: list[Name] = []
    for name in indexing.waiting:
        if name not in indexing.running:
            found.append(name)
            if len(found) == MAX_BATCH:
                break
    return found


def _index(names: Sequence[Name]) -> list[_Outcome]:
    """What was done with each document. Each attempt ends in a compare-and-set: if the text changes, it is repeated."""
    outcomes: dict[Name, _Outcome] = {}
    left = list(names)
    for _ in range(MAX_ATTEMPTS):
        for portion in _portions(left, outcomes):
            outcomes.update(_index_portion(portion))
        left = [name for name in left if outcomes[name] == "stale"]
        if not left:
            break
    for name in left:
        outcomes[name] = InvalidInput(f"document {name[0][:100]!r} changes faster than it can be indexed: gave up")
    return [outcomes[name] for name in names]


def _portions(names: Sequence[Name], outcomes: dict[Name, _Outcome]) -> Iterator[dict[Name, DocumentRecord | None]]:
    """The documents with their records, in portions of bounded size; errors become outcomes."""
    commands = [command for name in names for command in (("STRLEN", paragraphs_key(*name)), read_record(*name))]
    replies = rg.execute_many(commands, keep_errors=True)
    portion: dict[Name, DocumentRecord | None] = {}
    room = MAX_BATCH_BYTES
    for name, length, record in zip(names, replies[::2], replies[1::2], strict=True):
        size = 0 if is_wrong_type(length) else length  # that is no text, which `_fault` says
        failed = next((reply for reply in (size, record) if isinstance(reply, rg.error)), None)
        if failed is not None:
            outcomes[name] = failed
            continue
        if portion and size > room:
            yield portion
            portion, room = {}, MAX_BATCH_BYTES
        portion[name] = parse_record(record)
        room -= size
    if portion:
        yield portion


def _index_portion(records: dict[Name, DocumentRecord | None]) -> dict[Name, _Outcome]:
    # The note first: what changes a text after it has been read changes its note, too.
    commands = [command for name in records for command in (read_note(*name), ("GET", paragraphs_key(*name)))]
    replies = rg.execute_many(commands, keep_errors=True)
    outcomes: dict[Name, _Outcome] = {}
    calls: list[ScriptCall] = []
    callers: list[Name] = []
    without_collection: list[ScriptCall] = []
    notes = {name: note if isinstance(note, str) else "" for name, note in zip(records, replies[::2], strict=True)}
    for (name, record), text in zip(records.items(), replies[1::2], strict=True):
        made: list[ScriptCall] | str = []
        try:
            if (fault := _fault(name[0], text)) is not None:
                made = _forgotten(name, record, notes[name])
                raise fault
            made = _calls(name, text, record, notes[name])
        except (QAError, rg.error) as error:
            outcomes[name] = error
            if not made and isinstance(error, InvalidInput | InputTooLong):
                made = _settled(name, record, notes[name])
        if isinstance(made, str):
            outcomes[name] = made
            continue
        outcomes.setdefault(name, "unchanged")
        calls += made
        callers += [name] * len(made)
    # Of a document's two scripts, the second one tells whether the first one's version still stood.
    for name, reply in zip(callers, run_scripts(calls), strict=True):
        if isinstance(reply, rg.error):
            outcomes[name] = reply
        elif reply[0] == "no_collection":
            outcomes[name] = _no_collection(name)
            without_collection += _settled(name, records[name], notes[name])
        elif isinstance(outcomes[name], str):
            outcomes[name] = str(reply[0])
    if without_collection:
        run_scripts(without_collection)
    return outcomes


def _forgotten(name: Name, record: DocumentRecord | None, note: str) -> list[ScriptCall]:
    """The script that forgets what was made of a document whose text cannot be read, and that it waits."""
    return _settled(name, None, note) if record is None else [forget_version(*name, record.version, note)]


def _settled(name: Name, record: DocumentRecord | None, note: str) -> list[ScriptCall]:
    """The script that takes back the note of a document with which nothing can be done until it changes again."""
    return [settle_note(*name, NO_VERSION if record is None else record.version, note)] if note else []


def _calls(name: Name, text: Any, record: DocumentRecord | None, note: str) -> list[ScriptCall] | str:
    """The scripts that make questions find a document's text; if they do already, only what takes back its note.

    A long one is stored here, one after the other, as an index has room for few that are open: then its outcome.
    """
    if isinstance(text, rg.error):
        raise text
    if text is None:
        return [forget_document(*name)]
    document = _as_stored(name[0], text, record)
    stands = record is not None and record.version == document.version
    if stands and record is not None and record.is_current(SPLITTER_VERSION, ANALYZER_VERSION):
        return _settled(name, record, note)
    metadata = json.loads(document.metadata)
    made = analysed(document.title, metadata, text)
    fields = pack_fields(filter_metadata(metadata))
    first = []
    if not stands:
        first = [adopt_document(document, name[1], record.version if record is not None else "")]
        note = str(len(text.encode()))  # which that makes of it, unless the text has changed by then
    if not made.parts:
        return [*first, index_document(*name, document.version, made, fields, note=note)]
    # To adopt it drops what is open of it, so that comes before the parts.
    status = run_script(first[0])[0] if first else "stored"
    if status == "no_collection":
        raise _no_collection(name)
    place = parts.send(name, made.parts, fields) if status == "stored" else None
    if place is None:
        return "stale"
    try:
        return str(run_script(index_document(*name, document.version, made, b"", place=place, note=note))[0])
    except rg.error:
        parts.drop(name, place)
        raise


def analysed(title: str, metadata: Mapping[str, Any], text: str) -> IndexedText:
    """What is stored of a document to find it."""
    spans = split_sentences(text)
    sentences = [text[start:end] for start, end in spans]
    fields = fields_of(title, metadata, [start for start, _ in spans])
    made = tuple(pack_parts(sentences, fields, parts.PART_BYTES))
    versions, places = (SPLITTER_VERSION, ANALYZER_VERSION, len(spans)), pack_offsets(text, spans)
    if sum(len(part) for _, part in made) > parts.MAX_WHOLE_BYTES:
        return IndexedText(*versions, places, b"", made)
    return IndexedText(*versions, places, b"".join(part for _, part in made))


def _fault(document: str, text: Any) -> InvalidInput | InputTooLong | None:
    """Why no question can be answered from a text that a client has written with SET; None if it is a good one."""
    what = f"of document {document_name(document).id[:100]!r}"
    if is_wrong_type(text):
        return InvalidInput(f"text {what} is no string, but of another type: no question is answered from it")
    if isinstance(text, bytes | bytearray):
        return InvalidInput(f"text {what} is not valid UTF-8: no question is answered from it")
    try:
        if isinstance(text, str):
            check_length(text, what)
    except InputTooLong as error:
        return InputTooLong(f"{error}; no question is answered from it")
    return None


def _no_collection(name: Name) -> InvalidInput:
    document = document_name(name[0])
    return InvalidInput(
        f"no collection {document.collection!r}: the text of document {document.id[:100]!r} stays, but no question is"
        " answered from it; create the collection and write the text again"
    )


def _as_stored(document: str, text: str, record: DocumentRecord | None) -> DocumentInput:
    """The document with its stored text, title and metadata: a plain SET has changed only the text."""
    name = document_name(document)
    if record is None:
        return check_document(name.id, text, collection=name.collection)
    check_document_id(name.id)
    version = document_version(record.title, record.metadata, text)
    return DocumentInput(name.id, record.title, record.metadata, text, version, name.collection)
