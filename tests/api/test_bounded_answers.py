"""Requests for large answers: response bytes and memory are limited, and the service still answers other clients.

The service is a process with its default limits. `make hostile ARGS='-s tests/api/test_bounded_answers.py'` prints the
figures.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from qa_cluster.asking.questions import AskLimits
from qa_cluster.options.questions import SearchOptions
from qa_cluster.types import SearchResult
from tests.api.measured_service import MeasuredService, process_of
from tests.api.service_under_test import assert_problem
from tests.api.service_under_test import service as in_process
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.figures import crowding

pytestmark = pytest.mark.hostile

SENTENCES = 20_000
# The longest lag on an idle machine is a few milliseconds.
LAG_SECONDS = 1.0
WAIT_SECONDS = 5.0
MEMORY_MB = 250
LONG = "Ada wrote programs, and number {} has some words that make it longer still."
TEXT = " ".join(LONG.format(number) for number in range(SENTENCES))
METADATA = {f"field {number:04}": number % 10 for number in range(4100)}


class Service(MeasuredService):
    """The process of the service, its lags, and the durations of another client's requests."""

    def peak_mb(self) -> float:
        return self.megabytes("VmHWM")

    async def lag_above(self, seconds: float) -> int:
        """The number of event loop lags above `seconds`, rounded up to the next bucket bound of the metric."""
        text = (await self.client.get("/metrics")).text
        found = {
            name: int(float(count))
            for name, count in re.findall(r'^qa_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', text, re.M)
        }
        return found["+Inf"] - found[min((name for name in found if float(name) >= seconds), key=float)]


@pytest.fixture
async def service(cluster: ScriptedCluster) -> AsyncIterator[Service]:
    async with process_of(cluster) as (pid, client):
        for name, text, metadata in (
            ("heavy", TEXT, METADATA),
            ("light", TEXT.replace("Ada", "Bob"), {"year": 1843}),
            ("owls", "Owls hunt mice.", {}),
        ):
            body = {"text": text, "metadata": metadata}
            (await client.put(f"/documents/{name}?timeout_ms=60000", json=body)).raise_for_status()
        found = Service(pid, client, "What hunts mice?")
        for _ in range(2):
            await found.ask()
        yield found


# For each case: the parameters, the number of concurrent requests, the status, and the number of hits.
ATTACKS: list[tuple[dict[str, Any], int, int, int]] = [
    ({"q": "Ada wrote programs", "top_k": 1000}, 8, 413, 0),
    ({"q": "Ada wrote programs", "top_k": 1000, "context": 16}, 4, 413, 0),
    ({"q": "Ada wrote programs", "top_k": 100}, 4, 200, 100),
    ({"q": "Bob wrote programs", "top_k": 1000, "doc_id": "light"}, 4, 200, 1000),
]


async def test_large_answers_do_not_delay_other_clients(service: Service) -> None:
    assert 60_000 < len(orjson.dumps(METADATA)) < 65_536
    assert len(TEXT) > 1_500_000
    for parameters, at_once, status, count in ATTACKS:
        bound = LAG_SECONDS * crowding()
        before, late, begun = service.peak_mb(), await service.lag_above(bound), time.perf_counter()
        service.waits.clear()
        async with service.asked():
            responses = await asyncio.gather(
                *(service.client.get("/search", params={**parameters, "timeout_ms": 60_000}) for _ in range(at_once))
            )
        took, grown = time.perf_counter() - begun, service.peak_mb() - before
        late = await service.lag_above(bound) - late
        print(
            f"\n{at_once} x {parameters}: {took:.1f} s, {grown:+.0f} MB, {len(service.waits)} other requests, the"
            f" longest {max(service.waits) * 1e3:.0f} ms; event loop lag above {bound:g} s: {late} times"
        )
        assert [response.status_code for response in responses] == [status] * at_once, responses[0].text[:300]
        for response in responses:
            if status == 200:
                hits = response.json()["hits"]
                assert (len(hits), [hit["rank"] for hit in hits]) == (count, list(range(1, count + 1)))
                assert len(response.content) <= 8 << 20
            else:
                assert "8388608 bytes" in response.text
                assert "answer_max_bytes" in response.text
        assert max(service.waits) < WAIT_SECONDS * crowding()
        assert grown < MEMORY_MB
        assert not late


async def test_large_bodies_do_not_delay_other_clients(service: Service) -> None:
    """The service parses each body of 7 MB before it refuses the request."""
    body = json.dumps({"query": "a", "filters": {"x": [12345678901234567] * 350_000}}).encode()
    headers = {"content-type": "application/json"}
    async with service.asked():
        responses = await asyncio.gather(
            *(service.client.post("/search", content=body, headers=headers) for _ in range(4))
        )
    assert {response.status_code for response in responses} == {422}
    assert max(service.waits) < WAIT_SECONDS * crowding()
    assert not await service.lag_above(LAG_SECONDS * crowding())


async def test_lists_and_answers_beyond_the_limit_are_errors_that_name_it(cluster: ScriptedCluster) -> None:
    target = cluster.target(limits=AskLimits(timeout_ms=60_000, answer_max_bytes=65_536))
    async with in_process(target) as (_, client):
        for number in range(20):
            body = {"text": f"Ada{number} wrote it.", "title": "t" * 4000, "metadata": {"k": "x" * 30_000}}
            await client.put(f"/documents/{number}", json=body)
        assert (await client.get("/documents?limit=10")).status_code == 200
        for path, advice in (
            ("/documents?limit=20", "lower limit"),
            ("/qa?question=Who+wrote+it&top_k=5", "lower top_k"),
            ("/search?q=wrote+it&top_k=5", "lower top_k or context"),
        ):
            assert_problem(await client.get(path), 413, "too-long", "65536", "answer_max_bytes", advice)
        assert len((await client.get("/qa?question=Who+wrote+it&top_k=1")).json()["answers"]) == 1


async def test_the_hits_of_a_document_share_their_metadata(cluster: ScriptedCluster) -> None:
    engine = await cluster.target().open()
    try:
        text = " ".join(f"Ada wrote program {number}." for number in range(250))
        await engine.documents.put("a", text, metadata={"deep": {"k": [1, 2]}}, timeout=60)
        found = await engine.search("wrote program", SearchOptions(top_k=250))
        result = found.result("id")
        assert len(result.hits) == 250
        assert len({id(hit.metadata) for hit in result.hits}) == 1
        assert result.to_dict()["hits"][7]["metadata"] is result.hits[0].metadata
        assert json.loads(result.to_json()) == json.loads(json.dumps(result.to_dict()))
        assert SearchResult.from_json(result.to_json()) == result
    finally:
        await engine.aclose()
