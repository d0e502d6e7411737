"""Indexes documents: splits, analyses and writes pending documents, several at a time, off the event loop.

One script checks that the version of a document is still current, and writes the document. So questions find the whole
document or nothing. If a document already waits for its batch, a second request to index it joins the first request. If
a document changes while it is being indexed, it is indexed again.

If a worker ended while it indexed a document, the next worker indexes that document alone. If two workers have ended
while they indexed the document, the next worker marks the document as failed (`failures`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qa_cluster.documents.metadata_limits import parse_metadata
from qa_cluster.documents.sentence_offsets import pack_offsets
from qa_cluster.documents.sentences import SPLITTER_VERSION, SplittingTooSlow, split_sentences
from qa_cluster.documents.source_map import filter_metadata
from qa_cluster.documents.stored import (
    MAX_TEXT_LENGTH,
    NO_VERSION,
    DocumentFailed,
    DocumentInput,
    DocumentRecord,
    IndexedText,
    adopt_document,
    check_document,
    check_document_id,
    check_length,
    document_version,
    fail_document,
    failed_error,
    forget_document,
    forget_version,
    index_document,
    parse_record,
    read_note,
    read_record,
    settle_note,
)
from qa_cluster.errors import InputTooLong, InvalidInput, QAError
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.shard.commands import is_wrong_type
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import document_name, paragraphs_key
from qa_cluster.ranking.fields import fields_of
from qa_cluster.ranking.filters import pack_fields
from qa_cluster.ranking.postings import pack_parts
from qa_cluster.ranking.terms import ANALYZER_VERSION
from qa_cluster.scripts.calls import ScriptCall

from . import parts
from .failures import DocumentsInHand, Failures, Suspicion

# The number of concurrent batches. While one batch waits for the server, the other computes. More batches would slow
# down questions, which use the same processor.
MAX_CONCURRENT = 2
MAX_BATCH = 64
MAX_BATCH_BYTES = 500_000
MAX_PENDING = 1000
MAX_ATTEMPTS = 5
# The maximum number of bytes, in UTF-8, of a text with `MAX_TEXT_LENGTH` code points. A text with more bytes is refused
# and not read.
MAX_TEXT_BYTES = 4 * MAX_TEXT_LENGTH

# A document: its id and the tag of its partition.
Name = tuple[str, str]
_Outcome = str | Exception


class Indexer:
    """The documents that wait in this worker for a batch (here *pending*), the documents that are being indexed, and
    the running batches.

    Attributes:
        on_indexed: called after each batch with the documents that have a new text in the index.
    """

    def __init__(self, shard: ShardContext, failures: Failures) -> None:
        self._commands = shard.commands
        self.on_indexed: Callable[[Sequence[Name]], None] = lambda names: None
        self._failures = failures
        self._in_hand = DocumentsInHand(shard.commands)
        self._partitions = shard.partitions
        self._pending: dict[Name, asyncio.Future[str]] = {}
        self._running: set[Name] = set()
        self._batches: set[asyncio.Task[None]] = set()

    def is_full(self) -> bool:
        """Return whether the number of pending documents has reached its limit."""
        return len(self._pending) >= MAX_PENDING

    def is_busy(self) -> bool:
        """Return whether documents are pending in this worker, or being indexed."""
        return bool(self._pending or self._running)

    def start(self, document_id: str, tag: str) -> asyncio.Future[str]:
        """Start to index a document's current text; return a future.

        Do not cancel the future, because other callers may wait for it.

        The result is one of:

        - ``stored``: the document was indexed;
        - ``unchanged``: the text was already indexed;
        - ``missing``: the document does not exist;
        - ``deleted``: the text was removed.
        """
        self._partitions.note_tag(tag)
        name = (document_id, tag)
        future = self._pending.get(name)
        if future is None:
            future = self._pending[name] = asyncio.get_running_loop().create_future()
            # Retrieves the exception. Otherwise, asyncio reports an unretrieved exception if all callers have gone.
            future.add_done_callback(lambda done: done.exception())
            if len(self._batches) < MAX_CONCURRENT:
                task = asyncio.get_running_loop().create_task(self._work())
                self._batches.add(task)
                task.add_done_callback(self._batches.discard)
        return future

    async def index(self, document_id: str, tag: str) -> str:
        """Index a document; return the result of `start`, or raise its error."""
        return await asyncio.shield(self.start(document_id, tag))

    async def index_all(self, names: Sequence[Name]) -> list[_Outcome]:
        """Index documents; return the result of `start` or the error of each document, in the order of `names`."""
        found = await asyncio.gather(*(self.index(*name) for name in names), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, Exception):
                raise each
        return [each for each in found if isinstance(each, str | Exception)]

    async def _work(self) -> None:
        while names := self._next():
            futures = [self._pending.pop(name) for name in names]
            self._running.update(names)
            try:
                outcomes = await asyncio.to_thread(self._index, names)
            except Exception as error:  # every waiting caller must get the error
                outcomes = [error] * len(names)
            finally:
                self._running.difference_update(names)
            for future, outcome in zip(futures, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
            if new := [name for name, outcome in zip(names, outcomes, strict=True) if outcome == "stored"]:
                self.on_indexed(new)

    def _next(self) -> list[Name]:
        """Return the documents of the next batch: at most `MAX_BATCH` pending documents, the oldest request first.

        Skip a document that another batch is indexing at the moment. It stays pending.
        """
        found: list[Name] = []
        for name in self._pending:
            if name not in self._running:
                found.append(name)
                if len(found) == MAX_BATCH:
                    break
        return found

    def _index(self, names: Sequence[Name]) -> list[_Outcome]:
        """Index documents; return the outcome of each.

        An attempt ends with a compare-and-set. If the text has changed meanwhile, the attempt is repeated. If the text
        has changed during all `MAX_ATTEMPTS` attempts, the outcome is an error.
        """
        outcomes: dict[Name, _Outcome] = {}
        left = list(names)
        for _ in range(MAX_ATTEMPTS):
            with self._in_hand.together() as batch:
                alone = self._index_together(left, batch, outcomes)
            for name in alone:
                with self._in_hand.alone() as batch:
                    self._index_alone(name, batch, outcomes)
            left = [name for name in left if outcomes[name] == "stale"]
            if not left:
                break
        for name in left:
            outcomes[name] = InvalidInput(f"document {name[0][:100]!r} changes faster than it can be indexed: gave up")
        return [outcomes[name] for name in names]

    def _index_together(self, names: Sequence[Name], batch: int, outcomes: dict[Name, _Outcome]) -> list[Name]:
        """Index documents in portions, and write their outcomes into `outcomes`. Return the documents that must be
        indexed alone.

        A document must be indexed alone if a worker ended while it indexed the document, or if its portion failed with
        an unexpected error. `batch` is the number of the batch (`DocumentsInHand`).
        """
        alone = []
        for portion in self._portions(names, outcomes):
            together = {name: found for name, found in portion.items() if found.suspicion is None}
            alone += [name for name in portion if name not in together]
            if not together:
                continue
            try:
                outcomes.update(self._index_portion(together, batch))
            except (MemoryError, RuntimeError) as error:
                if len(together) == 1:
                    raise
                self._commands.log(f"index: {len(together)} documents are indexed one by one, after {error!r}")
                alone += together
        return alone

    def _index_alone(self, name: Name, batch: int, outcomes: dict[Name, _Outcome]) -> None:
        """Index one document that may end the worker, and write its outcome into `outcomes`.

        If the document has already ended `MAX_ENDS` workers, do not index it, but mark it as failed. `batch` is the
        number of the batch (`DocumentsInHand`).
        """
        for portion in self._portions([name], outcomes):
            found = portion[name]
            if found.suspicion is not None and found.suspicion.is_enough:
                outcomes[name] = self._give_up(name, found, found.suspicion.explained())
            else:
                try:
                    outcomes.update(self._index_portion(portion, batch))
                except (MemoryError, RuntimeError) as error:
                    outcomes[name] = error
        outcome = outcomes[name]
        refused = isinstance(outcome, InvalidInput | InputTooLong) and not isinstance(outcome, DocumentFailed)
        if refused or (isinstance(outcome, str) and outcome != "stale"):
            self._failures.remove([name])

    def _portions(self, names: Sequence[Name], outcomes: dict[Name, _Outcome]) -> Iterator[dict[Name, _Found]]:
        """Yield the stored state of the documents by document, in portions whose texts have at most `MAX_BATCH_BYTES`.

        A longer text is alone in its portion. If the state of a document cannot be read, the document is left out, and
        its error is added to `outcomes`.
        """
        tags, entries = self._failures.commands_of(names)
        commands = [command for name in names for command in (("STRLEN", paragraphs_key(*name)), read_record(*name))]
        replies = self._commands.execute_many([*entries, *commands], keep_errors=True)
        suspicions = self._failures.parse(names, tags, replies[: len(tags)])
        del replies[: len(tags)]
        portion: dict[Name, _Found] = {}
        left_bytes = MAX_BATCH_BYTES
        for name, length, record in zip(names, replies[::2], replies[1::2], strict=True):
            size = 0 if is_wrong_type(length) else length  # `fault_of` reports a key that is not a string
            failed = next((reply for reply in (size, record) if isinstance(reply, GearsError)), None)
            if failed is not None:
                outcomes[name] = failed
                continue
            if portion and size > left_bytes:
                yield portion
                portion, left_bytes = {}, MAX_BATCH_BYTES
            try:
                portion[name] = _Found(parse_record(record), size, suspicions.get(name))
            except ValueError as error:
                outcomes[name] = _damaged(name, error)
                continue
            left_bytes -= size
        if portion:
            yield portion

    def _index_portion(self, portion: dict[Name, _Found], batch: int) -> dict[Name, _Outcome]:
        # Read the change note before the text. If a client writes the text after that, the note no longer matches.
        commands = [command for name, found in portion.items() for command in (read_note(*name), found.read(name))]
        replies = self._in_hand.begin(batch, portion, commands)
        outcomes: dict[Name, _Outcome] = {}
        calls: list[ScriptCall] = []
        callers: list[Name] = []
        without_collection: list[ScriptCall] = []
        notes = {name: note if isinstance(note, str) else "" for name, note in zip(portion, replies[::2], strict=True)}
        for (name, found), text in zip(portion.items(), replies[1::2], strict=True):
            made: list[ScriptCall] | str = []
            record, note = found.record, notes[name]
            try:
                if record is not None and record.failure and not note and _is_version(record, text):
                    raise failed_error(name[0], record.failure)
                if (fault := found.fault(name) or fault_of(name[0], text)) is not None:
                    made = _forgotten(name, record, note)
                    raise fault
                made = self._calls(name, text, record, note)
            except SplittingTooSlow as error:
                outcomes[name] = self._give_up(name, found, str(error))
            except (QAError, GearsError) as error:
                outcomes[name] = error
                if not made and isinstance(error, InvalidInput | InputTooLong):
                    made = _settled(name, record, note)
            if isinstance(made, str):
                outcomes[name] = made
                continue
            outcomes.setdefault(name, "unchanged")
            calls += made
            callers += [name] * len(made)
        # If a document has two scripts, the second reply is the outcome. It is ``stale`` if the first script did not
        # store the version.
        for name, reply in zip(callers, self._commands.run_scripts(calls), strict=True):
            if isinstance(reply, GearsError):
                outcomes[name] = reply
            elif reply[0] == "no_collection":
                outcomes[name] = _no_collection(name)
                without_collection += _settled(name, portion[name].record, notes[name])
            elif isinstance(outcomes[name], str):
                outcomes[name] = str(reply[0])
        if without_collection:
            self._commands.run_scripts(without_collection)
        return outcomes

    def _give_up(self, name: Name, found: _Found, reason: str) -> _Outcome:
        """Mark a document as failed, without splitting its text; return the outcome.

        The outcome is normally the error that contains `reason`. If the text is missing or unreadable, the derived data
        of the document is deleted instead, and the outcome is ``deleted``. If the document changes at the same time,
        the outcome is ``stale``. If the shard refuses to read the text, or the collection of the document does not
        exist, the outcome is this error, and the document is not marked.
        """
        note, text = self._commands.execute_many([read_note(*name), found.read(name)], keep_errors=True)
        note = note if isinstance(note, str) else ""
        if isinstance(text, GearsError) and not is_wrong_type(text):
            return text
        if not isinstance(text, str):  # a missing or unreadable text is not split anyway
            gone = [forget_document(*name)] if text is None else _forgotten(name, found.record, note)
            self._commands.run_scripts(gone)
            return "deleted"
        version = "" if found.record is None else found.record.version
        document = _unchecked(name[0], text, found.record)
        if version != document.version:
            status = self._commands.run_script(adopt_document(document, name[1], version))[0]
            if status == "no_collection":
                self._commands.run_scripts(_settled(name, found.record, note))
                return _no_collection(name)
            if status == "stale":
                return "stale"
            note = str(len(text.encode()))  # the note that `adopt_document` writes
        call = fail_document(*name, document.version, reason, note=note)
        if self._commands.run_script(call)[0] == "stale":
            return "stale"
        self._failures.failed(name)
        error = failed_error(name[0], reason)
        self._commands.log(f"index: {error}", "warning")
        return error

    def _calls(self, name: Name, text: Any, record: DocumentRecord | None, note: str) -> list[ScriptCall] | str:
        """Return the scripts that index a text, or the final outcome as a string.

        If the text is already indexed, the only script deletes the document's change note `note`; without a note, the
        list is empty. A long document is indexed by this method itself, which then returns the outcome. The reason is
        that an index allows only a few *open* documents (documents whose parts are being sent).
        """
        if isinstance(text, GearsError):
            raise text
        if text is None:
            return [forget_document(*name)]
        document = _as_stored(name[0], text, record)
        is_same = record is not None and record.version == document.version
        if is_same and record is not None and record.is_current(SPLITTER_VERSION, ANALYZER_VERSION):
            return _settled(name, record, note)
        try:
            metadata = parse_metadata(document.metadata)
        except ValueError as error:
            raise _damaged(name, error) from error
        made = analysed(document.title, metadata, text)
        fields = pack_fields(filter_metadata(metadata))
        first = []
        if not is_same:
            first = [adopt_document(document, name[1], record.version if record is not None else "")]
            note = str(len(text.encode()))  # the note that `adopt_document` writes if the text is unchanged
        if not made.parts:
            return [*first, index_document(*name, document.version, made, fields, note=note)]
        # `adopt_document` writes the record of the new text. It also discards the parts of the document that an earlier
        # try has sent (the open parts), so it must run before the new parts are sent.
        status = self._commands.run_script(first[0])[0] if first else "stored"
        if status == "no_collection":
            raise _no_collection(name)
        place = parts.send(self._commands, name, made.parts, fields) if status == "stored" else None
        if place is None:
            return "stale"
        call = index_document(*name, document.version, made, b"", place=place, note=note)
        try:
            return str(self._commands.run_script(call)[0])
        except GearsError:
            parts.drop(self._commands, name, place)
            raise


@dataclass(frozen=True, slots=True)
class _Found:
    """The stored state of a document.

    Attributes:
        record: the document's record; None if the document has no record.
        size: the size of the text in bytes; 0 if the text is missing or is not a string.
        suspicion: the document's entry in `failures:{tag}`; None if no worker has ended while it indexed the document.
    """

    record: DocumentRecord | None
    size: int
    suspicion: Suspicion | None

    def read(self, name: Name) -> tuple[str, ...]:
        """Return the command that reads the text. If the text is too long, return the command that reads its length."""
        return ("GET" if self.size <= MAX_TEXT_BYTES else "STRLEN", paragraphs_key(*name))

    def fault(self, name: Name) -> InputTooLong | None:
        """Return the error if the text has more than `MAX_TEXT_BYTES`, so that it is not read; otherwise None."""
        if self.size <= MAX_TEXT_BYTES:
            return None
        return InputTooLong(
            f"text of document {document_name(name[0]).id[:100]!r} has {self.size} bytes, and a text has at most"
            f" {MAX_TEXT_LENGTH} code points: divide it into several documents; no question is answered from it"
        )


def _is_version(record: DocumentRecord, text: Any) -> bool:
    return isinstance(text, str) and document_version(record.title, record.metadata, text) == record.version


def _forgotten(name: Name, record: DocumentRecord | None, note: str) -> list[ScriptCall]:
    """Return the script that removes a document with an invalid text from the index and from the pending documents. If
    the document was never stored, return the script of `_settled`.
    """
    return _settled(name, None, note) if record is None else [forget_version(*name, record.version, note)]


def _settled(name: Name, record: DocumentRecord | None, note: str) -> list[ScriptCall]:
    """Return the script that deletes the change note of a document, so that the document is not indexed until its next
    change. Return an empty list if there is no note. `record` is None if the document has no record.
    """
    return [settle_note(*name, NO_VERSION if record is None else record.version, note)] if note else []


def analysed(title: str, metadata: Mapping[str, Any], text: str) -> IndexedText:
    """Split and analyse a text; return its sentence offsets, and its postings for the index."""
    spans = split_sentences(text)
    sentences = [text[start:end] for start, end in spans]
    fields = fields_of(title, metadata, [start for start, _ in spans])
    made = tuple(pack_parts(sentences, fields, parts.PART_BYTES))
    versions, offsets = (SPLITTER_VERSION, ANALYZER_VERSION, len(spans)), pack_offsets(text, spans)
    if sum(len(part) for _, part in made) > parts.MAX_WHOLE_BYTES:
        return IndexedText(*versions, offsets, b"", made)
    return IndexedText(*versions, offsets, b"".join(part for _, part in made))


def fault_of(document: str, text: Any) -> InvalidInput | InputTooLong | None:
    """Return the error of a text that a client has written with SET; None if the text is valid or missing.

    `text` is the reply of the shard to the command that reads the text. It may be an error reply.
    """
    what = f"of document {document_name(document).id[:100]!r}"
    if is_wrong_type(text):
        return InvalidInput(f"text {what} is not a string, but of a different type: no question is answered from it")
    if isinstance(text, bytes | bytearray):
        return InvalidInput(f"text {what} is not valid UTF-8: no question is answered from it")
    try:
        if isinstance(text, str):
            check_length(text, what)
    except InputTooLong as error:
        return InputTooLong(f"{error}; no question is answered from it")
    return None


def _damaged(name: Name, error: Exception) -> InvalidInput:
    document = document_name(name[0])
    return InvalidInput(
        f"the record of document {document.id[:100]!r} is damaged ({error}): no question is answered from it; write"
        " the document again"
    )


def _no_collection(name: Name) -> InvalidInput:
    document = document_name(name[0])
    return InvalidInput(
        f"no collection {document.collection!r}: the text of document {document.id[:100]!r} stays, but no question is"
        " answered from it; create the collection and write the text again"
    )


def _as_stored(document: str, text: str, record: DocumentRecord | None) -> DocumentInput:
    """Return the document with the new text, and the title and the metadata of its record, because a plain SET changes
    only the text.
    """
    name = document_name(document)
    if record is None:
        return check_document(name.id, text, collection=name.collection)
    return _unchecked(document, text, record)


def _unchecked(document: str, text: str, record: DocumentRecord | None) -> DocumentInput:
    """Return the document with the new text, and the title and the metadata of its record. Check only the id.

    Without a record, the title is empty, and the metadata has no fields.
    """
    name = document_name(document)
    check_document_id(name.id)
    if record is None:
        title, metadata = "", "{}"
        return DocumentInput(name.id, title, metadata, text, document_version(title, metadata, text), name.collection)
    version = document_version(record.title, record.metadata, text)
    return DocumentInput(name.id, record.title, record.metadata, text, version, name.collection)
