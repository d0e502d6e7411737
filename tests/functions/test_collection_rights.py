"""Users of one collection with the rules of docs/access.md: their work succeeds, and other data stays out of reach."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from qa_cluster import keys
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.documents import stored
from qa_cluster.keys import DocumentName, SentenceRef
from tests.harness.figures import Figures
from tests.harness.polling import eventually
from tests.harness.programs import ROOT
from tests.harness.servers import Server

from .running_shards import PARTITIONS, SECONDS, Shards, tag

pytestmark = pytest.mark.hostile

TEXT = "Herman Melville wrote Moby Dick. The whale is white."
QUESTION = "Who wrote Moby Dick?"
TAGS = keys.partition_tags(PARTITIONS)
SECRET = tag("secret")
RULES = {
    role.split()[0]: re.findall(r"\([^)]*\)|\S+", rules)
    for role, rules in re.findall(
        r"^\| (\w+ [^|]*`books`) \| `([^`]*)` \|$", (ROOT / "docs/access.md").read_text(), re.MULTILINE
    )
}


def internal_keys(partition: str) -> list[str]:
    """The keys that only the module and its functions write."""
    return [
        keys.pending_key(partition),
        keys.layout_key(partition),
        keys.sentence_answer_list_key(partition),
        keys.sentence_answer_bytes_key(partition),
        keys.whole_answer_list_key(partition),
        keys.whole_answer_bytes_key(partition),
        keys.flight_key(partition),
        keys.failures_key(partition),
    ]


def document_keys(name: DocumentName, partition: str) -> list[str]:
    """The keys of a document, of its collection, and of its answers."""
    collection = name.collection
    return [
        *stored.document_keys(name, partition),
        keys.answer_key(SentenceRef(name, partition, 0), QUESTION),
        keys.answer_key(SentenceRef(name, partition, 0), "x:books%/y", "tiny"),
        keys.whole_answer_key(partition, "0123", collection),
    ]


# Keys of others: of the default collection, of collections with similar names, and of the cluster.
FOREIGN = list(
    dict.fromkeys(
        [
            *internal_keys(SECRET),
            *(
                key
                for collection in ("default", "book", "books2", "xbooks")
                for key in document_keys(DocumentName.of("secret", collection), SECRET)
            ),
            *document_keys(DocumentName.of("books%/secret"), SECRET),
            keys.collections_key(SECRET),
            keys.api_keys_key(SECRET),
            keys.api_use_key("books"),
            keys.model_key("06S"),
            keys.manifest_key("06S"),
            keys.tokenizer_key("06S"),
            keys.progress_key("06S"),
            keys.PARTITIONS_KEY,
            keys.RESTORING_KEY,
            f"index:{{x}}:books:{{{SECRET}}}",
            f"sentence:book:{{{SECRET}}}",
            "anything",
        ]
    )
)
# The arguments of a role's commands after the key. Other commands have only the key.
AFTER_KEY: dict[str, tuple[object, ...]] = {
    "set": ("x",),
    "hget": ("version",),
    "hmget": ("version", "title"),
    "hset": ("0", "x"),
    "hdel": ("0",),
    "rg.innerhook": (),
    "qa.putdocument": ("*", "secret", "", "{}", 16 * "0", 1, "x", ""),
    "qa.deldocument": ("*",),
    "qa.setmetadata": ("*", "{}", ""),
    "qa.index.fields": ("NAMES", "x"),
    "qa.index.values": (0, "x"),
    "qa.index.rank": (1, 0, "TERMS", 1, "whale", 0),
    "qa.index.stats": ("TERMS", 0),
    "qa.index.list": (0, 1),
    "qa.index.get": ("d",),
}
# The server lets every connection run these. QA.HELLO needs the token of the worker.
OF_CONNECTIONS = {"auth", "hello", "quit", "reset", "qa.hello"}


@pytest.fixture
def client(shards: Shards) -> Iterator[ClusterClient]:
    with ClusterClient(f"redis://127.0.0.1:{shards.nodes[0].port}") as made:
        yield made


@pytest.fixture
def books(client: ClusterClient) -> Iterator[str]:
    """A collection that is removed after the test, and a document of the default collection."""
    assert client.create_collection("books")
    client.put_document("secret", TEXT)
    yield "books"
    client.delete_document("secret")
    assert client.delete_collection("books").complete


class Users:
    """The users of docs/access.md, on every server."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        for role, rules in RULES.items():
            for node in shards.nodes:
                shards.on(node, "ACL", "SETUSER", role, "reset", "on", ">pw", *rules)

    def run(self, role: str, key: str, *command: Any) -> Any:
        with self.shards.node_of(key).client(username=role, password="pw") as connection:
            return connection.execute_command(*command)

    def refused(self, role: str, key: str, *command: Any) -> bool:
        try:
            self.run(role, key, *command)
        except redis.exceptions.NoPermissionError:
            return True
        except redis.ResponseError as error:
            return "NOPERM" in str(error)
        return False


