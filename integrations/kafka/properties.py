"""The configuration of the Kafka clients: librdkafka's properties from a file and from the command line.

The adapter itself sets the properties for its delivery guarantees, and users cannot change them. Only the file may
contain secrets, because every user of the machine can read the arguments of a process. Logs and errors of this package
never contain a secret.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from qa_cluster.errors import ConfigError

HIDDEN = "***"
_SECRET = re.compile(r"password|secret|token|\.pem$|oauthbearer\.config|jaas")
_BROKERS = "bootstrap.servers"
_OF_ADAPTER = {
    "group.id": "use --group",
    "transactional.id": "the adapter derives it from group, topic and partition",
    "enable.auto.commit": "the adapter commits an offset after the outcome is stored",
    "enable.auto.offset.store": "the adapter commits an offset after the outcome is stored",
    "enable.idempotence": "the adapter needs an idempotent producer",
    "acks": "the adapter waits for all in-sync replicas",
    "request.required.acks": "the adapter waits for all in-sync replicas",
}
_CONSUMER_ONLY = re.compile(
    r"(group\.(?!id)|session\.|heartbeat\.|max\.poll|auto\.offset|isolation\.|fetch\.|queued\.|partition\.assignment"
    r"|check\.crcs|enable\.partition)"
)
_PRODUCER_ONLY = re.compile(
    r"(linger\.|batch\.|compression\.|message\.timeout|delivery\.timeout|transaction\.|queue\.buffering|retries$"
    r"|message\.send|partitioner$|sticky\.)"
)
# The maximum size of prefetched messages in librdkafka, in kilobytes. The default of librdkafka is 64 MB for each
# consumer.
_FETCHED_KBYTES = 16_384
# Log lines of librdkafka that are left out. The adapter logs and counts the resulting errors.
_NOISE = re.compile(r"will be ignored by this|^(FAIL|REQTMOUT|TXNERR) ")


def parse_properties(text: str, name: str) -> dict[str, str]:
    """Read ``name=value`` lines, as in the property files of Kafka's own tools; ``#`` and ``!`` start comments.

    If a line is invalid, ConfigError has the number of the line, but not the text.

    >>> parse_properties("# login\\nsasl.username = me\\n", "client.properties")
    {'sasl.username': 'me'}
    """
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, equals, value = stripped.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{name}, line {number}: must have the form NAME=VALUE")
        found[key.strip()] = value.strip()
    return found


def is_secret(name: str) -> bool:
    """Return whether the value of a property must not be shown.

    >>> [name for name in ("sasl.username", "sasl.password", "ssl.key.pem") if is_secret(name)]
    ['sasl.password', 'ssl.key.pem']
    """
    return _SECRET.search(name) is not None


@dataclass(frozen=True)
class KafkaProperties:
    """The properties that the user has set. `repr` does not show them, because they contain secrets."""

    values: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, *, brokers: str = "", file: str = "", given: Iterable[str] = ()) -> KafkaProperties:
        """Combine the properties of the file `file`, the ``NAME=VALUE`` options `given`, and the option `brokers`.

        The options override the file, and `brokers` overrides both. An empty `file` or `brokers` is not used.
        Raises:
            ConfigError: the file cannot be read; an option is malformed, reserved for the adapter, or a secret; or no
                broker is given.
        """
        values: dict[str, str] = {}
        if file:
            try:
                values |= parse_properties(Path(file).read_text(), file)
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"--kafka-config {file}: cannot be read: {error}") from error
        for text in given:
            name, equals, value = (part.strip() for part in text.partition("="))
            if not equals or not name:
                raise ConfigError("--set-kafka must have the form NAME=VALUE")
            if is_secret(name):
                raise ConfigError(
                    f"--set-kafka {name}: other users of this machine can read the arguments of a process; put secrets"
                    " into a file and name it with --kafka-config"
                )
            values[name] = value
        if brokers:
            values[_BROKERS] = brokers
        if not values.get(_BROKERS):
            raise ConfigError("no Kafka broker is given: use --brokers HOST:PORT, or bootstrap.servers in the file")
        for name in _OF_ADAPTER.keys() & values:
            raise ConfigError(f"Kafka property {name!r} cannot be set: {_OF_ADAPTER[name]}")
        return cls(values)

    @property
    def brokers(self) -> str:
        """The addresses of the brokers, such as ``kafka-1:9092,kafka-2:9092``."""
        return self.values[_BROKERS]

    @property
    def max_poll_seconds(self) -> float:
        """The maximum time between two polls, in seconds. After it, the group reassigns the partitions of this
        process."""
        text = self.values.get("max.poll.interval.ms", "300000")
        if not text.isdigit():
            raise ConfigError(f"Kafka property 'max.poll.interval.ms' is {text!r}, but must be a number")
        return int(text) / 1000

    @contextmanager
    def faults_as_config_errors(self) -> Iterator[None]:
        """A context that raises ConfigError, without secrets, if a Kafka client refuses its configuration."""
        try:
            yield
        except KafkaException as error:
            raise ConfigError(f"the Kafka client refuses its configuration: {self._text(error)}") from None

    def _text(self, error: KafkaException) -> str:
        found = error.args[0]
        return self.without_secrets(found.str() if isinstance(found, KafkaError) else str(found))

    def without_secrets(self, text: str) -> str:
        """Return the text with `HIDDEN` instead of every secret."""
        for name, value in self.values.items():
            if value and is_secret(name):
                text = text.replace(value, HIDDEN)
        return text

    def admin(self) -> dict[str, Any]:
        """Return the configuration of the administrative client, which reads offsets and creates topics."""
        return self._without(_CONSUMER_ONLY, _PRODUCER_ONLY)

    def consumer(self, group: str) -> dict[str, Any]:
        """Return the configuration of a consumer in the group `group`.

        By default, a new group starts at the oldest message.
        """
        usual = {
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "queued.max.messages.kbytes": _FETCHED_KBYTES,
        }
        if self.values.get("group.protocol", "classic").lower() != "consumer":
            usual["partition.assignment.strategy"] = "cooperative-sticky"
        fixed = {"group.id": group, "enable.auto.commit": False, "enable.auto.offset.store": False}
        return usual | self._without(_PRODUCER_ONLY) | fixed

    def producer(self, transactional_id: str = "") -> dict[str, Any]:
        """Return the configuration of a producer. The producer is transactional if `transactional_id` is not empty.
        Keys select partitions as in the Java client, so all producers of a topic select the same partition for a key.
        """
        usual = {"partitioner": "murmur2_random", "linger.ms": 5}
        fixed: dict[str, Any] = {"enable.idempotence": True, "acks": "all"}
        if transactional_id:
            fixed["transactional.id"] = transactional_id
        return usual | self._without(_CONSUMER_ONLY) | fixed

    def _without(self, *left_out: re.Pattern[str]) -> dict[str, Any]:
        return {
            name: value for name, value in self.values.items() if not any(pattern.match(name) for pattern in left_out)
        }

    def log(self) -> logging.Logger:
        """Return a logger for librdkafka that replaces the secrets in its messages."""
        logger = logging.getLogger("qa_cluster.kafka.librdkafka")
        logger.setLevel(logging.WARNING)
        for old in list(logger.filters):
            logger.removeFilter(old)
        logger.addFilter(self._clean)
        return logger

    def _clean(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        record.msg, record.args = self.without_secrets(text), ()
        return _NOISE.search(text) is None
