"""Checks and creates topics, and reads offsets from the brokers to compute the lag of the group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from qa_cluster.errors import ClusterError, ConfigError

from .properties import KafkaProperties

FIRST_CONTACT_SECONDS = 15.0
OFFSETS_SECONDS = 10.0

_Source = tuple[str, int]


class TopicAdmin:
    """The administrative client. Its methods block, so call them in a thread."""

    def __init__(self, properties: KafkaProperties) -> None:
        self._properties = properties
        with properties.faults_as_config_errors():
            Producer(properties.producer(), logger=properties.log()).purge()
            self._admin: Any = AdminClient(properties.admin(), logger=properties.log())

    def prepare(self, source: str, written: Iterable[str], create: bool) -> int:
        """Check that all topics exist, and return the number of partitions of `source`.

        Args:
            source: the topic to read.
            written: the topics to write.
            create: whether to create missing topics. A created topic gets as many partitions as `source`, or one
                partition if `source` is missing, too.

        Raises:
            ConfigError: a topic is missing or cannot be created; the message names it.
            ClusterError: no broker replies.
        """
        found = self._partitions()
        missing = [topic for topic in (source, *written) if not found.get(topic)]
        if missing and not create:
            raise ConfigError(
                f"topic {missing[0]!r} does not exist: create it with your Kafka tools, or repeat the command with"
                " --create-topics"
            )
        for topic in missing:
            self._create(topic, found.get(source) or 1)
        return found.get(source) or 1

    def _partitions(self) -> Mapping[str, int]:
        try:
            topics = self._admin.list_topics(timeout=FIRST_CONTACT_SECONDS).topics
        except KafkaException as error:
            properties = self._properties
            raise ClusterError(
                f"no Kafka broker at {properties.brokers} answers within {FIRST_CONTACT_SECONDS:g} s"
                f" ({properties.without_secrets(error.args[0].str())}): check --brokers, and security.protocol and the"
                " login in the file of --kafka-config"
            ) from None
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def _create(self, topic: str, partitions: int) -> None:
        try:
            self._admin.create_topics([NewTopic(topic, partitions)])[topic].result()
        except KafkaException as error:
            raise ConfigError(
                f"topic {topic!r} cannot be created: {self._properties.without_secrets(error.args[0].str())}"
            ) from None

    def lag(self, group: str, positions: Mapping[_Source, int | None]) -> dict[_Source, int]:
        """Return the number of unprocessed messages of each partition.

        Args:
            group: the name of the consumer group.
            positions: for each partition, the next offset to process. None: use the committed offset, or the oldest
                offset if no offset is committed.

        Raises:
            KafkaException: the brokers do not reply.
        """
        if not positions:
            return {}
        ends = self._offsets(positions, OffsetSpec.latest())
        known = {source: offset for source, offset in positions.items() if offset is not None}
        if unknown := positions.keys() - known.keys():
            known |= self._committed(group, unknown)
        if unknown := positions.keys() - known.keys():
            known |= self._offsets(unknown, OffsetSpec.earliest())
        return {source: max(0, ends[source] - offset) for source, offset in known.items() if source in ends}

    def _offsets(self, sources: Iterable[_Source], which: OffsetSpec) -> dict[_Source, int]:
        asked = {TopicPartition(topic, partition): which for topic, partition in sources}
        futures = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=OFFSETS_SECONDS
        )
        return {(place.topic, place.partition): future.result().offset for place, future in futures.items()}

    def _committed(self, group: str, sources: Iterable[_Source]) -> dict[_Source, int]:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(*source) for source in sources])
        (future,) = self._admin.list_consumer_group_offsets([asked], request_timeout=OFFSETS_SECONDS).values()
        return {
            (entry.topic, entry.partition): entry.offset
            for entry in future.result().topic_partitions
            if entry.offset != OFFSET_INVALID and entry.offset >= 0
        }
