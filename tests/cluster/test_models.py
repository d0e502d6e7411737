"""`qa-cluster model load`, `use`, `unload`, `list` and `bench`: results, refusals, and undone changes."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qa_cluster import keys
from qa_cluster.cluster import cli
from qa_cluster.cluster.nodes.node import Node
from qa_cluster.cluster.nodes.resharding import Move, all_primaries, move_slots
from qa_cluster.cluster.readers import default_reader, reader_loading
from qa_cluster.cluster.readers.reader_files import ReaderFiles, read_reader
from qa_cluster.errors import ClusterError, InvalidInput, ModelError, NotFound
from qa_cluster.reading.manifest import MANIFEST_FILE, Manifest
from tests.functions.running_shards import SECONDS
from tests.functions.tiny_shards import FIRST, LAST, TinyShards, tiny_shards
from tests.gears.onnx_file import token_model
from tests.harness.polling import eventually
from tests.harness.tiny_readers import tiny_encoder, tiny_reader

LIMIT_MB = 450


@pytest.fixture
def shards(reader_shards: TinyShards) -> Iterator[TinyShards]:
    """Shards on which `first` is the only reader and the default, before and after each test."""
    yield reader_shards
    for name in names(reader_shards) - {reader_shards.first.name}:
        reader_shards.load("first", keep_old=True)
        reader_shards.unload(name)


def names(shards: TinyShards) -> set[str]:
    return {name for node in shards.nodes for name in shards.models(node)}


def default(shards: TinyShards) -> set[str]:
    return {name for node in shards.nodes for name, entry in shards.models(node).items() if entry["default"]}


def reader_keys(shards: TinyShards) -> list[str]:
    return sorted(key for node in shards.nodes for key in shards.on(node, "KEYS", "bert-qa*"))


Tool = Callable[..., str]


@pytest.fixture
def qa(shards: TinyShards, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tool:
    """A function that runs a command in this process and returns its output."""

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["qa-cluster", "--cluster-url", shards.url, *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        assert ended.value.code == code, printed.out + printed.err
        return printed.out if code == 0 else printed.err

    return run


def test_a_loaded_reader_replaces_the_former_reader(shards: TinyShards, qa: Tool) -> None:
    shards.written("place")
    assert shards.get("place", "Who?")["answer"] == FIRST
    told = qa("model", "load", str(shards.folder / "last"))
    assert f"loaded {shards.last.name}" in told
    assert f"removed {shards.first.name}" in told
    # after the command, even a stock client gets no cached answer of the former reader
    assert shards.get("place", "Who?")["answer"] == LAST
    assert names(shards) == {shards.last.name}
    assert len(reader_keys(shards)) == 3 * len(shards.nodes)
    assert qa("model", "load", str(shards.folder / "last")).count("compiled and stored") == 0


def test_an_encoder_is_loaded_listed_and_replaced(shards: TinyShards, qa: Tool) -> None:
    words = tiny_encoder(shards.folder / "words", "words")
    more = tiny_encoder(shards.folder / "more", "more", dims=24, created="2026-02-02")
    told = qa("model", "load", str(shards.folder / "words"))
    assert f"loaded {words.name}; the default reader is unchanged" in told
    assert default(shards) == {shards.first.name}
    kinds = {row["name"]: row["kind"] for row in json.loads(qa("model", "list", "--json"))}
    assert kinds == {shards.first.name: "reader", words.name: "encoder"}
    assert "is an encoder" in qa("model", "use", "words", code=1)
    assert "has a fixed token budget" in qa(
        "model", "load", str(shards.folder / "words"), "--context-tokens", "64", code=2
    )
    assert "belongs to an encoder" in qa("model", "bench", "words", code=1)
    assert words.revision in qa("model", "card", str(shards.folder / "words"))
    assert f"removed {words.name}" in qa("model", "load", str(shards.folder / "more"))
    assert names(shards) == {shards.first.name, more.name}
    qa("model", "load", str(shards.folder / "words"), "--keep-old")
    assert names(shards) == {shards.first.name, more.name, words.name}
    for name in ("words", "more"):
        assert "removed" in qa("model", "unload", name)
    assert names(shards) == {shards.first.name}


def test_a_second_reader_is_stored_once_next_to_the_first(shards: TinyShards, qa: Tool) -> None:
    def read() -> ReaderFiles:
        return read_reader(shards.folder / "last", model_id="second")

    def unread() -> ReaderFiles:
        raise AssertionError("the second reader is already stored")

    with_second = {shards.first.name, f"second@{shards.last.revision}"}
    reader_loading.add_second_reader(shards.operation(), read, "second")
    assert (names(shards), default(shards)) == (with_second, {shards.first.name})
    reader_loading.add_second_reader(shards.operation(), unread, "second")
    assert names(shards) == with_second
    assert "removed" in qa("model", "unload", "second")


def test_several_readers_are_listed_selected_and_removed(shards: TinyShards, qa: Tool) -> None:
    qa("model", "load", str(shards.folder / "last"), "--beside", "--name", "mine", "--context-tokens", "48")
    mine = f"mine@{shards.last.revision}"
    rows = json.loads(qa("model", "list", "--json"))
    assert [(row["name"], row["default"], row["warm"], row["shards"], row["context_tokens"]) for row in rows] == [
        (shards.first.name, True, 2, 2, shards.first.context_tokens),
        (mine, False, 2, 2, 48),
    ]
    assert "2 of 2" in qa("model", "list")
    shards.written("side")
    asked = ("ask", "Who discovered radium?", "--json", "--model")
    assert json.loads(qa(*asked, "mine"))["model"]["id"] == "mine"
    assert f"'nope' is not loaded, loaded are: {shards.first.name}, {mine}" in qa(*asked, "nope", code=1)
    assert f"the default reader is {mine}" in qa("model", "use", "mine")
    assert default(shards) == {mine}
    assert names(shards) == {mine, shards.first.name}
    assert f"{mine} is the default reader of" in qa("model", "unload", mine, code=1)
    with pytest.raises(NotFound, match=f"'nope' is not loaded, loaded are: {shards.first.name}, {mine}"):
        shards.use("nope")
    shards.use("first")
    assert qa("model", "unload", "mine") == f"removed {mine}\n"
    assert names(shards) == {shards.first.name}


def test_an_ambiguous_id_is_refused(shards: TinyShards) -> None:
    tiny_reader(shards.folder / "second", "first", last=True, weights=bytes(16))
    shards.load("second", make_default=False)
    with pytest.raises(InvalidInput, match="'first' is loaded in 2 revisions, choose one: first@"):
        shards.use("first")
    for name in names(shards) - {shards.first.name}:
        shards.unload(name)


def test_a_changed_context_budget_needs_no_new_model(shards: TinyShards) -> None:
    shards.written("budget")
    compiled = [node.log.read_text().count(" is loaded, ") for node in shards.nodes]
    for budget in (64, 0):
        revision = replace(shards.first, context_tokens=budget).reading_revision
        reader_loading.load(shards.operation(), read_reader(shards.folder / "first", context_tokens=budget))
        assert shards.get("budget", "Who?")["reading_revision"] == revision
        assert {entry["reading_revision"] for node in shards.nodes for entry in shards.models(node).values()} == {
            revision
        }
    assert [node.log.read_text().count(" is loaded, ") for node in shards.nodes] == compiled


def test_a_load_waits_for_changed_thresholds(shards: TinyShards) -> None:
    reader_loading.load(shards.operation(), read_reader(shards.folder / "last"))
    folder = shutil.copytree(shards.folder / "last", shards.folder / "strict")
    (folder / MANIFEST_FILE).write_text(replace(shards.last, no_answer_threshold=3.5).to_json())
    strict = read_reader(folder)
    assert strict.manifest.reading_revision == shards.last.reading_revision
    with shards.nodes[0].client() as client:
        assert "has not loaded the new manifest" in reader_loading._is_warm(client, strict)
    reader_loading.load(shards.operation(), strict)
    for node in shards.nodes:
        default = next(entry for entry in shards.models(node, "manifests").values() if entry["default"])
        assert Manifest.from_json(default["manifest"]).no_answer_threshold == 3.5


def test_a_load_that_fails_before_the_change_is_undone(shards: TinyShards) -> None:
    shards.written("back")
    before = reader_keys(shards)
    refusing = shards.nodes[1]
    shards.on(refusing, "ACL", "SETUSER", "default", "-ai.modelstore")
    try:
        with pytest.raises(ClusterError, match=rf"shard 127\.0\.0\.1:{refusing.port}: NOPERM (?i:.*ai\.modelstore)"):
            shards.load("last")
    finally:
        shards.on(refusing, "ACL", "SETUSER", "default", "+@all")
    assert reader_keys(shards) == before
    assert names(shards) == default(shards) == {shards.first.name}
    assert shards.get("back", "Who?")["answer"] == FIRST


def test_a_failed_load_is_not_undone_if_another_command_made_the_reader_the_default(
    shards: TinyShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(text: str) -> None:
        if "again; the other readers" in text:
            shards.use("last")

    told = rf"{shards.last.name} was not removed: another command has made it the default reader"
    with monkeypatch.context() as patched, pytest.raises(ClusterError, match=told):
        patched.setattr(reader_loading, "_is_warm", lambda *_: "never")
        reader_loading.load(replace(shards.operation(0.0), on_step=step), read_reader(shards.folder / "last"))
    assert default(shards) == {shards.last.name}
    assert len(reader_keys(shards)) == 2 * 3 * len(shards.nodes)


def test_a_former_default_that_is_the_default_again_is_not_removed(shards: TinyShards) -> None:
    def step(text: str) -> None:
        if text.startswith("removing "):
            shards.use("first")

    told = rf"{shards.first.name} was not removed: another command has made it the default reader"
    with pytest.raises(ClusterError, match=told):
        reader_loading.load(replace(shards.operation(), on_step=step), read_reader(shards.folder / "last"))
    assert default(shards) == {shards.first.name}
    assert names(shards) == {shards.first.name, shards.last.name}


def test_a_concurrent_change_of_the_default_is_reported(shards: TinyShards, monkeypatch: pytest.MonkeyPatch) -> None:
    shards.load("last", make_default=False)
    answers = default_reader._Change.answers
    unchanged = threading.Lock()

    def overtaken(*of: object) -> str:
        if unchanged.acquire(blocking=False):  # only once, on the first shard that the command checks
            shards.use("first")
        return answers(*of)  # type: ignore[arg-type]

    monkeypatch.setattr(default_reader._Change, "answers", overtaken)
    with pytest.raises(
        ClusterError, match=rf"another command made {shards.first.name} the default of shard .* meanwhile.*model use"
    ):
        shards.use("last")
    assert default(shards) == {shards.first.name}


def test_slots_that_move_there_and_back_do_not_break_a_change(
    shards: TinyShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards.load("last", make_default=False)
    answers = default_reader._Change.answers
    still = threading.Lock()

    def moved(change: object, node: Node, client: object) -> str:
        if node.port == shards.nodes[1].port and still.acquire(blocking=False):
            move_there_and_back(shards, node.slots[0][0])
            # the worker may have copied this state from a shard that has not changed yet
            assert shards.flip(shards.nodes[1], shards.first.name, shards.last.name) == "done"
        return answers(change, node, client)  # type: ignore[arg-type]

    monkeypatch.setattr(default_reader._Change, "answers", moved)
    assert shards.use("last") == shards.last.name
    assert default(shards) == {shards.last.name}


def move_there_and_back(shards: TinyShards, slot: int) -> None:
    """Move a slot of the second shard to the first shard and back, with the slot's keys."""
    clients = [node.client(decode_responses=False) for node in shards.nodes]
    try:
        for source, target in ((1, 0), (0, 1)):
            found = {node.port: node for node in all_primaries(clients[0])}
            nodes = [(found[node.port], client) for node, client in zip(shards.nodes, clients, strict=True)]
            move_slots([Move(slot, nodes[source][0].id, nodes[target][0].id)], nodes)
    finally:
        for client in clients:
            client.close()


