"""The strong peer: a mosec server with two stages, one process for each model, and dynamic batching in both.

`QA_BENCH_PASSAGES` is the folder of the passages. `QA_BENCH_PEER` is JSON with the settings: OpenVINO's `hint`, the
`batch` (the limit of questions that a stage takes together) and the `wait` (how many milliseconds it waits for them).
Options of the command line are mosec's: `--port`, `--timeout`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from mosec import Server, Worker

from .peer_ranking import Found, Retriever
from .peer_reading import Reader

FOLDER = Path(os.environ["QA_BENCH_PASSAGES"])
SETTINGS = json.loads(os.environ["QA_BENCH_PEER"])


class Find(Worker):
    """The process of the encoder: embeds questions and ranks passages."""

    def __init__(self) -> None:
        super().__init__()
        self._retriever = Retriever(FOLDER, SETTINGS["hint"])
        self._retriever.warm()

    def forward(self, data: Sequence[dict[str, str]]) -> list[tuple[str, Found]]:
        """The best passages of each question."""
        questions = [each["question"] for each in data]
        return list(zip(questions, self._retriever.find(questions), strict=True))


class Read(Worker):
    """The process of the reader: reads the best passages of all questions that wait."""

    def __init__(self) -> None:
        super().__init__()
        self._reader = Reader(FOLDER, SETTINGS["hint"])
        self._reader.warm()

    def forward(self, data: Sequence[tuple[str, Found]]) -> list[dict[str, Any]]:
        """The answer to each question."""
        return self._reader.read(data)

    def serialize(self, data: Any) -> bytes:
        """The body of a reply; mosec's own JSON is slower."""
        return orjson.dumps(data)


if __name__ == "__main__":
    server = Server()
    for worker in (Find, Read):
        server.append_worker(worker, max_batch_size=SETTINGS["batch"], max_wait_time=SETTINGS["wait"], route="/qa")
    server.run()
