"""Each setting reaches its option of the engine, and the settings limit the lifetime of cached answers."""

from __future__ import annotations

from typing import Any

from qa_cluster.asking.connecting import target_of
from qa_cluster.asking.editors.feedback import FeedbackLimits
from qa_cluster.config import Settings
from qa_cluster.reading.plan import StageOptions
from tests.client.engines import ask, opened, write
from tests.client.scripted_cluster import ScriptedCluster

QUESTION = "Who wrote programs?"
# All values differ from each other and from the defaults.
GIVEN: dict[str, Any] = {
    "near_cache_entries": 11,
    "near_cache_ttl_s": 12,
    "whole_answer_ttl_s": 13,
    "pipeline_max_requests": 15,
    "question_max_chars": 16,
    "top_k_max": 17,
    "retriever_k": 18,
    "request_timeout_ms": 19,
    "request_timeout_max_ms": 22,
    "connect_timeout_ms": 20_000,
    "feedback_entries": 31,
    "feedback_days": 32,
    "unanswered_entries": 33,
    "waves": (2, 21),
    "cluster_url": "redis://ada:secret@one:7001,two:7002",
}


def test_every_setting_reaches_its_option() -> None:
    target = target_of(Settings(**GIVEN))
    options, limits = target.options, target.options.limits
    assert (options.near_cache_entries, options.pipeline_max_requests) == (11, 15)
    assert options.plan == (StageOptions(waves=(2, 21)),)
    assert (options.near_cache_ttl_seconds, options.whole_answer_ttl_seconds) == (12, 13)
    assert (limits.question_max_chars, limits.top_k_max, limits.retriever_k, limits.timeout_ms) == (16, 17, 18, 19)
    assert limits.timeout_ms_max == 22
    assert options.feedback == FeedbackLimits(31, 32, 33)
    assert target_of(Settings(**GIVEN | {"request_timeout_ms": 23})).options.limits.timeout_ms_max == 23
    assert [str(seed) for seed in target.seeds] == ["one:7001", "two:7002"]
    assert (target.login.username, target.login.password, target.login.tls) == ("ada", "secret", None)
    assert target.login.connect_timeout_seconds == 20


async def test_both_lifetimes_reach_the_caches(cluster: ScriptedCluster) -> None:
    async with opened(cluster, near_cache_ttl_seconds=50, whole_answer_ttl_seconds=900) as engine:
        await write(engine, "Ada wrote programs.")
        assert (await ask(engine, QUESTION)).cache.ttl_s == 900
        kept = (await ask(engine, QUESTION)).cache
        assert kept.tier == "near" and 0 < kept.ttl_s <= 50
    async with opened(cluster, near_cache_ttl_seconds=900, whole_answer_ttl_seconds=50) as engine:
        await ask(engine, QUESTION, cache="refresh")
        kept = (await ask(engine, QUESTION)).cache
        assert kept.tier == "near" and 0 < kept.ttl_s <= 50, "no answer lives longer than on its shard"
