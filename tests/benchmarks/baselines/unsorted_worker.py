"""A shard's worker that batches sentences in order of arrival, up to the token budget, without regard to their lengths.

Except for the choice of a batch, it is the real worker. Servers start it by its path, because their folder is its
directory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from qa_cluster.gears import worker
from qa_cluster.gears.inference import batcher
from qa_cluster.gears.inference.served import Item
from qa_cluster.gears.inference.token_batches import BATCH_SIZES, padded_length, padded_rows


def choose_batch(items: Sequence[Item], max_tokens: int) -> list[Item]:
    """The first items of one model, as many as fit into the padded-token budget and a batch size of the worker."""
    head = items[0]
    if not head.model.is_token_model or head.rows != 1:
        return [head]
    same = [item for item in items if item.model is head.model and item.rows == 1]
    chosen = [head]
    for item in same[1 : BATCH_SIZES[-1]]:
        longest = max(other.length for other in (*chosen, item))
        if padded_rows(len(chosen) + 1) * padded_length(longest) > max_tokens:
            break
        chosen.append(item)
    return chosen


if __name__ == "__main__":
    setattr(batcher, "choose_batch", choose_batch)  # noqa: B010 (batcher only imports it)
    sys.exit(worker.main())
