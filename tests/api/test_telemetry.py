"""The histograms of the shards' jobs: Prometheus can sum them over shards and compare them over time."""

from __future__ import annotations

import re

from qa_cluster.api.service.telemetry import shard_samples


def buckets(text: str) -> dict[str, float]:
    """The cumulative count for each upper bound of the histogram in `text`."""
    lines = shard_samples("ab12", {"qa_latency_trigger_queue_us": text})
    found = (re.fullmatch(r'qa_job_duration_seconds_bucket\{.*le="(.+)"\} (\d+)', line) for line in lines)
    return {match[1]: float(match[2]) for match in found if match}


def test_every_shard_has_the_same_buckets_from_the_beginning() -> None:
    new, old = buckets("p50=0,p99=0"), buckets("p50=1024,p99=4096,le_16=2,le_1024=3,le_4096=1,le_4294967296=1")
    assert list(new) == list(old)
    assert set(new.values()) == {0}
    counts = list(old.values())
    assert counts == sorted(counts)
    assert (old["0.000256"], old["0.001024"], old["0.002048"], old["0.004096"]) == (2, 5, 5, 6)
    assert (old["67.1089"], old["+Inf"]) == (6, 7)
