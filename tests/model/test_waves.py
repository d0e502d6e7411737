"""The wave threshold is the lowest one without loss on held-out questions. Too few questions give no threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from qa_cluster.asking.answers.assembly import choose, orders
from qa_cluster.errors import InvalidInput
from qa_cluster.evaluation.examples import Example
from qa_cluster.keys import SentenceRef
from qa_cluster.models.evaluation.evaluate import Prediction
from qa_cluster.models.evaluation.waves import Simulation, fit_waves, in_order
from qa_cluster.reading.manifest import Calibration
from qa_cluster.reading.plan import WAVES, wave_ends
from qa_cluster.reading.readings import FoundSpan, SentenceReading

EXAMPLES = [Example(f"Where does person{i} live?", f"Person{i} lives in town{i}.", (f"town{i}",)) for i in range(300)]


def prediction(text: str, score: float) -> Prediction:
    return Prediction(text, 0, len(text), score)


def simulation(right_from: float, scores: Sequence[float]) -> Simulation:
    """Questions that the first sentence answers if its score is at least `right_from`, and else a later sentence."""
    examples = [Example(f"q{i}", "c", ("right",)) for i in range(len(scores))]
    readings = [
        [
            (prediction("right" if score >= right_from else "wrong", score), 1.0),
            *[(prediction("other", -5.0), 0.5)] * 5,
            (prediction("right", score + 3), 0.1),
        ]
        for score in scores
    ]
    return Simulation(examples, readings, rank_weight=0.3)


def test_the_threshold_is_the_lowest_one_without_loss() -> None:
    found = simulation(4.0, [i / 50 for i in range(500)])
    threshold = found.lowest_threshold()
    assert 3.9 <= threshold <= 4.2
    f1, read = found.at(threshold)
    assert f1.mean() >= found.f1[:, -1].mean() - 0.005
    assert WAVES[0] < read.mean() < (WAVES[0] + 7) / 2 + 0.1
    assert found.at(2.0)[0].mean() < 0.9


def test_if_the_first_sentence_is_always_right_only_the_first_wave_is_read() -> None:
    found = simulation(-1.0, [i / 50 for i in range(500)])
    assert found.lowest_threshold() <= 0.1
    assert found.at(found.lowest_threshold())[1].mean() < WAVES[0] + 0.1


def test_if_every_stop_causes_a_loss_all_sentences_are_read() -> None:
    found = simulation(1000.0, [i / 50 for i in range(500)])
    assert found.at(found.lowest_threshold())[1].tolist() == [7.0] * 500


def test_waves_stop_after_the_first_sure_wave() -> None:
    examples = [Example("q", "c", ("b",))]
    readings = [[(prediction("a", 1.0), 2.0), (prediction("b", 7.3), 1.0), (prediction("c", 20.0), 0.5)]]
    found = Simulation(examples, readings, rank_weight=0.3, ends=(1, 2, 8))
    assert [column.tolist() for column in found.at(0.5)] == [[0.0], [1.0]]
    assert [column.tolist() for column in found.at(7.0)] == [[1.0], [2.0]]
    assert [column.tolist() for column in found.at(8.0)] == [[0.0], [3.0]]


@pytest.mark.parametrize("count", range(12))
def test_the_simulated_waves_end_like_the_waves_of_services(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(ends: tuple[int, ...]) -> list[float]:
        found = Simulation([Example("q", "c", ("x",))], [[(prediction("x", 1.0), 1.0)] * count], 0.3, ends)
        assert (found.f1[0] > 0).tolist() == np.isfinite(found.best[0]).tolist() == [count > 0] * len(ends)
        return list(dict.fromkeys(found.read[0].tolist()))

    assert read((1, 3, 8)) == (wave_ends((1, 3, 8), min(count, 8)) or [0])
    monkeypatch.setattr(
        "qa_cluster.models.evaluation.waves.wave_ends", lambda _, sentences: [sentences] if sentences else []
    )
    assert read((1, 3, 8)) == [min(count, 8)]


@pytest.mark.parametrize("values", [(30.0, 20.0, 1.0), (3.0, 2.0, 1.0), (20.0, 12.0, 9.0)])
def test_the_simulated_order_equals_the_order_of_services(values: tuple[float, ...]) -> None:
    candidates = [
        (prediction(name, score), value) for name, score, value in zip("xyz", (2.5, 4.0, 6.0), values, strict=True)
    ]
    readings, ranked = [], {}
    for i, (found, value) in enumerate(candidates):
        sentence = SentenceRef("d", "t", i)
        span = FoundSpan(i, i + 1, found.score, i)
        readings.append(SentenceReading(sentence, (span,), "v", "xyz", 0, "m", "shard", False, 1, False))
        ranked[str(sentence)] = value
    given = orders(readings, ranked, 0.3)
    assert [item.order for item in in_order(candidates, 0.3)] == pytest.approx([item.order for item in given])
    first = choose(given, Calibration(1.0, 0.0)).choices[0].best.text
    found = Simulation([Example("q", "c", (first,))], [candidates], 0.3, ends=(8,))
    assert found.f1.tolist() == [[1.0]]


def reading(score: Callable[[int, int], float]) -> Callable[[Sequence[Example]], list[Prediction]]:
    """A reader that finds town n in "Person n lives in town n." `score` gets the numbers of question and town."""

    def read(pairs: Sequence[Example]) -> list[Prediction]:
        found = []
        for pair in pairs:
            asked = int(pair.question.split()[2].removeprefix("person"))
            town = int(pair.context.split("town")[1].rstrip("."))
            found.append(prediction(f"town{town}", score(asked, town)))
        return found

    return read


def test_the_fit_asks_held_out_questions_on_a_corpus_of_their_contexts() -> None:
    sure = reading(lambda asked, town: 8.0 if asked == town else -3.0)
    found = fit_waves(EXAMPLES, sure, rank_weight=0.3)
    assert found is not None
    assert (found.questions, found.sentences, found.ends) == (300, 300, WAVES)
    assert (found.threshold, found.read, found.f1, found.f1_all) == (8.0, WAVES[0], 1.0, 1.0)


def test_shared_sentences_are_in_the_corpus_once_and_unanswerable_questions_are_not_asked() -> None:
    windows = [Example(example.question, f"{example.context} Rome is in Italy.", ()) for example in EXAMPLES]
    sure = reading(lambda asked, town: 8.0 if asked == town else -3.0)
    found = fit_waves([*EXAMPLES, *windows], sure, rank_weight=0.3)
    assert found is not None
    assert (found.questions, found.sentences) == (300, 301)


def test_too_few_questions_or_sentences_give_no_threshold() -> None:
    def refused(pairs: Sequence[Example]) -> list[Prediction]:
        raise AssertionError(f"{len(pairs)} pairs were read")

    assert fit_waves(EXAMPLES[:150], refused, rank_weight=0.3) is None
    same_corpus = [Example(f"{i} {EXAMPLES[0].question}", EXAMPLES[i % 50].context, ("x",)) for i in range(300)]
    assert fit_waves(same_corpus, refused, rank_weight=0.3) is None
    with pytest.raises(InvalidInput, match="ascending"):
        fit_waves(EXAMPLES, refused, rank_weight=0.3, ends=(3, 1))
