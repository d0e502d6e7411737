"""Replies to a stock GET of an answer key, and the trigger `qa.read`."""

# ruff: noqa: RUF001 (text of many scripts is the point)

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
import redis

from qa_cluster import keys
from qa_cluster.config import SETTINGS
from qa_cluster.documents.sentences import split_sentences
from qa_cluster.shard_functions import missing_functions
from tests.harness.polling import eventually
from tests.harness.servers import Server

from .running_shards import SECONDS, SENTENCE_ANSWER_TTL, Shards, sentence_name, tag, triggers_that_wait

CURIE = "The cat sat on the mat. Marie Curie discovered radium in Paris in 1898. It was a great day."


def triggered(shards: Shards, description: str) -> int:
    entries = [entry for node in shards.nodes for entry in shards.on(node, "RG.DUMPREGISTRATIONS")]
    data = [dict(zip(entry[7][::2], entry[7][1::2], strict=True)) for entry in entries if entry[5] == description]
    return sum(int(entry["numTriggered"]) for entry in data)


def test_all_own_functions_are_registered_and_no_others(shards: Shards) -> None:
    """`status` and `/readyz` compare the registrations with this list."""
    for node in shards.nodes:
        rows = shards.on(node, "RG.DUMPREGISTRATIONS")
        assert missing_functions(rows) == ""
        assert all(missing_functions([other for other in rows if other is not row]) for row in rows)


def test_the_first_get_reads_and_the_second_is_a_plain_cached_read(shards: Shards) -> None:
    shards.put("curie: {1}_a", CURIE, "Curie")
    shards.wait_tokenized("curie: {1}_a")
    before = triggered(shards, "read a sentence when its answer is missing")
    first = shards.ask("curie: {1}_a", 1, "Who discovered radium?")
    assert first is not None
    assert (first["answer"], first["title"], first["sentence_index"]) == ("Marie Curie", "Curie", 1)
    assert CURIE[first["start"] : first["end"]] == first["answer"]
    assert shards.ask("curie: {1}_a", 1, "Who discovered radium?") == first
    assert triggered(shards, "read a sentence when its answer is missing") == before + 1
    key = keys.answer_key(keys.parse_sentence(sentence_name("curie: {1}_a", 1)), "Who discovered radium?")
    assert SENTENCE_ANSWER_TTL // 2 < shards.client.ttl(key) <= SENTENCE_ANSWER_TTL


MULTI_SCRIPT = [
    "Ünïcödé 😀 wörks. Der Fluß heißt Spree. 👩‍👩‍👧‍👦 family!",
    "你好。东京是日本的首都。我是人！",
    "Москва — столица России. Это большой город.",
    "नमस्ते दुनिया। दिल्ली भारत की राजधानी है।",
    "e\u0301te\u0301 means summer.\u200b\u3000 Line\u2028breaks\r\n\r\nand \x00 control \x1b characters.",
    "a\tb\n1\t2\n\n- item one\n- item two\n\n" + "x" * 2000 + " end.",
]


@pytest.mark.parametrize(
    ("text", "document_id"), list(zip(MULTI_SCRIPT, itertools.cycle(["q\"u'o_te:%41 {b}", "标识_😀"]), strict=False))
)
def test_answers_are_at_their_offsets_in_the_document(shards: Shards, text: str, document_id: str) -> None:
    shards.put(document_id, text)
    shards.wait_tokenized(document_id)
    for i, (start, end) in enumerate(split_sentences(text)):
        answer = shards.ask(document_id, i, "What is 'this'_: {really} 何?")
        assert answer is not None
        assert text[answer["start"] : answer["end"]] == answer["answer"]
        assert (answer["sentence_start"], answer["sentence_end"], answer["sentence"]) == (start, end, text[start:end])
        assert answer["document_id"] == document_id


def test_a_missing_sentence_or_question_is_nil_and_nothing_is_cached(shards: Shards) -> None:
    shards.put("nil", "One sentence.")
    shards.wait_tokenized("nil")
    for i, question in [(1, "Is there a second one?"), (0, ""), (0, "  ")]:
        assert shards.ask("nil", i, question) is None
    for key in ("bertqa", "bertqa{x}_", f"bertqa{{{tag('nil')}}}_nil:{{{tag('nil')}}}:00_What?"):
        assert shards.client.get(key) is None
    assert not shards.client.smembers(keys.answers_key("nil", tag("nil")))


def test_a_sentence_number_beyond_the_document_reaches_no_other_document(shards: Shards) -> None:
    """Other documents of the partition have sentences with this number, but this document has fewer sentences."""
    names = [name for name in map("neighbour {}".format, range(100)) if tag(name) == tag("neighbour 0")][:3]
    for name in names:
        shards.put(name, f"Marie Curie discovered radium in {name}. She lived in {name}.")
    shards.wait_tokenized(*names)
    question = "Where did she live?"
    for name in names:
        answer = shards.ask(name, 1, question)
        assert answer is not None and (answer["document_id"], answer["sentence"]) == (name, f"She lived in {name}.")
        for number in (2, 64, 2**13, 2**16, 2**29, 2**29 + 1, 2**32, 2**32 + 1, 9_999_999_999):
            sentence = sentence_name(name, number)
            assert shards.ask(name, number, question) is None
            (reply,) = shards.on(shards.node_of(sentence), "RG.TRIGGER", "qa.read", "", question, sentence)
            assert "NOTFOUND" in str(reply), sentence


