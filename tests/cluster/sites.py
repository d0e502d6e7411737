"""Clusters that `qa-cluster backup` saves, and clusters that `restore` fills."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from qa_cluster import keys
from qa_cluster.clients.async_cluster_client import AsyncClusterClient
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.cluster.nodes.connect import cluster_client, shards_of
from qa_cluster.cluster.nodes.node import command
from qa_cluster.cluster.servers.local import with_cluster
from qa_cluster.config import Settings
from qa_cluster.documents.stored import RECORD_FIELDS
from qa_cluster.types import Feedback, Pin, Synonyms
from tests.cluster.command import WithoutEncoder
from tests.harness.polling import eventually
from tests.harness.system import PATIENT
from tests.harness.tiny_readers import tiny_encoder, tiny_reader

MANY = 150
MARKDOWN = "# Lakes\n\nZürich lies on a lake. 🦆 Ducks swim there.\n\n## Rivers\n\nThe Nile flows north.\n"
QUESTIONS = (
    ("Who wrote the first program?", "default"),
    ("Where does the Nile flow?", "books"),
    # The other sentences have equal scores, so their order depends on the order of writing.
    ("What is number 77?", "many"),
)
SCRIPT = """
GB('CommandReader').map(lambda r: 'hello ' + r[1]).register(trigger='hello')
GB('StreamReader').foreach(lambda r: None).register(prefix='numbers')
GB('ShardsIDReader').foreach(lambda r: execute('SET', 'ran:{' + hashtag() + '}', '1')).run()
"""


class Site(WithoutEncoder):
    """A cluster in a folder. Its default reader is in a different folder."""

    def __init__(self, folder: Path, server: str, shards: int) -> None:
        super().__init__(folder, server)
        tiny_reader(folder / "plain", "plain", last=True)
        self.size = shards

    def up(self, *options: str) -> None:
        self("--set", f"shards={self.size}", "--set", "reader=plain", "up", *options)

    @property
    def settings(self) -> Settings:
        chosen = replace(PATIENT, data_dir=self.folder / ".qa-cluster", start_timeout_ms=120_000)
        return with_cluster(replace(chosen, cluster_password=self.password))

    def client(self) -> ClusterClient:
        return ClusterClient(self.settings)

    @contextmanager
    def shards(self) -> Iterator[list[redis.Redis]]:
        """A client of each shard."""
        settings = self.settings
        with shards_of(settings, settings.cluster_url) as found:
            yield [client for _, client in found]

    def stock(self) -> Any:
        """A stock client of the cluster, as a context manager."""
        settings = self.settings
        return cluster_client(settings, settings.cluster_url)

    def everything(self) -> dict[str, Any]:
        """The text and the record of every document, by its name."""
        found: dict[str, Any] = {}
        with self.stock() as client:
            for key in client.scan_iter(match="paragraphs:*", count=1000):
                parsed = keys.parse_tagged(key.decode(), keys.PARAGRAPHS_PREFIX)
                assert parsed is not None
                fields = [name for name in RECORD_FIELDS if name not in ("tokenized", "splitter", "analyzer")]
                found[parsed[0]] = (client.get(key), client.hmget(keys.document_key(*parsed), *fields, "source"))
        return found

    def answers(self) -> list[Any]:
        with self.client() as client:
            found = [
                client.ask(question, collection=where, cache="off", retriever_k=1) for question, where in QUESTIONS
            ]
            for result in found:
                for answer in result.answers:
                    text = client.get_document(answer.document_id, collection=where_of(result.question)).text
                    assert text[answer.start : answer.end] == answer.answer
        return [
            [
                (a.answer, a.start, a.end, a.document_id, a.document_version, a.metadata, a.section)
                for a in result.answers
            ]
            for result in found
        ]

    def on_first(self, *words: str) -> Any:
        """Send a command to the first shard and return the reply."""
        with self.shards() as shards:
            return command(shards[0], *words)

    def embedded(self) -> bool:
        """Whether every document has its vectors, which a ranking by meaning needs."""
        with self.shards() as shards:
            return not any(int(client.info("qa")["qa_unembedded_documents"]) for client in shards)

    def calls(self, name: str) -> int:
        """The number of calls of a command on all shards."""
        with self.shards() as shards:
            stats = [client.info("commandstats").get(f"cmdstat_{name}", {}) for client in shards]
        return sum(int(found.get("calls", 0)) for found in stats)

    def ran(self) -> int:
        """The number of shards on which the script has run."""
        with self.stock() as client:
            return len(list(client.scan_iter(match="ran:*", count=1000)))

    def registrations(self) -> list[tuple[str, str]]:
        rows = [pairs(row) for row in self.on_first("RG.DUMPREGISTRATIONS")]
        data = [(row["reader"], pairs(row["RegistrationData"])) for row in rows if '"qa-functions"' not in row["PD"]]
        return sorted((reader, entry.get("status", "")) for reader, entry in data)


def pairs(row: Any) -> dict[str, Any]:
    flat = [part for pair in row.items() for part in pair] if isinstance(row, dict) else row
    plain = [part.decode() if isinstance(part, bytes) else part for part in flat]
    return dict(zip(plain[::2], plain[1::2], strict=True))


def where_of(question: str) -> str:
    return next(where for asked, where in QUESTIONS if asked == question)


def site(folder: Path, server: str, shards: int) -> Iterator[Site]:
    """A running cluster without documents."""
    if server and shutil.which(server) is None:
        pytest.skip(f"{server} is not installed")
    made = Site(folder, server, shards)
    try:
        made.up()
        yield made
    finally:
        made("down")


def fill(qa: Site) -> None:
    """Store all kinds of contents."""
    tiny_reader(qa.folder / "mine", "org/mine", last=False)
    tiny_reader(qa.folder / "beside", "beside", last=True, weights=bytes(64))
    qa("model", "load", "mine", "--context-tokens", "48")
    qa("model", "load", "beside", "--beside")
    tiny_encoder(qa.folder / "words", "words")
    qa("model", "load", "words")
    for name in ("books", "many", "empty"):
        qa("collections", "create", name)
    (qa.folder / "lakes.md").write_text(MARKDOWN)
    qa("ingest", "lakes.md", "--prefix", "site/", "--collection", "books")
    with qa.client() as client:
        client.put_document(
            "ada {1} 50%", "Ada Lovelace wrote the first program in 1843.\r\n\x00End. ", "A “title”",
            {"year": 1843, "big": 2**62, "ratio": 1.0, "tags": ["a", None, "ü"], "nested": {"z": 1, "a": True}},
        )  # fmt: skip
        client.put_document("blank", "", "A title without a text")
        client.put_pin(Pin("Who pins?", "An editor."), collection="books")
        client.set_synonyms(Synonyms(("car, automobile",), 0.7))
        for number in range(3):
            client.send_feedback(Feedback(f"Number {number}?", "right"), collection="books")
        lines = [{"id": f"n{number}", "text": f"Number {number} is a number."} for number in range(MANY)]
        (qa.folder / "many.jsonl").write_text("\n".join(map(json.dumps, lines)))
    qa("ingest", "many.jsonl", "--collection", "many")
    with qa.stock() as stock:
        tag = keys.partition_of("stock", 12)
        stock.set(keys.paragraphs_key("stock", tag), "A stock client wrote this.")
        eventually(lambda: stock.hget(keys.document_key("stock", tag), "tokenized"))
    script = (SCRIPT, "ID", "mine", "DESCRIPTION", "my own", "REQUIREMENTS", "redis")
    assert qa.on_first("RG.PYEXECUTE", *script) == b"OK"
    (stream,) = [pairs(row)["id"] for row in qa.on_first("RG.DUMPREGISTRATIONS") if b"StreamReader" in row]
    qa.on_first("RG.PAUSEREGISTRATIONS", stream)
    for name, scope in (("shop", "ask"), ("gone", "search"), ("later", "ask")):
        text = qa("keys", "create", name, "--scope", scope, "--concurrent", "7").stdout.strip()
        (qa.folder / f"{name}.key").write_text(text)
    qa("keys", "revoke", (qa.folder / "gone.key").read_text().split("_")[1])


def same(source: Site, target: Site) -> None:
    """Check that a restored cluster has the contents and the answers of the original cluster."""
    assert target.everything() == source.everything()
    for cluster in (source, target):
        eventually(cluster.embedded)
    assert target.answers() == source.answers()
    readers = [
        sorted(
            (row["name"], row["default"], row["context_tokens"])
            for row in json.loads(qa("model", "list", "--json").stdout)
        )
        for qa in (target, source)
    ]
    assert [row for row in readers[0] if not row[0].startswith("plain@")] == readers[1]
    listed = [json.loads(qa("keys", "list", "--json").stdout) for qa in (target, source)]
    assert listed[0] == listed[1]
    with target.client() as mine, source.client() as theirs:
        assert {entry.name: entry.documents for entry in mine.collections()} == {
            entry.name: entry.documents for entry in theirs.collections()
        }
        for name in ("default", "books"):
            assert (mine.pins(name), mine.synonyms(name)) == (theirs.pins(name), theirs.synonyms(name))
            assert mine.feedback(name) == theirs.feedback(name)
        assert (len(mine.pins("books")), len(mine.synonyms().groups), len(mine.feedback("books"))) == (1, 1, 3)
    assert target.registrations() == source.registrations() == [("CommandReader", ""), ("StreamReader", "PAUSED")]
    assert target.on_first("RG.TRIGGER", "hello", "world") == [b"hello world"] * target.size
    assert (source.ran(), target.ran()) == (3, 0)


def incomplete(qa: Site) -> set[str]:
    """The API keys whose record is missing in at least one list."""

    async def ask() -> set[str]:
        async with AsyncClusterClient(qa.settings) as client:
            return await client.engine.api_keys.incomplete()

    return asyncio.run(ask())


def lists(qa: Site) -> list[str]:
    """The names of the lists of API keys."""
    return [keys.api_keys_key(tag) for tag in keys.partition_tags(int(qa.status()["partitions"]))]
