"""Reading plans: what a stage takes from its reader and its options, and what changes the digest of a plan."""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf

import pytest

from qa_cluster.reading.manifest import Calibration
from qa_cluster.reading.plan import DEFAULT_PLAN, WAVES, ReadingPlan, ReadingStage, StageOptions

from .test_manifest import MANIFEST

STAGE = StageOptions(waves=(2, 6), candidates=8, final_threshold=7.0).stage(MANIFEST, 16, stops_early=True)
OTHERS = {
    "reader": replace(MANIFEST, model_sha256="f" * 64),
    "waves": (2, 5),
    "candidates": 9,
    "wave_threshold": 0.125,
    "final_threshold": inf,
    "rank_weight": 0.125,
    "calibration": Calibration(0.125, 0.25),
    "no_answer_threshold": 0.125,
    "earlier_weight": 0.125,
}


@pytest.mark.parametrize("name", [field.name for field in fields(ReadingStage)])
def test_everything_in_a_stage_is_part_of_the_digest(name: str) -> None:
    other = replace(STAGE, **{name: OTHERS[name]})
    digests = {ReadingPlan(stages).digest for stages in ((STAGE,), (other,), (STAGE, other), (other, STAGE))}
    assert len(digests) == 4
    assert ReadingPlan((replace(STAGE),)).digest == ReadingPlan((STAGE,)).digest


@pytest.mark.parametrize("limits", [{"sure": 0.95}, {"likely": 0.25}])
def test_the_limits_of_the_words_are_part_of_the_digest(limits: dict[str, float]) -> None:
    other = replace(STAGE, calibration=replace(STAGE.calibration, **limits))
    assert ReadingPlan((other,)).digest != ReadingPlan((STAGE,)).digest


def test_the_ranking_is_part_of_the_digest() -> None:
    plans = [ReadingPlan((STAGE,), *how) for how in ((), ("both", (b"a", 40.0)), ("meaning", (b"a", 40.0)))]
    assert len({plan.digest for plan in [*plans, ReadingPlan((STAGE,), "both", (b"a", 30.0))]}) == 4


def test_a_stage_has_the_numbers_of_its_reader_and_the_limits_of_its_options() -> None:
    assert (STAGE.waves, STAGE.candidates, STAGE.final_threshold) == ((2, 6), 8, 7.0)
    assert (STAGE.wave_threshold, STAGE.rank_weight) == (MANIFEST.wave_threshold, MANIFEST.rank_weight)
    assert (STAGE.calibration, STAGE.no_answer_threshold) == (MANIFEST.calibration, MANIFEST.no_answer_threshold)


def test_a_stage_can_have_numbers_that_were_fitted_for_its_plan() -> None:
    stage = StageOptions(earlier_weight=0.5, fitted=(Calibration(0.5, -1.0), -2.0)).stage(
        MANIFEST, 16, stops_early=True
    )
    assert (stage.calibration, stage.no_answer_threshold, stage.earlier_weight) == (Calibration(0.5, -1.0), -2.0, 0.5)


def test_the_default_plan_reads_the_candidates_of_the_question_in_waves() -> None:
    (options,) = DEFAULT_PLAN
    stage = options.stage(MANIFEST, 16, stops_early=True)
    assert (stage.waves, stage.candidates, stage.final_threshold) == (WAVES, 16, inf)


def test_a_stage_that_does_not_stop_early_reads_all_and_skips_no_stage() -> None:
    stage = StageOptions(waves=(2, 6), final_threshold=7.0).stage(MANIFEST, 16, stops_early=False)
    assert (stage.waves, stage.candidates, stage.final_threshold) == ((), 16, inf)
