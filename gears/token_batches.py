"""Batches of token models: lengths are padded to multiples of 16 and batches to a few sizes.

A runtime compiles kernels per shape, so there are few; padding is masked and cut off again, and an item's result does
not depend on its company.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .served import BatchTotals, Item
from .tensors import Array

LENGTH_STEP = 16
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
MAX_FILLER = 8  # at most one row, or one padded token, in so many may be filler


def padded_length(length: int) -> int:
    """Length after padding."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP


def batch_rows(available: int) -> tuple[int, int]:
    """How many of `available` rows to take, and the size of the batch they go into.

    Filler rows cost as much as real ones: unless there are few, the largest full batch is better.

    >>> batch_rows(5), batch_rows(7), batch_rows(15)
    ((4, 4), (7, 8), (15, 16))
    """
    for size in BATCH_SIZES:
        if size >= available and (size - available) * MAX_FILLER <= size:
            return available, size
    full = max(size for size in BATCH_SIZES if size <= available)
    return full, full


def choose_batch(items: Sequence[Item], max_tokens: int) -> list[Item]:
    """The items of the next batch: the oldest and, of its model, those nearest in length, at little padding.

    Measured on a CPU, a padded token costs what a real one does and a row in a batch hardly less than a row alone: an
    item joins only while padding, beyond what the items would have alone, stays within the share `MAX_FILLER` allows.
    """
    head = items[0]
    if not head.model.is_token_model or head.rows != 1:
        return [head]
    same = sorted((i for i in items if i.model is head.model and i.rows == 1), key=lambda item: item.length)
    low = high = next(index for index, item in enumerate(same) if item is head)
    alone = padded_length(head.length)
    while (count := high - low + 2) <= BATCH_SIZES[-1]:
        wider = []
        for first, last, new in ((low - 1, high, low - 1), (low, high + 1, high + 1)):
            if 0 <= new < len(same):
                padded = count * padded_length(same[last].length)
                tokens = alone + padded_length(same[new].length)
                if padded <= max_tokens and (padded - tokens) * MAX_FILLER <= padded:
                    wider.append((padded - tokens, first, last, tokens))
        if not wider:
            break
        _, low, high, alone = min(wider)
    taken, _ = batch_rows(high - low + 1)
    chosen = same[low : high + 1]
    while len(chosen) > taken:
        chosen.pop(0 if chosen[-1] is head else -1)  # the longest cost most, but the oldest must stay
    return chosen


def run_batch(batch: Sequence[Item], totals: BatchTotals) -> list[list[Array]]:
    """Run items of one token model as one padded batch, and cut each item's part out of the outputs."""
    model = batch[0].model
    rows = sum(item.rows for item in batch)
    size = next((size for size in BATCH_SIZES if size >= rows), rows)
    length = padded_length(max(item.length for item in batch))
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
    totals.batches += 1
    totals.items += len(batch)
    totals.tokens += sum(item.rows * item.length for item in batch)
    totals.padded_tokens += size * length
    results = []
    row = 0
    for item in batch:
        results.append([np.ascontiguousarray(out[row : row + item.rows, : item.length]) for out in outputs])
        row += item.rows
    return results
