"""The exposition format of Prometheus."""

from __future__ import annotations

import pytest

from qa_cluster.exposition import Registry, sample


def test_counters_gauges_and_histograms_are_exposed() -> None:
    registry = Registry()
    counter = registry.counter("c_total", "Counted", ("route",))
    counter.inc("/qa")
    counter.inc("/qa", by=2)
    registry.gauge("g", "Measured", lambda: 1.5)
    histogram = registry.histogram("h", "Spread", ("stage",), bounds=(0.1, 1))
    for value in (0.1, 0.5, 7):
        histogram.observe(value, "rank")
    assert registry.render().splitlines() == [
        "# HELP c_total Counted",
        "# TYPE c_total counter",
        'c_total{route="/qa"} 3',
        "# HELP g Measured",
        "# TYPE g gauge",
        "g 1.5",
        "# HELP h Spread",
        "# TYPE h histogram",
        'h_bucket{stage="rank",le="0.1"} 1',
        'h_bucket{stage="rank",le="1"} 2',
        'h_bucket{stage="rank",le="+Inf"} 3',
        'h_sum{stage="rank"} 7.6',
        'h_count{stage="rank"} 3',
    ]


def test_label_values_are_escaped() -> None:
    assert sample("x", {"a": 'say "\\hi"\n'}, 1) == 'x{a="say \\"\\\\hi\\"\\n"} 1'


def test_a_metric_name_can_be_defined_only_once() -> None:
    registry = Registry()
    registry.counter("x", "")
    with pytest.raises(ValueError, match="x"):
        registry.counter("x", "")
