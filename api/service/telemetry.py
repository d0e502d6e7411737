"""The metrics of the service, and the metrics that the shards report in `INFO qa`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from qa_cluster.asking.engine import Engine
from qa_cluster.batches.records import BatchCounts
from qa_cluster.exposition import Registry, sample
from qa_cluster.types import CacheUse, Timings

SUBMISSION_OUTCOMES = ("submitted", "resumed", "answered", "failed", "postponed", "lost")
_NAME = re.compile(r"[^a-zA-Z0-9_]")
_NUMBER = re.compile(r"-?\d+(\.\d+)?\Z")
_LATENCY = re.compile(r"qa_latency_(.+)_(queue|run)_us\Z")
# Upper bounds, in µs, of the buckets for the durations of the shards' jobs: 0.26 ms to 67 s.
_BOUNDS_US = tuple(2**power for power in range(8, 27))


class Telemetry:
    """All metrics of the process."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.requests = self.registry.counter(
            "qa_http_requests_total", "HTTP requests by route, method and status", ("route", "method", "status")
        )
        self.seconds = self.registry.histogram(
            "qa_http_request_duration_seconds", "Time from request to response by route", ("route",)
        )
        self.questions = self.registry.counter(
            "qa_questions_total", "Questions answered, by cache tier and outcome", ("tier", "outcome")
        )
        self.stages = self.registry.histogram(
            "qa_question_stage_duration_seconds",
            "Time of the stages of questions not answered from a cache",
            ("stage",),
        )
        self.waves = self.registry.histogram(
            "qa_question_waves", "Waves in which sentences were read", bounds=(0, 1, 2, 3, 4, 8)
        )
        self.searches = self.registry.counter("qa_searches_total", "Searches, by outcome", ("outcome",))
        self.partial = self.registry.counter(
            "qa_partial_results_total", "Questions and searches answered without the shards that were down", ("route",)
        )
        self.refused = self.registry.counter(
            "qa_http_refused_total", "Requests refused because the service was at its limit of concurrent requests"
        )
        self.disconnects = self.registry.counter(
            "qa_http_disconnects_total", "Requests cancelled because the client disconnected"
        )
        self.document_writes = self.registry.counter(
            "qa_document_writes_total", "Documents written, updated or deleted through this process", ("operation",)
        )
        self.pipeline_pairs = self.registry.counter(
            "qa_pipeline_pairs_total", "Pairs of question and context read by POST /models/{id} and by /v2"
        )
        self.submissions = self.registry.counter(
            "qa_submissions_total",
            "Submitted questions (Prefer: respond-async), by what this process did with them",
            ("outcome",),
        )
        for outcome in SUBMISSION_OUTCOMES:
            self.submissions.inc(outcome, by=0)
        self.loop_lag = self.registry.histogram(
            "qa_event_loop_lag_seconds", "Delay of a timer of the event loop, measured every 0.1 s"
        )
        self.active = 0
        self.registry.gauge("qa_http_requests_active", "Requests in progress", lambda: self.active)

    def question(self, use: CacheUse, timings: Timings, answerable: bool) -> None:
        """Count one answered question. Without a cache hit, also record the durations of its ranking and its waves."""
        self.questions.inc(use.tier, "answer" if answerable else "no_answer")
        if use.status != "hit":
            self.stages.observe(timings.rank / 1000, "rank")
            for wave in timings.read:
                self.stages.observe(wave / 1000, "read")
            self.waves.observe(len(timings.read))

    def watch(self, engine: Engine) -> None:
        """Add the metrics of an engine to the registry."""
        near, freshness = engine.near, engine.freshness
        for name, help, read in (
            ("qa_near_cache_entries", "Answers in the near cache", lambda: len(near)),
            ("qa_near_cache_bytes", "Bytes of the near cache", lambda: near.bytes),
            ("qa_near_cache_evictions", "Answers evicted from the near cache to free memory", lambda: near.evictions),
            ("qa_invalidations", "Notifications of changes from the shards", lambda: freshness.pushes),
            ("qa_tracking_ready", "Whether every shard reports its changes to this process", lambda: freshness.ready),
            ("qa_rankings_by_indexes", "Rankings by this process", lambda: engine.rankings),
            ("qa_flights", "Questions being computed", lambda: len(engine.asker.flights)),
            ("qa_questions_waiting", "Questions in the queue", lambda: engine.admission.waiting),
            (
                "qa_questions_late",
                "Questions refused because they would have missed their deadline",
                lambda: engine.admission.refused,
            ),
            ("qa_shards", "Shards of the cluster", lambda: len(engine.shards.all)),
            ("qa_shards_down", "Shards that do not answer this process", lambda: len(engine.shards.down)),
        ):
            self.registry.gauge(name, help, read)


