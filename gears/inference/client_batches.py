"""Makes batches by the `BATCHSIZE`, `MINBATCHSIZE` and `MINBATCHTIMEOUT` of a model.

Dimension 0 of the inputs is the batch dimension.

A batch contains the oldest request and other requests to the same model, up to the batch size. The types of their
inputs, and the sizes of all dimensions except dimension 0, must be the same. A batch with fewer rows than the minimum
waits until the timeout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..shard.failures import GearsError
from .served import BatchTotals, Item
from .tensors import Array

# The maximum time that a batch with fewer rows than MINBATCHSIZE waits, for models without MINBATCHTIMEOUT.
DEFAULT_MIN_TIMEOUT_MS = 1000


class BatchSizeMismatch(GearsError):
    """The outputs of a joined run cannot be split among its requests."""

    def __init__(self) -> None:
        super().__init__("ERR Model did not generate the expected batch size")


def joint_rows(arrays: Sequence[Array]) -> int:
    """Return the common size of dimension 0 of all inputs of a request.

    Return 0 if the sizes differ, or if an input has no dimensions. The request must then run alone.
    """
    if not arrays or any(array.ndim == 0 for array in arrays):
        return 0
    rows = int(arrays[0].shape[0])
    return rows if all(array.shape[0] == rows for array in arrays) else 0


def _can_join(head: Item, other: Item) -> bool:
    return (
        other.model is head.model
        and other.batching == head.batching
        and other.rows > 0
        and all(
            mine.shape[1:] == theirs.shape[1:] and mine.dtype == theirs.dtype
            for mine, theirs in zip(head.arrays, other.arrays, strict=True)
        )
    )


def gather(head: Item, waiting: Sequence[Item]) -> tuple[list[Item], float]:
    """Return a batch of `head` and later items, and the monotonic time when the batch may run (0: now).

    `waiting` has the candidates for the batch, the oldest first. It may contain `head` and items of other models.
    """
    batching = head.batching
    if batching is None or head.rows == 0 or head.rows >= batching.size:
        return [head], 0.0
    batch, rows = [head], head.rows
    for item in waiting:
        if rows == batching.size:
            break
        if item is not head and rows + item.rows <= batching.size and _can_join(head, item):
            batch.append(item)
            rows += item.rows
    if rows >= batching.min_size:
        return batch, 0.0
    return batch, head.queued_at + (batching.min_timeout_ms or DEFAULT_MIN_TIMEOUT_MS) / 1000


def run_joined(batch: Sequence[Item], totals: BatchTotals) -> list[list[Array]]:
    """Run the requests together and split the outputs. A single request runs unchanged."""
    model = batch[0].model
    rows = sum(item.rows for item in batch)
    if len(batch) == 1:
        results = [model.compiled.run(batch[0].arrays)]
    else:
        inputs = [np.concatenate([item.arrays[port] for item in batch]) for port in range(len(batch[0].arrays))]
        outputs = model.compiled.run(inputs)
        if any(output.ndim == 0 or output.shape[0] != rows for output in outputs):
            raise BatchSizeMismatch
        results, first = [], 0
        for item in batch:
            results.append([output[first : first + item.rows] for output in outputs])
            first += item.rows
    totals.batches += 1
    totals.items += len(batch)
    return results
