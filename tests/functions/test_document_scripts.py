"""Put, index and delete change everything about a document, or nothing."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from qa_cluster import keys
from qa_cluster.documents import stored
from qa_cluster.documents.sentence_offsets import pack_offsets
from qa_cluster.documents.sentences import split_sentences
from qa_cluster.documents.stored import IndexedText
from qa_cluster.ranking.postings import pack_sentences
from tests.harness.polling import eventually

from . import shard_model as shard
from .shard_model import TAG

TEXT = "A cat sat on the mat. The dog slept. Nobody saw the cat."


def ingest(client: redis.Redis, document_id: str, text: str) -> str:
    result = shard.put(client, document_id, text)
    shard.index(client, document_id, result.version, text)
    return result.version


def contents(client: redis.Redis) -> dict[str, Any]:
    """All keys with their values. The order of fields in DUMP of a hash can change, so the values are read instead."""
    reads: dict[str, Callable[[str], Any]] = {
        "string": lambda key: shard.command(client, "GET", key, NEVER_DECODE=True),
        "hash": client.hgetall,
        "list": lambda key: client.lrange(key, 0, -1),
        "set": client.smembers,
        "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    kept = {key: str(client.type(key)) for key in client.scan_iter()}
    return {
        key: reads[kind](key) if kind in reads else shard.command(client, "DEBUG", "DIGEST-VALUE", key)
        for key, kind in kept.items()
    }


def indexed(client: redis.Redis) -> tuple[int, int, int] | None:
    """The numbers of documents, sentences and terms in the index; None without an index."""
    reply = shard.command(client, "QA.INDEX.INFO", keys.index_key(TAG))
    if reply is None:
        return None
    found = dict(zip(reply[::2], reply[1::2], strict=True))
    return found["documents"], found["sentences"], found["terms"]


def frequencies(client: redis.Redis, *terms: str) -> list[int]:
    """The number of sentences with each term."""
    reply = shard.command(client, "QA.INDEX.STATS", keys.index_key(TAG), "TERMS", len(terms), *terms)
    return list(reply[2])


def test_a_document_is_ranked_when_it_is_indexed(client: redis.Redis) -> None:
    version = shard.put(client, "a_b: {x}", TEXT).version
    before = epoch(client)
    shard.index(client, "a_b: {x}", version, TEXT)
    assert epoch(client) == before + 1
    record = shard.record(client, "a_b: {x}")
    assert record is not None
    assert (record.version, record.sentences, record.tokenized) == (version, 3, True)
    assert indexed(client) == (1, 3, 8)
    command = ("QA.INDEX.RANK", keys.index_key(TAG), 8, 0, "TERMS", 1, "cat", 0)
    sentences, terms, (frequency,), hits, *_ = shard.command(client, *command)
    assert (sentences, terms, frequency) == (3, 8, 2)
    assert [hit[:2] for hit in hits] == [["a_b: %7Bx%7D", 0], ["a_b: %7Bx%7D", 2]]


def test_a_commit_is_stale_only_if_its_document_is_not_open_any_more(client: redis.Redis) -> None:
    """The worker retries a stale commit. The worker must get any other error, because a retry would fail again."""
    version, index, spans = shard.put(client, "d", TEXT).version, keys.index_key(TAG), split_sentences(TEXT)
    made = IndexedText("1", "1", len(spans), pack_offsets(TEXT, spans), b"")
    place = str(shard.command(client, "QA.INDEX.BEGIN", index, "d", b""))
    before = contents(client)
    commit = partial(stored.index_document, "d", TAG, version, made, b"")
    assert shard.run(client, commit(place=str(int(place) + 1))) == ["stale"]
    with pytest.raises(redis.ResponseError, match="the document has 0 sentences so far, not 3"):
        shard.run(client, commit(place=place))
    assert contents(client) == before


def test_the_same_version_again_changes_nothing(client: redis.Redis) -> None:
    ingest(client, "d", TEXT)
    before = contents(client)
    result = shard.put(client, "d", TEXT)
    assert (result.status, result.tokenized) == ("unchanged", True)
    assert contents(client) == before


def test_a_condition_that_does_not_hold_changes_nothing(client: redis.Redis) -> None:
    first = shard.put(client, "d", TEXT, stored.NO_VERSION)
    assert (first.status, first.created) == ("stored", True)
    shard.index(client, "d", first.version, TEXT)
    before = contents(client)
    for condition in ("0" * 16, stored.NO_VERSION):
        result = shard.put(client, "d", "Other.", condition)
        assert (result.status, result.version) == ("conflict", first.version)
    assert shard.delete(client, "d", "0" * 16) == stored.ChangeResult("conflict", first.version)
    assert contents(client) == before
    second = shard.put(client, "d", "Other.", first.version)
    assert (second.status, second.created) == ("stored", False)
    assert shard.delete(client, "d", second.version).status == "deleted"


def test_a_deleted_document_leaves_no_keys(client: redis.Redis) -> None:
    version = ingest(client, "d", TEXT)
    assert shard.store_answer(client, "d", "Who?", (0, version, "A cat sat on the mat."), "{}")
    before = epoch(client)
    assert shard.delete(client, "d").status == "deleted"
    assert epoch(client) == before + 1
    assert shard.delete(client, "d") == stored.ChangeResult("missing", "")
    assert set(client.scan_iter()) == {keys.epoch_key(TAG)}


def test_an_epoch_is_never_reused_even_after_a_flush(client: redis.Redis) -> None:
    shard.put(client, "d", TEXT)
    before = epoch(client)
    client.flushall()
    eventually(lambda: time.time() * 1000 > before + 1)
    shard.put(client, "d", TEXT)
    assert epoch(client) > before


def epoch(client: redis.Redis) -> int:
    return int(str(client.get(keys.epoch_key(TAG))))


def test_a_late_index_of_an_old_version_is_refused(client: redis.Redis) -> None:
    old = shard.put(client, "d", TEXT).version
    new = shard.put(client, "d", "New text.").version
    assert shard.index(client, "d", old, TEXT) == "stale"
    assert indexed(client) is None
    assert shard.index(client, "d", new, "New text.") == "stored"


def test_a_changed_large_document_leaves_nothing_of_its_old_version(client: redis.Redis) -> None:
    ingest(client, "d", " ".join(f"Sentence number{i} holds word{i % 700} here." for i in range(5000)))
    # the index counts the terms of such a large document in steps
    eventually(lambda: frequencies(client, "word3") == [len(range(3, 5000, 700))])
    ingest(client, "d", "Other text.")
    assert indexed(client) == (1, 1, 2)
    eventually(lambda: frequencies(client, "word3", "other", "text") == [0, 1, 1])


def waiting(client: redis.Redis) -> dict[str, int]:
    return {name: int(size) for name, size in client.hgetall(keys.pending_key(TAG)).items()}


def test_a_document_is_pending_until_it_is_indexed_or_gone(client: redis.Redis) -> None:
    first = shard.put(client, "50%", "Größe.")
    assert (first.pending_bytes, waiting(client)) == (8, {"50%25": 8, "": 8})
    second = shard.put(client, "b", "Four.")
    assert (second.pending_bytes, waiting(client)) == (13, {"50%25": 8, "b": 5, "": 13})
    # another version replaces the pending version
    newer = shard.put(client, "50%", "No.")
    assert (newer.pending_bytes, waiting(client)) == (8, {"50%25": 3, "b": 5, "": 8})
    assert shard.index(client, "50%", first.version, "Größe.") == "stale"
    assert waiting(client) == {"50%25": 3, "b": 5, "": 8}
    assert shard.index(client, "50%", newer.version, "No.") == "stored"
    assert waiting(client) == {"b": 5, "": 5}
    assert shard.put(client, "50%", "No.").pending_bytes == 5
    shard.delete(client, "b")
    assert not client.exists(keys.pending_key(TAG))


def test_a_text_that_a_client_wrote_is_pending_until_it_is_indexed_or_gone(client: redis.Redis) -> None:
    client.set(keys.paragraphs_key("d", TAG), "First.")
    call = stored.adopt_document(stored.check_document("d", "First."), TAG, "")
    assert stored.parse_put(shard.run(client, call)).pending_bytes == 6
    client.delete(keys.paragraphs_key("d", TAG))
    shard.run(client, stored.forget_document("d", TAG))
    assert not client.exists(keys.pending_key(TAG))


def test_a_change_that_the_worker_has_not_read_stays_pending(client: redis.Redis) -> None:
    """The change note distinguishes a new change from the change that the worker has read."""
    put = shard.put(client, "d", TEXT)
    spans = shard.spans_of(TEXT, "1")
    packed = pack_sentences([TEXT[a:b] for a, b in spans])
    made = IndexedText("1", "1", len(spans), pack_offsets(TEXT, spans), packed)
    noted = waiting(client)["d"]
    for amount in (noted, 1):
        client.hset(keys.pending_key(TAG), mapping={"d": amount + 1, "": amount + 1})
        call = stored.index_document("d", TAG, put.version, made, b"", note=str(amount))
        assert shard.run(client, call) == ["stored"]
        assert waiting(client) == {"d": amount + 1, "": amount + 1}
    shard.run(client, stored.forget_version("d", TAG, put.version, "1"))
    assert waiting(client) == {"d": 2, "": 2}
    shard.run(client, stored.settle_note("d", TAG, stored.NO_VERSION, "2"))
    assert not client.exists(keys.pending_key(TAG))


def test_a_sentence_of_a_text_that_has_just_changed_is_not_read(client: redis.Redis) -> None:
    """Until the worker indexes the text that a client wrote, the sentence offsets do not fit its bytes."""
    ingest(client, "d", TEXT)
    client.set(keys.paragraphs_key("d", TAG), TEXT.replace("dog", "fox"))
    found_texts = [getattr(shard.read(client, "d", i), "text", None) for i in range(4)]
    assert found_texts == [
        "A cat sat on the mat.",
        None,
        "Nobody saw the cat.",
        None,
    ]
    around = shard.read(client, "d", 2, around=5)
    assert around is not None
    assert (around.left, around.right) == ((), ())
    found = stored.parse_hits(shard.run_binary(client, stored.read_hits("d", TAG, [0, 1, 7], 1)))
    assert found is not None
    assert [[placed.index for placed in passage] for passage in found.passages] == [[0], [0, 2], []]
    client.set(keys.paragraphs_key("d", TAG), "Short.")
    assert shard.read(client, "d", 2) is None


@pytest.mark.parametrize("text", [TEXT, "Ein Ätna. Zwei 😀 Vulkane!\n\n Drei."], ids=["ascii", "unicode"])
def test_sentences_are_cut_out_of_the_text(client: redis.Redis, text: str) -> None:
    version = ingest(client, "d", text)
    spans = shard.spans_of(text, "1")
    for i, (start, end) in enumerate(spans):
        found = shard.read(client, "d", i, around=1)
        assert found is not None
        assert (found.text, found.start, found.version, found.document_id) == (text[start:end], start, version, "d")
        assert [placed.index for placed in found.left] == [i - 1] * (i > 0)
        assert [placed.index for placed in found.right] == [i + 1] * (i + 1 < len(spans))
        assert all(text[at.start :].startswith(at.text) for at in found.left + found.right)
        assert shard.store_answer(client, "d", "Who?", (i, version, found.text), "{}")
    assert shard.read(client, "d", len(spans)) is None
    assert not shard.store_answer(client, "d", "Who?", (0, version, "other"), "{}")
    assert not shard.store_answer(client, "d", "Who?", (len(spans), version, ""), "{}")


def test_a_sentence_of_an_earlier_splitter_is_read_until_it_is_reindexed(client: redis.Redis) -> None:
    version = shard.put(client, "d", TEXT).version
    spans = shard.spans_of(TEXT, "1")
    document, sentences = keys.document_key("d", TAG), keys.sentence_key("d", TAG)
    client.hset(document, mapping={"spans": json.dumps(spans), "tokenized": version, "attempt": 1, "splitter": "1"})
    client.hset(sentences, mapping={str(i): TEXT[a:b] for i, (a, b) in enumerate(spans)})
    found = shard.read(client, "d", 1)
    assert found is not None
    assert (found.text, found.start, found.version) == ("The dog slept.", spans[1][0], version)
    assert shard.store_answer(client, "d", "Who?", (1, version, found.text), "{}")
    assert shard.index(client, "d", version, TEXT) == "stored"
    assert (shard.read(client, "d", 1), client.exists(sentences)) == (found, 0)
    assert not client.hexists(document, "spans") and not client.hexists(document, "attempt")
    assert client.exists(keys.answer_key(keys.SentenceRef("d", TAG, 1), "Who?"))


def test_tokens_are_stored_for_the_current_version_only(client: redis.Redis) -> None:
    version = shard.put(client, "d", TEXT).version
    blocks = {1: b"\xff", 0: b"ab"}

    def store(version: str, splitter: str) -> str:
        return str(shard.run(client, stored.store_tokens("d", TAG, version, splitter, blocks))[0])

    assert store(version, "1") == "stale"
    shard.index(client, "d", version, TEXT)
    assert (store("0" * 16, "1"), store(version, "0")) == ("stale", "stale")
    assert not client.exists(keys.tokens_key("d", TAG))
    assert store(version, "1") == "stored"
    found = shard.read(client, "d", 1)
    assert found is not None
    assert (found.first_block, found.blocks) == (0, (b"ab",))
    assert shard.index(client, "d", version, TEXT, "whole") == "stored"
    assert not client.exists(keys.tokens_key("d", TAG))


def test_a_document_keeps_a_bounded_number_of_answers(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the document deletes all its answers in one step."""
    monkeypatch.setattr(stored, "MAX_ANSWERS", 10)
    version = ingest(client, "d", TEXT)
    for number in range(50):
        assert shard.store_answer(client, "d", f"q{number}", (0, version, "A cat sat on the mat."), "{}")
    names = set(client.scan_iter("bertqa*"))
    assert names == client.smembers(keys.answers_key("d", TAG))
    assert 8 <= len(names) <= 10
    assert keys.answer_key(keys.SentenceRef("d", TAG, 0), "q49") in names


