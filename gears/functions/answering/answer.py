"""Reads sentences for the trigger `qa.read`, and when a client GETs a `bertqa...` key that is missing.

The model reads a sentence once, even if several clients ask for the same key at once (single flight). The worker stores
an answer only if the document still has the version that was read. If the document has changed, the worker reads the
new version for clients that asked after the read had started.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import orjson

from qa_cluster.documents.stored import SentenceRecord, parse_sentence_record, read_sentence, store_answer
from qa_cluster.errors import DeadlineExceeded, InferenceFailed, InputTooLong, InvalidInput, NotFound, QAError
from qa_cluster.gears.functions.calls import TriggerCall
from qa_cluster.gears.functions.readers.loaded import ShardReaders
from qa_cluster.gears.functions.readers.reader import Reader
from qa_cluster.gears.functions.shard.arguments import check_question, within_limit
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.functions.shard.slots import is_redirect
from qa_cluster.gears.inference.served import RunTimes
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import SentenceRef, answer_key, document_key, parse_answer_key, parse_sentence, slot
from qa_cluster.reading.passages import MAX_NEIGHBOURS
from qa_cluster.reading.readings import ReadSentence, is_valid, sentence_answer, valid_answer
from qa_cluster.scripts.calls import ScriptCall
from qa_cluster.shard_functions import (
    MAX_READ_SENTENCES,
    READ_TRIGGER,
    SENTENCE_ANSWER_TTL_OPTION,
    SENTENCE_ANSWER_TTL_SECONDS,
    SENTENCE_ANSWERS_MB,
    SENTENCE_ANSWERS_OPTION,
)

from .passage import PassageReader, passage_of
from .portions import SHORT_SENTENCES, Portions
from .timing import CallTimes

OPTIONS_AGE_SECONDS = 10.0
MAX_ATTEMPTS = 8
# The maximum time that a client's GET waits while the slot of its sentence is migrating.
MIGRATION_SECONDS = 5.0
MIGRATION_POLL_SECONDS = 0.02

_REDIRECT = re.compile(r"(?:MOVED|ASK) \d+ [^\s)]+|(?:TRYAGAIN|CLUSTERDOWN) .*")


@dataclass(frozen=True, slots=True)
class _Read:
    """The answer of a sentence as JSON (None if the sentence is missing), and the model runs that produced
    the answer.
    """

    value: bytes | None
    runs: Sequence[RunTimes] = ()


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A stored sentence with the neighbours that `reader` needs to read it. `record` is None if the sentence is
    missing.
    """

    record: SentenceRecord | None
    reader: Reader


