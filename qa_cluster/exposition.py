"""Counters, gauges and histograms of one process, in the Prometheus text format.

Label values must come from small fixed sets such as routes, statuses and the tiers of the caches. A question or an id
is never a label value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _label(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    """Return one sample as a line of the text format.

    >>> sample("qa_up", {"shard": "a"}, 1)
    'qa_up{shard="a"} 1'
    """
    inner = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {value:.10g}" if inner else f"{name} {value:.10g}"


class Counter:
    """A counter for each combination of label values. A counter only increases.

    `labels` are the names of the labels. The methods take the values of the labels in the same order.
    """

    kind = "counter"

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        self.name, self.help, self._labels = name, help, tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def inc(self, *values: str, by: float = 1) -> None:
        """Add `by` to the counter with the label values `values`."""
        self._values[values] = self._values.get(values, 0.0) + by

    def value(self, *values: str) -> float:
        """Return the current count for the label values `values`; 0 if nothing has been counted for them."""
        return self._values.get(values, 0.0)

    def lines(self) -> list[str]:
        """Return the samples as lines of the text format."""
        return [
            sample(self.name, dict(zip(self._labels, key, strict=True)), value)
            for key, value in sorted(self._values.items())
        ]


class Gauge:
    """A number that the function `read` computes each time the metrics are rendered."""

    kind = "gauge"

    def __init__(self, name: str, help: str, read: Callable[[], float]) -> None:
        self.name, self.help, self._read = name, help, read

    def lines(self) -> list[str]:
        """Return the sample as a line of the text format."""
        return [sample(self.name, {}, self._read())]


class Histogram:
    """Counts durations in buckets with fixed bounds, separately for each combination of label values.

    `labels` are the names of the labels. `bounds` are the upper bounds of the buckets in seconds, ascending and
    inclusive. One more bucket has the longer durations.
    """

    kind = "histogram"

    def __init__(self, name: str, help: str, labels: Sequence[str] = (), bounds: Sequence[float] = SECONDS) -> None:
        self.name, self.help, self._labels, self._bounds = name, help, tuple(labels), tuple(bounds)
        self._series: dict[tuple[str, ...], list[float]] = {}

    def observe(self, value: float, *values: str) -> None:
        """Count the duration `value`, in seconds, for the label values `values`, which are in the order of `labels`."""
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = [0.0] * (len(self._bounds) + 2)
        series[bisect_left(self._bounds, value)] += 1
        series[-1] += value

    def lines(self) -> list[str]:
        """Return the cumulative buckets, the sum and the count of every series as lines of the text format."""
        lines = []
        for key, series in sorted(self._series.items()):
            labels = dict(zip(self._labels, key, strict=True))
            total = 0.0
            for bound, count in zip((*self._bounds, float("inf")), series[:-1], strict=True):
                total += count
                text = "+Inf" if bound == float("inf") else f"{bound:g}"
                lines.append(sample(f"{self.name}_bucket", {**labels, "le": text}, total))
            lines.append(sample(f"{self.name}_sum", labels, series[-1]))
            lines.append(sample(f"{self.name}_count", labels, total))
        return lines


_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)


class Registry:
    """The metrics of a process, in the order in which they were added."""

    def __init__(self) -> None:
        self._metrics: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """Create a counter, add it to the registry and return it. `labels` are the names of its labels."""
        return self._add(Counter(name, help, labels))

    def gauge(self, name: str, help: str, read: Callable[[], float]) -> Gauge:
        """Create a gauge that calls `read` when it is rendered, add it and return it."""
        return self._add(Gauge(name, help, read))

    def histogram(
        self, name: str, help: str, labels: Sequence[str] = (), bounds: Sequence[float] = SECONDS
    ) -> Histogram:
        """Create a histogram, add it and return it. `bounds` are the upper bounds of its buckets, in seconds."""
        return self._add(Histogram(name, help, labels, bounds))

    def _add(self, metric: _Metric) -> _Metric:
        if metric.name in self._metrics:
            raise ValueError(f"metric {metric.name!r} exists already")
        self._metrics[metric.name] = metric
        return metric

    def render(self) -> str:
        """Return all metrics in the text format."""
        lines = []
        for metric in self._metrics.values():
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *metric.lines()]
        return "\n".join(lines) + "\n"
