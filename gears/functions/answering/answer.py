"""Reads sentences: for a GET of a `bertqa...` key that does not exist yet, and for the trigger `qa.read`.

However many clients ask for the same key at once, the model reads its sentence once. An answer is stored only if the
document still has the version that was read; otherwise, the new version is read if some clients asked after the
reading had begun.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import nullcontext
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

import orjson

from qa_cluster.documents.stored import SentenceRecord, parse_sentence_record, read_sentence, store_answer
from qa_cluster.errors import DeadlineExceeded, InferenceFailed, InputTooLong, InvalidInput, NotFound, QAError
from qa_cluster.gears.functions.answering import portions
from qa_cluster.gears.functions.answering.arguments import check_question, within_limit
from qa_cluster.gears.functions.answering.passage import passage_of, read_passage
from qa_cluster.gears.functions.answering.timing import CallTimes
from qa_cluster.gears.functions.readers import loaded
from qa_cluster.gears.functions.readers.reader import Reader
from qa_cluster.gears.functions.shard import naming, slots
from qa_cluster.gears.functions.shard.calls import run_script, run_script_later, run_scripts
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
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

SETTING_AGE_SECONDS = 10.0
MAX_ATTEMPTS = 8
# How long a client's GET waits while the slot of its sentence is moving.
SETTLE_SECONDS = 5.0
SETTLE_PAUSE_SECONDS = 0.02

_REDIRECT = re.compile(r"(?:MOVED|ASK) \d+ [^\s)]+|(?:TRYAGAIN|CLUSTERDOWN) .*")


@dataclass(frozen=True, slots=True)
class _Read:
    """The answer of a sentence as JSON, None if there is no such sentence, and the runs of the model for it."""

    value: bytes | None
    runs: Sequence[rg.RunTimes] = ()


@dataclass
class _Reads:
    """The reads under way, by the answer's key, and the module's settings of how answers are kept, as last read.

    Attributes:
        joined: the keys of running reads that further clients have joined.
    """

    running: dict[str, asyncio.Task[_Read]] = field(default_factory=dict)
    joined: set[str] = field(default_factory=set)
    ttl_seconds: int = SENTENCE_ANSWER_TTL_SECONDS
    most_bytes: int = SENTENCE_ANSWERS_MB << 20
    settings_read_at: float = -SETTING_AGE_SECONDS


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A sentence (None if it does not exist) with the neighbours that this reader needs."""

    record: SentenceRecord | None
    reader: Reader


async def on_missing_answer(record: dict[str, Any]) -> None:
    """Answer a client's GET of an answer that does not exist: read the sentence, store the answer and return it."""
    try:
        sentence, question, model = parse_answer_key(record["key"])
    except (InvalidInput, TypeError):
        return
    if not question.strip() or naming.is_digest(question):
        return
    portions.note_short()
    try:
        value = await _read_settled(sentence, within_limit(question), model)
    except Exception as error:  # the client must get the error: if the function only raised it, the reply would be nil
        rg.log(f"answer: {error}", "warning")
        rg.override_reply(_error_text(error))
        return
    if value is not None:
        rg.override_reply(value)


