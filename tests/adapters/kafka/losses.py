"""Kills broker, consumers and shards while questions pass through Kafka; counts lost and repeated answers.

``make kafka-losses`` runs it with 10,000 questions, with and without transactions. Every fault is a kill -9. Broker
and shard restart with their data, and a new consumer process replaces a killed one.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.adapters.kafka.broker import Broker
from tests.harness.polling import eventually
from tests.harness.programs import binary_or_skip, chosen_servers
from tests.harness.system import TOOL, System
from tests.harness.tiny_readers import tiny_reader

PARTITIONS = 3
CONSUMERS = 2
DOCUMENTS = 12
SESSION_SECONDS = 6
KINDS = ("broker", "consumer", "shard")


@dataclass
class LossCounts:
    """The counts of a run."""

    mode: str
    questions: int
    seconds: float = 0.0
    answers: int = 0
    lost: int = 0
    twice: int = 0
    dead_letters: int = 0
    out_of_order: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        """The counts as one line."""
        faults = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.mode}: {self.questions} questions, {self.answers} answers, {self.lost} lost,"
            f" {self.twice} answered twice, {self.dead_letters} dead letters, {self.out_of_order} out of order;"
            f" kill -9: {faults}; {self.seconds:.0f} s"
        )

    @property
    def good(self) -> bool:
        """Whether no question is lost and, with transactions, no question is answered twice."""
        return not (
            self.lost or self.dead_letters or (self.mode == "exactly once" and (self.twice or self.out_of_order))
        )


class Consumers:
    """The `qa-cluster kafka answer` processes of a consumer group."""

    def __init__(self, system: System, broker: Broker, topic: str, exactly_once: bool) -> None:
        self._system, self._topic = system, topic
        self._logs: list[Path] = []
        topics = ["--from", topic, "--to", f"{topic}-answers", "--group", f"group-{topic}"]
        quick = (f"session.timeout.ms={SESSION_SECONDS}000", "heartbeat.interval.ms=1000", "max.poll.interval.ms=10000")
        given = [word for text in quick for word in ("--set-kafka", text)]
        self._command = [TOOL, "kafka", "answer", "--brokers", broker.address, *topics, *given, "--metrics-port", "0"]
        self._command += ["--exactly-once"] if exactly_once else []
        self._started = 0
        self.processes = [self._start() for _ in range(CONSUMERS)]

    def _start(self) -> subprocess.Popen[bytes]:
        self._started += 1
        self._logs.append(self._system.folder / f"{self._topic}-{self._started}.log")
        with self._logs[-1].open("ab") as log:
            # The new process reuses the `group.instance.id` of a killed one: noida-db does not remove dead members.
            member = ["--set-kafka", f"group.instance.id=consumer-{self._started % CONSUMERS}"]
            return subprocess.Popen([*self._command, *member], env=self._system.environment, stdout=log, stderr=log)

    def kill_one(self) -> None:
        """Kill the oldest process and start a new one."""
        oldest = self.processes.pop(0)
        self._logs.pop(0)
        oldest.kill()
        oldest.wait()
        self.processes.append(self._start())

    def end(self) -> list[int]:
        """Drain all processes and return their exit codes."""
        # until the log has this line, a signal ends a process without draining
        eventually(lambda: all("metrics are on" in log.read_text() for log in self._logs))
        for process in self.processes:
            process.terminate()
        return [process.wait(120) for process in self.processes]


class Progress:
    """Reads the number of processed questions from the committed offsets of the group."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._configuration = broker.configuration() | {"log_level": 0}
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self._asked = ConsumerGroupTopicPartitions(f"group-{topic}", places)

    def processed(self) -> int:
        """The number of processed questions; raises KafkaException while the broker is down."""
        # a new client each time, because an old client may fail after a restart of the broker
        admin = AdminClient(self._configuration)
        (future,) = admin.list_consumer_group_offsets([self._asked], request_timeout=5).values()
        return sum(max(0, entry.offset) for entry in future.result().topic_partitions)


def write_questions(broker: Broker, topic: str, count: int, distinct: int) -> None:
    """Write questions with keys, which select their partitions."""
    broker.write(
        topic,
        (
            (
                b"k%d" % (number % 50),
                orjson.dumps({"question": f"Who wrote program {number % distinct}?", "retriever_k": 1, "top_k": 1}),
            )
            for number in range(count)
        ),
    )


def store_documents(system: System) -> None:
    """Store a few short documents."""
    texts = system.folder / "texts"
    texts.mkdir()
    for number in range(DOCUMENTS):
        text = f"Ada wrote program {number}. Bob wrote nothing. Eve wrote a letter to Ada."
        (texts / f"d{number}.txt").write_text(text)
    system.cli("ingest", "texts")


