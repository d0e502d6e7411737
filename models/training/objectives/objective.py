"""Computes the loss of a batch: the loss against the labels, normalised for each window or for each group of windows,
and the distance to the teacher's outputs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..encoding import Windows
from ..padding import token_masks
from ..settings import TrainingSettings
from .losses import distillation_loss, shared_loss, span_loss
from .targets import TeacherTargets


@dataclass(frozen=True, slots=True)
class Objective:
    """The loss of a stage.

    With `shared`, all windows of a group are normalised together. With `targets`, the loss is (1 - `teacher_weight`)
    times the loss of the labels plus `teacher_weight` times the distance to the teacher. Windows without a label have
    only the distance.
    """

    windows: Windows
    settings: TrainingSettings
    shared: bool
    targets: TeacherTargets | None = None

    def loss(self, output: Any, rows: NDArray[np.int64]) -> Any:
        """Return the loss of the network's output for the windows with the numbers `rows`, a float32 scalar."""
        import torch

        length, device = output.start_logits.shape[1], output.start_logits.device
        context, prefix = (torch.from_numpy(found).to(device) for found in token_masks(self.windows, rows, length))
        if self.targets is None:
            return self._labels(output, rows, context, prefix)
        wanted = tuple(torch.from_numpy(part).to(device) for part in self.targets.rows(rows, length))
        soft = distillation_loss(output, (wanted[0], wanted[1]), context=context, temperature=self.settings.temperature)
        labelled = np.flatnonzero(self.windows.labelled[rows])
        weight = self.settings.teacher_weight
        if not len(labelled) or weight == 1:
            return weight * soft
        hard = self._labels(_OutputRows(output, labelled), rows[labelled], context[labelled], prefix[labelled])
        return (1 - weight) * hard + weight * soft

    def _labels(self, output: Any, rows: NDArray[np.int64], context: Any, prefix: Any) -> Any:
        starts, ends = (column[rows].astype(np.int64) for column in (self.windows.starts, self.windows.ends))
        if not self.shared:
            return span_loss(output, starts, ends, prefix if bool(prefix.any()) else None)
        groups, weight = self.windows.groups[rows], self.settings.null_weight
        return shared_loss(output, starts, ends, context=context, groups=groups, null_weight=weight)


class _OutputRows:
    """Some rows of the output of a network, with the attributes `start_logits` and `end_logits`, which the
    losses read.
    """

    def __init__(self, output: Any, rows: NDArray[np.int64]) -> None:
        self.start_logits = output.start_logits[rows]
        self.end_logits = output.end_logits[rows]