def test_simultaneous_requests_share_one_reading(shards: Shards) -> None:
    shards.put("flight", CURIE)
    shards.wait_tokenized("flight")
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: shards.ask("flight", 1, "Where was radium discovered?"), range(16)))
    # one more reading for clients that ask after the end of the reading and before the answer is stored
    assert len({answer["created"] for answer in answers if answer is not None}) <= 2


def test_answers_come_from_the_current_version_only(shards: Shards) -> None:
    for number in range(20):
        text = f"The number is {number}. The answer is {number * 7}."
        version = shards.put("changing", text).version
        answer = shards.ask("changing", 0, "What is the number?")
        assert answer is None or answer["document_version"] == version
        shards.wait_tokenized("changing")
        answer = shards.ask("changing", 0, "What is the number?")
        assert answer is not None
        assert (answer["document_version"], answer["sentence"]) == (version, f"The number is {number}.")
    assert shards.delete("changing") == "deleted"
    assert shards.ask("changing", 0, "What is the number?") is None


def test_clients_never_see_an_old_version_while_another_client_writes(shards: Shards) -> None:
    shards.put("race", "The number is 0.")
    written, seen, stop = [0], [0], threading.Event()

    def read_on(number: int) -> None:
        while not stop.is_set():
            oldest = written[0]
            try:
                answer = shards.ask("race", 0, f"What is the number, reader {number % 3}?")
            except redis.ResponseError as error:
                assert "changes faster than it can be read" in str(error)
                continue
            if answer is not None:
                assert int(answer["sentence"][14:-1]) >= oldest
                seen[0] += 1

    def seen_enough(enough: int) -> bool:
        return seen[0] >= enough

    def write() -> None:
        for number in range(1, 61):
            shards.put("race", f"The number is {number}.")
            written[0] = number
            if number % 6 == 0:
                # the other clients need time to get several answers
                enough = seen[0] + 5
                eventually(partial(seen_enough, enough), SECONDS)

    with ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(read_on, number) for number in range(4)]
        try:
            write()
        finally:
            stop.set()
    for reader in readers:
        reader.result()


def read(shards: Shards, question: str, *names: str) -> list[Any]:
    node = shards.node_of(names[0])
    replies = shards.on(node, "RG.TRIGGER", "qa.read", "", question, *names)
    return [reply if isinstance(reply, Exception) else json.loads(reply) for reply in replies]


def test_reading_several_sentences_in_order(shards: Shards) -> None:
    shards.put("several", CURIE)
    shards.wait_tokenized("several")
    names = [sentence_name("several", i) for i in (2, 0, 1)]
    question = "Who discovered radium, then?"
    first = read(shards, question, *names)
    assert [answer["sentence_index"] for answer in first] == [2, 0, 1]
    assert {answer.pop("cache") for answer in first} == {"miss"}
    again = read(shards, question, *names)
    assert {answer.pop("cache") for answer in again} == {"shard"}
    assert again == first
    assert shards.ask("several", 1, question) == first[2]


LONG_RUN = 120
SHORT_RUNS = 8


@contextmanager
def sent(node: Server, name: str, *commands: tuple[object, ...]) -> Iterator[Callable[[], list[Any]]]:
    """Send commands together over one connection with a client name. A shard limits the jobs of each name in the
    worker.

    The yielded function returns the replies and the server's time.
    """
    with node.client(socket_timeout=120, client_name=name) as client:
        connection = client.connection_pool.get_connection()
        try:
            connection.send_packed_command(connection.pack_commands([*commands, ("TIME",)]))
            yield lambda: [connection.read_response() for _ in range(len(commands) + 1)]
        finally:
            connection.disconnect()


def test_questions_do_not_wait_for_a_run_of_many_sentences(shards: Shards) -> None:
    """The server reports the time of each answer, so a busy machine does not change the result."""
    houses = (f"The number of house {number} in the long street is {number}." for number in range(LONG_RUN))
    shards.put("run", " ".join(houses))
    shards.wait_tokenized("run")
    names = [sentence_name("run", number) for number in range(LONG_RUN)]
    short = [("RG.TRIGGER", "qa.read", "", f"Which house is number {n}?", names[n]) for n in range(SHORT_RUNS)]
    node = shards.node_of(names[0])
    with ExitStack() as connections:
        # the worker is stopped until the short questions have arrived, which may be late on a busy machine
        with node.stopped_worker(), node.client() as client:
            long = ("RG.TRIGGER", "qa.read", "", "What is the number of the house?", *names)
            long_run = connections.enter_context(sent(node, "long", long))
            eventually(lambda: triggers_that_wait(client) == 1)
            short_runs = connections.enter_context(sent(node, "short", *short))
            eventually(lambda: triggers_that_wait(client) == 2)
        *answers, answered = short_runs()
        read_all, all_read = long_run()
    assert [json.loads(reply)["sentence_index"] for reply in read_all] == list(range(LONG_RUN))
    assert [json.loads(reply)["sentence_index"] for (reply,) in answers] == list(range(SHORT_RUNS))
    assert tuple(map(int, answered)) < tuple(map(int, all_read))