async def _read_settled(sentence: SentenceRef, question: str, model: str) -> bytes | None:
    """`read`, but wait while the sentence's slot moves: a stock client would be redirected back and forth."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        try:
            return (await read(sentence, question, model)).value
        except rg.error as error:
            if not slots.is_redirect(error) or time.monotonic() > deadline:
                raise
            number = slot(sentence.tag)
            view = slots.current(0)
            if not view.has(number) and number not in view.coming:
                raise
        await asyncio.sleep(SETTLE_PAUSE_SECONDS)


async def on_read(arguments: list[Any]) -> list[str]:
    """Trigger ``qa.read model question sentence.. [traceparent]``: for each ``<doc>:{tag}:<i>`` its answer or an error.

    `model` is empty for the default one, else an id or ``id@revision``; without that model the whole trigger fails. The
    replies are JSON; with a `traceparent` one more follows, the times of the call. More sentences than a question reads
    at once are read in portions.
    """
    times = CallTimes.begin(arguments)
    if times is not None:
        arguments = arguments[:-1]
    if len(arguments) < 4:
        raise InvalidInput(
            f"{READ_TRIGGER} takes a model (empty: the default one), a question and at least one sentence key"
        )
    model, question, names = arguments[1], arguments[2], arguments[3:]
    if not isinstance(model, str):
        raise InvalidInput(f"model must be text, got {model!r}"[:200])
    question = check_question(question)
    if len(names) > MAX_READ_SENTENCES:
        raise InputTooLong(
            f"{READ_TRIGGER} got {len(names)} sentences, the limit of one call is {MAX_READ_SENTENCES}: divide them"
        )
    replies: list[str | BaseException] = []
    if len(names) <= portions.SHORT_SENTENCES:
        portions.note_short()
        replies = await asyncio.gather(*_start_all(question, names, model, times), return_exceptions=True)
    while len(replies) < len(names):
        async with portions.turn() as portion:
            part = names[len(replies) : len(replies) + portion.sentences]
            replies += await asyncio.gather(*_start_all(question, part, model, times), return_exceptions=True)
    answers = [_error_text(reply) if isinstance(reply, BaseException) else reply for reply in replies]
    return answers if times is None else [*answers, orjson.dumps(times.report()).decode()]


def _start_all(question: str, names: Sequence[Any], model: str, times: CallTimes | None) -> list[asyncio.Future[str]]:
    """Fetch all cached answers in one round trip and all other sentences in another; start to read these together."""
    parsed: list[SentenceRef | Exception] = []
    for name in names:
        try:
            parsed.append(parse_sentence(name))
        except (InvalidInput, TypeError) as error:
            parsed.append(error)
    with nullcontext() if times is None else times.step("answers"):
        found = _cached(question, [item for item in parsed if isinstance(item, SentenceRef)], model)
    missing = [item for item in parsed if isinstance(item, SentenceRef) and item not in found]
    with nullcontext() if times is None else times.step("sentences"):
        fetched = _fetch(question, missing, model) if missing else {}
    return [asyncio.ensure_future(_one(item, question, model, found, fetched, times=times)) for item in parsed]


async def _one(
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
    done = await read(sentence, question, model, found)
    if times is not None:
        times.add(done.runs)
    if done.value is None:
        raise NotFound(f"no such sentence: {sentence}")
    return (done.value[:-1] + b',"cache":"miss"}').decode()


def _cached(question: str, sentences: list[SentenceRef], model: str) -> dict[SentenceRef, Any]:
    """The valid cached answers by sentence; an error in place of the answer where a sentence is not on this shard."""
    reader = loaded.named(model)
    commands: list[tuple[str, ...]] = []
    name = naming.name_of(question)
    for sentence in sentences:
        commands.append(("GET", answer_key(sentence, name, _place(model, reader))))
        commands.append(("HGET", document_key(sentence.document, sentence.tag), "version"))
    replies = _each(commands)
    revision = reader.manifest.reading_revision
    found: dict[SentenceRef, Any] = {}
    for sentence, value, version in zip(sentences, replies[::2], replies[1::2], strict=True):
        if isinstance(value, Exception):
            found[sentence] = value
        elif value is not None and (answer := valid_answer(value, version or "", revision)) is not None:
            found[sentence] = answer
    return found


def _fetch(question: str, sentences: list[SentenceRef], model: str) -> dict[SentenceRef, _Fetched | Exception]:
    """What is needed to read the sentences; an error where a sentence is not on this shard."""
    reader = loaded.named(model)
    place = _place(model, reader)
    replies = run_scripts([_read_call(sentence, question, place, reader) for sentence in sentences])
    if any(isinstance(reply, rg.error) for reply in replies):
        slots.forget()
    return {
        sentence: reply
        if isinstance(reply, Exception)
        else _Fetched(parse_sentence_record(sentence.index, reply), reader)
        for sentence, reply in zip(sentences, replies, strict=True)
    }


def _read_call(sentence: SentenceRef, question: str, place: str, reader: Reader) -> ScriptCall:
    manifest = reader.manifest
    around = MAX_NEIGHBOURS if manifest.context_tokens else 0
    name = naming.name_of(question)
    return read_sentence(sentence, name, place, around=around, metadata=manifest.passage_prefix)


def _place(model: str, reader: Reader) -> str:
    """The model in the keys of the answers: empty for the default one, also if `model` is its full name."""
    return "" if model == reader.name and loaded.is_default(reader) else model


def _each(commands: Sequence[Sequence[object]]) -> list[Any]:
    """The replies, with an error in the place of each command that was refused."""
    replies = rg.execute_many(commands, keep_errors=True)
    if any(isinstance(reply, rg.error) for reply in replies):
        slots.forget()
    return replies


def read(sentence: SentenceRef, question: str, model: str, fetched: _Fetched | None = None) -> asyncio.Future[_Read]:
    """The answer of a sentence, read by a model and stored.

    `fetched` is the sentence if it has just been fetched. It may have changed since: storing the answer checks that.

    The read runs in a task of its own, outside of any execution: the first client may go away while others still wait.
    """
    key = answer_key(sentence, question, model)
    reads = state.of(_Reads)
    task = reads.running.get(key)
    if task is None or task.done():
        task = asyncio.get_running_loop().create_task(_read(sentence, question, model, fetched), context=Context())
        reads.running[key] = task
        task.add_done_callback(lambda done: _finished(key, done))
    else:
        reads.joined.add(key)
    return asyncio.shield(task)


def _finished(key: str, task: asyncio.Task[_Read]) -> None:
    reads = state.of(_Reads)
    if reads.running.get(key) is task:
        del reads.running[key]
        reads.joined.discard(key)
    if not task.cancelled():
        # Retrieved here, so that asyncio does not report an error as never retrieved when all clients have gone.
        task.exception()


async def _read(sentence: SentenceRef, question: str, model: str, fetched: _Fetched | None) -> _Read:
    for attempt in range(MAX_ATTEMPTS):
        reader = loaded.named(model)
        place = _place(model, reader)
        if fetched is None or attempt or fetched.reader is not reader:
            reply = run_script(_read_call(sentence, question, place, reader))
            fetched = _Fetched(parse_sentence_record(sentence.index, reply), reader)
        record = fetched.record
        if record is None:
            return _Read(None)
        if record.answer and is_valid(record.answer, record.version, reader.manifest.reading_revision):
            # Another read stored it between the client's request and this one.
            return _Read(record.answer.encode())
        passage = passage_of(record, reader)
        reading = await read_passage(sentence, record, passage, question, reader)
        if loaded.named(model) is not reader or _place(model, reader) != place:
            continue
        value = sentence_answer(
            ReadSentence(sentence, record, passage, reading.best, reading.windows, reader.question(question).truncated),
            model_id=reader.manifest.model_id,
            revision=reader.manifest.revision,
            reading_revision=reader.manifest.reading_revision,
            created=time.time(),
        )
        call = store_answer(
            sentence,
            naming.name_of(question),
            place,
            version=record.version,
            text=record.text,
            answer=value,
            ttl_seconds=_keeping().ttl_seconds,
            most_bytes=_keeping().most_bytes,
        )
        if answer_key(sentence, question, model) not in state.of(_Reads).joined:
            # All clients asked before the sentence was fetched: the answer is right for them even if it is not stored.
            run_script_later(call)
            return _Read(value, reading.runs)
        if run_script(call) == 1:
            return _Read(value, reading.runs)
    raise DeadlineExceeded(f"document {sentence.document_id[:100]!r} changes faster than it can be read")


def _keeping() -> _Reads:
    """How long answers are kept, and how many bytes of them in a partition."""
    reads = state.of(_Reads)
    if time.monotonic() - reads.settings_read_at > SETTING_AGE_SECONDS:
        reads.ttl_seconds = _option(SENTENCE_ANSWER_TTL_OPTION) or SENTENCE_ANSWER_TTL_SECONDS
        reads.most_bytes = (_option(SENTENCE_ANSWERS_OPTION) or SENTENCE_ANSWERS_MB) << 20
        reads.settings_read_at = time.monotonic()
    return reads


def _option(name: str) -> int:
    """A number among the module's options; 0 if it is none."""
    value = rg.config_get(name)
    return int(value) if value is not None and value.isdigit() else 0


def _error_text(error: BaseException) -> str:
    """The text of an error reply."""
    if isinstance(error, QAError):
        return f"-{error.resp()}"
    redirect = _REDIRECT.search(str(error))
    if redirect:
        return f"-{redirect.group()}"
    return f"-{InferenceFailed(str(error) or type(error).__name__).resp()}"
