"""Put, split, index and delete change everything about a document, or nothing."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from qa_cluster import documents, keys
from tests.harness.polling import eventually

from . import shard_model as shard
from .shard_model import TAG

TEXT = "A cat sat on the mat. The dog slept. Nobody saw the cat."


def ingest(client: redis.Redis, document_id: str, text: str) -> str:
    result = shard.put(client, document_id, text)
    shard.split(client, document_id, result.version, text)
    shard.index(client, document_id, result.version, text)
    return result.version


def contents(client: redis.Redis) -> dict[str, Any]:
    """All keys with their values; not by DUMP, because its order of a hash's fields changes."""
    reads: dict[str, Callable[[str], Any]] = {
        "string": client.get,
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
    """Documents, sentences and terms in the index; None without one."""
    reply = shard.command(client, "QA.INDEX.INFO", keys.index_key(TAG))
    if reply is None:
        return None
    found = dict(zip(reply[::2], reply[1::2], strict=True))
    return found["documents"], found["sentences"], found["terms"]


def frequencies(client: redis.Redis, *terms: str) -> list[int]:
    """How many sentences hold each term."""
    reply = shard.command(client, "QA.INDEX.STATS", keys.index_key(TAG), "TERMS", len(terms), *terms)
    return list(reply[2])


def test_a_document_is_ranked_when_it_is_indexed(client: redis.Redis) -> None:
    version = ingest(client, "a_b: {x}", TEXT)
    record = shard.record(client, "a_b: {x}")
    assert record is not None
    assert (record.version, record.sentences, record.tokenized) == (version, 3, True)
    assert indexed(client) == (1, 3, 8)
    command = ("QA.INDEX.RANK", keys.index_key(TAG), 8, 0, "TERMS", 1, "cat", 0)
    sentences, terms, (frequency,), hits, *_ = shard.command(client, *command)
    assert (sentences, terms, frequency) == (3, 8, 2)
    assert [hit[:2] for hit in hits] == [["a_b: %7Bx%7D", 0], ["a_b: %7Bx%7D", 2]]


def test_the_same_version_again_changes_nothing(client: redis.Redis) -> None:
    ingest(client, "d", TEXT)
    before = contents(client)
    result = shard.put(client, "d", TEXT)
    assert (result.status, result.tokenized) == ("unchanged", True)
    assert contents(client) == before


@pytest.mark.parametrize("condition", ["0" * 16, documents.NO_VERSION])
def test_a_condition_that_does_not_hold_changes_nothing(client: redis.Redis, condition: str) -> None:
    version = ingest(client, "d", TEXT)
    before = contents(client)
    result = shard.put(client, "d", "Other.", condition)
    assert (result.status, result.version) == ("conflict", version)
    if condition:
        assert shard.delete(client, "d", condition) == documents.DeleteResult("conflict", version)
    assert contents(client) == before


def test_a_condition_that_holds(client: redis.Redis) -> None:
    first = shard.put(client, "d", TEXT, documents.NO_VERSION)
    assert (first.status, first.created) == ("stored", True)
    second = shard.put(client, "d", "Other.", first.version)
    assert (second.status, second.created) == ("stored", False)
    assert shard.delete(client, "d", second.version).status == "deleted"


def test_nothing_of_a_deleted_document_is_left(client: redis.Redis) -> None:
    version = ingest(client, "d", TEXT)
    assert shard.store_answer(client, "d", "Who?", (0, version, "A cat sat on the mat."), "{}")
    assert shard.delete(client, "d").status == "deleted"
    assert shard.delete(client, "d") == documents.DeleteResult("missing", "")
    assert set(client.scan_iter()) == {keys.epoch_key(TAG)}


def test_every_change_moves_the_epoch(client: redis.Redis) -> None:
    epochs = []
    version = shard.put(client, "d", TEXT).version
    epochs.append(epoch(client))
    shard.split(client, "d", version, TEXT)
    shard.index(client, "d", version, TEXT)
    epochs.append(epoch(client))
    shard.delete(client, "d")
    epochs.append(epoch(client))
    assert [value - epochs[0] for value in epochs] == [0, 1, 2]


def test_an_epoch_never_comes_again_even_after_a_flush(client: redis.Redis) -> None:
    shard.put(client, "d", TEXT)
    before = epoch(client)
    client.flushall()
    eventually(lambda: time.time() * 1000 > before + 1)
    shard.put(client, "d", TEXT)
    assert epoch(client) > before


def epoch(client: redis.Redis) -> int:
    return int(str(client.get(keys.epoch_key(TAG))))


def test_a_late_split_or_index_of_an_old_version_is_refused(client: redis.Redis) -> None:
    old = shard.put(client, "d", TEXT).version
    new = shard.put(client, "d", "New text.").version
    assert shard.split(client, "d", old, TEXT) == "stale"
    assert shard.split(client, "d", new, "New text.") == "stored"
    assert shard.split(client, "d", new, "New text.") == "unchanged"
    assert shard.index(client, "d", old, TEXT) == "stale"
    assert shard.index(client, "d", new, "New text.") == "stored"


def test_a_large_document_is_indexed_in_steps_and_a_change_in_between_leaves_no_trace(client: redis.Redis) -> None:
    text = " ".join(f"Sentence number{i} holds word{i % 700} here." for i in range(5000))
    version = shard.put(client, "d", text).version
    shard.split(client, "d", version, text)
    steps = shard.writer("d", version, text)
    kinds = [kind for _, _, kind in steps.steps()]
    assert kinds == ["b", *[""] * (len(kinds) - 2), "c"]
    assert shard.index(client, "d", version, text) == "stored"
    # the index counts the terms of such a large document in steps
    eventually(lambda: frequencies(client, "word3") == [len(range(3, 5000, 700))])
    other = "Other text."
    newer = shard.put(client, "d", other).version
    shard.split(client, "d", newer, other)
    assert shard.index(client, "d", newer, other) == "stored"
    assert indexed(client) == (1, 1, 2)
    eventually(lambda: frequencies(client, "word3", "other", "text") == [0, 1, 1])


def test_steps_of_two_attempts_do_not_mix(client: redis.Redis) -> None:
    text = " ".join(f"Sentence number{i} is here." for i in range(250))
    version = shard.put(client, "d", text).version
    shard.split(client, "d", version, text)
    steps = shard.writer("d", version, text)
    begin, middle, end = steps.steps()
    _, first = shard.run(client, steps.call(*begin, ""))
    _, second = shard.run(client, steps.call(*begin, ""))
    assert shard.run(client, steps.call(*middle, first)) == ["stale", ""]
    assert shard.run(client, steps.call(*middle, second)) == ["stored", second]
    assert shard.run(client, steps.call(*end, first)) == ["stale", ""]
    assert indexed(client) is None
    assert shard.run(client, steps.call(*end, second)) == ["stored", second]
    assert indexed(client) == (1, 250, 750)


def test_another_splitter_takes_the_place_of_what_the_one_before_has_made(client: redis.Redis) -> None:
    version = shard.put(client, "d", TEXT).version
    assert shard.split(client, "d", version, TEXT, "whole") == "stored"
    assert shard.index(client, "d", version, TEXT, "whole") == "stored"
    assert shard.store_answer(client, "d", "Who?", (0, version, TEXT), "{}")
    before = epoch(client)
    assert shard.split(client, "d", version, TEXT, "whole") == "unchanged"
    assert (shard.split(client, "d", version, TEXT, "2"), epoch(client)) == ("stored", before + 1)
    record = shard.record(client, "d")
    assert record is not None
    assert (record.sentences, record.splitter, record.tokenized) == (3, "2", False)
    assert not client.exists(keys.answer_key(keys.SentenceRef("d", TAG, 0), "Who?"))
    assert indexed(client) is None
    # this tokenizing began from sentences that no longer exist
    assert shard.index(client, "d", version, TEXT, "whole") == "stale"
    assert shard.index(client, "d", version, TEXT, "2") == "stored"
    assert indexed(client) == (1, 3, 8)


def test_a_splitter_that_cuts_a_text_alike_leaves_what_was_made(client: redis.Redis) -> None:
    version = ingest(client, "d", TEXT)
    assert shard.store_answer(client, "d", "Who?", (0, version, "A cat sat on the mat."), "{}")
    before = contents(client)
    assert shard.split(client, "d", version, TEXT, "2") == "unchanged"
    before[keys.document_key("d", TAG)]["splitter"] = "2"
    assert contents(client) == before
    # an earlier indexing does not change the stored splitter
    assert shard.index(client, "d", version, TEXT, "1") == "stale"


def test_a_text_written_with_set_is_adopted_only_while_it_stands(client: redis.Redis) -> None:
    client.set(keys.paragraphs_key("d", TAG), "First.")
    stale = documents.adopt_document(documents.check_document("d", "Older."), TAG, "")
    assert documents.parse_put(shard.run(client, stale)).status == "stale"
    call = documents.adopt_document(documents.check_document("d", "First."), TAG, "")
    assert documents.parse_put(shard.run(client, call)).status == "stored"
    assert documents.parse_put(shard.run(client, call)).status == "conflict"
    assert client.get(keys.paragraphs_key("d", TAG)) == "First."


def test_a_document_whose_text_was_removed_is_forgotten(client: redis.Redis) -> None:
    ingest(client, "d", TEXT)
    assert documents.parse_delete(shard.run(client, documents.forget_document("d", TAG))).status == "stale"
    client.delete(keys.paragraphs_key("d", TAG))
    assert documents.parse_delete(shard.run(client, documents.forget_document("d", TAG))).status == "deleted"
    assert not client.exists(keys.document_key("d", TAG), keys.sentence_key("d", TAG))


def test_reading_a_sentence_without_a_tensor(client: redis.Redis) -> None:
    version = ingest(client, "d", TEXT)
    client.delete(keys.tokens_key(keys.SentenceRef("d", TAG, 1)))
    call = documents.read_sentence(keys.SentenceRef("d", TAG, 1), "Who?")
    sentence = documents.parse_sentence_record(shard.run(client, call))
    assert sentence is not None
    assert (sentence.text, sentence.version, sentence.document_id, sentence.tensor) == (
        "The dog slept.",
        version,
        "d",
        None,
    )
    start, end = json.loads(sentence.spans)[1]
    assert TEXT[start:end] == sentence.text
    missing = documents.read_sentence(keys.SentenceRef("d", TAG, 3), "Who?")
    assert documents.parse_sentence_record(shard.run(client, missing)) is None


def test_the_set_of_answers_forgets_what_has_expired(client: redis.Redis) -> None:
    version = ingest(client, "d", TEXT)
    for number in range(300):
        shard.store_answer(client, "d", f"q{number}", (0, version, "A cat sat on the mat."), "{}")
        client.delete(keys.answer_key(keys.SentenceRef("d", TAG, 0), f"q{number}"))
    assert client.scard(keys.answers_key("d", TAG)) < 20


def test_no_stale_answer_in_random_interleavings(client: redis.Redis) -> None:
    """Readers take a sentence, think, and store; writers change the document at any point in between."""
    chooser = random.Random(7)
    texts = {f"d{n}": [f"Version {v} of text {n}. It says {v}." for v in range(6)] for n in range(3)}
    versions: dict[str, tuple[str, str]] = {}
    pending: list[tuple[str, tuple[int, str, str]]] = []
    stored = refused = 0
    for _ in range(4000):
        document_id = chooser.choice(sorted(texts))
        action = chooser.choice(
            ["put", "put", "delete", "split", "split", "read", "read", "read", "store", "store", "store"]
        )
        text, version = versions.get(document_id, ("", ""))
        if action == "put":
            text = chooser.choice(texts[document_id])
            versions[document_id] = (text, shard.put(client, document_id, text).version)
        elif action == "delete":
            shard.delete(client, document_id)
            versions.pop(document_id, None)
        elif action == "split" and version:
            shard.split(client, document_id, version, text)
            shard.index(client, document_id, version, text)
        elif action == "read":
            call = documents.read_sentence(keys.SentenceRef(document_id, TAG, 1), "Other?")
            found = documents.parse_sentence_record(shard.run(client, call))
            if found is not None:
                pending.append((document_id, (1, found.version, found.text)))
        elif action == "store" and pending:
            taken_id, source = pending.pop(chooser.randrange(len(pending)))
            done = shard.store_answer(client, taken_id, "What?", source, json.dumps(source))
            stored, refused = stored + done, refused + (not done)
        for checked in texts:
            cached = client.get(keys.answer_key(keys.SentenceRef(checked, TAG, 1), "What?"))
            if cached is not None:
                assert checked in versions
                current_text, current = versions[checked]
                assert json.loads(cached)[1] == current
                assert json.loads(cached)[2] in current_text
    assert stored > 100
    assert refused > 100
