"""After a write, the shard splits and indexes the document, and questions find it, also after changes."""

from __future__ import annotations

import json
import signal

import pytest

from qa_cluster import keys
from qa_cluster.documents.sentence_offsets import pack_offsets
from qa_cluster.documents.sentences import SPLITTER_VERSION, split_sentences
from qa_cluster.documents.stored import BLOCK_SENTENCES
from qa_cluster.ranking.postings import pack_sentences
from qa_cluster.ranking.terms import ANALYZER_VERSION
from tests.harness.polling import eventually
from tests.harness.servers import Server

from .running_shards import EARLY, MODEL, PARTITIONS, SECONDS, Shards, tag


def test_a_document_written_before_the_reader_is_answered(shards: Shards) -> None:
    answer = shards.ask(EARLY[0], 0, "Which bird catches the worm?")
    assert answer is not None
    assert answer["sentence"] == EARLY[1]


def test_a_document_is_found_changed_and_deleted(shards: Shards) -> None:
    shards.put("zebra", "Zebras have stripes. Horses have none.")
    shards.wait_tokenized("zebra")
    ranking = shards.rank("Which zebras have stripes?")
    assert ranking.candidates[0].sentence == f"zebra:{{{tag('zebra')}}}:0"
    shards.put("zebra", "Okapis have striped legs.")
    assert "zebra" not in shards.ranked_documents("zebras")
    shards.wait_tokenized("zebra")
    assert "zebra" in shards.ranked_documents("okapis")
    assert "zebra" not in shards.ranked_documents("zebras")
    later = shards.rank("okapis")
    assert later.epochs[tag("zebra")] > ranking.epochs[tag("zebra")]
    assert len(later.epochs) == PARTITIONS
    shards.delete("zebra")
    assert "zebra" not in shards.ranked_documents("okapis")
    index = keys.index_key(tag("zebra"))
    assert shards.on(shards.node_of(index), "QA.INDEX.STATS", index, "TERMS", 1, "okapi")[2] == [0]


def test_a_plain_set_is_enough_and_a_plain_del_too(shards: Shards) -> None:
    key = keys.paragraphs_key("plain", tag("plain"))
    shards.client.set(key, "Quokkas smile. They live in Australia.")
    shards.wait_tokenized("plain")
    assert "plain" in shards.ranked_documents("Do quokkas smile?")
    shards.client.append(key, " Zibbets eat termites.")
    eventually(lambda: "plain" in shards.ranked_documents("zibbets"), SECONDS)
    shards.client.delete(key)
    eventually(lambda: shards.record("plain") is None)
    assert "plain" not in shards.ranked_documents("Do quokkas smile?")


def test_a_key_without_a_tag_is_forwarded_to_its_partition(shards: Shards) -> None:
    # With six names, each shard has some of the keys, and most documents belong to another shard than their key.
    names = [f"stock client {number}" for number in range(6)]
    for name in names:
        shards.client.set(f"paragraphs:{name}", f"Wombats dig burrows, says {name}.")
    shards.wait_tokenized(*names)
    assert set(names) <= set(shards.ranked_documents("wombats burrows"))
    for name in names:
        shards.client.delete(f"paragraphs:{name}")
    eventually(lambda: not any(shards.record(name) for name in names), SECONDS)


def test_documents_of_any_size(shards: Shards) -> None:
    shards.put("empty", " \n ")
    shards.put(
        "large", " ".join(f"Sentence number{i} of the large document tells of word{i % 50}." for i in range(2000))
    )
    shards.wait_tokenized("empty", "large")
    assert shards.rank("number1234").candidates[0].sentence == f"large:{{{tag('large')}}}:1234"
    record = shards.record("empty")
    assert record is not None
    assert record.sentences == 0


def test_answers_of_another_reader_are_dropped_when_the_manifest_changes(shards: Shards) -> None:
    shards.put("model", "The kakapo is a parrot.")
    shards.wait_tokenized("model")
    first = shards.ask("model", 0, "What is the kakapo?")
    assert first is not None
    text = (MODEL / "manifest.json").read_text()
    other = {**json.loads(text), "revision": "0" * 12, "model_sha256": "0" * 64}
    try:
        shards.write_manifest(json.dumps(other))
        eventually(lambda: answered_by(shards, "0" * 12), SECONDS)
    finally:
        shards.write_manifest(text)
    eventually(lambda: answered_by(shards, first["model"]["revision"]), SECONDS)


def answered_by(shards: Shards, revision: str) -> bool:
    answer = shards.ask("model", 0, "What is the kakapo?")
    return answer is not None and answer["model"]["revision"] == revision


