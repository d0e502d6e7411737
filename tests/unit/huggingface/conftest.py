"""One pipeline for the tests of a file, and its answer to the pair that most tests use."""

from __future__ import annotations

from typing import Any

import pytest

from qa_cluster import pipeline
from qa_cluster.huggingface.pipeline import QuestionAnsweringPipeline
from tests.unit.huggingface.pairs import PAIR


@pytest.fixture(scope="session")
def qa() -> QuestionAnsweringPipeline:
    """The bundled reader, on one thread."""
    return pipeline("question-answering", threads=1)


@pytest.fixture(scope="session")
def ada(qa: QuestionAnsweringPipeline) -> dict[str, Any]:
    """The answer to `PAIR`."""
    return dict(qa(**PAIR))