def kill_shard(system: System, number: int) -> None:
    """Kill and restart a server."""
    os.kill(system.server_pid(number), signal.SIGKILL)
    time.sleep(2)
    system.cli("up", "--no-password")


def run(system: System, broker: Broker, *, exactly_once: bool, count: int, rounds: int) -> LossCounts:
    """Answer `count` questions while each kind of fault happens `rounds` times."""
    counts = LossCounts("exactly once" if exactly_once else "at least once", count)
    topic = f"losses-{'once' if exactly_once else 'least'}"
    answers, dead = f"{topic}-answers", f"{topic}-dead-letter"
    broker.create(topic, answers, dead, partitions=PARTITIONS)
    write_questions(broker, topic, count, max(20, count // 10))
    progress = Progress(broker, topic)
    faults = [kind for _ in range(rounds) for kind in KINDS]
    begun = time.monotonic()
    consumers = Consumers(system, broker, topic, exactly_once)
    try:
        for number, kind in enumerate(faults):
            due = count * (number + 1) // (len(faults) + 2)
            eventually(lambda: progress.processed() >= due, 900, ignore=KafkaException)  # noqa: B023
            done = progress.processed()
            print(f"{time.monotonic() - begun:5.0f} s  {done} questions processed; kill -9 of a {kind}", flush=True)
            counts.faults[kind] += 1
            if kind == "broker":
                broker.kill()
                time.sleep(2)
                broker.start()
            elif kind == "consumer":
                consumers.kill_one()
            else:
                kill_shard(system, number % len(system.addresses))

        eventually(lambda: progress.processed() >= count, 900, ignore=KafkaException)
    finally:
        codes = consumers.end()
    assert codes == [0] * CONSUMERS, codes
    counts.seconds = time.monotonic() - begun
    _count(counts, read_all(broker, [answers, dead]), answers)
    return counts


def read_all(broker: Broker, topics: list[str]) -> list[tuple[str, int, int, int]]:
    """All committed messages: topic, partition, and the partition and offset of the question."""
    consumer = Consumer(
        broker.configuration(group_id=f"reader-{os.urandom(4).hex()}", auto_offset_reset="earliest")
        | {"isolation.level": "read_committed", "enable.partition.eof": True}
    )
    seen, ended = [], set()
    consumer.subscribe(topics)
    while len(ended) < len(topics) * PARTITIONS:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is not None:
            ended.add((message.topic(), message.partition()))
            continue
        headers = dict(message.headers())
        source = int(headers["qa-source-partition"]), int(headers["qa-source-offset"])
        seen.append((message.topic(), message.partition(), *source))
    consumer.close()
    return seen


def _count(counts: LossCounts, seen: list[tuple[str, int, int, int]], answers: str) -> None:
    found = Counter(entry[2:] for entry in seen)
    last: dict[tuple[int, int], int] = {}
    for topic, partition, source, offset in seen:
        counts.answers += topic == answers
        counts.dead_letters += topic != answers
        # A key selects the same partition in both topics, so each pair of partitions keeps the order of the questions.
        # Without transactions, a restart after a failure repeats answers from an earlier question on.
        counts.out_of_order += offset < last.get((partition, source), -1)
        last[partition, source] = offset
    counts.lost = counts.questions - len(found)
    counts.twice = sum(count > 1 for count in found.values())


def main(arguments: list[str] | None = None) -> int:
    """Run both modes and print the counts; return 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.adapters.kafka.losses", description=__doc__)
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=2, help="how often each kind of fault happens")
    parser.add_argument("--mode", choices=["once", "least", "both"], default="both")
    given = parser.parse_args(arguments)
    results = []
    with tempfile.TemporaryDirectory() as folder, Broker() as broker:
        reader = Path(folder) / "reader"
        tiny_reader(reader, "tiny", last=True)
        binary = binary_or_skip(chosen_servers()[0])
        with System(binary, QA_READER=str(reader), QA_ENCODER="none", QA_START_TIMEOUT_MS="300000") as system:
            system.may_end()
            store_documents(system)
            for exactly_once in (True, False):
                if given.mode == "both" or (given.mode == "once") is exactly_once:
                    counts = run(system, broker, exactly_once=exactly_once, count=given.questions, rounds=given.rounds)
                    print(counts.line(), flush=True)
                    results.append(counts)
    return 0 if all(counts.good for counts in results) else 1


if __name__ == "__main__":
    sys.exit(main())
