"""Answers questions from contexts that the request contains: the trigger `qa.pipeline`, for `POST /models/{id}`.

A request has pairs of a question and a context. The worker cuts each pair into windows, the inputs that the model gets.
The windows wait in the same device queue as the sentences of questions. Each request reads its windows in portions, and
waits for a turn before each portion (`portions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import orjson

from qa_cluster.errors import InputTooLong, InvalidInput, ModelError, NotFound, QueueFull
from qa_cluster.gears.functions.calls import TriggerCall
from qa_cluster.gears.functions.readers.loaded import ShardReaders
from qa_cluster.gears.functions.readers.reader import Reader
from qa_cluster.huggingface.answers import Answer, Answers, Prepared, Preparer
from qa_cluster.huggingface.inputs import Sample
from qa_cluster.huggingface.parameters import Parameters
from qa_cluster.huggingface.request import SHARD_LIMITS, PipelineRequest, parse_request
from qa_cluster.reading.windows import Window
from qa_cluster.shard_functions import MAX_PIPELINE_REQUESTS, PIPELINE_TRIGGER

from .passage import PassageReader
from .portions import Portions

# The limit in code points, for one request and also for the sum of all requests. A prepared code point takes about 10
# to 60 bytes.
MAX_CHARS = 16_000_000
# The limit of a request in characters of JSON. It is higher than the limit in code points, because JSON can encode one
# code point as an escape of up to 12 characters.
MAX_JSON_CHARS = 2 * MAX_CHARS
# Tokenizing takes about a microsecond for each code point. Longer texts are tokenized on a thread, not on the event
# loop.
LOOP_CHARS = 8192


class PipelineRequests:
    """Handles the trigger `qa.pipeline`. Counts the running requests on this shard, and their size in code points."""

    def __init__(self, readers: ShardReaders, passages: PassageReader, portions: Portions) -> None:
        self._readers = readers
        self._passages = passages
        self._portions = portions
        self._requests = 0
        self._chars = 0

    async def on_pipeline(self, call: TriggerCall) -> str:
        """Trigger ``qa.pipeline model request``: return a JSON object with ``model`` (the name of the reader) and
        ``results`` (one for each pair of question and context).

        `model` is an id or ``id@revision``; empty means the default reader. `request` is JSON as in `POST
        /models/{id}`.
        """
        if len(call.arguments) != 2:
            raise InvalidInput(f"{PIPELINE_TRIGGER} takes a model (empty: the default one) and a request in JSON")
        model, text = call.arguments
        if not isinstance(model, str):
            raise InvalidInput(f"model must be text, got {model!r}"[:200])
        if not isinstance(text, str):
            raise InvalidInput("request is not valid UTF-8")
        if len(text) > MAX_JSON_CHARS:
            raise InputTooLong(f"request has {len(text)} characters of JSON, the limit is {MAX_JSON_CHARS}: divide it")
        try:
            request = parse_request(orjson.loads(text), SHARD_LIMITS)
        except orjson.JSONDecodeError as error:
            raise InvalidInput(f"request is not JSON: {error}") from error
        reader = self._reader(model)
        if self._requests >= MAX_PIPELINE_REQUESTS:
            raise QueueFull(
                f"this shard already has {MAX_PIPELINE_REQUESTS} pipeline requests, the limit: try again later"
            )
        chars = sum(len(sample.question_text) + len(sample.context_text) for sample in request.samples)
        if chars > MAX_CHARS:
            raise InputTooLong(f"inputs have {chars} characters, the limit of a request is {MAX_CHARS}: divide them")
        if self._chars + chars > MAX_CHARS:
            raise QueueFull(
                f"this shard already has pipeline requests of {self._chars} characters; this request has {chars} more,"
                f" and the limit of all requests together is {MAX_CHARS}: try again later"
            )
        self._requests += 1
        self._chars += chars
        try:
            results = await self._results(reader, request)
        finally:
            self._requests -= 1
            self._chars -= chars
        return orjson.dumps({"model": reader.manifest.name, "results": results}).decode()

    def _reader(self, model: str) -> Reader:
        try:
            return self._readers.named(model)
        except ModelError as error:
            if model:
                raise NotFound(str(error)) from error
            raise

    async def _results(self, reader: Reader, request: PipelineRequest) -> list[Answer | list[Answer]]:
        """Return the results of all pairs of question and context, in the order of the request.

        The method prepares all pairs (tokenizes them and cuts them into windows) before the model runs, so that an
        invalid pair makes the request fail early.
        """
        preparer = Preparer(reader.tokenizer, reader.manifest)
        prepared = []
        for number, sample in enumerate(request.samples):
            try:
                prepared.append(await _prepared(preparer, sample, request.parameters))
            except (InvalidInput, InputTooLong) as error:
                raise type(error)(f"inputs/{number}: {error}") from error
        return [await self._read(reader, pair, request.parameters) for pair in prepared]

    async def _read(self, reader: Reader, pair: Prepared, parameters: Parameters) -> Answer | list[Answer]:
        answers = Answers(pair, parameters)
        done = 0
        while done < len(pair.windows):
            async with self._portions.turn() as portion:
                part = first_windows(pair.windows[done:], portion.tokens)
                logits = await asyncio.gather(*(self._passages.run_window(reader, window) for window in part))
            for window, ((starts, ends), _) in zip(part, logits, strict=True):
                answers.add(window, starts, ends)
            done += len(part)
        return answers.result()


async def _prepared(preparer: Preparer, sample: Sample, parameters: Parameters) -> Prepared:
    question, context = sample.question_text, sample.context_text
    if len(question) + len(context) > LOOP_CHARS:
        return await asyncio.to_thread(
            preparer.prepare, question, context, parameters, max_windows=SHARD_LIMITS.windows
        )
    prepared = preparer.prepare(question, context, parameters, max_windows=SHARD_LIMITS.windows)
    await asyncio.sleep(0)  # many short texts must not block the event loop either
    return prepared


def first_windows(windows: Sequence[Window], most_tokens: int) -> Sequence[Window]:
    """Return the first windows that together have at most `most_tokens` tokens.

    The first window is always included, even if it has more tokens.
    """
    tokens = 0
    for count, window in enumerate(windows):
        tokens += len(window.input_ids)
        if count and tokens > most_tokens:
            return windows[:count]
    return windows
