"""The configuration of the Kafka clients: its sources, refused options, and hidden secrets."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from qa_cluster.errors import ConfigError
from qa_cluster.integrations.kafka.properties import KafkaProperties, is_secret
from qa_cluster.integrations.kafka.topics import TopicAdmin

SECRET = "s3cret-of-the-test"


def test_a_later_source_overrides_an_earlier_one(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# brokers\nbootstrap.servers = a:1\n\n! more\nsasl.password=x=y\nlinger.ms=7\n")
    properties = KafkaProperties.of(brokers="b:2", file=str(file), given=["linger.ms = 9"])
    assert properties.values == {"bootstrap.servers": "b:2", "sasl.password": "x=y", "linger.ms": "9"}
    assert (properties.producer()["linger.ms"], "linger.ms" in properties.consumer("g")) == ("9", False)
    assert "session.timeout.ms" not in KafkaProperties.of(given=["bootstrap.servers=a", "session.timeout.ms=1"]).admin()


def test_defaults_keep_the_guarantees() -> None:
    properties = KafkaProperties.of(brokers="a:1")
    consumer, producer = properties.consumer("g"), properties.producer("t")
    assert consumer["enable.auto.commit"] is False
    assert (consumer["auto.offset.reset"], consumer["isolation.level"]) == ("earliest", "read_committed")
    assert (producer["enable.idempotence"], producer["acks"], producer["transactional.id"]) == (True, "all", "t")
    modern = KafkaProperties.of(brokers="a:1", given=["group.protocol=consumer"]).consumer("g")
    assert "partition.assignment.strategy" not in modern


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("group.id=x", "'group.id' cannot be set: use --group"),
        ("transactional.id=x", "cannot be set"),
        ("enable.auto.commit=true", "cannot be set"),
        ("acks=1", "cannot be set"),
        ("linger.ms", "--set-kafka must have the form NAME=VALUE"),
        (f"sasl.password={SECRET}", "--set-kafka sasl.password: other users"),
        (f"ssl.key.pem={SECRET}", "--set-kafka ssl.key.pem: other users"),
    ],
)
def test_refused_options(given: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        KafkaProperties.of(brokers="a:1", given=[given])
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)


def test_refused_files(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    with pytest.raises(ConfigError, match="cannot be read"):
        KafkaProperties.of(file=str(file))
    file.write_text(f"bootstrap.servers=a:1\n{SECRET}\n")
    with pytest.raises(ConfigError, match="line 2: must have the form NAME=VALUE") as refused:
        KafkaProperties.of(file=str(file))
    assert SECRET not in str(refused.value)
    with pytest.raises(ConfigError, match="no Kafka broker is given"):
        KafkaProperties.of()


def test_unknown_and_wrong_properties_are_named() -> None:
    for given, said in (("flight.mode=1", "flight.mode"), ("session.timeout.ms=-5", "session.timeout.ms")):
        properties = KafkaProperties.of(brokers="127.0.0.1:1", given=[given])
        with pytest.raises(ConfigError, match=said), properties.faults_as_config_errors():
            TopicAdmin(properties)
            from confluent_kafka import Consumer

            Consumer(properties.consumer("g"))
    with pytest.raises(ConfigError, match=r"max\.poll\.interval\.ms"):
        _ = KafkaProperties.of(brokers="a:1", given=["max.poll.interval.ms=soon"]).max_poll_seconds


def test_secrets_are_in_no_log_and_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "bootstrap.servers=127.0.0.1:1\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f"sasl.username=me\nsasl.password={SECRET}\nssl.key.password={SECRET}\n"
    )
    properties = KafkaProperties.of(file=str(file))
    assert SECRET not in repr(properties)
    properties.log().warning("wrong password %s, and %s will be ignored", SECRET, "linger.ms")
    assert caplog.messages == ["wrong password ***, and linger.ms will be ignored"]
    properties.log().warning("linger.ms will be ignored by this consumer")
    assert len(caplog.messages) == 1
    file.write_text(file.read_text() + f"ssl.key.pem={SECRET}\nsecurity.protocol=SASL_SSL\n")
    with pytest.raises(ConfigError) as refused:
        TopicAdmin(KafkaProperties.of(file=str(file)))
    assert SECRET not in str(refused.value)
    assert not [record for record in caplog.records if SECRET in record.getMessage()]
    logging.getLogger("qa_cluster.kafka.librdkafka").filters.clear()


def test_names_of_secrets() -> None:
    secret = ["sasl.password", "ssl.keystore.password", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config"]
    assert all(map(is_secret, secret))
    assert not any(map(is_secret, ["sasl.username", "ssl.ca.location", "security.protocol", "client.id"]))
