"""BatchReader: columns in, columns out, as Ray and Spark pass them; the reader is loaded once per process."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

from qa_cluster import BatchReader, pipeline
from qa_cluster.errors import InvalidInput
from qa_cluster.huggingface import batch_reader

CONTEXT = "Ada Lovelace wrote the first program in 1843. Babbage designed the engine."
BATCH = {
    "id": np.array([1, 2, 3, 4]),
    "question": np.array(["Who wrote the first program?", "When was it written?", None, ""], dtype=object),
    "context": np.array([CONTEXT] * 4, dtype=object),
}


def test_the_answers_are_those_of_the_pipeline() -> None:
    found = BatchReader()(BATCH)
    expected = pipeline("question-answering")(
        [{"question": BATCH["question"][row], "context": CONTEXT} for row in range(2)], handle_impossible_answer=True
    )
    assert list(found) == ["id", "question", "context", "answer", "score", "start", "end", "no_answer"]
    assert found["id"] is BATCH["id"]
    for row, answer in enumerate(expected):
        assert found["answer"][row] == answer["answer"] == CONTEXT[found["start"][row] : found["end"][row]]
        assert found["score"][row] == pytest.approx(answer["score"], abs=1e-3)
    assert found["answer"].tolist()[0] == "Ada Lovelace"
    assert found["no_answer"].tolist() == [False, False, True, True]
    for name, value in (("answer", ""), ("score", 0.0), ("start", 0), ("end", 0)):
        assert found[name][2:].tolist() == [value, value]
    assert [found[name].dtype.kind for name in batch_reader.OUTPUTS] == ["O", "f", "i", "i", "b"]


def test_a_context_without_an_answer() -> None:
    batch = {"question": ["Who won the world cup in 1954?"], "context": ["Bread is made of flour, water and salt."]}
    found = BatchReader()(batch)
    assert found["no_answer"].tolist() == [True] and found["answer"].tolist() == [""] and found["score"][0] > 0.5
    forced = BatchReader(no_answer=False)(batch)
    assert forced["no_answer"].tolist() == [False] and forced["answer"][0] in batch["context"][0]


def test_lists_other_names_and_one_row() -> None:
    found = BatchReader(question="q", context="c")({"q": ["Who wrote it?"], "c": ["Ada wrote it."], "answer": ["old"]})
    assert list(found) == ["q", "c", *batch_reader.OUTPUTS] and found["answer"].tolist() == ["Ada"]
    assert [len(column) for column in BatchReader()({"question": [], "context": []}).values()] == [0] * 7


def test_each_process_loads_a_reader_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    monkeypatch.setattr(batch_reader, "_loaded", {})
    monkeypatch.setattr(batch_reader, "pipeline", lambda **given: loads.append(given) or (lambda samples, **_: []))
    reader = BatchReader()
    assert loads == []
    sent = pickle.loads(pickle.dumps(reader))
    threads = [threading.Thread(target=each._pipeline) for each in (reader, sent, BatchReader(batch_size=2)) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [{"model": None, "threads": 1, "runtime": None, "device": None}]
    BatchReader(threads=2)._pipeline()
    assert len(loads) == 2


def test_wrong_columns_and_arguments() -> None:
    with pytest.raises(InvalidInput, match="no column 'context', its columns are question, text"):
        BatchReader()({"question": ["Who?"], "text": ["x"]})
    with pytest.raises(InvalidInput, match="column 'context' must have strings, row 0 of the batch has int"):
        BatchReader()({"question": ["Who?"], "context": [7]})
    with pytest.raises(InvalidInput, match="top_k cannot be set"):
        BatchReader(top_k=3)
    with pytest.raises(InvalidInput, match="unknown parameter 'doc_strid'"):
        BatchReader(doc_strid=3)
