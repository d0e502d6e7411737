"""`qa-cluster model load` of unusable readers, and interrupted loads: the shards keep nothing of these readers."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import redis

from qa_cluster import keys
from qa_cluster.cluster import cli
from qa_cluster.cluster.nodes import all_shards
from qa_cluster.cluster.nodes.connect import shards_of
from qa_cluster.cluster.nodes.node import Node
from qa_cluster.cluster.readers import reader_loading, shard_readers
from qa_cluster.cluster.readers.reader_files import ReaderFiles, read_reader
from qa_cluster.errors import ClusterError, InvalidInput, ModelError, NotFound
from qa_cluster.reading.manifest import TOKENIZER_FILE, sha256_hex
from tests.functions.running_shards import SECONDS
from tests.functions.tiny_shards import FIRST, TinyShards
from tests.gears.onnx_file import span_model
from tests.harness.polling import eventually
from tests.harness.tiny_readers import tiny_reader


@pytest.fixture
def shards(reader_shards: TinyShards) -> Iterator[TinyShards]:
    """Shards on which `first` is the only reader and can answer, before and after each test."""
    before = reader_keys(reader_shards)
    yield reader_shards
    assert reader_keys(reader_shards) == before
    assert {name for node in reader_shards.nodes for name in reader_shards.models(node)} == {reader_shards.first.name}
    assert reader_shards.get("fault", f"Who {time.monotonic()}?")["answer"] == FIRST


@pytest.fixture
def listed(
    shards: TinyShards, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], str]:
    """A function that returns the output of `qa-cluster model list`."""

    def run() -> str:
        monkeypatch.setattr(sys, "argv", ["qa-cluster", "--cluster-url", shards.url, "model", "list"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        return printed.out + printed.err

    return run


def reader_keys(shards: TinyShards) -> list[str]:
    return sorted(key for node in shards.nodes for key in shards.on(node, "KEYS", "bert-qa*"))


def files_of(shards: TinyShards, model: bytes) -> ReaderFiles:
    """The files of the reader `last`, but with another model, without a check."""
    manifest = replace(shards.last, model_sha256=sha256_hex(model), model_bytes=len(model))
    return ReaderFiles(model, (shards.folder / "last" / TOKENIZER_FILE).read_bytes(), manifest.to_json(), manifest)


def test_a_reader_that_no_worker_can_load_fails_early_with_one_error(
    shards: TinyShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_shards, "_GIVE_UP_SECONDS", 30.0)  # the workers do not notice the key at the same time
    addresses = ", ".join(f"127.0.0.1:{node.port}" for node in shards.nodes)
    with pytest.raises(ModelError, match=rf"shards {addresses}: the model cannot read batches of any size") as caught:
        reader_loading.load(shards.operation(3600.0), files_of(shards, span_model(last=True, shape=[1, 384])))
    assert str(caught.value).count("cannot read batches") == 1


def test_a_reader_with_nan_logits_does_not_replace_a_good_reader(shards: TinyShards) -> None:
    tiny_reader(shards.folder / "nan", "nan", last=True, weights=struct.pack("<f", float("nan")))
    with pytest.raises(ModelError, match=r"nan@\w+ cannot answer; export it again.*: model gave logits that are not"):
        shards.load("nan")


def test_a_reader_larger_than_any_argument_of_a_command_is_loaded(
    shards: TinyShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tiny_reader(shards.folder / "large", "large", last=True, weights=bytes(3 << 20))
    monkeypatch.setattr(shard_readers, "_PART_BYTES", 1 << 20)
    for node in shards.nodes:
        shards.on(node, "CONFIG", "SET", "proto-max-bulk-len", "1mb")
    try:
        shards.load("large", make_default=False)
    finally:
        for node in shards.nodes:
            shards.on(node, "CONFIG", "SET", "proto-max-bulk-len", "512mb")
    shards.wait_warm(large.name)
    shards.unload("large")


def test_the_list_shows_that_only_some_shards_have_a_default(shards: TinyShards, listed: Callable[[], str]) -> None:
    shards.load("last", make_default=False)
    operation = shards.operation()
    with shards_of(operation.settings, operation.url) as nodes:
        assert shard_readers.make_default(*nodes[0], shards.last.name) == ""
    try:
        eventually(lambda: [" on 1 of 2 " in line for line in listed().splitlines()].count(True) == 2, SECONDS)
    finally:
        shards.use("first")
        shards.unload("last")


INTERRUPTED = """
import os, signal, sys, threading
from pathlib import Path
from qa_cluster.cluster.nodes.all_shards import ClusterOperation
from qa_cluster.cluster.readers import reader_loading, shard_readers
from qa_cluster.cluster.readers.reader_files import read_reader
from qa_cluster.cluster.servers.signals import until_signal
from qa_cluster.config import Settings