def with_other_splitter(shards: Shards, name: str, text: str, spans: list[tuple[int, int]], *, splitter: str) -> None:
    """Give a document the sentences of another splitter, and its partition another layout."""
    here = tag(name)
    document = keys.document_key(name, here)
    shards.client.delete(keys.layout_key(here))
    shards.client.set(keys.offsets_key(name, here), pack_offsets(text, spans))
    shards.client.hset(document, mapping={"sentences": len(spans), "splitter": splitter})
    packed = pack_sentences([text[a:b] for a, b in spans])
    shards.on(shards.node_of(document), "QA.INDEX.PUT", keys.index_key(here), keys.encode_id(name), b"", packed)


def test_a_sweep_splits_documents_of_an_older_splitter_again(shards: Shards) -> None:
    name, text, question = "resplit", "Ospreys catch fish. They nest on poles.", "What do ospreys catch?"
    shards.put(name, text)
    shards.wait_tokenized(name)
    with_other_splitter(shards, name, text, [(0, len(text))], splitter="0-older")
    before, ranking = shards.ask(name, 0, question), shards.rank("ospreys poles")
    assert before is not None
    assert (before["sentence"], before["sentence_start"]) == (text, 0)

    shards.register("UPGRADE")

    def is_split_again() -> bool:
        record = shards.record(name)
        return record is not None and record.is_current(SPLITTER_VERSION, ANALYZER_VERSION)

    eventually(is_split_again, SECONDS)
    after = shards.ask(name, 0, question)
    assert after is not None
    assert after["sentence"] == "Ospreys catch fish."
    again = shards.rank("ospreys poles")
    assert {f"{name}:{{{tag(name)}}}:{i}" for i in (0, 1)} <= {found.sentence for found in again.candidates}
    assert again.epochs[tag(name)] > ranking.epochs[tag(name)]
    shards.delete(name)


def test_a_partition_of_another_layout_is_reindexed_once(shards: Shards) -> None:
    name, text = "great auk", "Great auks could not fly. They swam."
    here = tag(name)
    shards.put(name, text)
    shards.wait_tokenized(name)
    with_other_splitter(shards, name, text, split_sentences(text), splitter="0-older")
    node = shards.node_of(keys.document_key(name, here))

    shards.register("UPGRADE")

    eventually(lambda: shards.client.exists(keys.layout_key(here)), SECONDS)
    record = shards.record(name)
    assert record is not None and record.is_current(SPLITTER_VERSION, ANALYZER_VERSION)
    assert name in shards.ranked_documents("great auks")
    answer = shards.ask(name, 1, "Who swam?")
    assert answer is not None
    assert (answer["sentence"], answer["sentence_start"]) == ("They swam.", 26)
    assert "has a different layout" in node.log.read_text(errors="replace")
    reindexed = node.log.read_text(errors="replace").count("documents are reindexed (")
    assert reindexed
    shards.register("UPGRADE")
    shards.put(name, text + " Nobody sees them.")
    shards.wait_tokenized(name)
    assert node.log.read_text(errors="replace").count("documents are reindexed (") == reindexed
    shards.delete(name)


def test_text_that_is_not_utf8_does_no_harm(shards: Shards) -> None:
    shards.client.set(keys.paragraphs_key("broken", tag("broken")), b"\xff\xfe broken")
    shards.put("whole", "Tapirs swim.")
    shards.wait_tokenized("whole")
    assert shards.record("broken") is None
    shards.client.delete(keys.paragraphs_key("broken", tag("broken")))


@pytest.mark.hostile
def test_a_text_of_too_many_sentences_from_a_plain_set_is_not_indexed(shards: Shards) -> None:
    """Questions do not find the previous version any more. The shard continues to index other documents."""
    key = keys.paragraphs_key("endless", tag("endless"))
    shards.put("endless", "Geckos climb walls.")
    shards.wait_tokenized("endless")
    text = "a。" * 2_000_000
    shards.client.set(key, text)
    eventually(lambda: shards.record("endless") is None, SECONDS)
    shards.put("beside", "Geckos eat crickets.")
    shards.wait_tokenized("beside")
    assert shards.ranked_documents("geckos") == ["beside"]
    assert not shards.client.exists(keys.offsets_key("endless", tag("endless")))

    def said() -> bool:
        """The error is in the registration, or in the log if indexing takes longer than 5 s."""
        node = shards.node_of(key)
        registrations = repr(shards.on(node, "RG.DUMPREGISTRATIONS"))
        return "has more than 100000 sentences" in registrations + node.log.read_text(errors="replace")

    eventually(said, SECONDS)  # repeated, because the worker deletes the previous version before it reports the error
    assert shards.client.strlen(key) == len(text.encode())
    shards.client.delete(key)


