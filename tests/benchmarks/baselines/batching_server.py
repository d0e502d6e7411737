"""The same two models in one process, with the batching of other servers. A batch has texts of several questions.

`QA_BENCH_BATCHING` chooses how the waiting texts of a model become batches:

- `token-budget`, as in text-embeddings-inference: an idle model takes the pending texts in their order, as long as the
  padded batch has at most `BUDGET` tokens.
- `fixed-size`, as in service-streamer: the model waits for `SIZE` texts, but at most `LATENCY_SECONDS`.

`QA_BENCH_PASSAGES` is the folder of the passages. No policy sorts the windows of the reader by their lengths.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Condition, Thread
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .peer_ranking import Retriever
from .peer_reading import Reader

BUDGET = 2048
SIZE = 16
LATENCY_SECONDS = 0.01


class Batcher:
    """A queue of one model's texts, and the thread that computes them in batches."""

    def __init__(self, policy: str, run: Callable[[list[Any]], Sequence[Any]], length: Callable[[Any], int]) -> None:
        self._run, self._length = run, length
        self._next = {"token-budget": self._by_tokens, "fixed-size": self._by_size}[policy]
        self._waiting: deque[tuple[Any, Future[Any]]] = deque()
        self._changed = Condition()
        Thread(target=self._work, daemon=True).start()

    async def compute(self, texts: Sequence[Any]) -> list[Any]:
        """Return the result of each text."""
        given: list[tuple[Any, Future[Any]]] = [(text, Future()) for text in texts]
        with self._changed:
            self._waiting.extend(given)
            self._changed.notify()
        return list(await asyncio.gather(*(asyncio.wrap_future(future) for _, future in given)))

    def _by_tokens(self) -> int:
        """Return how many of the waiting texts fit into the budget."""
        longest = count = 0
        for text, _ in self._waiting:
            longest = max(longest, self._length(text))
            if count and longest * (count + 1) > BUDGET:
                break
            count += 1
        return count

    def _by_size(self) -> int:
        """Wait for a full batch, at most `LATENCY_SECONDS`; return how many texts are waiting then."""
        until = time.monotonic() + LATENCY_SECONDS
        while len(self._waiting) < SIZE and (left := until - time.monotonic()) > 0:
            self._changed.wait(left)
        return min(SIZE, len(self._waiting))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                taken = [self._waiting.popleft() for _ in range(self._next())]
            try:
                results = self._run([text for text, _ in taken])
            except Exception as error:
                for _, future in taken:
                    future.set_exception(error)
            else:
                for (_, future), result in zip(taken, results, strict=True):
                    future.set_result(result)


folder, policy = Path(os.environ["QA_BENCH_PASSAGES"]), os.environ["QA_BENCH_BATCHING"]
retriever, reader = Retriever(folder, "LATENCY"), Reader(folder, "LATENCY")
retriever.warm()
reader.warm()
encoding = Batcher(policy, retriever.embed, len)
reading = Batcher(policy, lambda windows: reader.run([windows])[0], lambda window: len(window.input_ids))


async def qa(request: Request) -> Response:
    """Answer one question."""
    question = request.query_params["question"]
    (vector,) = await encoding.compute([retriever.row(question)])
    found = retriever.rank(question, vector)
    windows = reader.windows(question, found)
    logits = await reading.compute([window for own in windows for window in own])
    answer = reader.answer(question, found, windows, logits)
    return Response(orjson.dumps(answer), media_type="application/json")


async def ready(_: Request) -> Response:
    """Say that the models are loaded."""
    return Response()


app = Starlette(routes=[Route("/qa", qa), Route("/openapi.json", ready)])