@pytest.fixture
def users(shards: Shards) -> Iterator[Users]:
    assert sorted(RULES) == ["asks", "searches", "writes"]
    yield Users(shards)
    for node in shards.nodes:
        shards.on(node, "ACL", "DELUSER", *RULES)


def name_of(document_id: str) -> DocumentName:
    return DocumentName.of(document_id, "books")


def text_of(document_id: str) -> str:
    return keys.paragraphs_key(name_of(document_id), tag(document_id))


def answer_of(document_id: str) -> str:
    return keys.answer_key(SentenceRef(name_of(document_id), tag(document_id), 0), QUESTION)


def put(name: DocumentName, text: str = TEXT) -> tuple[Any, ...]:
    checked = stored.check_document(name.id, text, collection=name.collection)
    return stored.put_document(checked, tag(name.id)).command()


def test_a_role_may_do_its_work(shards: Shards, client: ClusterClient, books: str, users: Users) -> None:
    own, text = name_of("moby"), text_of("moby")
    record, index = keys.document_key(own, tag("moby")), keys.index_key(tag("moby"), books)
    assert users.run("writes", text, *put(own))[0] == "stored"
    eventually(lambda: all(users.run("writes", record, "HMGET", record, "tokenized")), SECONDS)
    assert users.run("asks", answer_of("moby"), "GET", answer_of("moby")) is not None
    assert json.loads(users.run("asks", answer_of("moby"), "GET", answer_of("moby")))["answer"] == "Herman Melville"
    found = users.run("searches", index, "QA.INDEX.RANK", index, 1, 0, "TERMS", 1, "whale", 0)
    assert found[3][0][0] in ("moby", b"moby")
    assert users.run("searches", text, "GET", text) == TEXT
    assert users.run("writes", text, *put(own, TEXT + " It is big."))[0] == "stored"
    assert users.run("writes", text, "SET", text, TEXT)
    loose = keys.sentence_key(name_of("loose"), tag("loose"))
    assert users.run("writes", loose, "HSET", loose, 0, "Ishmael writes.") == 1
    assert users.run("writes", loose, "DEL", loose) == 1
    assert users.run("writes", text, *stored.delete_document(own, tag("moby")).command())[0] == "deleted"


def granted(role: str) -> list[str]:
    """The commands that the rules of a role name."""
    return re.findall(r"\+([a-z.|_]+)", " ".join(RULES[role]))


@pytest.mark.parametrize("role", RULES)
def test_a_role_reaches_no_key_of_others(
    shards: Shards, client: ClusterClient, books: str, users: Users, role: str
) -> None:
    reached = [
        (command, key)
        for command in granted(role)
        for key in FOREIGN
        if not users.refused(
            role,
            key,
            *(
                ("RG.INNERHOOK", "GET", key)
                if command == "rg.innerhook"
                else (command, key, *AFTER_KEY.get(command, ()))
            ),
        )
    ]
    assert reached == []
    assert client.get_document("secret").text == TEXT


