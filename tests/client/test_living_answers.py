"""In a corpus that changes continuously, cached answers equal fresh answers."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from typing import Any

import pytest

from qa_cluster.asking.engine import Engine
from qa_cluster.errors import NotFound
from tests.client.engines import ask, opened
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.chance_texts import QUESTIONS, text

STEPS = int(os.environ.get("QA_TEST_INTERLEAVINGS", "400"))
ALL: tuple[str, ...] = ()
SELECTED = (ALL, ALL, tuple(f"doc {number}" for number in range(0, 80, 8)))


async def answers(engine: Engine, question: str, cache: str, doc_id: tuple[str, ...] = ()) -> tuple[Any, str]:
    result = await ask(engine, question, cache=cache, top_k=5, retriever_k=3, no_answer=False, doc_id=doc_id)
    assert not doc_id or {answer.document_id for answer in result.answers} <= set(doc_id)
    found = [(answer.answer, answer.document_id, answer.document_version, answer.start) for answer in result.answers]
    return (found, result.no_answer_score), result.cache.tier


@pytest.mark.timeout(3600)
async def test_without_drift_every_cached_answer_equals_a_fresh_answer(cluster: ScriptedCluster) -> None:
    """`QA_TEST_INTERLEAVINGS` is the number of writes, removals and questions."""
    chance = random.Random(1)
    async with opened(cluster, answer_drift=0.0) as a, opened(cluster, answer_drift=0.0) as b:
        hits, filtered = {"near": 0, "shard": 0, "none": 0}, 0
        for number in range(60):
            await a.documents.put(f"doc {number}", text(chance), wait=number == 59)
        for step in range(STEPS):
            engine, action = chance.choice((a, b)), chance.random()
            name = f"doc {chance.randrange(80)}"
            if action < 0.06:
                await engine.documents.put(name, text(chance), wait=True)
            elif action < 0.08:
                with suppress(NotFound):
                    await engine.documents.delete(name)
            else:
                question, doc_id = chance.choice(QUESTIONS), chance.choice(SELECTED)
                kept, tier = await answers(engine, question, "use", doc_id)
                hits[tier] += 1
                filtered += bool(doc_id) and tier != "none"
                if tier == "none":
                    continue
                fresh, _ = await answers(chance.choice((a, b)), question, "off", doc_id)
                assert kept == fresh, f"step {step}: {question} in {doc_id} from {tier}"
        assert hits["near"] > STEPS / 10
        assert filtered > STEPS / 100
        assert hits["none"] > STEPS / 100


async def test_with_drift_no_answer_cites_an_old_text_or_misses_a_better_sentence(cluster: ScriptedCluster) -> None:
    """The order of candidates with similar scores may be slightly stale, but their texts may not."""
    chance = random.Random(2)
    async with opened(cluster, answer_drift=0.5) as engine:
        for number in range(60):
            await engine.documents.put(f"doc {number}", text(chance), wait=number == 59)
        near = 0
        for step in range(STEPS // 2):
            action, name = chance.random(), f"doc {chance.randrange(60)}"
            if action < 0.2:
                await engine.documents.put(name, text(chance), wait=True)
                continue
            question = chance.choice(QUESTIONS)
            (kept, _), tier = await answers(engine, question, "use")
            near += tier == "near"
            for answer, document, version, start in kept:
                stored = await engine.documents.get(document)
                assert stored.version == version, f"step {step}: {question} from {tier}"
                assert stored.text[start : start + len(answer)] == answer
        assert near > STEPS / 20
        question = "Who builds the noun0?"
        await answers(engine, question, "use")
        await engine.documents.put("marked", "Noun0, noun0: Marked builds noun0.", wait=True)
        (kept, _), _ = await answers(engine, question, "use")
        assert "Marked" in {answer for answer, *_ in kept}
