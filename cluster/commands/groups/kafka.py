"""`qa-cluster kafka answer` and `kafka ingest`: start the adapter for Kafka. Both commands import the adapter by name,
and only when they run, because the adapter needs the extra `kafka`.
"""

from __future__ import annotations

import importlib
import logging
from typing import Annotated, Any

import typer

from qa_cluster.errors import ConfigError
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.options.questions import FULL
from qa_cluster.reading.plan import PLANS

from ...servers.local import with_cluster
from ..shared_options import (
    CollectionOption,
    CoverageOption,
    choice_option,
    file_option,
    load_settings,
    text_option,
)

_ADAPTER = "qa_cluster.integrations.kafka.program"
_DEAD_LETTERS = "-dead-letter"

Brokers = Annotated[str, text_option("HOST:PORT", "Addresses of brokers, separated by commas.")]
Source = Annotated[str, typer.Option("--from", help="Topic to read.", metavar="TOPIC", show_default=False)]
Group = Annotated[
    str, typer.Option(help="Consumer group. The processes of a group share the partitions.", metavar="NAME")
]
DeadLetter = Annotated[
    str | None,
    typer.Option(
        help="Topic for messages that cannot be processed.",
        metavar="TOPIC",
        show_default="the topic of --from with the suffix -dead-letter",
    ),
]
KafkaConfig = Annotated[
    str, file_option("File with librdkafka properties, one on each line: security.protocol=SASL_SSL, sasl.password=...")
]
SetKafka = Annotated[
    list[str] | None, text_option("NAME=VALUE", "Set a property of librdkafka that is not secret; repeatable.")
]
Service = Annotated[str, text_option("URL", "Use the REST service at this URL instead of the cluster.")]
ApiKeyFile = Annotated[str, file_option("File with the API key for --service.")]
Concurrency = Annotated[
    int, typer.Option(help="Maximum number of messages that are processed at the same time.", min=1, max=256)
]
Buffer = Annotated[
    int | None,
    typer.Option(
        help="Maximum number of messages that were read and are not finished. At this limit, the partitions are"
        " paused.",
        min=1,
        max=100_000,
        show_default="8 times --concurrency",
    ),
]
Attempts = Annotated[
    int,
    typer.Option(
        help="Maximum number of attempts for a message that may itself cause the error; then the message becomes a dead"
        " letter.",
        min=1,
    ),
]
DrainSeconds = Annotated[
    float,
    typer.Option(help="Time limit, after SIGTERM, to finish the messages that were read.", min=0, metavar="SECONDS"),
]
CreateTopics = Annotated[bool, typer.Option("--create-topics", help="Create missing topics.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(help="Port for /metrics, /livez and /readyz.", min=0, max=65_535, show_default="no metrics"),
]
MetricsHost = Annotated[str, typer.Option(help="Address for --metrics-port.")]


def answer(
    context: typer.Context,
    *,
    source: Source,
    to: Annotated[str, text_option("TOPIC", "Topic for the answers.")],
    brokers: Brokers = "",
    group: Group = "qa-cluster-answer",
    dead_letter: DeadLetter = None,
    exactly_once: Annotated[
        bool,
        typer.Option(
            "--exactly-once",
            help="Write answers and offsets in transactions. Readers of the answers need"
            " isolation.level=read_committed.",
        ),
    ] = False,
    linger_ms: Annotated[
        int, typer.Option(help="With --exactly-once: how long a transaction waits for more answers.", min=0)
    ] = 100,
    collection: CollectionOption = DEFAULT_COLLECTION,
    coverage: CoverageOption = FULL,
    plan: Annotated[
        str | None,
        choice_option(tuple(PLANS), "Plan of questions that do not name a plan.", show_default="setting 'plan'"),
    ] = None,
    concurrency: Concurrency = 16,
    buffer: Buffer = None,
    attempts: Attempts = 5,
    drain_seconds: DrainSeconds = 30.0,
    service: Service = "",
    api_key_file: ApiKeyFile = "",
    kafka_config: KafkaConfig = "",
    set_kafka: SetKafka = None,
    create_topics: CreateTopics = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Answer the questions of a Kafka topic and write the answers to another topic, until Ctrl-C or SIGTERM.

    A question is a JSON object such as {"question": "Who wrote it?"}. Each answer has the key and the headers of its
    question. In each partition, the answers have the order of the questions. Every question is answered at least once
    or, with --exactly-once, exactly once.

    Example: qa-cluster kafka answer --brokers 127.0.0.1:9092 --from questions --to answers
    """
    usual = {"coverage": coverage, "collection": collection, "plan": plan}
    _run(
        context,
        {
            "topic": source,
            "group": group,
            "dead_letter_topic": dead_letter or source + _DEAD_LETTERS,
            "concurrency": concurrency,
            "buffer": buffer or 8 * concurrency,
            "attempts": attempts,
            "exactly_once": exactly_once,
            # If Kafka gives a partition to another process, the questions of the partition that are in progress have
            # this time to end. The time can be short, because questions change nothing, and the other process asks an
            # unfinished question again.
            "revoke_seconds": 2.0,
            "linger_seconds": linger_ms / 1000,
            "drain_seconds": drain_seconds,
        },
        answer_topic=to,
        usual={name: value for name, value in usual.items() if value is not None},
        brokers=brokers,
        service=service,
        api_key_file=api_key_file,
        kafka_config=kafka_config,
        set_kafka=set_kafka or (),
        create_topics=create_topics,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
    )


def ingest(
    context: typer.Context,
    *,
    source: Source,
    brokers: Brokers = "",
    group: Group = "qa-cluster-ingest",
    dead_letter: DeadLetter = None,
    collection: CollectionOption = DEFAULT_COLLECTION,
    concurrency: Concurrency = 16,
    buffer: Buffer = None,
    attempts: Attempts = 5,
    drain_seconds: DrainSeconds = 30.0,
    service: Service = "",
    api_key_file: ApiKeyFile = "",
    kafka_config: KafkaConfig = "",
    set_kafka: SetKafka = None,
    create_topics: CreateTopics = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Store the documents of a Kafka topic, until Ctrl-C or SIGTERM.

    The key of a message is the id of its document. The value is a JSON object such as {"text": "...", "title": "...",
    "metadata": {}}. A message without a value deletes the document. Every message is applied at least once; messages
    with the same key are applied in their order.

    Example: qa-cluster kafka ingest --brokers 127.0.0.1:9092 --from documents
    """
    _run(
        context,
        {
            "topic": source,
            "group": group,
            "dead_letter_topic": dead_letter or source + _DEAD_LETTERS,
            "concurrency": concurrency,
            "buffer": buffer or 8 * concurrency,
            "attempts": attempts,
            "drain_seconds": drain_seconds,
        },
        collection=collection,
        brokers=brokers,
        service=service,
        api_key_file=api_key_file,
        kafka_config=kafka_config,
        set_kafka=set_kafka or (),
        create_topics=create_topics,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
    )


def _run(context: typer.Context, session: dict[str, Any], *, service: str, **options: Any) -> None:
    try:
        program = importlib.import_module(_ADAPTER)
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise ConfigError("confluent-kafka is not installed: pip install 'qa-cluster[kafka]'") from error
    settings = load_settings(context).settings
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    program.run(settings if service else with_cluster(settings), session, service=service, **options)