url, folder, port = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
taking, stored = threading.Event(), threading.Event()
store = shard_readers.store_model

def slowly(node, client, *rest):
    if node.port == port:
        stored.wait(30)
        taking.wait(1.0)  # a key that is removed before this ends comes back
    store(node, client, *rest)

def step(text):
    if "compiled and stored" in text and not stored.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
        stored.set()
    if "again; the other readers" in text:
        taking.set()

shard_readers.store_model = slowly
try:
    with until_signal():
        reader_loading.load(ClusterOperation.begin(Settings(), url, 60.0, step), read_reader(folder))
except KeyboardInterrupt:
    print("interrupted; taken back:", taking.is_set())
"""


def test_an_interrupted_load_waits_for_its_running_steps_and_undoes_them(shards: TinyShards) -> None:
    words = [shards.url, str(shards.folder / "last"), str(shards.nodes[1].port)]
    program = [sys.executable, "-c", INTERRUPTED, *words]
    done = subprocess.run(program, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted; taken back: True\n"), done.stderr


def test_a_load_is_undone_on_the_other_shards_if_one_shard_is_lost(
    shards: TinyShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, gone = shards.nodes
    told: list[str] = []
    stopped = threading.Event()
    store = shard_readers.store_model

    def go(node: Node, client: redis.Redis, *rest: object) -> None:
        if node.port == gone.port and not stopped.is_set():
            stopped.set()
            gone.stop(signal.SIGKILL)
        store(node, client, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(shard_readers, "store_model", go)
    monkeypatch.setattr(reader_loading, "_UNDO_SECONDS", 1.0)
    try:
        with pytest.raises(ClusterError, match=rf"last@\w+ could not be stored on every shard: .*:{gone.port}: Conn"):
            reader_loading.load(
                replace(shards.operation(2.0), on_step=told.append), read_reader(shards.folder / "last")
            )
        assert not [key for key in shards.on(there, "KEYS", "bert-qa*") if "last" in key]
        assert f"`qa-cluster model unload {shards.last.name}`" in told[-1]
        assert f"127.0.0.1:{gone.port}" in told[-1]
    finally:
        gone.start()
    gone.wait_ready(SECONDS)
    shards.wait_warm(shards.first.name)
    own = shards.tag_of(gone)
    shards.on(gone, "DEL", *(key(own, shards.last.name) for key in (keys.model_key, keys.tokenizer_key)))


def test_the_reader_of_a_killed_load_is_listed_and_can_be_unloaded(
    shards: TinyShards, listed: Callable[[], str]
) -> None:
    node, own, names = shards.nodes[1], shards.tag_of(shards.nodes[1]), []
    for revision in ("0" * 12, "1" * 12):
        names.append(f"left@{revision}")
        shards.on(node, "SET", keys.tokenizer_key(own, names[-1]), "{}")
        model = keys.model_key(own, names[-1])
        shards.on(node, "AI.MODELSTORE", model, "ONNX", "CPU", "BLOB", span_model(last=True))
    operation = shards.operation()
    assert reader_loading.incomplete_readers(operation, reader_loading.listing(operation)) == {
        name: [f"127.0.0.1:{node.port}"] for name in names
    }
    told = " ".join(listed().split())
    assert f"{names[0]} is incomplete on 127.0.0.1:{node.port}: a command is loading it now, or was interrupted" in told
    assert f"`qa-cluster model unload {names[0]}`" in told
    with pytest.raises(InvalidInput, match=r"model 'left' is stored in 2 revisions, choose one: left@0+, left@1+"):
        shards.unload("left")
    assert shards.unload(names[0]) == names[0]
    assert shards.unload("left") == names[1]
    with pytest.raises(NotFound, match="'left' is not loaded"):
        shards.unload("left")