def test_texts_written_while_the_worker_was_dead_are_indexed(shards: Shards) -> None:
    key = keys.paragraphs_key("orphan", tag("orphan"))
    node = shards.node_of(key)
    untagged = next(f"orphan {n}" for n in range(100) if shards.node_of(f"paragraphs:orphan {n}") is node)
    node.signal_worker(signal.SIGKILL)
    shards.client.set(key, "Narwhals have tusks.")
    shards.client.set(f"paragraphs:{untagged}", "Belugas are white.")
    shards.wait_tokenized("orphan", untagged)
    node.wait_ready()
    assert "orphan" in shards.ranked_documents("narwhals")


def test_all_texts_of_a_burst_without_tags_arrive(shards: Shards) -> None:
    """The burst has more texts than a worker forwards at once."""
    names = [f"burst {number}" for number in range(900)]
    pipeline = shards.client.pipeline()
    for name in names:
        pipeline.set(f"paragraphs:{name}", f"Zebra {name} grazes.")
    pipeline.execute()

    def rests(node: Server) -> bool:
        return node.fields("queued_events", "in_flight") == (0, 0)

    eventually(lambda: all(rests(node) for node in shards.nodes))
    # repeated, because a text may arrive at a shard that the loop above has already checked
    eventually(lambda: not [name for name in names if shards.record(name) is None], SECONDS)


def test_registering_again_is_harmless(shards: Shards) -> None:
    before = [len(shards.on(node, "RG.DUMPREGISTRATIONS")) for node in shards.nodes]
    assert shards.register("UPGRADE") == "OK"
    eventually(lambda: [len(shards.on(node, "RG.DUMPREGISTRATIONS")) for node in shards.nodes] == before)
    shards.put("again", "Ocelots climb trees.")
    shards.wait_tokenized("again")
    assert "again" in shards.ranked_documents("ocelots")


def test_pretokenization_in_bulk(shards: Shards) -> None:
    text = " ".join(f"Lynx number {i} hunts hares." for i in range(600))
    shards.put("bulk", text)
    shards.wait_tokenized("bulk")
    expected = shards.ask("bulk", 500, "Who hunts hares?")
    script = "from qa_cluster.gears.scripts.own_functions import prepare; prepare(force={})"
    found = []
    for force in (False, False, True):
        results, errors = shards.on(shards.nodes[0], "RG.PYEXECUTE", script.format(force))
        assert errors == []
        found.append([json.loads(result) for result in results])
    for rows in found:
        assert len(rows) == len(shards.nodes)
        assert all((row["state"], row["done"], row["failed"]) == ("done", row["total"], 0) for row in rows)
    first, again, forced = (sum(row["tokenized"] for row in rows) for rows in found)
    assert (again, forced) == (0, sum(row["total"] for row in found[2]))
    assert 0 < first <= forced
    stored = keys.tokens_key("bulk", tag("bulk"))
    assert shards.client.hlen(stored) == -(-600 // BLOCK_SENTENCES)
    # the same answers come from stored tokens
    answer = shards.ask("bulk", 500, "who hunts hares?")
    assert expected is not None and answer is not None
    assert (answer["answer"], answer["start"], answer["score"]) == (
        expected["answer"],
        expected["start"],
        expected["score"],
    )
    shards.put("bulk", "Lynxes sleep.")
    assert not shards.client.exists(stored)
    shards.delete("bulk")


def test_a_question_without_terms_finds_nothing(shards: Shards) -> None:
    for question in ("", "?", "who is the", "😀"):
        assert shards.rank(question).candidates == []


def test_an_invalid_text_invalidates_answers_from_the_old_text(shards: Shards) -> None:
    shards.put("spoilt", "Zibbets smile.")
    shards.wait_tokenized("spoilt")
    assert shards.ask("spoilt", 0, "Who smiles?") is not None
    key = keys.paragraphs_key("spoilt", tag("spoilt"))
    shards.client.set(key, b"\xff\xfe zibbets")
    eventually(lambda: shards.record("spoilt") is None, SECONDS)
    assert shards.ranked_documents("zibbets") == []
    assert shards.ask("spoilt", 0, "Who smiles?") is None
    assert shards.client.exists(key)
    shards.client.set(key, "Zibbets sleep.")
    shards.wait_tokenized("spoilt")
    assert shards.ranked_documents("zibbets") == ["spoilt"]
    shards.delete("spoilt")


def test_a_document_outside_the_partitions_is_not_ranked(shards: Shards) -> None:
    """A change of this document would not change the epochs of the partitions, on which cached whole answers depend."""
    stray = "elsewhere"
    assert stray not in keys.partition_tags(PARTITIONS)
    shards.client.set(keys.paragraphs_key("stray", stray), "Zorbles dig.")

    def tokenized() -> bool:
        record = shards.client.hgetall(keys.document_key("stray", stray))
        return "tokenized" in record

    eventually(tokenized, SECONDS)
    ranking = shards.rank("zorbles")
    assert (ranking.candidates, sorted(ranking.epochs)) == ([], sorted(keys.partition_tags(PARTITIONS)))
    shards.client.delete(keys.paragraphs_key("stray", stray))