class SentenceAnswers:
    """Answers of sentences, read by models and cached in keys."""

    def __init__(self, shard: ShardContext, readers: ShardReaders, passages: PassageReader, portions: Portions) -> None:
        self._commands = shard.commands
        self._slots = shard.slots
        self._names = shard.names
        self._readers = readers
        self._passages = passages
        self._portions = portions
        # The running reads by the key of their answer, and the keys of the reads that a second client has joined.
        self._running: dict[str, asyncio.Task[_Read]] = {}
        self._joined: set[str] = set()
        self._ttl_seconds = SENTENCE_ANSWER_TTL_SECONDS
        self._most_bytes = SENTENCE_ANSWERS_MB << 20
        self._options_read_at = -OPTIONS_AGE_SECONDS

    async def on_missing_answer(self, key: Any) -> bytes | str | None:
        """Return the reply to a client's GET of a missing answer: the answer or an error line. None: the reply is nil.

        The reply is nil if the key cannot be parsed, if its question is empty or a digest, or if there is no such
        sentence.
        """
        try:
            sentence, question, model = parse_answer_key(key)
        except (InvalidInput, TypeError):
            return None
        if not question.strip() or self._names.is_digest(question):
            return None
        self._portions.note_short()
        try:
            return await self._read_despite_migration(sentence, within_limit(question), model)
        except Exception as error:  # without this, the client would get nil instead of the error
            self._commands.log(f"answer: {error}", "warning")
            return _error_text(error)

    async def _read_despite_migration(self, sentence: SentenceRef, question: str, model: str) -> bytes | None:
        """Read a sentence; return its answer as JSON, or None if the sentence is missing.

        While the slot of the sentence is migrating to or from this shard, try again for up to `MIGRATION_SECONDS`. If
        the read does not succeed in this time, or the slot is now on another shard, raise the last error. During a
        migration, the servers would redirect an ordinary client back and forth.
        """
        deadline = time.monotonic() + MIGRATION_SECONDS
        while True:
            try:
                return (await self._read_once(sentence, question, model)).value
            except GearsError as error:
                if not is_redirect(error) or time.monotonic() > deadline:
                    raise
                number = slot(sentence.tag)
                view = self._slots.current(0)
                if not view.has(number) and number not in view.coming:
                    raise
            await asyncio.sleep(MIGRATION_POLL_SECONDS)

    async def on_read(self, call: TriggerCall) -> list[str]:
        """Trigger ``qa.read model question sentence.. [traceparent]``: return the answer or error of each sentence, as
        JSON.

        `model` is an id or ``id@revision``; empty means the default reader. If the reader is missing, the whole trigger
        fails. A sentence is ``<doc>:{tag}:<i>``. The worker reads a call with more than `SHORT_SENTENCES` sentences in
        several parts (`portions`). With a `traceparent`, the last item of the reply has the times of the call.
        """
        times = CallTimes.begin(call)
        arguments = call.arguments if times is None else call.arguments[:-1]
        if len(arguments) < 3:
            raise InvalidInput(
                f"{READ_TRIGGER} takes a model (empty: the default one), a question and at least one sentence key"
            )
        model, question, names = arguments[0], arguments[1], arguments[2:]
        if not isinstance(model, str):
            raise InvalidInput(f"model must be text, got {model!r}"[:200])
        question = check_question(question)
        if len(names) > MAX_READ_SENTENCES:
            raise InputTooLong(
                f"{READ_TRIGGER} got {len(names)} sentences, the limit of one call is {MAX_READ_SENTENCES}: divide them"
            )
        replies: list[str | BaseException] = []
        if len(names) <= SHORT_SENTENCES:
            self._portions.note_short()
            replies = await asyncio.gather(*self._start_all(question, names, model, times), return_exceptions=True)
        while len(replies) < len(names):
            async with self._portions.turn() as portion:
                part = names[len(replies) : len(replies) + portion.sentences]
                replies += await asyncio.gather(*self._start_all(question, part, model, times), return_exceptions=True)
        answers = [_error_text(reply) if isinstance(reply, BaseException) else reply for reply in replies]
        return answers if times is None else [*answers, orjson.dumps(times.report()).decode()]

    def _start_all(
        self, question: str, names: Sequence[Any], model: str, times: CallTimes | None
    ) -> list[asyncio.Future[str]]:
        """Start to read the sentences `names`; return a future for each, in the order of `names`.

        The result of a future is the answer of its sentence as JSON; otherwise the future has the error. One round trip
        fetches all cached answers. A second round trip fetches the sentences that have no valid cached answer.
        """
        parsed: list[SentenceRef | Exception] = []
        for name in names:
            try:
                parsed.append(parse_sentence(name))
            except (InvalidInput, TypeError) as error:
                parsed.append(error)
        with nullcontext() if times is None else times.step("answers"):
            found = self._cached(question, [item for item in parsed if isinstance(item, SentenceRef)], model)
        missing = [item for item in parsed if isinstance(item, SentenceRef) and item not in found]
        with nullcontext() if times is None else times.step("sentences"):
            fetched = self._fetch(question, missing, model) if missing else {}
        return [asyncio.ensure_future(self._one(item, question, model, found, fetched, times=times)) for item in parsed]

    async def _one(
        self,
        sentence: SentenceRef | Exception,
        question: str,
        model: str,
        cached: dict[SentenceRef, Any],
        fetched: dict[SentenceRef, _Fetched | Exception],
        *,
        times: CallTimes | None,
    ) -> str:
        if isinstance(sentence, Exception):
            raise sentence
        found = cached.get(sentence) or fetched[sentence]
        if isinstance(found, Exception):
            raise found
        if isinstance(found, dict):
            return orjson.dumps({**found, "cache": "shard"}).decode()
        done = await self._read_once(sentence, question, model, found)
        if times is not None:
            times.add(done.runs)
        if done.value is None:
            raise NotFound(f"no such sentence: {sentence}")
        return (done.value[:-1] + b',"cache":"miss"}').decode()

    def _cached(self, question: str, sentences: list[SentenceRef], model: str) -> dict[SentenceRef, Any]:
        """Return the valid cached answers by sentence. A sentence without a valid cached answer is left out.

        If the shard refuses the command that reads an answer, for example because the sentence is on another shard, the
        value is the error.
        """
        reader = self._readers.named(model)
        commands: list[tuple[str, ...]] = []
        name, key_model = self._names.name_of(question), self._readers.key_model(model, reader)
        for sentence in sentences:
            commands.append(("GET", answer_key(sentence, name, key_model)))
            commands.append(("HGET", document_key(sentence.document, sentence.tag), "version"))
        replies = self._commands.execute_many(commands, keep_errors=True)
        self._forget_slots_on_error(replies)
        revision = reader.manifest.reading_revision
        found: dict[SentenceRef, Any] = {}
        for sentence, value, version in zip(sentences, replies[::2], replies[1::2], strict=True):
            if isinstance(value, Exception):
                found[sentence] = value
            elif value is not None and (answer := valid_answer(value, version or "", revision)) is not None:
                found[sentence] = answer
        return found

    def _fetch(
        self, question: str, sentences: list[SentenceRef], model: str
    ) -> dict[SentenceRef, _Fetched | Exception]:
        """Return the stored sentences with their neighbours, by sentence.

        If the shard refuses the script that reads a sentence, for example because the sentence is on another shard, the
        value is the error.
        """
        reader = self._readers.named(model)
        key_model = self._readers.key_model(model, reader)
        replies = self._commands.run_scripts(
            [self._read_call(sentence, question, key_model, reader) for sentence in sentences]
        )
        self._forget_slots_on_error(replies)
        return {
            sentence: reply
            if isinstance(reply, Exception)
            else _Fetched(parse_sentence_record(sentence.index, reply), reader)
            for sentence, reply in zip(sentences, replies, strict=True)
        }

    def _read_call(self, sentence: SentenceRef, question: str, key_model: str, reader: Reader) -> ScriptCall:
        manifest = reader.manifest
        around = MAX_NEIGHBOURS if manifest.context_tokens else 0
        name = self._names.name_of(question)
        return read_sentence(sentence, name, key_model, around=around, metadata=manifest.passage_prefix)

    def _forget_slots_on_error(self, replies: Sequence[Any]) -> None:
        if any(isinstance(reply, GearsError) for reply in replies):
            self._slots.forget()

    def _read_once(
        self, sentence: SentenceRef, question: str, model: str, fetched: _Fetched | None = None
    ) -> asyncio.Future[_Read]:
        """Have a model read a sentence, and store the answer. If a read of the same answer is running, join this read.

        `fetched` is the stored sentence if the caller has already fetched it, otherwise None. The script that stores
        the answer checks that the sentence has not changed since it was fetched. The read runs in its own task, because
        the first client may disconnect while other clients still wait.
        """
        key = answer_key(sentence, question, model)
        task = self._running.get(key)
        if task is None or task.done():
            task = asyncio.get_running_loop().create_task(self._read(key, sentence, question, model, fetched))
            self._running[key] = task
            task.add_done_callback(lambda done: self._finished(key, done))
        else:
            self._joined.add(key)
        return asyncio.shield(task)

    def _finished(self, key: str, task: asyncio.Task[_Read]) -> None:
        if self._running.get(key) is task:
            del self._running[key]
            self._joined.discard(key)
        if not task.cancelled():
            # Retrieves the exception. Otherwise, asyncio reports an unretrieved exception if all clients have
            # disconnected.
            task.exception()

    async def _read(
        self, key: str, sentence: SentenceRef, question: str, model: str, fetched: _Fetched | None
    ) -> _Read:
        for attempt in range(MAX_ATTEMPTS):
            reader = self._readers.named(model)
            key_model = self._readers.key_model(model, reader)
            if fetched is None or attempt or fetched.reader is not reader:
                reply = self._commands.run_script(self._read_call(sentence, question, key_model, reader))
                fetched = _Fetched(parse_sentence_record(sentence.index, reply), reader)
            record = fetched.record
            if record is None:
                return _Read(None)
            if record.answer and is_valid(record.answer, record.version, reader.manifest.reading_revision):
                # Another read has stored the answer since the client sent its request.
                return _Read(record.answer.encode())
            passage = passage_of(record, reader)
            reading = await self._passages.read(sentence, record, passage, question, reader)
            if self._readers.named(model) is not reader or self._readers.key_model(model, reader) != key_model:
                continue
            truncated = reader.question(question).truncated
            value = sentence_answer(
                ReadSentence(sentence, record, passage, reading.best, reading.windows, truncated),
                model_id=reader.manifest.model_id,
                revision=reader.manifest.revision,
                reading_revision=reader.manifest.reading_revision,
                created=time.time(),
            )
            call = self._store_call(sentence, question, key_model, record, value)
            if key not in self._joined:
                # No second client has joined this read. The only client asked before the sentence was fetched. So the
                # answer is correct for this client, even if the script does not store it.
                self._commands.run_script_later(call)
                return _Read(value, reading.runs)
            if self._commands.run_script(call) == 1:
                return _Read(value, reading.runs)
        raise DeadlineExceeded(f"document {sentence.document_id[:100]!r} changes faster than it can be read")

    def _store_call(
        self, sentence: SentenceRef, question: str, key_model: str, record: SentenceRecord, value: bytes
    ) -> ScriptCall:
        if time.monotonic() - self._options_read_at > OPTIONS_AGE_SECONDS:
            self._ttl_seconds = self._option(SENTENCE_ANSWER_TTL_OPTION) or SENTENCE_ANSWER_TTL_SECONDS
            self._most_bytes = (self._option(SENTENCE_ANSWERS_OPTION) or SENTENCE_ANSWERS_MB) << 20
            self._options_read_at = time.monotonic()
        return store_answer(
            sentence,
            self._names.name_of(question),
            key_model,
            version=record.version,
            text=record.text,
            answer=value,
            ttl_seconds=self._ttl_seconds,
            most_bytes=self._most_bytes,
        )

    def _option(self, name: str) -> int:
        """Return the number in an option of the module (`RG.CONFIGSET`); 0 if the option is unset or not a number."""
        value = self._commands.config_get(name)
        return int(value) if value is not None and value.isdigit() else 0


def _error_text(error: BaseException) -> str:
    """Return an error as the text of an error reply: a ``-``, the error code and the message.

    If the message contains a redirect of the server (such as ``MOVED 12 host:port``), return only the redirect, so that
    the client can follow it.
    """
    if isinstance(error, QAError):
        return f"-{error.resp()}"
    redirect = _REDIRECT.search(str(error))
    if redirect:
        return f"-{redirect.group()}"
    return f"-{InferenceFailed(str(error) or type(error).__name__).resp()}"
