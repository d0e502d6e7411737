"""A Kafka broker for tests: noida-db, one process on loopback. A test can kill it and restart it with its data."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness.polling import eventually
from tests.harness.ports import free_port

PROGRAM = Path(sys.executable).with_name("noida-db")
Message = tuple[bytes | None, bytes | None]


class Broker:
    """A broker, as a context manager."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="qa-kafka-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the broker with its data, and wait until it answers."""
        # fmt: off
        command = [PROGRAM, "start", "--data-dir", self.folder / "data", "--host", "127.0.0.1", "--only", "kafka",
                   "--kafka-port", str(self.port)]
        # fmt: on
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        admin = AdminClient(self.configuration() | {"log_level": 0})
        eventually(lambda: admin.list_topics(timeout=2).brokers, 60, ignore=KafkaException)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill the broker."""
        if self._process is not None:
            os.killpg(self._process.pid, number)
            self._process.wait(30)
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def configuration(self, **more: Any) -> dict[str, Any]:
        """The configuration of a client of librdkafka."""
        return {"bootstrap.servers": self.address, **{name.replace("_", "."): value for name, value in more.items()}}

    def create(self, *topics: str, partitions: int = 1) -> None:
        """Create topics."""
        admin = AdminClient(self.configuration())
        for future in admin.create_topics([NewTopic(topic, partitions) for topic in topics]).values():
            future.result()

    def write(
        self,
        topic: str,
        messages: Iterable[Message],
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
    ) -> None:
        """Write messages, and wait until the broker has acknowledged all."""
        producer = Producer(self.configuration(enable_idempotence=True))
        where: Mapping[str, int] = {} if partition is None else {"partition": partition}
        failed = []
        for key, value in messages:
            producer.produce(
                topic,
                value,
                key,
                headers=list(headers),
                on_delivery=lambda error, _: error and failed.append(error),
                **where,
            )
            producer.poll(0)
        producer.flush(60)
        assert not failed

    def read(self, topic: str, count: int, seconds: float = 60, **configuration: Any) -> list[Any]:
        """The first `count` committed messages of a topic."""
        consumer = Consumer(
            self.configuration(group_id=f"reader-{os.urandom(4).hex()}", auto_offset_reset="earliest", **configuration)
        )
        found: list[Any] = []

        def all_read() -> bool:
            while (message := consumer.poll(0.2)) is not None:
                if message.error() is None:
                    found.append(message)
            return len(found) >= count

        try:
            consumer.subscribe([topic])
            eventually(all_read, seconds)
        except AssertionError as error:
            raise AssertionError(f"{len(found)} of {count} messages in {topic}") from error
        finally:
            consumer.close()
        return found

    def committed(self, group: str, topic: str, partition: int = 0) -> int:
        """The committed offset of a group; negative without a committed offset."""
        consumer = Consumer(self.configuration(group_id=group))
        try:
            return int(consumer.committed([TopicPartition(topic, partition)], timeout=20)[0].offset)
        finally:
            consumer.close()
