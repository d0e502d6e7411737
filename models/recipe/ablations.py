"""Trains the student (the reader of the recipe) without one part of the recipe at a time, and measures each part.

The measurement imitates serving: the student reads each held-out question with its *group*. The group of a question has
passages with the answer, and passages of the project's own data that rank high for the question but do not have the
answer (see `models/mining/mine.py`). The answer is the span with the best score over null of all passages. The figures
have bootstrap intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from qa_cluster.evaluation.intervals import Interval, difference_interval, mean_interval
from qa_cluster.evaluation.scoring import exact_match, f1

from ..checkpoints.loading import digest_of
from ..checkpoints.record import knows_titles
from ..examples.data import load_dataset
from ..examples.labelled import Labelled
from ..mining.mine import MiningSettings, mine
from ..training.base import BaseNetwork, choose_machine, load_base
from ..training.measure import predict, reading_encoder
from ..training.settings import Stage, TrainingSettings
from .plan import Training
from .steps import HELD_OUT, Recipe

ALL = "everything"
NEGATIVES = 8
TABLE_FILE = "ablations.md"


@dataclass(frozen=True, slots=True)
class Variant:
    """A training of the student that is measured, and whether the student learns from the teacher."""

    training: Training
    taught: bool = True


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The result for the group of a question: exact match and F1 of the best span of all passages, the score over null
    of this span, and whether the question has an answer.
    """

    exact_match: float
    f1: float
    score: float
    answerable: bool

    @property
    def decided(self) -> float:
        """The F1 of the question if the student answers "no answer" at a score over null below 0, as in SQuAD 2.0.

        A question with an answer gets the F1 of the best span if the score is at least 0, and 0 if the score is below
        0. A question without an answer gets 1 if the score is below 0, and 0 if the score is at least 0.
        """
        return (self.f1 if self.score >= 0 else 0.0) if self.answerable else float(self.score < 0)


def variants(training: Training, own: Sequence[str]) -> dict[str, Variant]:
    """Return the variants by name: the whole training of the student first (`ALL`), then the training without each of
    its parts.

    Args:
        own: the names of the project's own data in the recipe.
    """

    def with_data(change: Callable[[str], str | None]) -> Training:
        stages = []
        for stage in training.stages:
            names = dict.fromkeys(name for each in stage.data if (name := change(each)) is not None)
            if names:
                stages.append(replace(stage, data=tuple(names)))
        return replace(training, stages=tuple(stages))

    def unmined(name: str) -> str | None:
        return None if name.endswith(":pairs") else name.removesuffix(":groups")

    def changed(**settings: Any) -> Training:
        return replace(training, settings={**training.settings, **settings})

    return {
        ALL: Variant(training),
        "without own data": Variant(with_data(lambda name: None if name.partition(":")[0] in own else name)),
        "without mined negatives": Variant(with_data(unmined)),
        "each window normalised alone": Variant(changed(normalisation="window")),
        "without the teacher": Variant(with_data(lambda name: None if name.endswith(":pairs") else name), taught=False),
        "without titles": Variant(changed(title_share=0.0)),
    }


def run_ablations(recipe: Recipe) -> str:
    """Train and measure all variants that an earlier call has not finished. Return the table of all variants, and write
    it to the file `TABLE_FILE` in the folder of the recipe.
    """
    recipe.prepare()
    plan = recipe.plan
    file = _held_out_groups(recipe)
    read: dict[str, list[GroupResult]] = {}
    for name, variant in variants(plan.student_training, [data.name for data in plan.data if data.own]).items():
        folder = f"ablation-{name.replace(' ', '-')}"
        if not variant.training.stages:
            recipe.watcher.say(f"{name}: left out, because it has no training data")
            continue
        distillation = recipe.distillation if variant.taught else None
        recipe.trained(folder, variant.training, distillation, base="student", share=plan.share)
        groups = load_dataset(file)
        depends = {"groups": groups.sha256, "student": digest_of(recipe.folder / folder / "model.safetensors")}
        rows = recipe.step(f"{folder}-read", depends, partial(_read, recipe, folder, groups.examples))
        read[name] = [GroupResult(**row) for row in rows]
    text = table(read, plan.seed)
    (recipe.folder / TABLE_FILE).write_text(text, encoding="utf-8")
    return text


