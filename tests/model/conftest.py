"""Fixtures for tests of models: texts, a network to train, and the use of one thread."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from qa_cluster.models.evaluation.latency import LENGTHS, measure_latency
from qa_cluster.models.examples.data import write_examples
from tests.model.toy_training import save_base, toy

QUESTIONS = (
    "What does the with statement do?",
    "When is __del__ called?",
    "Which exception is raised if the name is not found?",
    "What is returned by super()?",
    "How are default parameter values evaluated?",
    "Warum heißt die Sprache so?",
)


@pytest.fixture(scope="session")
def pairs() -> list[tuple[str, str]]:
    """480 pairs of question and context, with very different lengths."""
    text = " ".join(topics[name] for name in sorted(topics))
    sentences = [found for found in re.split(r"(?<=[.!?])\s+", text) if 10 < len(found) < 700]
    step = len(sentences) // 480
    return [(QUESTIONS[i % len(QUESTIONS)], sentences[i * step]) for i in range(480)]


@pytest.fixture(scope="session", autouse=True)
def little_time_for_little_networks() -> Iterator[None]:
    """Use one thread in PyTorch, which is fastest for small networks, and few rounds to measure latency."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(measure_latency, "__defaults__", (LENGTHS, 3))
        if find_spec("torch"):
            import torch

            torch.set_num_threads(1)
        yield


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT network to train."""
    return save_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with 600 questions to train on."""
    path = tmp_path_factory.mktemp("data") / "toy.jsonl.gz"
    write_examples(path, toy(600))
    return path
