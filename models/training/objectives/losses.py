"""The losses of a batch of windows, in PyTorch and float32.

As in serving, the score of a position is its logit minus the logit of the null in its window: `d = logit[i] -
logit[0]`. Each loss uses a softmax over the candidates of a window or of a group of windows. Over the candidates of a
window, the softmax of the logits equals the softmax of `d`.

- In `shared_loss` and `distillation_loss`, the candidates are the null and the tokens of the context, because the
  question, the prefix and the padding cannot be an answer.
- In `span_loss`, all positions that the caller does not ban are candidates. `Objective` bans only the tokens of the
  prefix. So the tokens of the question and the padding are candidates, too.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LOW = -1e9
"""The score of positions that are not candidates. The score is finite, so that a window without candidates has a
gradient.
"""


def span_loss(output: Any, starts: NDArray[np.int64], ends: NDArray[np.int64], banned: Any | None = None) -> Any:
    """Return the mean cross-entropy of the first and last positions (Devlin et al. 2019, section 4.2).

    Args:
        output: has `start_logits` and `end_logits`, [windows, length].
        starts, ends: [windows], the first and last positions of the answers; 0 if there is no answer.
        banned: bool [windows, length], positions that are no candidates; None: all positions are candidates.
    """
    import torch

    losses = []
    for logits, wanted in ((output.start_logits, starts), (output.end_logits, ends)):
        scores = logits.float() if banned is None else logits.float().masked_fill(banned, LOW)
        losses.append(torch.nn.functional.cross_entropy(scores, torch.from_numpy(wanted).to(scores.device)))
    return (losses[0] + losses[1]) / 2


def shared_loss(
    output: Any,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    *,
    context: Any,
    groups: NDArray[np.integer[Any]],
    null_weight: float,
) -> Any:
    """Return the mean over groups of the shared-normalisation loss (Clark & Gardner 2018, "Shared-Normalization").

    D is 1 (the null) plus the sum of exp(d) over the context positions of all windows of a group. The loss of the group
    is -log(sum of exp(d) at the positions of its answers / D), or log D if the group has no answer.

    In addition, the windows without an answer add `null_weight` times the mean of their own log(1 + sum of exp(d)), so
    that the null of each window keeps its meaning. The result is the mean of the losses of first and last positions.

    Args:
        context: bool [windows, length], the tokens of the contexts.
        groups: [windows], the group of each window; the windows of a group are neighbours.
        starts, ends: [windows], the positions of the answers; 0 if there is no answer.
    """
    import torch

    members = _members(groups, output.start_logits.device)
    losses = []
    for logits, wanted in ((output.start_logits, starts), (output.end_logits, ends)):
        over_null = scores_over_null(logits, context)
        places = torch.from_numpy(wanted).to(logits.device)
        rows = torch.logsumexp(over_null, dim=1)
        held = over_null.gather(1, places[:, None])[:, 0].masked_fill(places == 0, LOW)
        zero = torch.zeros_like(rows[:1])
        whole = _in_groups(rows, members)
        normaliser = torch.logsumexp(torch.cat([whole, zero.expand(len(whole), 1)], dim=1), dim=1)
        answered = (_in_groups((places > 0).float(), members) > 0).any(dim=1)
        right = torch.logsumexp(_in_groups(held, members), dim=1).masked_fill(~answered, 0.0)
        without = _in_groups((places == 0).float(), members).clamp(min=0)
        alone = _in_groups(torch.logaddexp(rows, zero.expand_as(rows)), members)
        nulls = (alone * without).sum(dim=1) / without.sum(dim=1).clamp(min=1)
        losses.append((normaliser - right + null_weight * nulls).mean())
    return (losses[0] + losses[1]) / 2


def distillation_loss(output: Any, wanted: tuple[Any, Any], *, context: Any, temperature: float) -> Any:
    """Return T² times the mean divergence of the network's distributions from the teacher's (Hinton et al. 2015).

    The temperature T softens both distributions. The factor T² keeps the size of the gradients.

    Args:
        wanted: the teacher's softened distributions of first and last positions, [windows, length] each.
        context: bool [windows, length], the tokens of the contexts.
    """
    import torch

    losses = []
    for logits, target in zip((output.start_logits, output.end_logits), wanted, strict=True):
        scores = scores_over_null(logits, context)
        scores = torch.cat([torch.zeros_like(scores[:, :1]), scores[:, 1:]], dim=1)
        found = torch.log_softmax(scores / temperature, dim=1)
        # xlogy gives 0 where the teacher's probability is 0
        losses.append((torch.xlogy(target, target) - target * found).sum(dim=1).mean())
    return temperature**2 * (losses[0] + losses[1]) / 2


def scores_over_null(logits: Any, context: Any) -> Any:
    """Return the scores over null, [windows, length]: at the tokens of the context (`context`), the logit minus the
    logit of position 0; at all other positions, `LOW`.
    """
    logits = logits.float()
    return (logits - logits[:, :1]).masked_fill(~context, LOW)


def _members(groups: NDArray[np.integer[Any]], device: Any) -> Any:
    """Return the numbers of the rows (windows) of each group, int64 [groups, rows of the largest group], padded with
    -1. `groups` has the group of each row.
    """
    import torch

    parts = np.split(np.arange(len(groups)), np.flatnonzero(np.diff(groups)) + 1)
    table = np.full((len(parts), max(map(len, parts))), -1, np.int64)
    for number, rows in enumerate(parts):
        table[number, : len(rows)] = rows
    return torch.from_numpy(table).to(device)


def _in_groups(values: Any, members: Any) -> Any:
    """Return the values of the rows, arranged by group: [groups, rows of the largest group], padded with `LOW`."""
    return values[members.clamp(min=0)].masked_fill(members < 0, LOW)