@pytest.mark.parametrize("role", RULES)
def test_a_role_may_run_no_other_command(shards: Shards, users: Users, role: str) -> None:
    """The test tries every command of the server and the module, with subcommands."""
    node = shards.nodes[0]
    with node.client(protocol=2) as connection:
        connection.response_callbacks.clear()
        every = [entry for entry in connection.execute_command("COMMAND") if entry]
    assert len(every) > 250
    allowed = []
    for name, arity, *rest in every:
        subcommands = rest[-1] if isinstance(rest[-1], list) else []
        for full, least in [(entry[0], entry[1]) for entry in subcommands] or [(name, arity)]:
            words = full.split("|")
            said = shards.on(node, "ACL", "DRYRUN", role, *words, *["1"] * (abs(int(least)) - len(words)))
            if "has no permissions to run the" not in str(said):
                allowed.append(words[0].lower())
    assert set(allowed) - {command.partition("|")[0] for command in granted(role)} == OF_CONNECTIONS


def test_a_writer_cannot_write_documents_of_other_collections(
    shards: Shards, client: ClusterClient, books: str, users: Users
) -> None:
    own, before = text_of("moby"), client.count_documents()
    checked = stored.check_document("moby", TEXT, collection=books)
    arguments = list(stored.put_document(checked, tag("moby")).command())

    def tried(place: int, value: object) -> str:
        with pytest.raises(redis.ResponseError) as refused:
            users.run("writes", own, *arguments[:place], value, *arguments[place + 1 :])
        return str(refused.value)

    assert "the id must match the name in the key" in tried(3, "secret")
    assert "metadata must be a JSON object" in tried(5, 40 * '{"a":' + "1" + 40 * "}")
    assert "the version must be 16 hexadecimal digits" in tried(6, "x")
    assert "the length must be a number" in tried(7, "-1")
    assert "the title has 5000 bytes, the limit is 4096" in tried(4, 5000 * "x")
    assert "the title is not valid UTF-8" in tried(4, b"\xff")
    for odd in (f"paragraphs:books%/%zz:{{{tag('moby')}}}", f"paragraphs:books%/a{{b}}:{{{tag('moby')}}}"):
        with pytest.raises(redis.ResponseError, match="the key must be paragraphs:"):
            users.run("writes", odd, "QA.PUTDOCUMENT", odd, *arguments[2:])
    assert client.count_documents() == before


def test_an_untagged_text_of_a_collection_makes_no_document_of_the_default_one(
    shards: Shards, client: ClusterClient, books: str, users: Users
) -> None:
    untagged = "paragraphs:books%/moby"
    assert users.run("writes", untagged, "SET", untagged, TEXT)
    node = shards.node_of(untagged)
    eventually(lambda: "is not copied to a document" in str(shards.on(node, "RG.DUMPREGISTRATIONS")), SECONDS)
    assert not [entry.id for entry in client.list_documents() if "moby" in entry.id]
    assert users.run("writes", untagged, "DEL", untagged) == 1


def test_invalid_metadata_of_a_document_do_not_block_other_documents(
    shards: Shards, client: ClusterClient, books: str, users: Users
) -> None:
    """A batch of the worker contains documents of all collections."""
    partition = tag("moby")
    neighbour = next(f"n{number}" for number in range(1000) if tag(f"n{number}") == partition)
    checked = stored.check_document("moby", TEXT, collection=books)
    arguments = list(stored.put_document(checked, partition).command())
    node = shards.node_of(text_of("moby"))
    with node.client(username="writes", password="pw") as connection:
        assert connection.execute_command(*arguments)[0] == "stored"
        shards.on(node, "HSET", keys.document_key(checked.name, partition), "metadata", "{never closed")
        connection.set(text_of("moby"), f"{TEXT} {TEXT}")
    assert client.put_document(neighbour, TEXT, timeout=SECONDS).tokenized
    assert client.delete_document(neighbour)


