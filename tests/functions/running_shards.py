"""Shards with reader and functions, as `qa-cluster up` sets them up, and the calls of clients."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from qa_cluster import keys
from qa_cluster.documents import stored
from qa_cluster.documents.stored import DocumentRecord, PutResult
from qa_cluster.hashtags import hashtag_for_slot
from qa_cluster.keys import SentenceRef
from qa_cluster.ranking.bm25 import Ranking
from qa_cluster.ranking.ranker import Command, parse_statistics, rank_commands, ranking_of, statistics_commands
from qa_cluster.ranking.terms import question_terms
from qa_cluster.shard_functions import PARTITIONS_TRIGGER, READER_TRIGGER, SENTENCE_ANSWER_TTL_OPTION, SESSION
from tests.harness.clusters import Cluster
from tests.harness.polling import SECONDS, eventually
from tests.harness.programs import ROOT
from tests.harness.servers import Server
from tests.harness.workers import FEW_TOKENS, WORKER

REGISTER = "from qa_cluster.gears.scripts.own_functions import register_all; register_all()"
PARTITIONS = 12
SENTENCE_ANSWER_TTL = 7200
MODEL = ROOT / "models" / "default"


class Shards:
    """The cluster under test."""

    def __init__(self, cluster: Cluster) -> None:
        self.nodes = cluster.nodes
        self.client = cluster.client()

    def set_up(self) -> None:
        """Store partitions and functions; every worker knows the partitions when this returns."""
        self.client.set(keys.PARTITIONS_KEY, PARTITIONS)
        for node in self.nodes:
            self.on(node, "RG.CONFIGSET", SENTENCE_ANSWER_TTL_OPTION, SENTENCE_ANSWER_TTL)
        assert self.register() == "OK"
        for node in self.nodes:
            eventually(lambda node=node: self.on(node, "RG.TRIGGER", PARTITIONS_TRIGGER) == [str(PARTITIONS)], SECONDS)

    def register(self, *options: str) -> Any:
        return self.on(self.nodes[0], "RG.PYEXECUTE", REGISTER, "ID", SESSION, *options)

    def on(self, node: Server, *words: object) -> Any:
        with node.client(socket_timeout=120) as client:
            return client.execute_command(*words)

    def load_reader(self) -> None:
        """Store the bundled reader; every shard answers with it when this returns."""
        for tag, node in self._shard_tags():
            model = (MODEL / "reader.onnx").read_bytes()
            self.on(node, "AI.MODELSTORE", keys.model_key(tag), "ONNX", "CPU", "BLOB", model)
            self.on(node, "SET", keys.tokenizer_key(tag), (MODEL / "tokenizer.json").read_bytes())
        self.write_manifest((MODEL / "manifest.json").read_text())
        # a worker loads the reader at an event, which may arrive after the first trigger of a test
        eventually(lambda: all(self.on(node, "RG.TRIGGER", READER_TRIGGER) != [""] for node in self.nodes), SECONDS)

    def write_manifest(self, text: str) -> None:
        for tag, node in self._shard_tags():
            self.on(node, "SET", keys.manifest_key(tag), text)

    def _shard_tags(self) -> list[tuple[str, Server]]:
        step = keys.SLOTS // len(self.nodes)
        return [(hashtag_for_slot(index * step), node) for index, node in enumerate(self.nodes)]

    def put(self, document_id: str, text: str, title: str = "", metadata: Mapping[str, Any] | None = None) -> PutResult:
        call = stored.put_document(stored.check_document(document_id, text, title, metadata), tag(document_id))
        return stored.parse_put(self.client.execute_command(*call.command()))

    def delete(self, document_id: str) -> str:
        call = stored.delete_document(document_id, tag(document_id))
        return stored.parse_delete(self.client.execute_command(*call.command())).status

    def record(self, document_id: str) -> DocumentRecord | None:
        return stored.parse_record(self.client.execute_command(*stored.read_record(document_id, tag(document_id))))

    def wait_tokenized(self, *document_ids: str) -> None:
        def tokenized() -> bool:
            records = [self.record(document_id) for document_id in document_ids]
            return all(record is not None and record.tokenized for record in records)

        eventually(tokenized, SECONDS)

    def ask(self, document_id: str, i: int, question: str) -> dict[str, Any] | None:
        """A stock GET of the answer of one sentence."""
        value = self.client.get(keys.answer_key(SentenceRef(document_id, tag(document_id), i), question))
        return None if value is None else dict(json.loads(value))

    def rank(self, question: str, count: int = 8, packed_filter: bytes = b"", collection: str = "default") -> Ranking:
        """The best sentences of all partitions."""
        tags, terms = keys.partition_tags(PARTITIONS), question_terms(question)
        statistics = parse_statistics(
            tags, terms, self._piped(statistics_commands(tags, terms, collection)), collection
        )
        return ranking_of(statistics, self._piped(rank_commands(statistics, count, packed_filter)), count)

    def _piped(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands to the nodes of their first keys, in one pipeline per partition; return the replies."""
        replies: list[Any] = []
        for _, group in itertools.groupby(commands, key=lambda command: str(command[1]).rpartition("{")[2]):
            part = list(group)
            with self.node_of(str(part[0][1])).client() as client, client.pipeline(transaction=False) as pipeline:
                for command in part:
                    pipeline.execute_command(*command)
                replies += pipeline.execute()
        return replies

    def ranked_documents(self, question: str) -> list[str]:
        return [keys.parse_sentence(c.sentence).document_id for c in self.rank(question).candidates]

    def node_of(self, key: str) -> Server:
        """The node that has a key. ClusterError if the client's outdated map names a node that has left."""
        port = self.client.get_node_from_key(key).port
        found = [node for node in self.nodes if node.port == port]
        if not found:
            raise redis.exceptions.ClusterError(f"the client's map names port {port}, which no node of the test has")
        return found[0]


def tag(document_id: str) -> str:
    return keys.partition_of(document_id, PARTITIONS)


def sentence_name(document_id: str, i: int) -> str:
    return str(SentenceRef(document_id, tag(document_id), i))


def triggers_that_wait(client: redis.Redis) -> int:
    """The number of clients that are blocked in RG.TRIGGER."""
    return sum(each["cmd"] == "rg.trigger" and "b" in each["flags"] for each in client.client_list())


EARLY = ("early bird", "The early bird catches the worm.")


@contextmanager
def running(binary: Path, size: int = 2, settings: Mapping[str, object] | None = None) -> Iterator[Shards]:
    """Start the cluster, and write a document. The document is found before the reader is loaded."""
    # twice the tokens of other tests: some of these tests read many sentences, which is slow on a busy machine
    values = {"qa.max-batch-tokens": 2 * FEW_TOKENS, "qa.job-timeout-ms": 120_000, **(settings or {})}
    with Cluster(binary, values, worker=WORKER, size=size) as cluster:
        for node in cluster.nodes:
            node.wait_ready()
        shards = Shards(cluster)
        shards.set_up()
        shards.put(*EARLY)
        shards.wait_tokenized(EARLY[0])
        assert EARLY[0] in shards.ranked_documents("Which bird catches the worm?")
        shards.load_reader()
        yield shards