def test_an_invalid_sentence_does_not_affect_the_others(shards: Shards) -> None:
    shards.put("good", CURIE)
    shards.wait_tokenized("good")
    good = sentence_name("good", 0)
    here = shards.node_of(good)
    elsewhere = next(
        f"x:{{{found}}}:0" for found in keys.partition_tags(12) if shards.node_of(f"{{{found}}}") is not here
    )
    missing = sentence_name("good", 9)
    replies = shards.on(here, "RG.TRIGGER", "qa.read", "", "What sat?", good, elsewhere, "nonsense", missing)
    assert json.loads(replies[0])["answer"]
    assert isinstance(replies[1], redis.exceptions.MovedError)
    assert "sentence key must be" in str(replies[2])
    assert "NOTFOUND" in str(replies[3])


def test_a_shard_accepts_the_longest_question_that_a_service_can_allow(shards: Shards) -> None:
    longest = SETTINGS["question_max_chars"].maximum
    assert longest is not None
    shards.put("longest", CURIE)
    shards.wait_tokenized("longest")
    name = sentence_name("longest", 1)
    question = "Who discovered radium? ".ljust(int(longest), "?")
    assert read(shards, question, name)[0]["answer"] == "Marie Curie"
    assert shards.rank(question).candidates
    with pytest.raises(redis.ResponseError, match="TOOLONG"):
        read(shards, f"{question}?", name)
    with pytest.raises(redis.ResponseError, match="TOOLONG"):
        shards.ask("longest", 1, f"{question}?")


@pytest.mark.hostile
def test_a_call_that_would_need_gigabytes_of_keys_is_refused_at_once(shards: Shards) -> None:
    node = shards.nodes[0]
    names = [sentence_name("many", number) for number in range(20_000)]
    huge = "Who? " * 200_000
    for question, some, said in (
        (huge, names, "question has 1000000 code points, the limit is 4096: shorten it"),
        ("Who?", names, "got 20000 sentences, the limit of one call is 256: divide them"),
    ):
        with pytest.raises(redis.ResponseError, match=f"TOOLONG .*{said}"):
            shards.on(node, "RG.TRIGGER", "qa.read", "", question, *some)
    with pytest.raises(redis.ResponseError, match="the first sentence must be from 0"):
        shards.on(node, "RG.TRIGGER", "qa.sentences", "x:{a}", "9" * 5000)
    (reply,) = shards.on(node, "RG.TRIGGER", "qa.read", "", "Who?", f"{'x' * 3000}:{{a}}:0")
    assert "sentence key must be" in str(reply)


@pytest.mark.parametrize("arguments", [[], ["", "question only"], ["", "", "x:{a}:0"], ["", " ", "x:{a}:0"]])
def test_bad_arguments_of_the_trigger_are_refused(shards: Shards, arguments: list[str]) -> None:
    with pytest.raises(redis.ResponseError, match="question"):
        shards.on(shards.nodes[0], "RG.TRIGGER", "qa.read", *arguments)


def test_sentences_without_a_document_can_be_read(shards: Shards) -> None:
    key = keys.sentence_key("loose", tag("loose"))
    shards.client.hset(key, mapping={"0": "The moon orbits the Earth.", "1": "The Earth orbits the sun."})
    answer = shards.ask("loose", 1, "What does the Earth orbit?")
    assert answer is not None
    assert answer["sentence"] == "The Earth orbits the sun."
    shards.client.hset(key, "1", "The Earth orbits nothing.")
    eventually(
        lambda: (shards.ask("loose", 1, "What does the Earth orbit?") or {}).get("sentence", "")[-8:] == "nothing."
    )
    assert "loose" not in shards.ranked_documents("moon orbits Earth")


def test_the_trigger_ignores_values_that_a_client_wrote_under_answer_keys(shards: Shards) -> None:
    shards.put("poisoned", "Wolverines roam the north.")
    shards.wait_tokenized("poisoned")
    name = sentence_name("poisoned", 0)
    question = "Who roams the north?"
    key = keys.answer_key(keys.parse_sentence(name), question)
    node = shards.node_of(key)
    for value in ("no JSON", "[]", "{}", '{"document_version": 1, "model": 2}'):
        shards.client.set(key, value)
        (reply,) = shards.on(node, "RG.TRIGGER", "qa.read", "", question, name)
        assert (json.loads(reply)["answer"], json.loads(reply)["cache"]) == ("Wolverines", "miss")
    (reply,) = shards.on(node, "RG.TRIGGER", "qa.read", "", question, name)
    assert (json.loads(reply)["answer"], json.loads(reply)["cache"]) == ("Wolverines", "shard")