def test_a_foreign_model_with_a_similar_key_is_left_alone(shards: TinyShards) -> None:
    node = shards.nodes[0]
    strange = f"bert-qa@50%x{{{shards.tag_of(node)}}}"
    shards.on(node, "AI.MODELSTORE", strange, "ONNX", "CPU", "BLOB", token_model())
    try:
        assert shards.load("last") == [shards.first.name]
        assert names(shards) == {shards.last.name}
        assert shards.on(node, "EXISTS", strange) == 1
    finally:
        shards.on(node, "DEL", strange)


def test_a_killed_worker_does_not_stop_a_load(shards: TinyShards) -> None:
    victim = shards.nodes[0]

    def kill_first_worker(text: str) -> None:
        if "compiled and stored" in text and str(victim.port) in text:
            victim.signal_worker(signal.SIGKILL)

    reader_loading.load(
        replace(shards.operation(), on_step=kill_first_worker), read_reader(shards.folder / "last"), keep_old=True
    )
    shards.wait_warm(shards.first.name, shards.last.name)
    assert default(shards) == {shards.last.name}


def test_a_change_that_one_shard_misses_is_reported_and_can_be_completed(shards: TinyShards, qa: Tool) -> None:
    shards.load("last", make_default=False)
    there, gone = shards.nodes
    gone.stop(signal.SIGKILL)
    try:
        with pytest.raises(ClusterError) as caught:
            default_reader.change(shards.operation(1.0), shards.last.name)
        told = str(caught.value)
        assert f"{shards.last.name}: 127.0.0.1:{there.port}" in told
        assert f"not reachable: 127.0.0.1:{gone.port}" in told
        assert f"qa-cluster model use {shards.last.name}" in told
    finally:
        gone.start()
    gone.wait_ready(SECONDS)
    eventually(lambda: len(shards.models(gone)) == 2, SECONDS, ignore=Exception)
    eventually(lambda: default(shards) == {shards.first.name, shards.last.name}, SECONDS, ignore=Exception)
    assert "use different readers" in qa("status", code=3)
    assert shards.use("last") == shards.last.name
    assert default(shards) == {shards.last.name}


