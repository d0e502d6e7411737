"""Several readers on a shard: the choice of the reader, its copies on the shards, and its cached answers."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from qa_cluster import keys
from qa_cluster.asking.connecting import target_of
from qa_cluster.asking.engine import Engine, EngineOptions
from qa_cluster.config import Settings
from qa_cluster.options.questions import AskOptions
from qa_cluster.reading.bundled import bundled_encoder
from qa_cluster.reading.manifest import MANIFEST_FILE, sha256_hex
from qa_cluster.reading.plan import WAVES, StageOptions
from qa_cluster.scripts.calls import ScriptCall
from qa_cluster.types import AskResult
from tests.functions.running_shards import SECONDS, sentence_name, tag
from tests.functions.tiny_shards import FIRST, LAST, TEXT, TinyShards, tiny_shards
from tests.gears.onnx_file import span_model
from tests.harness.polling import eventually, eventually_async
from tests.harness.processes import descendants
from tests.harness.tiny_readers import tiny_reader
from tests.unit.small_tokenizer import tokenizer_json

pytestmark = pytest.mark.one_server("the worker chooses the reader; tests/system fails over on both servers")


@pytest.fixture(scope="module")
def cluster(shared_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyShards]:
    with tiny_shards(shared_binary, tmp_path_factory.mktemp("readers")) as found:
        yield found


@pytest.fixture
def shards(cluster: TinyShards) -> Iterator[TinyShards]:
    """The cluster with the readers `first` (the default reader) and `last`."""
    cluster.load("last", make_default=False)
    yield cluster
    if not all(cluster.models(node).get(cluster.first.name, {}).get("default") for node in cluster.nodes):
        cluster.use("first")


def test_both_readers_answer_and_cache_their_answers_separately(shards: TinyShards) -> None:
    shards.written("both")
    for _ in range(2):
        assert shards.get("both", "Who?")["answer"] == FIRST
        for model in ("last", shards.last.name):
            found = shards.get("both", "Who?", model)
            assert (found["answer"], found["model"]) == (LAST, {"id": "last", "revision": shards.last.revision})
            assert TEXT[found["start"] : found["end"]] == LAST
    node = shards.node_of(keys.document_key("both", tag("both")))
    for model, answer in (("", FIRST), ("first", FIRST), (shards.last.name, LAST), ("last", LAST)):
        for cache in ("miss", "shard"):
            (reply,) = shards.on(node, "RG.TRIGGER", "qa.read", model, f"By {model}?", sentence_name("both", 0))
            assert (json.loads(reply)["answer"], json.loads(reply)["cache"]) == (answer, cache)
    # a question that names the default reader with its revision uses the default's cached answers
    (reply,) = shards.on(node, "RG.TRIGGER", "qa.read", shards.first.name, "By ?", sentence_name("both", 0))
    assert json.loads(reply)["cache"] == "shard"


def test_no_reader_answers_from_an_old_version(shards: TinyShards) -> None:
    for text, first, last in ((TEXT, FIRST, LAST), ("Ada wrote the first program", "Ada", "program")):
        shards.written("changes", text)
        assert [shards.get("changes", "Who?", model)["answer"] for model in ("", "last", shards.last.name)] == [
            first,
            last,
            last,
        ]


def test_the_refusal_of_an_unknown_reader_names_the_loaded_readers(shards: TinyShards) -> None:
    shards.written("unknown")
    told = f"MODEL model 'nope' is not loaded on this shard, loaded are: {shards.first.name}, {shards.last.name}"
    with pytest.raises(redis.ResponseError, match=told):
        shards.get("unknown", "Who?", "nope")
    with pytest.raises(redis.ResponseError, match=told):
        shards.on(shards.nodes[0], "RG.TRIGGER", "qa.read", "nope", "Who?", sentence_name("unknown", 0))
    with pytest.raises(redis.ResponseError, match=r"qa\.models takes nothing or 'manifests'"):
        shards.on(shards.nodes[0], "RG.TRIGGER", "qa.models", "everything")


def test_qa_models_reports_all_facts_of_each_reader(shards: TinyShards) -> None:
    # wait until the shards have checked their cached answers for the new reader
    shards.wait_models(lambda models: all(entry["settled"] for entry in models.values()))
    for node in shards.nodes:
        (text,) = shards.on(node, "RG.TRIGGER", "qa.models", "manifests")
        default, other = json.loads(text)
        assert (default["name"], default["default"], default["warm"]) == (shards.first.name, True, True)
        assert other["manifest"] == (shards.folder / "last" / MANIFEST_FILE).read_text()
        assert {name: value for name, value in other.items() if name != "manifest"} == {
            **{"name": shards.last.name, "id": "last", "revision": shards.last.revision},
            **{"reading_revision": shards.last.reading_revision, "default": False, "warm": True, "stored": True},
            **{"precision": "float32", "bytes": shards.last.model_bytes, "context_tokens": shards.last.context_tokens},
            **{"settled": True, "problem": "", "kind": "reader"},
        }


def test_a_change_of_the_default_compiles_nothing_and_leaves_no_old_answer(shards: TinyShards) -> None:
    shards.written("flip")
    node = shards.node_of(keys.document_key("flip", tag("flip")))
    before = shards.compilations(node)
    for to, former, answer in ((shards.last, shards.first, LAST), (shards.first, shards.last, FIRST)):
        shards.get("flip", "Who?")
        shards.get("flip", "Who?", to.name)
        assert shards.flip(node, to.name, former.name) == "done"
        # cached answers under the name of the former default stay valid; cached answers of the default are deleted
        assert shards.get("flip", "Who?", former.name)["model"]["revision"] == former.revision
        for number in range(20):
            found = shards.get("flip", f"Who is number {number}?")
            assert found["answer"] in (FIRST, LAST)
        shards.wait_models(lambda models, name=to.name: models[name]["default"], node)
        assert shards.get("flip", f"Who is it now, {to.name}?")["answer"] == answer
        shards.wait_models(lambda models, name=to.name: models[name]["settled"], node)
        assert shards.get("flip", "Who?")["answer"] == answer
    assert shards.compilations(node) == before


def test_an_inconsistent_change_of_the_default_has_no_effect(shards: TinyShards) -> None:
    node = shards.nodes[0]
    assert shards.flip(node, "nobody@0", shards.first.name) == "missing"
    names = [key for name in ("", shards.last.name, shards.first.name) for key in shards.keys_of(node, name)]
    assert shards.on(node, *ScriptCall("make_default", tuple(names), ("another manifest",)).command()) == "changed"
    assert shards.on(node, "EXISTS", *names[:6]) == 6
    assert shards.models(node)[shards.first.name]["default"]


def test_an_id_means_its_default_revision_or_else_the_latest(shards: TinyShards) -> None:
    shards.written("revisions")
    made = []
    for number, created in enumerate(("2026-02-01", "2026-03-01", "2026-01-01")):
        folder = shards.folder / f"many{number}"
        made.append(tiny_reader(folder, "many", last=True, weights=bytes(4 * (number + 1)), created=created))
        for node in shards.nodes:
            shards.store(node, folder.name, made[-1])
    try:
        shards.wait_warm(*(manifest.name for manifest in made))
        assert shards.get("revisions", "Who?", "many")["model"]["revision"] == made[1].revision
        shards.use(made[2].name)
        assert shards.get("revisions", "Who is it?", "many")["model"]["revision"] == made[2].revision
        # the id now means another reader, so answers that were cached under the id are not valid
        assert shards.get("revisions", "Who?", "many")["model"]["revision"] == made[2].revision
        shards.use("first")
    finally:
        for manifest in made:
            shards.unload(manifest.name)


def test_a_reader_with_another_tokenizer_reads_stored_documents(shards: TinyShards) -> None:
    text = "Zoë sat on the mat 😀 in Köln"
    shards.written("tokens", text)
    other = tiny_reader(shards.folder / "small", "small", last=True, tokenizer=tokenizer_json(), weights=bytes(64))
    try:
        shards.load("small", make_default=False)
        found = shards.get("tokens", "Who?", "small")
        assert (found["answer"], text[found["start"] : found["end"]]) == ("Köln", "Köln")
        assert shards.get("tokens", "Who?")["answer"] == "Zoë"
        shards.use(other.name)
        shards.wait_tokenized("tokens")
        assert shards.get("tokens", "Who is it?")["answer"] == "Köln"
        assert [name for name in shards.ranked_documents("Who sat on the mat?") if name == "tokens"]
    finally:
        shards.use("first")
        shards.unload(other.name)


def test_the_answers_of_a_removed_reader_are_deleted(shards: TinyShards) -> None:
    shards.written("removed")
    for model in ("", "last", shards.last.name):
        shards.get("removed", "Who?", model)
    for node in shards.nodes:
        assert shards.remove(node, shards.last.name) == 3
    shards.wait_models(lambda models: shards.last.name not in models and models[shards.first.name]["settled"])
    for model in ("last", shards.last.name):
        with pytest.raises(redis.ResponseError, match="is not loaded on this shard"):
            shards.get("removed", "Who?", model)
    assert shards.get("removed", "Who?")["answer"] == FIRST


def test_lost_copies_are_restored_from_another_shard_and_a_new_worker_loads_them(shards: TinyShards) -> None:
    shards.written("lost")
    node = shards.node_of(keys.document_key("lost", tag("lost")))
    names = [*shards.keys_of(node, ""), *shards.keys_of(node, shards.last.name)]
    assert [shards.get("lost", "Who?", model)["answer"] for model in ("", "last")] == [FIRST, LAST]
    before = shards.on(node, "AI.MODELGET", names[0], "META")
    assert shards.on(node, "DEL", *names) == 6
    assert shards.get("lost", "Who is it?")["answer"] == FIRST, "the compiled model needs no key"
    eventually(lambda: shards.on(node, "EXISTS", *names) == 6, SECONDS)
    assert shards.on(node, "AI.MODELGET", names[0], "META") == before
    assert shards.on(node, "GET", names[1]) == (shards.folder / "first" / MANIFEST_FILE).read_text()
    pid = node.signal_worker(signal.SIGKILL)
    eventually(lambda: node.field("worker_pid") not in (0, pid), SECONDS)
    node.wait_ready(SECONDS)
    shards.wait_warm(shards.first.name, shards.last.name)
    assert [shards.get("lost", "Who now?", model)["answer"] for model in ("", "last")] == [FIRST, LAST]


def test_a_reader_that_no_shard_has_is_dropped(shards: TinyShards) -> None:
    shards.written("dropped")

    def is_dropped() -> bool:
        # deleted repeatedly, because a shard may have copied the reader from another shard meanwhile
        for node in shards.nodes:
            shards.on(node, "DEL", *shards.keys_of(node, ""), *shards.keys_of(node, shards.first.name))
        return all(shards.on(node, "RG.TRIGGER", "qa.reader") == [""] for node in shards.nodes)

    try:
        eventually(is_dropped, SECONDS)
    finally:
        shards.load("first", keep_old=True)
    assert shards.get("dropped", "Who?")["answer"] == FIRST


def test_answers_of_a_reader_that_was_replaced_while_no_worker_ran_are_dropped(shards: TinyShards) -> None:
    shards.written("replaced")
    assert shards.get("replaced", "Who?")["answer"] == FIRST
    node = shards.node_of(keys.document_key("replaced", tag("replaced")))
    pid = node.signal_worker(signal.SIGSTOP)
    assert shards.flip(node, shards.last.name, shards.first.name) == "done"
    node.signal_worker(signal.SIGKILL)
    eventually(lambda: node.field("worker_pid") not in (0, pid), SECONDS)
    # a stock client would read old cached answers, so the shard must delete these
    eventually(lambda: shards.get("replaced", "Who?")["answer"] == LAST, SECONDS, ignore=redis.ResponseError)
    assert shards.flip(node, shards.first.name, shards.last.name) == "done"
    shards.wait_models(lambda models: models[shards.first.name]["default"], node)


def test_a_model_that_cannot_read_batches_is_not_reported_as_ready(shards: TinyShards) -> None:
    narrow = span_model(last=True, shape=[1, 384])
    manifest = replace(shards.last, model_id="narrow", model_sha256=sha256_hex(narrow), model_bytes=len(narrow))
    folder = shards.folder / "narrow"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((shards.folder / "last" / "tokenizer.json").read_bytes())
    (folder / "reader.onnx").write_bytes(narrow)
    (folder / MANIFEST_FILE).write_text(manifest.to_json())
    node = shards.nodes[0]

    def is_gone() -> bool:
        # removed repeatedly, because the other shard may be making a copy
        for each in shards.nodes:
            shards.remove(each, manifest.name)
        return all(manifest.name not in shards.models(each) for each in shards.nodes)

    shards.store(node, "narrow", manifest)
    try:
        eventually(lambda: shards.models(node)[manifest.name]["problem"], SECONDS, ignore=KeyError)
        entry = shards.models(node)[manifest.name]
        assert not entry["warm"]
        assert "input_ids int64 [1, 384]" in entry["problem"]
    finally:
        eventually(is_gone, SECONDS)


def test_incomplete_reader_keys_are_not_repeatedly_overwritten(shards: TinyShards) -> None:
    shards.written("halves")
    node = shards.nodes[0]
    own = shards.tag_of(node)
    model = (shards.folder / "last" / "reader.onnx").read_bytes()
    words = (keys.model_key(own), "ONNX", "CPU", "TAG", shards.last.name, "BLOB", model)
    # in this order: without the manifest, the worker would restore the reader before the other model is stored
    shards.on(node, "AI.MODELSTORE", *words)
    shards.on(node, "DEL", keys.manifest_key(own))

    def told(text: str) -> int:
        return node.log.read_text(errors="replace").count(text)

    try:
        eventually(lambda: told("do not belong together") == 1, SECONDS)
        copies = told("copied from")
        time.sleep(1.5)
        assert (told("do not belong together"), told("copied from")) == (1, copies)
        assert shards.get("halves", "Who?")["answer"] == FIRST
    finally:
        shards.load("first", keep_old=True)
    assert all(shards.models(each)[shards.first.name]["stored"] for each in shards.nodes)


def test_mismatched_parts_of_a_reader_are_not_loaded(shards: TinyShards) -> None:
    node = shards.nodes[0]
    wrong = replace(shards.last, model_id="wrong", tokenizer_sha256="0" * 64)
    names = shards.keys_of(node, wrong.name)
    folder = shards.folder / "last"
    try:
        shards.on(node, "AI.MODELSTORE", names[0], "ONNX", "CPU", "BLOB", (folder / "reader.onnx").read_bytes())
        shards.on(node, "SET", names[2], (folder / "tokenizer.json").read_bytes())
        for manifest in (wrong.to_json(), "no manifest", shards.last.to_json()):
            shards.on(node, "SET", names[1], manifest)
            until = time.monotonic() + 0.6
            while time.monotonic() < until:
                assert set(shards.models(node)) == {shards.first.name, shards.last.name}
                time.sleep(0.1)
    finally:
        shards.on(node, "DEL", *names)


def test_only_a_bundled_model_is_loaded_without_a_process_of_its_own(shards: TinyShards) -> None:
    key = f"stored:{{{tag('both')}}}"
    node = shards.node_of(key)
    bundled = (bundled_encoder() / "encoder.onnx").read_bytes()
    place = len(bundled) // 2  # in the weights
    changed = bundled[:place] + bytes([bundled[place] ^ 1]) + bundled[place + 1 :]
    for blob, expected in ((bundled, 0), (changed, 1)):
        before = set(descendants(node.pid))
        shards.on(node, "AI.MODELSTORE", key, "ONNX", "CPU", "BLOB", blob)
        assert len(set(descendants(node.pid)) - before) == expected
        shards.on(node, "DEL", key)


QUESTION = "Who isolated penicillin?"


async def opened(shards: TinyShards, *plan: StageOptions) -> Engine:
    target = target_of(Settings(cluster_url=shards.url))
    return await Engine.open(target.seeds, target.login, EngineOptions(plan=plan, limits=target.options.limits))


async def ask(engine: Engine) -> AskResult:
    return (await engine.ask(QUESTION, AskOptions(no_answer=False, timeout=60))).result("id")


async def test_the_second_reader_of_a_plan_decides_on_shards_that_have_it(shards: TinyShards) -> None:
    shards.written("plan", "Alexander Fleming isolated penicillin near London")
    shards.written("plan 2", "Howard Florey isolated penicillin near Oxford")
    shards.unload("last")
    engine = await opened(shards, StageOptions(waves=WAVES), StageOptions(model="last", candidates=1))
    try:
        alone = await ask(engine)
        assert (alone.model.id, alone.usage.sentences_read) == ("first", 2)
        shards.load("last", make_default=False)

        async def both() -> bool:
            return (await ask(engine)).model.id == "last"

        await eventually_async(both)
        result = await ask(engine)
        assert result.best is not None and alone.best is not None
        assert (result.model.revision, result.usage.sentences_read) == (shards.last.revision, 3)
        assert result.best.answer == {"plan": "London", "plan 2": "Oxford"}[result.best.document_id]
        assert alone.best.answer not in ("London", "Oxford")
        assert (await ask(engine)).cache.status == "hit"
        sure = await opened(shards, StageOptions(waves=WAVES, final_threshold=-1e6), StageOptions(model="last"))
        try:
            found = await ask(sure)
            assert (found.model.id, found.answers) == ("first", alone.answers)
        finally:
            await sure.aclose()
        shards.unload("last")

        async def without() -> bool:
            return (await ask(engine)).model.id == "first"

        await eventually_async(without)
    finally:
        await engine.aclose()
