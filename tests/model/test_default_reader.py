"""The bundled reader is small, answers easy questions, and gives the same answer alone and in any batch."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

from qa_cluster.evaluation.examples import Example
from qa_cluster.models.evaluation.evaluate import ContextReader, silent
from qa_cluster.reading.manifest import MODEL_FILE, Manifest
from qa_cluster.reading.precisions import suits_openvino
from qa_cluster.reading.runtimes import RUNTIMES, Runner, open_runner
from qa_cluster.reading.spans import AnswerSpan, best_spans
from qa_cluster.reading.windows import TextPairEncoder

EASY = [
    ("Who wrote the first program?", "Ada Lovelace wrote the first program in 1843.", "Ada Lovelace"),
    ("When did Ada write the first program?", "Ada Lovelace wrote the first program in 1843.", "1843"),
    ("Where was Frida Kahlo born?", "The painter Frida Kahlo was born in Coyoacán, near Mexico City.", "Coyoacán"),
    ("What causes tides?", "Tides are caused by the gravity of the Moon, and less so of the Sun.", "gravity"),
]


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def runner(runtime: str, reader: Path) -> Runner:
    return open_runner(reader / MODEL_FILE, runtime, threads=1)


def test_easy_questions_are_answered(runner: Runner, encoder: TextPairEncoder, manifest: Manifest) -> None:
    examples = [Example(question, context, (answer,)) for question, context, answer in EASY]
    found = ContextReader(encoder, runner).predict(examples, silent, "")
    for prediction, example in zip(found, examples, strict=True):
        assert example.answers[0] in prediction.text
        assert example.context[prediction.start : prediction.end] == prediction.text
        assert prediction.score > manifest.no_answer_threshold


def test_an_unanswerable_question_scores_below_the_threshold(
    runner: Runner, encoder: TextPairEncoder, manifest: Manifest
) -> None:
    contexts = ["Tides are caused by the gravity of the Moon.", "The painter was born near Mexico City."]
    examples = [Example("Which exception does a missing key raise?", context, ()) for context in contexts]
    found = ContextReader(encoder, runner).predict(examples, silent, "")
    assert all(prediction.score < manifest.no_answer_threshold for prediction in found)


class Batches:
    """Reads selected pairs in one batch and decodes their answers."""

    def __init__(self, runner: Runner, encoder: TextPairEncoder, pairs: list[tuple[str, str]]) -> None:
        self._runner = runner
        self._encoder = encoder
        self._windows = [(encoder.windows(question, context)[0], context) for question, context in pairs]

    def read(self, indices: list[int]) -> list[tuple[AnswerSpan, np.ndarray]]:
        """The best span and the start logits of each pair."""
        starts, ends = self._runner(self._encoder.pairs.batch([self._windows[index][0] for index in indices]))
        found = []
        for start, end, index in zip(starts, ends, indices, strict=True):
            window, context = self._windows[index]
            passage = self._encoder.passage(context)
            reading = best_spans([window], [(start, end)], passage, context, max_answer_tokens=30)
            found.append((reading.spans[0], start[: len(window.input_ids)]))
        return found


def test_an_answer_alone_equals_the_answer_in_a_batch(
    runtime: str, runner: Runner, encoder: TextPairEncoder, manifest: Manifest, pairs: list[tuple[str, str]]
) -> None:
    if runtime == "openvino" and not suits_openvino(manifest.precision):
        pytest.skip("this processor has no int8 multiplication, so readers run in ONNX Runtime")
    pairs = pairs[::8]
    together = Batches(runner, encoder, pairs)
    alone = [together.read([index])[0] for index in range(len(pairs))]
    for batch_size in (3, 13):
        order = list(range(len(pairs)))
        random.Random(batch_size).shuffle(order)
        for first in range(0, len(order), batch_size):
            indices = order[first : first + batch_size]
            for index, (span, logits) in zip(indices, together.read(indices), strict=True):
                assert (span.start, span.end) == (alone[index][0].start, alone[index][0].end), pairs[index]
                np.testing.assert_allclose(logits, alone[index][1], atol=1e-3)


def test_runtimes_mostly_agree(
    reader: Path, encoder: TextPairEncoder, manifest: Manifest, pairs: list[tuple[str, str]]
) -> None:
    examples = [Example(question, context, ()) for question, context in pairs[::3]]
    spans = [
        [
            (found.start, found.end)
            for found in ContextReader(encoder, open_runner(reader / MODEL_FILE, runtime, threads=1)).predict(
                examples, silent, ""
            )
        ]
        for runtime in RUNTIMES
    ]
    assert np.mean([left == right for left, right in zip(*spans, strict=True)]) > 0.8


def test_the_file_is_small_and_has_the_inputs_of_the_manifest(reader: Path, manifest: Manifest) -> None:
    import onnxruntime

    assert (reader / MODEL_FILE).stat().st_size < 25_000_000
    session = onnxruntime.InferenceSession(str(reader / MODEL_FILE), providers=["CPUExecutionProvider"])
    assert tuple(value.name for value in session.get_inputs()) == manifest.inputs
    assert tuple(value.name for value in session.get_outputs()) == manifest.outputs
    assert {value.type for value in session.get_inputs()} == {"tensor(int64)"}
    assert all(value.shape == ["batch", "length"] for value in session.get_inputs())


def test_int8_costs_at_most_half_a_point_of_f1(manifest: Manifest) -> None:
    assert manifest.precision == "int8"
    lost = {metric.dataset: metric.before.f1 - metric.after.f1 for metric in manifest.metrics}
    assert set(lost) == {"xquad_en_a"}
    assert max(lost.values()) <= 0.005


def test_the_model_card_has_the_numbers_of_the_manifest(reader: Path, manifest: Manifest) -> None:
    card = (reader / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert manifest.revision in card
    for metric in manifest.metrics:
        row = next(line for line in card.splitlines() if line.startswith(f"| `{metric.dataset}`"))
        shown = re.findall(r"\d\.\d{3}", row)
        scores = (metric.before.exact_match, metric.before.f1, metric.after.exact_match, metric.after.f1)
        assert shown == [f"{value:.3f}" for value in scores]
