"""Makes batches for token models: pads lengths to multiples of 16, and numbers of rows to a few sizes.

A runtime compiles kernels for each shape, so the number of shapes must be small. Padding is masked, and is removed from
the outputs. So the result of an item does not depend on the other items in its batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qa_cluster.errors import InferenceFailed
from qa_cluster.reading.manifest import LENGTH_STEP

from .served import BatchTotals, Item
from .tensors import Array

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
RUN_TOKENS = 48
"""The fixed cost of a run, in tokens. For the bundled int8 reader on one thread, measurements gave 11 in a tight loop,
and 65 on a busy machine, where other work evicts the weights from the processor's caches."""

_NEAREST = (
    BATCH_SIZES[-1] - 1
)  # the number of items before and after the oldest item, in the order of lengths, that can share its batch


def padded_length(length: int) -> int:
    """Return the length of a row after padding: the next multiple of `LENGTH_STEP` tokens."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP


def padded_rows(rows: int) -> int:
    """Return the rows after padding: the next batch size, or `rows` itself above the largest size."""
    return next((size for size in BATCH_SIZES if size >= rows), rows)


def row_parts(rows: int, length: int, max_tokens: int) -> list[slice]:
    """Divide the rows of one request into runs of at most `max_tokens` tokens, but at least one row.

    Only the last run can be smaller.

    >>> row_parts(20, 100, 1024), row_parts(2, 5000, 1024), row_parts(3, 16, 1024)
    ([slice(0, 8, None), slice(8, 16, None), slice(16, 20, None)], [slice(0, 1, None), slice(1, 2, None)], \
    [slice(0, 3, None)])
    """
    fitting = max(1, max_tokens // padded_length(length))
    if rows <= fitting:
        return [slice(0, rows)]
    each = max(size for size in BATCH_SIZES if size <= fitting)
    return [slice(first, min(first + each, rows)) for first in range(0, rows, each)]


def choose_batch(items: Sequence[Item], max_tokens: int) -> list[Item]:
    """Return the items of the next batch. `items` has the waiting items, the oldest first; it must not be empty.

    The function sorts the items of the oldest item's model by length. It divides the items near the oldest item in this
    order into runs with the least total cost, and returns the run with the oldest item. An item with several rows runs
    alone.

    A padded token has the same cost as a real token, and a padded row has the same cost as a real row. Each run also
    has a fixed cost. So it is cheapest to run a few items together, and many items in batches of similar lengths.
    """
    head = items[0]
    if not head.model.is_token_model or head.rows != 1:
        return [head]
    same = sorted((i for i in items if i.model is head.model and i.rows == 1), key=lambda item: item.length)
    place = next(index for index, item in enumerate(same) if item is head)
    first = max(0, place - _NEAREST)
    near = same[first : place + _NEAREST + 1]
    runs = cheapest_runs([padded_length(item.length) for item in near], max_tokens)
    return next(near[run] for run in runs if run.start <= place - first < run.stop)


def cheapest_runs(lengths: Sequence[int], max_tokens: int) -> list[slice]:
    """Divide items into runs with the least total cost. A run of several items has at most `max_tokens` tokens.

    Args:
        lengths: the padded lengths of the items, ascending.

    >>> cheapest_runs([16, 32, 48, 48], 1024), cheapest_runs([16] * 8 + [128] * 4, 1024)
    ([slice(0, 4, None)], [slice(0, 8, None), slice(8, 12, None)])
    """
    # least[n]: the least cost of the first n items, and the number of items in the last run
    least: list[tuple[int, int]] = [(0, 0)]
    for stop, length in enumerate(lengths, start=1):
        ways = [(least[stop - 1][0] + RUN_TOKENS + length, 1)]
        for count in range(2, min(stop, BATCH_SIZES[-1]) + 1):
            tokens = padded_rows(count) * length
            if tokens > max_tokens:
                break
            ways.append((least[stop - count][0] + RUN_TOKENS + tokens, count))
        least.append(min(ways))
    runs: list[slice] = []
    stop = len(lengths)
    while stop:
        runs.append(slice(stop - least[stop][1], stop))
        stop = runs[-1].start
    return runs[::-1]


def batch_shape(batch: Sequence[Item]) -> tuple[int, int]:
    """Return rows and length of a padded batch of items."""
    return padded_rows(sum(item.rows for item in batch)), padded_length(max(item.length for item in batch))


def run_batch(batch: Sequence[Item], totals: BatchTotals) -> list[list[Array]]:
    """Run items of one token model as one padded batch, and return the outputs of each item.

    Raises InferenceFailed if the outputs do not have the shape ``[rows, tokens, ..]``, or ``[rows, dims]`` for an
    encoder.
    """
    model = batch[0].model
    size, length = batch_shape(batch)
    inputs = []
    for position, port in enumerate(model.compiled.inputs):
        padded = np.zeros((size, length), dtype=port.dtype)
        row = 0
        for item in batch:
            padded[row : row + item.rows, : item.length] = item.arrays[position]
            row += item.rows
        padded[row:] = padded[0]
        inputs.append(padded)
    outputs = model.compiled.run(inputs)
    # an encoder returns a vector for each row; other token models return values for each token of each row
    shared = (size,) if model.makes_vectors else (size, length)
    for output in outputs:
        if output.shape[: len(shared)] != shared:
            raise InferenceFailed(
                f"{'an encoder' if model.makes_vectors else 'a token model'} must return values for each"
                f" {'row' if model.makes_vectors else 'token'}: for {size} x {length} tokens it returned the shape"
                f" {list(output.shape)}"
            )
    totals.batches += 1
    totals.items += len(batch)
    totals.tokens += sum(item.rows * item.length for item in batch)
    totals.padded_tokens += size * length
    results = []
    row = 0
    for item in batch:
        of_item = [output[row : row + item.rows] for output in outputs]
        if not model.makes_vectors:
            of_item = [output[:, : item.length] for output in of_item]
        results.append([np.ascontiguousarray(output) for output in of_item])
        row += item.rows
    return results