def test_a_document_keeps_fewer_answers_to_long_questions(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long names take longer to delete, so a document can have fewer of them."""
    monkeypatch.setattr(stored, "MAX_ANSWER_NAMES_BYTES", 10_000)
    version = ingest(client, "d", TEXT)
    for length in (10, 400):
        for number in range(150):
            question = f"q{number} " + "x" * length
            assert shard.store_answer(client, "d", question, (0, version, "A cat sat on the mat."), "{}")
        names = set(client.scan_iter("bertqa*", 5000))
        assert names == client.smembers(keys.answers_key("d", TAG))
        assert 5_000 < sum(map(len, names)) <= 10_000
        assert keys.answer_key(keys.SentenceRef("d", TAG, 0), question) in names


@pytest.mark.hostile
def test_the_memory_of_cached_answers_is_bounded(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for all documents of a partition together. The oldest answers are evicted, whatever their size."""
    limit = 200_000
    monkeypatch.setattr(stored, "store_answer", partial(stored.store_answer, most_bytes=limit))
    versions = {name: ingest(client, name, TEXT) for name in ("d", "e {x}", "f_g:h")}
    sizes = []
    for number in range(1500):
        name = list(versions)[number % 3]
        question = f"q{number}: " + "{odd}_\n" * (number % 7) + "x" * (2000 if number % 100 == 99 else 10)
        assert shard.store_answer(client, name, question, (0, versions[name], "A cat sat on the mat."), "{}" * 50)
        if number % 10 != 9:
            continue
        sizes.append(sum(3 * len(key.encode()) + 100 + 400 for key in client.scan_iter("bertqa*", 5000)))
    assert max(sizes) <= limit < max(sizes) + 20_000
    names = set(client.scan_iter("bertqa*", 5000))
    assert names == set().union(*(client.smembers(keys.answers_key(name, TAG)) for name in versions))
    assert names == set(client.zrange(keys.sentence_answer_list_key(TAG), 0, -1))
    assert int(client.get(keys.sentence_answer_bytes_key(TAG)) or 0) == sizes[-1]
    newest = {key.split("_q")[1].split(":")[0] for key in names}
    assert newest == {str(number) for number in range(1500 - len(names), 1500)}
    assert all(client.exists(keys.paragraphs_key(name, TAG), keys.document_key(name, TAG)) == 2 for name in versions)


def test_expired_answers_are_evicted_first(client: redis.Redis) -> None:
    version = ingest(client, "d", TEXT)
    for number in range(300):
        shard.store_answer(client, "d", f"q{number}", (0, version, "A cat sat on the mat."), "{}")
        client.delete(keys.answer_key(keys.SentenceRef("d", TAG, 0), f"q{number}"))
    assert client.zcard(keys.sentence_answer_list_key(TAG)) == 1
    assert client.scard(keys.answers_key("d", TAG)) < 20
    for _ in range(5):  # the same answer counts only once
        shard.store_answer(client, "d", "again", (0, version, "A cat sat on the mat."), "{}")
    assert client.zcard(keys.sentence_answer_list_key(TAG)) == 1
    assert int(client.get(keys.sentence_answer_bytes_key(TAG)) or 0) < 700
    shard.delete(client, "d")
    assert not client.exists(keys.sentence_answer_list_key(TAG), keys.sentence_answer_bytes_key(TAG))


def test_another_splitter_replaces_the_data_of_the_previous_one(client: redis.Redis) -> None:
    version = shard.put(client, "d", TEXT).version
    assert shard.index(client, "d", version, TEXT, "whole") == "stored"
    assert shard.store_answer(client, "d", "Who?", (0, version, TEXT), "{}")
    before = epoch(client)
    assert (shard.index(client, "d", version, TEXT, "2"), epoch(client)) == ("stored", before + 1)
    record = shard.record(client, "d")
    assert record is not None
    assert (record.sentences, record.splitter, record.tokenized) == (3, "2", True)
    assert not client.exists(keys.answer_key(keys.SentenceRef("d", TAG, 0), "Who?"))
    assert indexed(client) == (1, 3, 8)


def test_a_splitter_with_the_same_sentences_keeps_their_data(client: redis.Redis) -> None:
    version = ingest(client, "d", TEXT)
    assert shard.store_answer(client, "d", "Who?", (0, version, "A cat sat on the mat."), "{}")
    shard.run(client, stored.store_tokens("d", TAG, version, "1", {0: b"ab"}))
    assert shard.index(client, "d", version, TEXT, "2") == "stored"
    record = shard.record(client, "d")
    assert record is not None
    assert record.splitter == "2"
    assert client.exists(keys.tokens_key("d", TAG))
    assert client.exists(keys.answer_key(keys.SentenceRef("d", TAG, 0), "Who?"))


def test_a_text_written_with_set_is_adopted_only_if_it_is_unchanged(client: redis.Redis) -> None:
    client.set(keys.paragraphs_key("d", TAG), "First.")
    stale = stored.adopt_document(stored.check_document("d", "Older."), TAG, "")
    assert stored.parse_put(shard.run(client, stale)).status == "stale"
    call = stored.adopt_document(stored.check_document("d", "First."), TAG, "")
    assert stored.parse_put(shard.run(client, call)).status == "stored"
    assert stored.parse_put(shard.run(client, call)).status == "conflict"
    assert client.get(keys.paragraphs_key("d", TAG)) == "First."


def test_a_document_whose_text_was_removed_is_deleted(client: redis.Redis) -> None:
    ingest(client, "d", TEXT)
    assert stored.parse_delete(shard.run(client, stored.forget_document("d", TAG))).status == "stale"
    client.delete(keys.paragraphs_key("d", TAG))
    assert stored.parse_delete(shard.run(client, stored.forget_document("d", TAG))).status == "deleted"
    assert not client.exists(keys.document_key("d", TAG), keys.sentence_key("d", TAG))


def test_sentences_without_a_document(client: redis.Redis) -> None:
    client.hset(keys.sentence_key("d", TAG), mapping={"0": "The moon."})
    found = shard.read(client, "d", 0, around=3)
    assert found is not None
    assert (found.text, found.start, found.version, found.left, found.right) == ("The moon.", 0, "", (), ())
    assert shard.read(client, "d", 1) is None
    assert shard.store_answer(client, "d", "Who?", (0, "", "The moon."), "{}")
    assert shard.run(client, stored.loose_sentences("d", TAG)) == 1
    assert not client.exists(keys.answer_key(keys.SentenceRef("d", TAG, 0), "Who?"))
    # a document replaces these sentences
    version = ingest(client, "d", TEXT)
    assert shard.store_answer(client, "d", "Who?", (0, version, "A cat sat on the mat."), "{}")
    assert shard.run(client, stored.loose_sentences("d", TAG)) == 0
    assert client.exists(keys.answer_key(keys.SentenceRef("d", TAG, 0), "Who?"))
    assert not client.exists(keys.sentence_key("d", TAG))


def test_no_stale_answer_in_random_interleavings(client: redis.Redis) -> None:
    """Readers read a sentence and later store an answer. Writers change the document at any point in between."""
    chooser = random.Random(7)
    texts = {f"d{n}": [f"Version {v} of text {n}. It says {v}." for v in range(6)] for n in range(3)}
    versions: dict[str, tuple[str, str]] = {}
    pending: list[tuple[str, tuple[int, str, str]]] = []
    kept = refused = 0
    for _ in range(4000):
        document_id = chooser.choice(sorted(texts))
        action = chooser.choice(
            ["put", "put", "delete", "index", "index", "read", "read", "read", "store", "store", "store"]
        )
        text, version = versions.get(document_id, ("", ""))
        if action == "put":
            text = chooser.choice(texts[document_id])
            versions[document_id] = (text, shard.put(client, document_id, text).version)
        elif action == "delete":
            shard.delete(client, document_id)
            versions.pop(document_id, None)
        elif action == "index" and version:
            shard.index(client, document_id, version, text)
        elif action == "read":
            found = shard.read(client, document_id, 1)
            if found is not None:
                pending.append((document_id, (1, found.version, found.text)))
        elif action == "store" and pending:
            taken_id, source = pending.pop(chooser.randrange(len(pending)))
            done = shard.store_answer(client, taken_id, "What?", source, json.dumps(source))
            kept, refused = kept + done, refused + (not done)
        for checked in texts:
            cached = client.get(keys.answer_key(keys.SentenceRef(checked, TAG, 1), "What?"))
            if cached is not None:
                assert checked in versions
                current_text, current = versions[checked]
                assert json.loads(cached)[1] == current
                assert json.loads(cached)[2] in current_text
    assert kept > 100
    assert refused > 100
