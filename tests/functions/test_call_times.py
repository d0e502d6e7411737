"""A traced call of `qa.read` reports its times on the shard. Other calls are not measured."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from qa_cluster.tracing import ShardTimes
from tests.harness.polling import eventually
from tests.harness.servers import Later

from .running_shards import Shards, sentence_name, tag, triggers_that_wait

NAME = f"00-{'4b' * 16}-{'0f' * 8}-01"
TEXT = "Marie Curie discovered radium in Paris in 1898. It was a great day. The cat sat on the mat."


def traced(shards: Shards, document: str, question: str, count: int = 3) -> tuple[list[str], ShardTimes]:
    """The replies of a traced `qa.read` of a document's first sentences, and its times."""
    names = [sentence_name(document, number) for number in range(count)]
    node = shards.node_of("{" + tag(document) + "}")
    *replies, last = shards.on(node, "RG.TRIGGER", "qa.read", "", question, *names, NAME)
    times = ShardTimes.parse(last, NAME)
    assert times is not None, last
    return replies, times


def test_a_traced_read_reports_the_runs_of_the_model(shards: Shards) -> None:
    shards.put("timed", TEXT)
    shards.wait_tokenized("timed")
    replies, times = traced(shards, "timed", "Who discovered radium?")
    assert len(replies) == 3 and all("answer" in json.loads(reply) for reply in replies)
    assert times.waited > 0 and times.took > 0
    assert [name for name, _, _ in times.steps] == ["answers", "sentences"]
    assert times.runs
    for run in times.runs:
        assert 0 <= run.queued <= run.began < run.ended <= times.took
        assert 1 <= run.texts <= run.items <= run.rows and 0 < run.tokens <= run.rows * run.length


def test_cached_answers_need_no_model(shards: Shards) -> None:
    shards.put("kept times", TEXT)
    shards.wait_tokenized("kept times")
    first, _ = traced(shards, "kept times", "Where was it?")
    again, times = traced(shards, "kept times", "Where was it?")
    assert [json.loads(reply)["cache"] for reply in first + again] == ["miss"] * 3 + ["shard"] * 3
    assert list(times.runs) == []


def test_a_call_that_joins_another_reading_reports_its_run(shards: Shards) -> None:
    """All calls arrive before the worker takes the first call, because a call after the run does not report the run."""
    shards.put("shared times", TEXT)
    shards.wait_tokenized("shared times")
    node = shards.node_of("{" + tag("shared times") + "}")
    with ThreadPoolExecutor(8) as threads, node.client() as client:
        client.config_set("qa.shared-ahead", 8)  # clients of earlier tests still count as active
        with node.stopped_worker():
            asked = [threads.submit(traced, shards, "shared times", "When was it?") for _ in range(8)]
            eventually(lambda: triggers_that_wait(client) == len(asked))
        found = [each.result() for each in asked]
        client.config_set("qa.shared-ahead", 1)
    assert sum(bool(times.runs) for _, times in found) > 1


def test_calls_without_tracing_report_no_times(shards: Shards) -> None:
    shards.put("plain times", TEXT)
    shards.wait_tokenized("plain times")
    names = [sentence_name("plain times", number) for number in range(3)]
    node = shards.node_of("{" + tag("plain times") + "}")
    assert len(shards.on(node, "RG.TRIGGER", "qa.read", "", "Who?", *names)) == 3


@pytest.mark.hostile
def test_a_traceparent_does_not_count_as_a_sentence(shards: Shards) -> None:
    with pytest.raises(redis.ResponseError, match="at least one sentence key"):
        shards.on(shards.nodes[0], "RG.TRIGGER", "qa.read", "", "Who?", NAME)


def test_the_wait_for_a_worker_that_is_busy_is_counted(shards: Shards) -> None:
    """The reported wait starts when the command arrives, although no worker can take the job yet."""
    shards.put("waits", TEXT)
    shards.wait_tokenized("waits")
    node = shards.node_of("{" + tag("waits") + "}")
    begun = time.monotonic()
    with node.stopped_worker(), node.client() as client:
        later = Later(node, "RG.TRIGGER", "qa.read", "", "What sat?", sentence_name("waits", 2), NAME)
        eventually(lambda: triggers_that_wait(client) == 1)
        time.sleep(0.4)
    _, last = later.result()
    lasted = time.monotonic() - begun
    times = ShardTimes.parse(last, NAME)
    assert times is not None
    assert 300_000 < times.waited < lasted * 1e6
