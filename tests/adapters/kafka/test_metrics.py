"""The metrics of a running session over HTTP, and the checks of topics."""

from __future__ import annotations

import asyncio

import httpx
import orjson
import pytest

from qa_cluster.errors import ClusterError, ConfigError
from qa_cluster.integrations.kafka import topics as topics_module
from qa_cluster.integrations.kafka.metrics_server import MetricsServer
from qa_cluster.integrations.kafka.properties import KafkaProperties
from qa_cluster.integrations.kafka.topics import TopicAdmin
from tests.adapters.kafka.broker import Broker
from tests.adapters.kafka.conftest import Topics, adapter
from tests.adapters.kafka.scripted import ScriptedClient, gate
from tests.harness.polling import eventually_async


async def test_lag_and_counts_over_http(topics: Topics) -> None:
    admin = TopicAdmin(KafkaProperties.of(brokers=topics.broker.address))
    topics.broker.write(topics.source, [(b"k", orjson.dumps({"question": f"{n}?"})) for n in range(30)])
    source = (topics.source, 0)
    opened, wait = gate()
    async with adapter(topics, ScriptedClient(wait), concurrency=2, buffer=10) as running:
        await eventually_async(lambda: running.session.buffered == 10)
        assert await asyncio.to_thread(admin.lag, topics.group, running.session.positions) == {source: 30}
        running.metrics.lag = {source: 30}
        server = MetricsServer(running.metrics, "127.0.0.1", 0, lambda: running.session.member)
        await server.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
            text = (await http.get("/metrics")).text
            assert f'qa_kafka_lag_messages{{topic="{topics.source}",partition="0"}} 30\n' in text
            for line in ("buffered_messages 10", "in_flight_messages 2", "assigned_partitions 1", "sessions_total 1"):
                assert f"qa_kafka_{line}\n" in text
            statuses = [(await http.get(path)).status_code for path in ("/livez", "/readyz", "/", "/metrics/x")]
            assert statuses == [200, 200, 404, 404]
            opened.set()
            await eventually_async(lambda: running.metrics.messages.value("no_answer") == 30)
            assert await asyncio.to_thread(admin.lag, topics.group, running.session.positions) == {source: 0}
            assert 'qa_kafka_messages_total{outcome="no_answer"} 30\n' in (await http.get("/metrics")).text
        await server.stop()
    assert await asyncio.to_thread(admin.lag, topics.group, {source: None}) == {source: 0}
    assert admin.lag(topics.group, {}) == {}


async def test_a_port_in_use_is_refused() -> None:
    async with adapter_free_port() as port:
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            MetricsServer(None, "127.0.0.1", port, lambda: True)  # type: ignore[arg-type]


class adapter_free_port:
    """A context manager whose port is in use during the block."""

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()


def test_topics_are_checked_and_created(broker: Broker) -> None:
    admin = TopicAdmin(KafkaProperties.of(brokers=broker.address))
    broker.create("three", partitions=3)
    with pytest.raises(ConfigError, match="topic 'to' does not exist"):
        admin.prepare("three", ["to", "dead"], create=False)
    assert admin.prepare("three", ["to", "dead"], create=True) == 3
    assert admin.prepare("three", ["to", "dead"], create=False) == 3
    assert {len(topic.partitions) for name, topic in admin._admin.list_topics().topics.items() if name == "to"} == {3}


def test_no_broker_is_a_cluster_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "FIRST_CONTACT_SECONDS", 0.5)
    with pytest.raises(ClusterError, match=r"no Kafka broker at 127\.0\.0\.1:1 answers within 0\.5 s"):
        TopicAdmin(KafkaProperties.of(brokers="127.0.0.1:1")).prepare("a", [], create=False)
