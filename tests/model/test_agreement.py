"""int8 against plain PyTorch float32 on real questions: within one point of F1.

Needs the `export` extra, the checkpoint's folder in QA_TEST_CHECKPOINT and a SQuAD-format file in QA_TEST_QUESTIONS.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from qa_cluster.models.checkpoint import load_checkpoint, torch_runner
from qa_cluster.models.evaluate import Reading, score, silent

from qa_cluster.examples import load_examples
from qa_cluster.manifest import MODEL_FILE, Manifest
from qa_cluster.runtimes import RUNTIMES, open_runner
from qa_cluster.windows import TextPairEncoder

pytest.importorskip("torch", reason="the export extra is not installed")
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


def test_int8_is_within_a_point_of_pytorch(reader: Path, manifest: Manifest, encoder: TextPairEncoder) -> None:
    places = os.environ.get("QA_TEST_CHECKPOINT"), os.environ.get("QA_TEST_QUESTIONS")
    if not all(places):
        pytest.skip("QA_TEST_CHECKPOINT and QA_TEST_QUESTIONS are not set")
    checkpoint, questions = (Path(str(place)) for place in places)
    examples = load_examples(questions)
    reference = Reading(encoder, torch_runner(load_checkpoint(str(checkpoint)).network))
    expected = score(reference.predict(examples, silent, ""), examples).f1
    for runtime in RUNTIMES:
        runner = open_runner(reader / MODEL_FILE, runtime, threads=2)
        found = score(Reading(encoder, runner).predict(examples, silent, ""), examples).f1
        assert abs(found - expected) < 0.01, runtime