def test_a_bench_measures_and_stores_nothing(shards: TinyShards, qa: Tool) -> None:
    shards.written("bench", "One is here. Two are there. Three are gone.")
    found = json.loads(qa("model", "bench", "--rounds", "3", "--json"))
    assert found["reader"] == shards.first.name
    for shard in found["shards"]:
        assert [(run["batch"], run["length"]) for run in shard["runs"]] == [
            (batch, length) for batch in (1, 8) for length in (16, 32, 64, 128, 256, 384)
        ]
        assert all(0 < run["p50"] <= run["p95"] for run in shard["runs"])
    assert sum(shard["reading"] is not None for shard in found["shards"]) >= 1
    for node in shards.nodes:
        left = [key for pattern in ("bench:*", "bertqa*", "answers:bench*") for key in shards.on(node, "KEYS", pattern)]
        assert not [key for key in left if "measured" in key or not key.startswith("bertqa")]


def test_a_reader_too_large_for_memory_is_refused_and_the_others_continue(tmp_path: Path, server_binary: Path) -> None:
    size = 144_000_000
    with tiny_shards(server_binary, tmp_path, 1, **{"qa.worker-memory-mb": LIMIT_MB}) as shards:
        shards.written("large")
        worker = shards.nodes[0].field("worker_pid")
        large = tiny_reader(tmp_path / "large", "large", last=True, weights=bytes(size))
        needed = 3 * large.model_bytes / 2**20
        with pytest.raises(ModelError) as caught:
            shards.load("large")
        told = str(caught.value)
        assert f"{large.model_bytes} bytes does not fit into the worker" in told
        assert f"about {-(-3 * large.model_bytes >> 20)} MB to load" in told
        assert f"limit of {LIMIT_MB} MB" in told
        assert needed > 400
        assert shards.get("large", "Who?")["answer"] == FIRST
        assert names(shards) == {shards.first.name}
        assert len(reader_keys(shards)) == 3
        shards.load("last", keep_old=True)
        assert shards.get("large", "Who?")["answer"] == LAST
        assert shards.nodes[0].field("worker_pid") == worker


def test_up_copies_readers_to_the_shards_that_lack_them(shards: TinyShards, qa: Tool) -> None:
    node = shards.nodes[0]
    shards.store(node, "last", shards.last)
    eventually(lambda: shards.models(node).get(shards.last.name, {}).get("warm"), SECONDS)
    qa("up")
    for each in shards.nodes:
        own = shards.tag_of(each)
        stored = [key(own, shards.last.name) for key in (keys.model_key, keys.manifest_key, keys.tokenizer_key)]
        assert shards.on(each, "EXISTS", *stored) == 3
    assert default(shards) == {shards.first.name}