def batch_samples(counts: BatchCounts, now: float) -> list[str]:
    """Return the numbers of the stored batches as samples. Each process reports the batches of the whole cluster.

    `now` is the current time in seconds since 1970.
    """
    age = 0.0 if counts.oldest_open is None else max(0.0, now - counts.oldest_open)
    requests = {"pending": counts.pending, "completed": counts.completed, "failed": counts.failed}
    return [
        *(sample("qa_batches", {"status": status}, number) for status, number in counts.batches.items()),
        sample("qa_batches_oldest_open_seconds", {}, round(age)),
        *(sample("qa_batch_requests", {"state": state}, number) for state, number in requests.items()),
    ]


def shard_samples(shard: str, info: Mapping[str, str]) -> list[str]:
    """Return the numbers in the `INFO qa` section of a shard as samples with the label `shard`.

    ``qa_jobs_<kind>:ok=3,..`` becomes a labelled series, and ``qa_latency_<kind>_<stage>_us:p50=..,le_64=..`` becomes a
    histogram.
    """
    lines: list[str] = []
    for name, text in info.items():
        metric = _NAME.sub("_", name)
        latency = _LATENCY.match(metric)
        if latency is not None:
            lines += _histogram({"shard": shard, "kind": latency[1], "stage": latency[2]}, _pairs(text))
        elif metric.startswith("qa_jobs_"):
            kind = metric.removeprefix("qa_jobs_")
            for outcome, value in _pairs(text).items():
                lines.append(sample("qa_jobs_total", {"shard": shard, "kind": kind, "outcome": outcome}, value))
        elif _NUMBER.match(text):
            lines.append(sample(metric, {"shard": shard}, float(text)))
    return lines


def _pairs(text: str) -> dict[str, float]:
    """Return the numbers of a text ``name=value,name=value`` by name. Values that are not numbers are left out."""
    pairs = (item.partition("=") for item in text.split(","))
    return {name: float(value) for name, _, value in pairs if _NUMBER.match(value)}


def _histogram(labels: Mapping[str, str], buckets: Mapping[str, float]) -> list[str]:
    """Return the samples of a histogram with cumulative buckets in seconds.

    `buckets` has the counts of a shard. The name of a count is ``le_`` and the upper bound of its bucket in
    microseconds. These counts are not cumulative. Other names are ignored.

    A shard reports only nonempty buckets. To sum and compare shards, Prometheus needs the same buckets from all shards
    at all times, so this function adds the empty buckets.
    """
    counts = [(int(name.removeprefix("le_")), count) for name, count in buckets.items() if name.startswith("le_")]
    name, lines, total = "qa_job_duration_seconds", [], sum(count for _, count in counts)
    for bound in _BOUNDS_US:
        below = sum(count for us, count in counts if us <= bound)
        lines.append(sample(f"{name}_bucket", {**labels, "le": f"{bound / 1e6:g}"}, below))
    lines.append(sample(f"{name}_bucket", {**labels, "le": "+Inf"}, total))
    return [*lines, sample(f"{name}_count", labels, total)]


def parse_info(raw: bytes) -> dict[str, str]:
    """Return the fields of an `INFO` reply by name."""
    pairs = (line.partition(":") for line in raw.decode("utf-8", "replace").splitlines() if not line.startswith("#"))
    return {name: value.strip() for name, separator, value in pairs if separator}
