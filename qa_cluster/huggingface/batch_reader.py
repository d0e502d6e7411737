"""`qa_cluster.BatchReader`: answers the questions of a batch from its contexts, for frameworks that process batches.

>>> from qa_cluster import BatchReader
>>> reader = BatchReader()
>>> found = reader({"question": ["Who wrote it?"], "context": ["Ada Lovelace wrote it in 1843."]})
>>> found["answer"].tolist(), found["start"].tolist(), found["no_answer"].tolist()
(['Ada Lovelace'], [0], [False])

A batch is a mapping of column names to columns: the dictionary of NumPy arrays that Ray's `map_batches` passes, a table
of pandas, or lists. The class depends on no framework.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from math import isnan
from os import PathLike
from typing import Any

import numpy as np

from qa_cluster.errors import InvalidInput

from .parameters import Parameters
from .pipeline import QuestionAnsweringPipeline, pipeline

OUTPUTS = ("answer", "score", "start", "end", "no_answer")
BATCH_SIZE = 16

# The pipelines of this process, by the arguments that load them.
_loaded: dict[tuple[Any, ...], QuestionAnsweringPipeline] = {}
_loading = threading.Lock()


class BatchReader:
    """Reads answers from the contexts of a batch. A reader is loaded once per process, when it is first needed.

    An object is small and can be pickled, because it only has the arguments. The main process of a framework can
    therefore send it to the framework's worker processes.

    Args:
        model: the folder of an exported reader; default: the bundled reader. The folder must exist on the host of every
            worker process.
        question, context: the names of the input columns.
        batch_size: the number of windows in one run of the model.
        threads: the number of threads of the runtime. Frameworks run one process per core, so the default is 1.
        runtime, device: as in `qa_cluster.pipeline`.
        no_answer: whether the result may be that the context has no answer.
        parameters: the parameters of `qa_cluster.pipeline`, such as `max_answer_len` and `doc_stride`.
    """

    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        *,
        question: str = "question",
        context: str = "context",
        batch_size: int = BATCH_SIZE,
        threads: int = 1,
        runtime: str | None = None,
        device: str | int | None = None,
        no_answer: bool = True,
        **parameters: int | bool,
    ) -> None:
        if "top_k" in parameters or "topk" in parameters:
            raise InvalidInput("top_k cannot be set: a row of the result has one answer")
        Parameters.of(parameters)
        self._inputs = (question, context)
        self._batch_size = batch_size
        self._load = (None if model is None else str(model), threads, runtime, device)
        self._parameters = parameters | {"handle_impossible_answer": no_answer}

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of the batch, and the columns `OUTPUTS` with one value for each row.

        An output replaces a column of the batch with the same name.

        `start` and `end` are code points of the context: ``context[start:end] == answer``. If the reader finds no
        answer, `answer` is empty, `start` and `end` are 0, and `score` is the probability that the context has no
        answer. A row whose question or context is null or empty is not read: it has the same values, but the score 0.

        Raises:
            InvalidInput: an input column is missing, or has values that are neither strings nor null.
        """
        questions, contexts = (_texts(batch, name) for name in self._inputs)
        rows = [row for row in range(len(questions)) if questions[row] and contexts[row]]
        found = self._answers([questions[row] for row in rows], [contexts[row] for row in rows])
        answers = np.full(len(questions), "", dtype=object)
        scores = np.zeros(len(questions), np.float64)
        starts, ends = np.zeros(len(questions), np.int64), np.zeros(len(questions), np.int64)
        for row, answer in zip(rows, found, strict=True):
            answers[row], scores[row] = answer["answer"], answer["score"]
            starts[row], ends[row] = answer["start"], answer["end"]
        no_answers = np.array([not answer for answer in answers], bool)
        outputs = dict(zip(OUTPUTS, (answers, scores, starts, ends, no_answers), strict=True))
        return {name: batch[name] for name in batch if name not in OUTPUTS} | outputs

    def _answers(self, questions: Sequence[str], contexts: Sequence[str]) -> list[dict[str, Any]]:
        if not questions:
            return []
        samples = [
            {"question": question, "context": context} for question, context in zip(questions, contexts, strict=True)
        ]
        found = self._pipeline()(samples, batch_size=self._batch_size, **self._parameters)
        return [found] if isinstance(found, dict) else list(found)

    def _pipeline(self) -> QuestionAnsweringPipeline:
        with _loading:
            if self._load not in _loaded:
                model, threads, runtime, device = self._load
                _loaded[self._load] = pipeline(model=model, threads=threads, runtime=runtime, device=device)
            return _loaded[self._load]


def _texts(batch: Mapping[str, Any], name: str) -> list[str]:
    """Return the texts of a column; an empty text for a null value."""
    if name not in batch:
        raise InvalidInput(f"the batch has no column {name!r}, its columns are {', '.join(map(str, batch))}")
    found: list[str] = []
    for row, value in enumerate(batch[name]):
        if isinstance(value, str):
            found.append(str(value))
        elif _is_null(value):
            found.append("")
        else:
            raise InvalidInput(f"column {name!r} must have strings, row {row} of the batch has {type(value).__name__}")
    return found


def _is_null(value: Any) -> bool:
    """Return whether a value is null: None, NaN, or the NA of pandas, which has no truth value."""
    return value is None or (isinstance(value, float) and isnan(value)) or type(value).__name__ == "NAType"
