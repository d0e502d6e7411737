"""The metrics of the adapter in the Prometheus text format, with the lag of each assigned partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qa_cluster.exposition import Registry, sample

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class AdapterMetrics:
    """The counters and gauges of one process.

    Attributes:
        buffered, in_flight, paused: functions that return the values of gauges. The running session sets them.
        lag: for each topic and number of an assigned partition, the number of messages that are not processed yet.
        assigned: the number of partitions that are assigned to this process.
    """

    def __init__(self) -> None:
        self._registry = registry = Registry()
        self.buffered: Callable[[], int] = lambda: 0
        self.in_flight: Callable[[], int] = lambda: 0
        self.paused: Callable[[], bool] = lambda: False
        self.lag: Mapping[tuple[str, int], int] = {}
        self.assigned = 0
        self.messages = registry.counter("qa_kafka_messages_total", "Processed messages, by outcome.", ("outcome",))
        self.retries = registry.counter(
            "qa_kafka_retries_total", "Failed attempts that are repeated, by the code of the error.", ("code",)
        )
        self.transactions = registry.counter(
            "qa_kafka_transactions_total", "Transactions, by result: committed or aborted.", ("result",)
        )
        self.sessions = registry.counter(
            "qa_kafka_sessions_total", "Sessions with the brokers; after a failure, a new session starts."
        )
        self.broker_errors = registry.counter("qa_kafka_broker_errors_total", "Errors that the Kafka client reports.")
        self.seconds = registry.histogram(
            "qa_kafka_message_seconds", "Time from the start of a message until its outcome is known.", bounds=_BOUNDS
        )
        registry.gauge(
            "qa_kafka_buffered_messages",
            "Messages that were read and are not published yet.",
            lambda: float(self.buffered()),
        )
        registry.gauge("qa_kafka_in_flight_messages", "Attempts in progress.", lambda: float(self.in_flight()))
        registry.gauge("qa_kafka_paused", "1 while the partitions are paused, else 0.", lambda: float(self.paused()))
        registry.gauge("qa_kafka_assigned_partitions", "Partitions of this process.", lambda: self.assigned)

    def render(self) -> str:
        """Return all metrics in the Prometheus text format."""
        lines = [
            "# HELP qa_kafka_lag_messages Messages of a partition after the last processed message.",
            "# TYPE qa_kafka_lag_messages gauge",
        ]
        for (topic, partition), lag in sorted(self.lag.items()):
            lines.append(sample("qa_kafka_lag_messages", {"topic": topic, "partition": str(partition)}, lag))
        return self._registry.render() + "\n".join(lines) + "\n"
