"""A small cluster whose default reader always answers the first word of a sentence. Tests add other readers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qa_cluster import keys
from qa_cluster.cluster.nodes.all_shards import ClusterOperation
from qa_cluster.cluster.readers import reader_loading
from qa_cluster.cluster.readers.reader_files import read_reader
from qa_cluster.config import Settings
from qa_cluster.hashtags import hashtag_for_slot
from qa_cluster.keys import SentenceRef
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest
from qa_cluster.scripts.calls import ScriptCall
from tests.functions.running_shards import SECONDS, Shards, tag
from tests.harness.clusters import Cluster
from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.harness.tiny_readers import tiny_reader
from tests.harness.workers import WORKER

TEXT = "Marie Curie discovered radium in Paris"
FIRST, LAST = "Marie", "Paris"
READER_KEYS = (keys.model_key, keys.manifest_key, keys.tokenizer_key)


class TinyShards(Shards):
    """Two shards or more. `first` is the default reader at the start; `last` is only in a folder."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        super().__init__(cluster)
        self.folder = folder
        self.first = tiny_reader(folder / "first", "first", last=False)
        # a reader that a shard copies in three pieces (`PIECE_BYTES`), all of them different
        weights = bytes(4) + random.Random(1).randbytes(2_000_000)
        self.last = tiny_reader(folder / "last", "last", last=True, weights=weights)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.nodes[0].port}"

    def operation(self, seconds: float = 60.0) -> ClusterOperation:
        return ClusterOperation.begin(Settings(), self.url, seconds, lambda text: None)

    def load(self, name: str, seconds: float = 60.0, **options: bool) -> list[str]:
        """`qa-cluster model load` of a folder."""
        return reader_loading.load(self.operation(seconds), read_reader(self.folder / name), **options)

    def use(self, name: str) -> str:
        return reader_loading.use(self.operation(), name)

    def unload(self, name: str) -> str:
        return reader_loading.unload(self.operation(), name, force=True)

    def tag_of(self, node: Server) -> str:
        return hashtag_for_slot(self.nodes.index(node) * (16384 // len(self.nodes)))

    def store(self, node: Server, name: str, manifest: Manifest) -> None:
        """Write the keys of another reader, as any client may do."""
        folder, own = self.folder / name, self.tag_of(node)
        self.on(node, "SET", keys.tokenizer_key(own, manifest.name), (folder / TOKENIZER_FILE).read_bytes())
        model = (folder / MODEL_FILE).read_bytes()
        self.on(node, "AI.MODELSTORE", keys.model_key(own, manifest.name), "ONNX", "CPU", "BLOB", model)
        self.on(node, "SET", keys.manifest_key(own, manifest.name), (folder / MANIFEST_FILE).read_text())

    def remove(self, node: Server, name: str) -> int:
        return int(self.on(node, "DEL", *self.keys_of(node, name)))

    def models(self, node: Server, *arguments: str) -> dict[str, dict[str, Any]]:
        (text,) = self.on(node, "RG.TRIGGER", "qa.models", *arguments)
        return {entry["name"]: entry for entry in json.loads(text)}

    def wait_models(self, holds: Callable[[dict[str, dict[str, Any]]], object], *nodes: Server) -> None:
        """Wait until a condition is true for the models of each of these nodes, by default of all nodes."""
        for node in nodes or self.nodes:
            eventually(lambda node=node: holds(self.models(node)), SECONDS)  # type: ignore[misc]

    def wait_warm(self, *names: str) -> None:
        self.wait_models(lambda models: all(models.get(name, {}).get("warm") for name in names))

    def keys_of(self, node: Server, name: str) -> list[str]:
        """The keys of a reader on a shard; without a name, the keys of the default reader."""
        return [key(self.tag_of(node), name) for key in READER_KEYS]

    def flip(self, node: Server, to: str, former: str) -> str:
        """Change the default on one shard, and nothing else."""
        names = [key for name in ("", to, former) for key in self.keys_of(node, name)]
        seen = self.on(node, "GET", self.keys_of(node, "")[1])
        return str(self.on(node, *ScriptCall("make_default", tuple(names), (seen,)).command()))

    def compilations(self, node: Server) -> int:
        """The number of models that a node's worker has compiled."""
        return node.log.read_text(errors="replace").count(" is loaded, ")

    def get(self, document_id: str, question: str, model: str = "", i: int = 0) -> dict[str, Any]:
        """A stock GET of the answer of one sentence."""
        value = self.client.get(keys.answer_key(SentenceRef(document_id, tag(document_id), i), question, model))
        assert value is not None
        return dict(json.loads(value))

    def written(self, document_id: str, text: str = TEXT) -> str:
        self.put(document_id, text)
        self.wait_tokenized(document_id)
        return document_id


@contextmanager
def tiny_shards(binary: Path, folder: Path, size: int = 2, **settings: object) -> Iterator[TinyShards]:
    """The cluster, ready to answer."""
    with Cluster(binary, settings, worker=WORKER, size=size) as cluster:
        for node in cluster.nodes:
            node.wait_ready()
        shards = TinyShards(cluster, folder)
        shards.set_up()
        for node in shards.nodes:
            eventually(lambda node=node: bool(shards.on(node, "RG.TRIGGER", "qa.models")), SECONDS, ignore=Exception)
        shards.load("first")
        yield shards
