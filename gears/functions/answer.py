"""Reads sentences: what answers a GET of a `bertqa...` key that is not there yet, and the trigger `qa.read`.

However many clients ask for the same key at once, the model reads it once. An answer is kept only if the version of the
document it was read from still stands when it is stored; else, for who began to ask only then, the new one is read.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from contextvars import Context
from typing import Any

import orjson
from qa_cluster.gears import api as rg
from qa_cluster.gears.functions import reader as readers
from qa_cluster.gears.functions import slots
from qa_cluster.gears.functions.calls import run_script, run_script_later
from qa_cluster.gears.functions.reader import Reader
from qa_cluster.gears.functions.valid_answer import valid_answer

from qa_cluster.documents import SentenceRecord, parse_sentence, read_sentence, store_answer
from qa_cluster.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InputTooLong,
    InvalidInput,
    ModelError,
    NotFound,
    QAError,
)
from qa_cluster.keys import (
    SentenceRef,
    answer_key,
    document_key,
    parse_answer_key,
    slot,
)
from qa_cluster.keys import (
    parse_sentence as parse_sentence_key,
)
from qa_cluster.reading import Reading, best_of_windows
from qa_cluster.tokenization import StoredSentence, unpack_sentence
from qa_cluster.windows import Window

TTL_SETTING = "qa.answer-ttl-seconds"
DEFAULT_TTL_SECONDS = 86400
SETTING_AGE_SECONDS = 10.0
MAX_QUESTION_LENGTH = 4096
MAX_ATTEMPTS = 8
# How long the reader of a sentence is kept waiting while its slot is on its way.
SETTLE_SECONDS = 5.0
SETTLE_PAUSE_SECONDS = 0.02
# The score of a sentence in which there is nothing to answer with.
NO_SPAN_SCORE = -100.0

_REDIRECT = re.compile(r"(?:MOVED|ASK) \d+ [^\s)]+|(?:TRYAGAIN|CLUSTERDOWN) .*")
_running: dict[str, asyncio.Task[bytes | None]] = {}
# Keys of running reads that somebody joined after they had begun.
_joined: set[str] = set()
_ttl: tuple[float, int] = (-SETTING_AGE_SECONDS, DEFAULT_TTL_SECONDS)


async def on_missing_answer(record: dict[str, Any]) -> None:
    """A client reads an answer that is not there: read the sentence, keep the answer and give it to the client."""
    try:
        sentence, question, _ = parse_answer_key(record["key"])
    except (InvalidInput, TypeError):
        return
    if not question.strip():
        return
    try:
        value = await _read_settled(sentence, question)
    except Exception as error:  # the client must learn of it: an error of the function alone would leave it with nil
        rg.log(f"answer: {error}", "warning")
        rg.override_reply(_error_text(error))
        return
    if value is not None:
        rg.override_reply(value)


async def _read_settled(sentence: SentenceRef, question: str) -> bytes | None:
    """`read`, but a sentence whose slot is on its way is waited for: a stock client would be sent to and fro."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        try:
            return await read(sentence, question)
        except rg.error as error:
            if not slots.is_redirect(error) or time.monotonic() > deadline:
                raise
            number = slot(sentence.tag)
            view = slots.current(0)
            if not view.has(number) and number not in view.coming:
                raise
        await asyncio.sleep(SETTLE_PAUSE_SECONDS)


async def on_read(arguments: list[Any]) -> list[str]:
    """Trigger ``qa.read question sentence..``: for each ``<doc>:{tag}:<i>`` its answer as JSON, or an error."""
    if len(arguments) < 3:
        raise InvalidInput("qa.read takes a question and at least one sentence key")
    question, names = arguments[1], arguments[2:]
    if not isinstance(question, str) or not question.strip():
        raise InvalidInput(f"question must be text that is not empty, got {question!r}"[:200])
    replies = await asyncio.gather(*_start_all(question, names), return_exceptions=True)
    return [_error_text(reply) if isinstance(reply, BaseException) else reply for reply in replies]


