"""Key names: any id and question survives the encoding, and partitions are in their slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_cluster import keys
from qa_cluster.errors import InvalidInput
from qa_cluster.keys import SentenceRef

ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40) | st.text(
    "{}%_: :0257BD\"'", min_size=1
)
questions = ids | st.text("_:{}0129 ", max_size=20)
tags = st.sampled_from(keys.partition_tags(12))


@given(ids)
def test_ids_survive_encoding(document_id: str) -> None:
    encoded = keys.encode_id(document_id)
    assert keys.decode_id(encoded) == document_id
    assert not set("{}") & set(encoded)


@given(ids, tags, st.integers(0, 10**9), questions)
def test_answer_keys_are_parsed_into_the_parts_that_built_them(
    document_id: str, tag: str, index: int, question: str
) -> None:
    sentence = SentenceRef(document_id, tag, index)
    assert keys.parse_answer_key(keys.answer_key(sentence, question)) == (sentence, question, "")
    named = keys.answer_key(sentence, question, "org/{a} 50%@0")
    assert keys.parse_answer_key(named) == (sentence, question, "org/{a} 50%@0")
    assert keys.slot(named) == keys.slot(f"{{{sentence.tag}}}")
    assert keys.parse_sentence(str(sentence)) == sentence


@given(ids, tags)
def test_all_keys_of_a_document_are_in_the_slot_of_its_partition(document_id: str, tag: str) -> None:
    sentence = SentenceRef(document_id, tag, 0)
    built = [
        keys.paragraphs_key(document_id, tag),
        keys.document_key(document_id, tag),
        keys.sentence_key(document_id, tag),
        keys.answers_key(document_id, tag),
        keys.offsets_key(document_id, tag),
        keys.tokens_key(document_id, tag),
        keys.answer_key(sentence, "Who {is} this?"),
        keys.index_key(tag),
        keys.pending_key(tag),
        keys.layout_key(tag),
        keys.epoch_key(tag),
    ]
    assert {keys.slot(key) for key in built} == {keys.slot(tag)}


@given(ids, tags)
def test_tagged_keys_are_parsed(document_id: str, tag: str) -> None:
    key = keys.paragraphs_key(document_id, tag)
    assert keys.parse_tagged(key, keys.PARAGRAPHS_PREFIX) == (keys.DocumentName.of(document_id), tag)
    assert keys.parse_tagged(key, keys.SENTENCE_PREFIX) is None


@pytest.mark.parametrize(
    "key",
    [
        "",
        "bertqa",
        "bertqa{a}_doc:{b}:0_q",
        "bertqa{a}_doc:{a}:_q",
        "bertqa{a}_doc:{a}:01_q",
        "bertqa{a}_doc:{a}:-1_q",
        "bertqa{a}_doc:{a}:٣_q",
        "bertqa{a}_doc%zz:{a}:0_q",
        "bertqa{}_doc:{}:0_q",
        "xbertqa{a}_doc:{a}:0_q",
    ],
)
def test_a_key_that_is_not_an_answer_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match=r"key"):
        keys.parse_answer_key(key)


def test_slots_are_the_servers() -> None:
    assert keys.slot("123456789") == 12739
    assert keys.slot("foo{bar}baz") == keys.slot("bar")
    assert keys.slot("foo{}{bar}") != keys.slot("bar")
    assert keys.slot("foo{{bar}}") == keys.slot("{bar")


@pytest.mark.parametrize("partitions", [1, 2, 3, 12, 48, 1000, keys.MAX_PARTITIONS])
def test_partitions_are_spread_evenly(partitions: int) -> None:
    slots = [keys.slot(tag) for tag in keys.partition_tags(partitions)]
    assert slots == [int((i + 0.5) * keys.SLOTS / partitions) for i in range(partitions)]
    assert max(map(len, keys.partition_tags(partitions))) <= 4


@pytest.mark.parametrize("partitions", [0, -1, keys.MAX_PARTITIONS + 1])
def test_a_wrong_number_of_partitions_is_refused(partitions: int) -> None:
    with pytest.raises(InvalidInput, match=str(partitions)):
        keys.partition_tags(partitions)


def test_documents_are_spread_over_partitions() -> None:
    counts = dict.fromkeys(keys.partition_tags(12), 0)
    for number in range(12_000):
        counts[keys.partition_of(f"document-{number}", 12)] += 1
    assert min(counts.values()) > 850


collections = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,63}", fullmatch=True).filter(lambda name: name != "default")


@given(ids, collections, tags, st.integers(0, 10**9), questions)
def test_documents_of_a_collection_keep_their_ids(
    document_id: str, collection: str, tag: str, index: int, question: str
) -> None:
    name = keys.DocumentName.of(document_id, collection)
    assert (name.id, name.collection) == (document_id, collection)
    sentence = SentenceRef(name, tag, index)
    assert keys.parse_sentence(str(sentence)) == sentence
    assert keys.parse_answer_key(keys.answer_key(sentence, question)) == (sentence, question, "")
    assert keys.parse_tagged(keys.document_key(name, tag), keys.DOCUMENT_PREFIX) == (name, tag)


@given(ids, ids, collections)
def test_no_id_reaches_into_a_collection(one: str, other: str, collection: str) -> None:
    assert keys.DocumentName.of(one) != keys.DocumentName.of(other, collection)
    assert keys.DocumentName.of(f"{collection}%/{one}") != keys.DocumentName.of(one, collection)


@pytest.mark.parametrize(
    "text", ["default%/a", "Books%/a", "a%/b%/c", "%/a", "books%/%", "books%/{a}", "a" * 65 + "%/b"]
)
def test_an_invalid_document_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"collection|key"):
        keys.DocumentName.parse(text)


@pytest.mark.parametrize("name", ["", "Books", "-a", "_a", "a b", "a/b", "a:b", "a%", "ü", "a\n", "a" * 65, None, 7])
def test_names_of_collections_are_checked(name: object) -> None:
    with pytest.raises(InvalidInput, match="collection must be 1 to 64 characters of a-z, 0-9, _ and -"):
        keys.check_collection(name)


def test_keys_of_the_default_collection_have_not_changed() -> None:
    assert keys.paragraphs_key("moby", "t") == "paragraphs:moby:{t}"
    assert (keys.index_key("t"), keys.epoch_key("t")) == ("index:{t}", "epoch:{t}")
    assert keys.whole_answer_key("t", "d") == "answer:{t}:d"
    moby = keys.DocumentName.of("moby", "books")
    assert keys.paragraphs_key(moby, "t") == "paragraphs:books%/moby:{t}"
    assert (keys.index_key("t", "books"), keys.epoch_key("t", "books")) == ("index:books:{t}", "epoch:books:{t}")
    assert keys.whole_answer_key("t", "d", "books") == "answer:books:{t}:d"