def test_a_user_of_one_collection_does_not_stop_the_writes_of_others(
    shards: Shards, client: ClusterClient, books: str, users: Users, figures: Figures
) -> None:
    """A fixed fault: after `SET pending:{t} x` by a documented user, every write failed."""
    for partition in TAGS:
        for key in internal_keys(partition):
            for command in (("SET", key, "x"), ("DEL", key), ("HSET", key, "x", "1"), ("UNLINK", key)):
                assert users.refused("writes", key, *command), (key, command)
            for words in (
                ("EVAL", "return redis.call('SET', KEYS[1], 'x')", 1, key),
                ("QA.PUTDOCUMENT", key, *range(8)),
            ):
                assert users.refused("writes", key, *words), (key, words)
    failed, slowest = 0, 0.0
    for number in range(50):
        begun = time.monotonic()
        try:
            client.put_document(f"others/{number}", TEXT, wait=False)
        except redis.RedisError:
            failed += 1
        slowest = max(slowest, time.monotonic() - begun)
    figures.record("writes of others, failed after SET pending:{t}", failed, "of 50", 0)
    figures.record_wait("writes of others, the slowest", slowest, 10)
    client.delete_documents(prefix="others/")


def log_of(node: Server) -> str:
    return Path(node.log).read_text(errors="replace")


@pytest.mark.parametrize("value", ["SET", "LPUSH", "SADD"])
def test_a_damaged_internal_key_stops_no_write(
    shards: Shards, client: ClusterClient, value: str, figures: Figures
) -> None:
    """An administrator may write these keys. The scripts remove damaged keys, and log this."""
    names = [next(f"d{number}" for number in range(9999) if tag(f"d{number}") == each) for each in TAGS[:3]]
    for name in names:
        client.put_document(name, TEXT)
        assert shards.ask(name, 0, QUESTION)
        partition = tag(name)
        for key in [*internal_keys(partition)[2:6], keys.pending_key(partition), keys.answers_key(name, partition)]:
            shards.client.delete(key)
            shards.client.execute_command(value, key, "x")
        if value != "SET":
            shards.client.delete(keys.epoch_key(partition))
            shards.client.execute_command(value, keys.epoch_key(partition), "x")
    failed = 0
    for name in names:
        try:
            assert client.put_document(name, TEXT + " It is big.", timeout=SECONDS).tokenized
            assert shards.ask(name, 1, QUESTION) is not None
            client.ask(QUESTION, doc_id=name)
            client.delete_document(name)
        except (redis.RedisError, AssertionError):
            failed += 1
    figures.record(f"writes after {value} of internal keys, failed", failed, "of 3", 0)
    for name in names:
        log = log_of(shards.node_of(keys.pending_key(tag(name))))
        damaged = [keys.pending_key(tag(name)), *([] if value == "SADD" else [keys.answers_key(name, tag(name))])]
        for key in damaged:
            assert re.search(rf"qa: removed {re.escape(key)}, which had a damaged value", log), key


def test_a_sweep_repairs_damaged_keys_and_finds_documents_without_a_note(
    shards: Shards, client: ClusterClient, figures: Figures
) -> None:
    """A new worker starts with a sweep, which repairs the keys without a write."""
    name = "unnoticed"
    partition = tag(name)
    node = shards.node_of(keys.pending_key(partition))
    client.put_document(name, TEXT)
    shards.client.hdel(keys.document_key(name, partition), "tokenized")  # mark the document as not indexed
    for key in internal_keys(partition)[:2]:
        shards.client.delete(key)
        shards.client.execute_command("SET", key, "x")
    shards.client.delete(keys.failures_key(partition))
    shards.client.execute_command("RPUSH", keys.failures_key(partition), "x")
    begun = time.monotonic()
    node.signal_worker(9)
    shards.wait_tokenized(name)
    eventually(lambda: shards.client.hget(keys.layout_key(partition), "layout"), SECONDS, ignore=redis.ResponseError)
    figures.record_wait("a lost document is indexed after", time.monotonic() - begun, SECONDS)
    assert shards.client.type(keys.failures_key(partition)) in ("none", "hash")
    for key in (keys.pending_key(partition), keys.layout_key(partition), keys.failures_key(partition)):
        assert re.search(rf"qa: removed {re.escape(key)}, which had a damaged value", log_of(node)), key
    client.delete_document(name)
