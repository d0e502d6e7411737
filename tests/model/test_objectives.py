"""The training losses (shared normalisation, distance to a teacher) equal the results of simple computations."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qa_cluster.models.training.encoding import Windows
from qa_cluster.models.training.objectives.losses import distillation_loss, shared_loss, span_loss
from qa_cluster.models.training.objectives.objective import Objective
from qa_cluster.models.training.settings import Stage, TrainingSettings

torch = pytest.importorskip("torch", reason="the train extra is not installed")

LENGTH = 12
# Three groups: three windows with two answers, two windows without answers, and one window with an answer.
GROUPS = np.array([0, 0, 0, 1, 1, 2])
STARTS = np.array([5, 0, 6, 0, 0, 4])
ENDS = np.array([7, 0, 6, 0, 0, 5])
FIRST = 4
LENGTHS = np.array([12, 9, 10, 12, 8, 7])
WEIGHT = 0.3


def logits(seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0, 2, (2, len(GROUPS), LENGTH))


def candidates() -> NDArray[np.bool_]:
    """A mask of the context tokens: from `FIRST`, without the last special token and the padding."""
    place = np.arange(LENGTH)[None]
    return (place >= FIRST) & (place < LENGTHS[:, None] - 1)


def plain(scores: NDArray[np.float64], wanted: NDArray[np.int64]) -> tuple[float, NDArray[np.float64]]:
    """The loss and the gradient [windows, length] for starts or ends, computed in float64 with loops."""
    value, gradient = 0.0, np.zeros_like(scores)
    over = scores - scores[:, :1]
    held = candidates()
    for group in range(3):
        rows = np.flatnonzero(group == GROUPS)
        total = 1 + sum(np.exp(over[row][held[row]]).sum() for row in rows)
        right = sum(np.exp(over[row, wanted[row]]) for row in rows if wanted[row])
        without = [row for row in rows if not wanted[row]]
        value += np.log(total) - (np.log(right) if right else 0)
        for row in rows:
            part = np.where(held[row], np.exp(over[row]), 0)
            slope = part / total
            if wanted[row]:
                slope[wanted[row]] -= np.exp(over[row, wanted[row]]) / right
            else:
                value += WEIGHT * np.log(1 + part.sum()) / len(without)
                slope += WEIGHT * part / (1 + part.sum()) / len(without)
            gradient[row] += slope
            gradient[row, 0] -= slope.sum()
    return value / 3, gradient / 3


def tensors(values: NDArray[np.float64]) -> Any:
    start, end = (torch.tensor(side, dtype=torch.float32, requires_grad=True) for side in values)
    return SimpleNamespace(start_logits=start, end_logits=end)


def test_shared_normalisation_and_its_gradient_equal_the_simple_computation() -> None:
    values = logits()
    output = tensors(values)
    loss = shared_loss(output, STARTS, ENDS, context=torch.from_numpy(candidates()), groups=GROUPS, null_weight=WEIGHT)
    loss.backward()
    sides = [plain(values[0], STARTS), plain(values[1], ENDS)]
    assert loss.item() == pytest.approx((sides[0][0] + sides[1][0]) / 2, rel=1e-5)
    for tensor, (_, gradient) in zip((output.start_logits, output.end_logits), sides, strict=True):
        np.testing.assert_allclose(tensor.grad.numpy(), gradient / 2, atol=1e-6)


def test_other_positions_have_no_gradient_even_without_candidates() -> None:
    held = candidates()
    held[4] = False
    values = logits(1)
    # high scores for question, separators and padding
    values[:, ~np.pad(held[:, 1:], ((0, 0), (1, 0)), constant_values=True)] = 50
    output = tensors(values)
    shared_loss(output, STARTS, ENDS, context=torch.from_numpy(held), groups=GROUPS, null_weight=WEIGHT).backward()
    for tensor in (output.start_logits, output.end_logits):
        assert torch.isfinite(tensor.grad).all()
        outside = ~held
        outside[:, 0] = False
        assert (tensor.grad.numpy()[outside] == 0).all()


def test_a_single_window_has_the_span_loss_of_its_candidates() -> None:
    values = logits(2)[:, 5:]
    held = torch.from_numpy(candidates()[5:])
    banned = ~held
    banned[:, 0] = False
    both = [
        shared_loss(tensors(values), STARTS[5:], ENDS[5:], context=held, groups=GROUPS[5:], null_weight=9).item(),
        span_loss(tensors(values), STARTS[5:], ENDS[5:], banned).item(),
    ]
    assert both[0] == pytest.approx(both[1], rel=1e-5)


def test_distillation_is_zero_at_the_teachers_distribution_and_its_gradient_is_the_difference() -> None:
    held = torch.from_numpy(candidates())
    values, temperature = logits(3), 2.0
    banned = ~held
    banned[:, 0] = False

    def softened(side: NDArray[np.float64]) -> Any:
        return torch.softmax(torch.tensor(side, dtype=torch.float32).masked_fill(banned, -1e9) / temperature, dim=1)

    wanted = (softened(values[0]), softened(values[1]))
    same = tensors(values)
    assert distillation_loss(same, wanted, context=held, temperature=temperature).item() == pytest.approx(0, abs=1e-5)
    other = tensors(logits(4))
    distillation_loss(other, wanted, context=held, temperature=temperature).backward()
    expected = temperature * (softened(logits(4)[0]) - wanted[0]) / len(GROUPS) / 2
    np.testing.assert_allclose(other.start_logits.grad.numpy(), expected.numpy(), atol=1e-5)


class Uniform:
    """The outputs of a teacher with uniform distributions."""

    def rows(self, rows: NDArray[np.int64], length: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        held = candidates()[rows, :length]
        held[:, 0] = True
        share = (held / held.sum(axis=1, keepdims=True)).astype(np.float32)
        return share, share


def windows(**changed: Any) -> Windows:
    spans = np.full((len(GROUPS), LENGTH, 2), -1, np.int32)
    spans[candidates()] = 1
    bounds = np.arange(len(GROUPS) + 1) * LENGTH
    made = Windows(
        ids=np.zeros(bounds[-1], np.int32),
        types=np.zeros(bounds[-1], np.uint8),
        bounds=bounds,
        starts=STARTS.astype(np.int32),
        ends=ENDS.astype(np.int32),
        owners=np.arange(len(GROUPS), dtype=np.int32),
        spans=spans.reshape(-1, 2),
        groups=GROUPS.astype(np.int32),
        labelled=np.ones(len(GROUPS), np.bool_),
    )
    return replace(made, **changed)


def test_windows_without_a_label_learn_only_from_the_teacher() -> None:
    settings = TrainingSettings(stages=(Stage.parse("x.json"),), teacher_weight=0.25)
    rows = np.arange(len(GROUPS))
    known = np.array([True, True, True, False, False, True])
    output = tensors(logits(5))
    objective = Objective(windows(labelled=known), settings, True, Uniform())  # type: ignore[arg-type]
    found = objective.loss(output, rows).item()
    soft = replace(settings, teacher_weight=1.0)
    alone = Objective(windows(), soft, True, Uniform()).loss(output, rows).item()  # type: ignore[arg-type]
    kept = np.flatnonzero(known)
    part = SimpleNamespace(start_logits=output.start_logits[kept], end_logits=output.end_logits[kept])
    labels = Objective(windows(), settings, True).loss(part, kept).item()
    assert found == pytest.approx(0.75 * labels + 0.25 * alone, rel=1e-5)
    assert Objective(windows(labelled=~known & known), settings, True, Uniform()).loss(  # type: ignore[arg-type]
        output, rows
    ).item() == pytest.approx(0.25 * alone, rel=1e-5)


def test_a_prefix_never_counts_as_an_answer() -> None:
    """With both normalisations, the tokens of a prefix have no gradient."""
    spans = windows().spans.reshape(len(GROUPS), LENGTH, 2).copy()
    spans[:, 2:FIRST] = -2
    made = windows(spans=spans.reshape(-1, 2))
    settings = TrainingSettings(stages=(Stage.parse("x.json"),))
    for shared in (False, True):
        output = tensors(logits(6))
        Objective(made, settings, shared).loss(output, np.arange(len(GROUPS))).backward()
        assert (output.start_logits.grad[:, 2:FIRST] == 0).all()
        assert (output.start_logits.grad[:, FIRST:6] != 0).any()
