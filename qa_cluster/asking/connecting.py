"""Opens an engine with the settings: addresses, login, TLS, limits and the reading plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qa_cluster.config import Settings
from qa_cluster.reading.plan import BALANCED, PLANS
from qa_cluster.routing.cluster_address import address_of
from qa_cluster.routing.connection import Login
from qa_cluster.topology import Address

from .editors.feedback import FeedbackLimits
from .engine import Engine, EngineOptions
from .questions import AskLimits


@dataclass(frozen=True, slots=True)
class Target:
    """The addresses, the login and the options for a connection to a cluster."""

    seeds: Sequence[Address]
    login: Login
    options: EngineOptions

    async def open(self) -> Engine:
        """Connect to the cluster and return the engine."""
        return await Engine.open(self.seeds, self.login, self.options)


def target_of(settings: Settings) -> Target:
    """Return the addresses, the login and the options that the settings name.

    The form of `cluster_url` is ``redis[s]://[user:password@]host:port[,host:port..]``; ConfigError if it is invalid.
    """
    place = address_of(settings)
    return Target(place.seeds, place.login, _engine_options(settings))


def _engine_options(settings: Settings) -> EngineOptions:
    plan, retriever_k = PLANS[settings.plan], settings.retriever_k
    if settings.plan == BALANCED:
        plan = (replace(plan[0], waves=settings.waves), *plan[1:])
    else:
        retriever_k = plan[0].candidates or retriever_k
    return EngineOptions(
        near_cache_entries=settings.near_cache_entries,
        near_cache_ttl_seconds=settings.near_cache_ttl_s,
        whole_answer_ttl_seconds=settings.whole_answer_ttl_s,
        answer_drift=settings.answer_drift,
        plan=plan,
        pipeline_max_requests=settings.pipeline_max_requests,
        shard_patience_seconds=settings.shard_patience_ms / 1000,
        feedback=FeedbackLimits(settings.feedback_entries, settings.feedback_days, settings.unanswered_entries),
        limits=AskLimits(
            question_max_chars=settings.question_max_chars,
            answer_max_bytes=settings.answer_max_bytes,
            top_k_max=settings.top_k_max,
            retriever_k=retriever_k,
            timeout_ms=settings.request_timeout_ms,
            timeout_ms_max=max(settings.request_timeout_max_ms, settings.request_timeout_ms),
        ),
    )
