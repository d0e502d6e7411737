"""int8 against plain PyTorch float32 on real questions: within one point of F1.

Needs the `export` extra, the checkpoint's folder in QA_TEST_CHECKPOINT and a SQuAD-format file in QA_TEST_QUESTIONS.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from qa_cluster.models.checkpoint import load_checkpoint, torch_runner
from qa_cluster.models.evaluate import Reading, score, silent
from qa_cluster.models.examples import load_examples
from qa_cluster.models.runtimes import RUNTIMES, open_runner
from qa_cluster.models.windows import PairEncoder

from qa_cluster.manifest import MODEL_FILE, Manifest

pytest.importorskip("torch", reason="the export extra is not installed")
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


def test_int8_is_within_a_point_of_pytorch(reader: Path, manifest: Manifest, encoder: PairEncoder) -> None:
    places = os.environ.get("QA_TEST_CHECKPOINT"), os.environ.get("QA_TEST_QUESTIONS")
    if not all(places):
        pytest.skip("QA_TEST_CHECKPOINT and QA_TEST_QUESTIONS are not set")
    checkpoint, questions = (Path(str(place)) for place in places)
    examples = load_examples(questions)
    reference = Reading(encoder, torch_runner(load_checkpoint(str(checkpoint)).network), manifest.max_answer_tokens)
    expected = score(reference.predict(examples, silent, ""), examples).f1
    for runtime in RUNTIMES:
        runner = open_runner(reader / MODEL_FILE, runtime, threads=2)
        found = score(Reading(encoder, runner, manifest.max_answer_tokens).predict(examples, silent, ""), examples).f1
        assert abs(found - expected) < 0.01, runtime