def _start_all(question: str, names: list[Any]) -> list[asyncio.Future[str]]:
    """All cached answers in one round trip, all other sentences in another; these are read at once, as one batch."""
    parsed: list[SentenceRef | Exception] = []
    for name in names:
        try:
            parsed.append(parse_sentence_key(name))
        except (InvalidInput, TypeError) as error:
            parsed.append(error)
    found = _cached(question, [item for item in parsed if isinstance(item, SentenceRef)])
    missing = [item for item in parsed if isinstance(item, SentenceRef) and item not in found]
    records = _records(question, missing) if missing else {}
    return [asyncio.ensure_future(_one(item, question, found, records)) for item in parsed]


async def _one(
    sentence: SentenceRef | Exception,
    question: str,
    cached: dict[SentenceRef, Any],
    records: dict[SentenceRef, SentenceRecord | Exception | None],
) -> str:
    if isinstance(sentence, Exception):
        raise sentence
    found = cached.get(sentence)
    if found is None:
        found = records[sentence]
    if isinstance(found, Exception):
        raise found
    if isinstance(found, dict):
        return orjson.dumps({**found, "cache": "shard"}).decode()
    value = await read(sentence, question, found)
    if value is None:
        raise NotFound(f"no such sentence: {sentence}")
    return (value[:-1] + b',"cache":"miss"}').decode()


def _cached(question: str, sentences: list[SentenceRef]) -> dict[SentenceRef, Any]:
    """Cached answers that belong to the version and the model of now; an error for what is not on this shard."""
    commands: list[tuple[str, ...]] = []
    for sentence in sentences:
        commands.append(("GET", answer_key(sentence, question)))
        commands.append(("HGET", document_key(sentence.document_id, sentence.tag), "version"))
    replies = _each(commands)
    revision = readers.current().manifest.revision
    found: dict[SentenceRef, Any] = {}
    for sentence, value, version in zip(sentences, replies[::2], replies[1::2], strict=True):
        if isinstance(value, Exception):
            found[sentence] = value
        elif value is not None and (answer := valid_answer(value, version or "", revision)) is not None:
            found[sentence] = answer
    return found


def _records(question: str, sentences: list[SentenceRef]) -> dict[SentenceRef, SentenceRecord | Exception | None]:
    """What is needed to read the sentences; None where there is none, an error for what is not on this shard."""
    replies = _each([read_sentence(sentence, question).command() for sentence in sentences])
    return {
        sentence: reply if isinstance(reply, Exception) else parse_sentence(reply)
        for sentence, reply in zip(sentences, replies, strict=True)
    }


def _each(commands: Sequence[Sequence[object]]) -> list[Any]:
    """The replies, with an error in the place of each command that was refused."""
    try:
        return rg.execute_many(commands)
    except rg.error:
        slots.forget()
    replies: list[Any] = []
    for command in commands:
        try:
            replies += rg.execute_many([command])
        except rg.error as error:
            replies.append(error)
    return replies


def read(sentence: SentenceRef, question: str, record: SentenceRecord | None = None) -> asyncio.Future[bytes | None]:
    """The answer of a sentence as JSON, read by the model and stored; None where there is no such sentence.

    `record` is the sentence if it has just been read; whether it still stands is checked when the answer is stored.

    It runs in a task of its own, outside of any execution: the first who asks may go away, the others still wait.
    """
    key = answer_key(sentence, question)
    task = _running.get(key)
    if task is None or task.done():
        task = asyncio.get_running_loop().create_task(_read(sentence, question, record), context=Context())
        _running[key] = task
        task.add_done_callback(lambda done: _finished(key, done))
    else:
        _joined.add(key)
    return asyncio.shield(task)


def _finished(key: str, task: asyncio.Task[bytes | None]) -> None:
    if _running.get(key) is task:
        del _running[key]
        _joined.discard(key)
    if not task.cancelled():
        # Fetched here, so that an error whose clients have all gone is not reported as never retrieved.
        task.exception()


