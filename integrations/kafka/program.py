"""Runs the adapter: runs one session after the other, serves metrics, and stops cleanly at SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from qa_cluster.client import AsyncClient, AsyncClusterClient, RetryPolicy
from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError

from .handlers import DocumentHandler, MessageHandler, QuestionClient, QuestionHandler
from .metrics import AdapterMetrics
from .metrics_server import MetricsServer
from .properties import KafkaProperties
from .publishing import SessionLost
from .session import KafkaSession, SessionOptions
from .topics import TopicAdmin

LAG_SECONDS = 5.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
# After a session of at least this duration, the backoff starts again with a short pause.
HEALTHY_SECONDS = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AdapterOptions:
    """The options of `qa-cluster kafka answer` and `qa-cluster kafka ingest`.

    Attributes:
        settings: the settings of qa-cluster, with the address of the cluster and the certificate authority of the
            service.
        session: the options of the sessions with the brokers.
        brokers: the addresses of the brokers (``HOST:PORT``, with commas between several); empty: from the file
            `kafka_config`.
        kafka_config: the file with properties of the Kafka clients; empty: no file.
        set_kafka: more properties of the Kafka clients, in the form ``NAME=VALUE``.
        service: the URL of a REST service; empty: use the cluster directly.
        api_key_file: the file with the API key of the service; empty: no key.
        answer_topic: the topic for answers; empty: the messages are documents to store.
        collection: the collection of the documents to store.
        usual: the options of a question that a message does not set.
        create_topics: whether to create missing topics.
        metrics_host: the address on which the metrics server listens.
        metrics_port: the port for metrics; None: no metrics server.
    """

    settings: Settings
    session: SessionOptions
    brokers: str = ""
    kafka_config: str = ""
    set_kafka: Sequence[str] = ()
    service: str = ""
    api_key_file: str = ""
    answer_topic: str = ""
    collection: str = ""
    usual: Mapping[str, Any] = field(default_factory=dict)
    create_topics: bool = False
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None

    def handler(self, client: QuestionClient) -> MessageHandler:
        """Return the handler: for questions if the options have a topic for answers, else for documents."""
        if self.answer_topic:
            return QuestionHandler(client, self.answer_topic, self.usual)
        return DocumentHandler(client, self.collection)


def run(settings: Settings, session: Mapping[str, Any], **options: Any) -> None:
    """Run the adapter until SIGTERM or SIGINT, and then end the process.

    Args:
        session: the arguments of `SessionOptions`.
        options: the other arguments of `AdapterOptions`.

    Raises:
        ConfigError: an option is invalid.
        ClusterError: the brokers or the cluster do not reply.
    """
    chosen = AdapterOptions(settings, SessionOptions(**session), **options)
    properties = KafkaProperties.of(brokers=chosen.brokers, file=chosen.kafka_config, given=tuple(chosen.set_kafka))
    asyncio.run(Adapter(chosen, properties).run())
    # All offsets are committed, and the process has left its group. A regular exit would also destroy the Kafka
    # clients, which can hang after the death of a broker.
    logging.shutdown()
    os._exit(0)


class Adapter:
    """One process of the adapter: runs sessions until a signal stops it."""

    def __init__(self, options: AdapterOptions, properties: KafkaProperties) -> None:
        self._options = options
        self._properties = properties
        self.metrics = AdapterMetrics()
        self._session: KafkaSession | None = None
        self._stop: asyncio.Event | None = None

    async def run(self) -> None:
        """Handle messages until a signal stops the process."""
        self._stop = stop = asyncio.Event()
        admin = TopicAdmin(self._properties)
        session = self._options.session
        written = [topic for topic in (self._options.answer_topic, session.dead_letter_topic) if topic]
        await asyncio.to_thread(admin.prepare, session.topic, written, self._options.create_topics)
        with _signals(self._signalled):
            async with self._client() as client, self._served_metrics():
                lag = asyncio.create_task(self._watch_lag(admin))
                try:
                    await self._sessions(self._options.handler(client), stop)
                finally:
                    lag.cancel()

    def _signalled(self) -> None:
        """At the first signal, finish the messages that were read. At the second signal, stop at once."""
        if self._stop is not None and not self._stop.is_set():
            _log.info("signal received: draining")
            self._stop.set()
        elif self._session is not None:
            self._session.fail(SessionLost("a second signal was received"))

    async def _sessions(self, handler: MessageHandler, stop: asyncio.Event) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not stop.is_set():
            begun = time.monotonic()
            self._session = KafkaSession(self._options.session, self._properties, handler, self.metrics)
            try:
                await self._session.run(stop)
            except (SessionLost, KafkaException) as error:
                text = self._properties.without_secrets(str(error))
                _log.error("the session with the brokers ended, and a new one resumes: %s", text)
            if time.monotonic() - begun > HEALTHY_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            if not stop.is_set():
                await _wait(stop, pause)
                pause = min(LONGEST_PAUSE_SECONDS, 2 * pause)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        options = self._options
        if not options.service:
            async with AsyncClusterClient(options.settings) as cluster:
                yield cluster
            return
        # The adapter itself retries, so that it can count retries, and run attempts of other messages during pauses.
        once = RetryPolicy(attempts=1)
        key, authority = _key_in(options.api_key_file), options.settings.service_tls_ca
        async with AsyncClient(options.service, api_key=key, tls_ca=authority, retry=once) as service:
            yield service

    @asynccontextmanager
    async def _served_metrics(self) -> AsyncIterator[None]:
        if self._options.metrics_port is None:
            yield
            return
        server = MetricsServer(
            self.metrics,
            self._options.metrics_host,
            self._options.metrics_port,
            lambda: self._session is not None and self._session.member,
        )
        await server.start()
        _log.info("metrics are on http://%s:%d/metrics", self._options.metrics_host, server.port)
        try:
            yield
        finally:
            await server.stop()

    async def _watch_lag(self, admin: TopicAdmin) -> None:
        while True:
            session = self._session
            if session is not None:
                try:
                    lag = await asyncio.to_thread(admin.lag, self._options.session.group, session.positions)
                    self.metrics.lag = {source: lag[source] for source in session.positions if source in lag}
                except KafkaException as error:
                    _log.debug("the lag is unknown: %s", self._properties.without_secrets(str(error)))
            await asyncio.sleep(LAG_SECONDS)


class _signals:
    """Calls a function in the event loop at SIGTERM and SIGINT."""

    def __init__(self, handle: Callable[[], None]) -> None:
        self._handle = handle

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return


def _key_in(file: str) -> str:
    if not file:
        return ""
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {file}: cannot be read: {error}") from error
