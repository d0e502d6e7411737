"""Measures how long several runners take for one pair of question and context, at several lengths of the pair.

The runners take turns, so that other load on the machine slows all runners alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from qa_cluster.reading.manifest import Manifest
from qa_cluster.reading.runtimes import Runner
from qa_cluster.reading.windows import Arrays

LENGTHS = (16, 32, 64, 128, 256, 384)
ROUNDS = 15
_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Latency:
    """The time of one pair in milliseconds: the median, the lower quartile (`low_ms`) and the upper quartile
    (`high_ms`).
    """

    median_ms: float
    low_ms: float
    high_ms: float


def measure_latency(
    runners: Mapping[str, tuple[Runner, Manifest]], lengths: Sequence[int] = LENGTHS, rounds: int = ROUNDS
) -> dict[str, dict[int, Latency]]:
    """Return the latency of each runner with a batch of one pair, by the name of the runner and the length in tokens.
    Lengths that the model of a runner does not accept are left out. Each latency is from `rounds` runs.
    """
    found: dict[str, dict[int, Latency]] = {name: {} for name in runners}
    for length in lengths:
        fitting = {name: variant for name, variant in runners.items() if length <= variant[1].max_tokens}
        inputs = {name: _inputs(manifest, length) for name, (_, manifest) in fitting.items()}
        taken: dict[str, list[float]] = {name: [] for name in fitting}
        for turn in range(_WARM_UP + rounds):
            for name, (run, _) in fitting.items():
                began = perf_counter()
                run(inputs[name])
                if turn >= _WARM_UP:
                    taken[name].append((perf_counter() - began) * 1000)
        for name, times in taken.items():
            low, median, high = (round(float(value), 3) for value in np.quantile(times, (0.25, 0.5, 0.75)))
            found[name][length] = Latency(median, low, high)
    return found


def _inputs(manifest: Manifest, length: int) -> Arrays:
    """Return the inputs for one pair of exactly `length` tokens. The tokens are arbitrary."""
    pair = manifest.pair
    ids = np.full((1, length), pair.tail[-1], np.int64)
    ids[0, : len(pair.head)] = pair.head
    types = np.full_like(ids, pair.context_type)
    types[0, : length // 3] = 0
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}
    return {name: arrays[name] for name in manifest.inputs}