async def _read(sentence: SentenceRef, question: str, record: SentenceRecord | None) -> bytes | None:
    if len(question) > MAX_QUESTION_LENGTH:
        raise InputTooLong(f"question has {len(question)} code points, the limit is {MAX_QUESTION_LENGTH}")
    for attempt in range(MAX_ATTEMPTS):
        if record is None or attempt:
            record = parse_sentence(run_script(read_sentence(sentence, question)))
        if record is None:
            return None
        reader = readers.current()
        if record.answer and valid_answer(record.answer, record.version, reader.manifest.revision):
            # Asked for before it was stored, and taken up only after that.
            return record.answer.encode()
        stored = _tokens(sentence, record, reader)
        tokens = reader.question(question)
        windows = reader.pairs.windows(tokens, stored.tokens)
        outputs = await asyncio.gather(*(_run_model(reader, window) for window in windows))
        if readers.if_loaded() is not reader:
            continue
        reading = best_of_windows(
            windows,
            outputs,
            (stored.tokens.starts, stored.tokens.ends),
            record.text,
            max_answer_tokens=reader.manifest.max_answer_tokens,
        )
        value = _answer(sentence, record, stored, reading, reader, truncated=tokens.truncated)
        call = store_answer(
            sentence, question, version=record.version, text=record.text, answer=value, ttl_seconds=_ttl_seconds()
        )
        if answer_key(sentence, question) not in _joined:
            # Who asked did so before the sentence was read: the answer is right for them whether or not it is kept.
            run_script_later(call)
            return value
        if run_script(call) == 1:
            return value
    raise DeadlineExceeded(f"document {sentence.document_id[:100]!r} changes faster than it can be read")


def _tokens(sentence: SentenceRef, record: SentenceRecord, reader: Reader) -> StoredSentence:
    """The stored tokens, or new ones where they are missing or of another tokenizer."""
    fingerprint = reader.tokenizer.fingerprint
    if record.tensor is not None:
        stored = unpack_sentence(record.tensor)
        if stored.fingerprint == fingerprint and stored.end - stored.start == len(record.text):
            return stored
        start, end = stored.start, stored.end
    else:
        spans = json.loads(record.spans or "[]")
        start, end = spans[sentence.index] if sentence.index < len(spans) else (0, len(record.text))
    return StoredSentence(fingerprint, start, end, reader.tokenizer.encode_text(record.text))


async def _run_model(reader: Reader, window: Window) -> tuple[Any, Any]:
    arrays = reader.pairs.batch([window], length_step=1)  # the batcher pads
    if reader.model is None:
        raise ModelError(
            f"no model on this shard: only tokenizer and manifest of {reader.manifest.model_id!r} are here"
        )
    try:
        outputs = await reader.model.run([arrays[name] for name in reader.manifest.inputs])
    except rg.error as error:
        readers.forget()
        raise InferenceFailed(f"model of {reader.manifest.model_id!r} could not be run: {error}") from error
    start, end = (output.reshape(-1) for output in outputs[:2])
    return start, end


def _answer(
    sentence: SentenceRef,
    record: SentenceRecord,
    stored: StoredSentence,
    reading: Reading,
    reader: Reader,
    *,
    truncated: bool,
) -> bytes:
    span = reading.spans[0] if reading.spans else None
    start, end = (stored.start + span.start, stored.start + span.end) if span else (stored.start, stored.start)
    return orjson.dumps(
        {
            "answer": record.text[span.start : span.end] if span else "",
            "score": round(span.score, 4) if span else NO_SPAN_SCORE,
            "logit": round(span.logit, 4) if span else NO_SPAN_SCORE,
            "start": start,
            "end": end,
            "no_answer_score": round(reading.null_logit, 4),
            "document_id": sentence.document_id,
            "document_version": record.version,
            "title": record.title,
            "sentence": record.text,
            "sentence_index": sentence.index,
            "sentence_start": stored.start,
            "sentence_end": stored.end,
            "model": {"id": reader.manifest.model_id, "revision": reader.manifest.revision},
            "created": round(time.time(), 3),
            "truncated": truncated,
        }
    )


def _ttl_seconds() -> int:
    global _ttl  # noqa: PLW0603 (one setting, read again every few seconds)
    if time.monotonic() - _ttl[0] > SETTING_AGE_SECONDS:
        value = rg.config_get(TTL_SETTING)
        _ttl = (time.monotonic(), int(value) if value and value.isdigit() and int(value) > 0 else DEFAULT_TTL_SECONDS)
    return _ttl[1]


def _error_text(error: BaseException) -> str:
    """An error as the text that becomes an error reply."""
    if isinstance(error, QAError):
        return f"-{error.resp()}"
    redirect = _REDIRECT.search(str(error))
    if redirect:
        return f"-{redirect.group()}"
    return f"-{InferenceFailed(str(error) or type(error).__name__).resp()}"
