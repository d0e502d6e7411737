"""The losses of a batch of windows, in PyTorch and float32.

The score of a position is its logit over its window's null, as it is in use: `d = logit[i] - logit[0]`. Among the
candidates of a window, which are the null and the tokens of the context, a softmax of the logits and one of `d` are the
same. Only candidates count: neither the question nor the prefix nor padding can be an answer.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LOW = -1e9
"""The score of what is no candidate: finite, so that a window without any has a gradient."""


def span_loss(output: Any, starts: NDArray[np.int64], ends: NDArray[np.int64], banned: Any | None = None) -> Any:
    """Return the mean cross-entropy of the first and last positions (Devlin et al. 2019, section 4.2).

    Args:
        output: has `start_logits` and `end_logits`, [windows, length].
        starts, ends: [windows], the answer's first and last positions, 0 without an answer.
        banned: bool [windows, length], positions that do not take part; None: all do.
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

    With D = 1 + the sum of exp(d) over the context positions of all windows of the group, where the 1 is the null:
    -log(sum of exp(d) at the answer's positions in all windows / D), or log D for a group without an answer. Each
    window without an answer adds `null_weight` times the mean of its own log(1 + sum of exp(d)), so that its null keeps
    its meaning. Half of that for first positions, half for last.

    Args:
        context: bool [windows, length], the tokens of the contexts.
        groups: [windows], the group of each; those of a group are neighbours.
        starts, ends: [windows], 0 without an answer.
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
    """Return the mean over windows of the divergence of the network's distributions from the teacher's, times T².

    Hinton et al. 2015: both are softened by the temperature T; T² keeps the gradients' size.

    Args:
        wanted: the teacher's distributions of first and last positions, [windows, length] each, softened already.
        context: bool [windows, length]; candidates are these and position 0, the null.
    """
    import torch

    losses = []
    for logits, target in zip((output.start_logits, output.end_logits), wanted, strict=True):
        scores = scores_over_null(logits, context)
        scores = torch.cat([torch.zeros_like(scores[:, :1]), scores[:, 1:]], dim=1)
        found = torch.log_softmax(scores / temperature, dim=1)
        # where the teacher's share is 0, the product is: xlogy knows that, and `found` is finite
        losses.append((torch.xlogy(target, target) - target * found).sum(dim=1).mean())
    return temperature**2 * (losses[0] + losses[1]) / 2


def scores_over_null(logits: Any, context: Any) -> Any:
    """Return [windows, length]: the logits of the context over those of position 0; all other positions have `LOW`."""
    logits = logits.float()
    return (logits - logits[:, :1]).masked_fill(~context, LOW)


def _members(groups: NDArray[np.integer[Any]], device: Any) -> Any:
    """The rows of each group, int64 [groups, most rows], padded with -1."""
    import torch

    parts = np.split(np.arange(len(groups)), np.flatnonzero(np.diff(groups)) + 1)
    table = np.full((len(parts), max(map(len, parts))), -1, np.int64)
    for number, rows in enumerate(parts):
        table[number, : len(rows)] = rows
    return torch.from_numpy(table).to(device)


def _in_groups(values: Any, members: Any) -> Any:
    """Values of rows as [groups, most rows], with `LOW` where a group has fewer."""
    return values[members.clamp(min=0)].masked_fill(members < 0, LOW)