def _held_out_groups(recipe: Recipe) -> Path:
    """Mine a group for each held-out question: passages with the answer, and high-ranking passages without it. Return
    the file of the groups.

    The passages come from the held-out examples and from the project's own data.
    """
    groups = recipe.file(f"{HELD_OUT}:groups")
    own = [recipe.file(data.name) for data in recipe.plan.data if data.own]
    settings = MiningSettings(negatives=NEGATIVES, min_words=1, seed=recipe.plan.seed)

    def work() -> Any:
        groups.unlink(missing_ok=True)
        return mine([recipe.file(HELD_OUT)], groups, settings, passages=own)

    digests = [digest_of(path) for path in (recipe.file(HELD_OUT), *own)]
    recipe.step("mining-held-out", {"settings": asdict(settings), "data": digests}, work)
    return groups


def _read(recipe: Recipe, folder: str, examples: Sequence[Labelled]) -> list[dict[str, Any]]:
    """Return the result of a trained network for each group, as the values of a `GroupResult`. `folder` is the name of
    the folder of the trained checkpoint, and `examples` are the passages of all groups.
    """
    checkpoint = recipe.folder / folder
    settings = TrainingSettings(stages=(Stage(checkpoint),))
    machine = choose_machine(settings.device, settings.precision)
    base = load_base(str(checkpoint), settings, machine.device)
    base.network.to(machine.device)
    recipe.watcher.start(f"reading with {folder}", 0, 1)

    def report(done: int, total: int) -> None:
        recipe.watcher.step(done, total, None, 0)

    return [asdict(row) for row in read_groups(base, examples, machine.device, report, titles=knows_titles(checkpoint))]


def read_groups(
    base: BaseNetwork,
    examples: Sequence[Labelled],
    device: str,
    report: Callable[[int, int], None],
    *,
    titles: bool,
) -> list[GroupResult]:
    """Read all passages of each group, and return the results in the order of the groups. The answer of a group is the
    span with the best score over null of all its passages.
    """
    windows = reading_encoder(base, titles=titles).windows(examples)
    texts, scores = predict(base, windows, [example.context for example in examples], device, report)
    found = []
    for _, group in groupby(range(len(examples)), key=lambda number: examples[number].group):
        rows = list(group)
        best = max(rows, key=lambda row: float(scores[row]))
        answers = [examples[row].answer for row in rows if examples[row].answer_start >= 0]
        text = texts[best] if answers else ""
        score = float(np.clip(scores[best], -100, 100))
        found.append(GroupResult(exact_match(text, answers), f1(text, answers), score, bool(answers)))
    return found


def table(read: dict[str, list[GroupResult]], seed: int) -> str:
    """Return a Markdown table with a row for each variant: its figures, and the difference from the whole recipe, with
    intervals. `read` has the results of each variant, by name. `seed` is the random seed of the intervals.
    """
    lines = [
        "| student | EM | F1 | F1 with null | difference of F1 with null |",
        "|---|---|---|---|---|",
    ]
    whole = read[ALL]
    for name, rows in read.items():
        answered = [row for row in rows if row.answerable]
        cells = [mean_interval([getattr(row, key) for row in answered], seed=seed) for key in ("exact_match", "f1")]
        cells.append(mean_interval([row.decided for row in rows], seed=seed))
        shown = [_shown(cell) for cell in cells]
        if name == ALL:
            shown.append("")
        else:
            columns = [[row.decided for row in each] for each in (rows, whole)]
            shown.append(_shown(difference_interval(columns[0], columns[1], seed=seed), sign="+"))
        lines.append(f"| {name} | {' | '.join(shown)} |")
    total, answerable = len(whole), sum(row.answerable for row in whole)
    lines += [
        "",
        f"{total} held-out questions with up to {NEGATIVES} other passages each, {answerable} of them with an answer;",
        "EM and F1 are of the best span of all passages, for the questions with an answer.",
    ]
    return "\n".join(lines) + "\n"


def _shown(interval: Interval, sign: str = "") -> str:
    return f"{interval.value:{sign}.3f} [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"
