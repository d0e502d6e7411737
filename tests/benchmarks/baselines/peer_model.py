"""A bundled int8 model in OpenVINO, as the processes of the peers run it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from qa_cluster.reading.precisions import openvino_settings

from .peer_corpus import FloatArray

ROWS = 8  # that are computed at once, as in the workers of the shards
CORES = len(os.sched_getaffinity(0))

Arrays = dict[str, Any]


class Model:
    """A model in OpenVINO.

    With the hint ``LATENCY``, all cores compute one run at a time. With ``THROUGHPUT``, each core computes its own run.

    Attributes:
        rows: the limit of rows of a run. A question's passages fill one run of each stream.
    """

    def __init__(self, path: Path, precision: str, hint: str) -> None:
        streams = CORES if hint == "THROUGHPUT" else 1
        settings = {"PERFORMANCE_HINT": hint, "NUM_STREAMS": streams, "INFERENCE_NUM_THREADS": CORES}
        compiled = openvino.Core().compile_model(str(path), "CPU", settings | openvino_settings(precision))
        self._outputs = len(compiled.outputs)
        self._queue = openvino.AsyncInferQueue(compiled, streams)
        self._queue.set_callback(self._done)
        self.rows = max(1, ROWS // streams)

    def run(self, inputs: Iterable[Arrays]) -> list[list[FloatArray]]:
        """Return the outputs of each run. Only one thread at a time may call this method."""
        found: dict[int, list[FloatArray]] = {}
        for number, arrays in enumerate(inputs):
            self._queue.start_async(arrays, (number, found))
        self._queue.wait_all()
        return [found[number] for number in range(len(found))]

    def _done(self, request: Any, given: tuple[int, dict[int, list[FloatArray]]]) -> None:
        number, found = given
        found[number] = [np.array(request.get_output_tensor(output).data) for output in range(self._outputs)]
