"""The commands that write documents and cached answers: their rights, their scripts, replication and files."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis

from qa_cluster import keys
from qa_cluster.documents import stored
from qa_cluster.documents.metadata_limits import check_integer, fault_of
from qa_cluster.documents.stored import document_keys
from qa_cluster.ranking.filters import pack_fields
from qa_cluster.scripts.calls import load
from qa_cluster.vectors.packing import PassageVector, pack_passages
from tests.harness.polling import eventually
from tests.harness.programs import ROOT
from tests.harness.servers import Server
from tests.harness.workers import fake_worker

TAG = "06S"
DURABLE: dict[str, object] = {"appendonly": "yes", "appendfsync": "always"}
ANSWER = f"answer:{{{TAG}}}:abc"
# One user for each command, with the right to one key.
USERS = {
    "puts": ["+qa.putdocument", "~paragraphs:books%/*"],
    "deletes": ["+qa.deldocument", "~paragraphs:books%/*"],
    "changes": ["+qa.setmetadata", "~paragraphs:books%/*"],
    "embeds": ["+qa.embeddocument", "~paragraphs:books%/*"],
    "keeps": ["+qa.putanswer", "+qa.delanswer", "~answer:*"],
}


@pytest.fixture(scope="module")
def server(shared_binary: Path) -> Iterator[Server]:
    """A server with an idle worker. Its files contain every acknowledged write."""
    with Server(shared_binary, DURABLE, worker=fake_worker("functions", "--bare")) as running:
        yield running


@pytest.fixture(autouse=True)
def client(server: Server) -> Iterator[redis.Redis]:
    with server.client() as connection:
        connection.flushall()
        connection.hset(keys.collections_key(TAG), "books", "ready")
        for name, rules in USERS.items():
            connection.execute_command("ACL", "SETUSER", name, "reset", "on", ">pw", "-@all", *rules)
        yield connection
        connection.execute_command("CONFIG", "SET", "maxmemory", 0, "qa.whole-answers-bytes", 16 << 20)


def run(server: Server, user: str, *command: Any) -> Any:
    with server.client(username=user, password="pw") as connection:
        return connection.execute_command(*command)


def put(text: str, **options: Any) -> tuple[Any, ...]:
    document = stored.check_document("moby", text, "Moby", {"a": 1}, collection="books")
    return stored.put_document(document, TAG, **options).command()


NAME = keys.DocumentName.of("moby", "books")
DELETE = stored.delete_document(NAME, TAG).command()


def test_a_right_to_the_text_is_enough(server: Server, client: redis.Redis) -> None:
    version = stored.check_document("moby", "One.", "Moby", {"a": 1}).version
    assert run(server, "puts", *put("One.")) == ["stored", version, 1, 0, 4, ""]
    assert run(server, "puts", *put("One.", source="there")) == ["unchanged", version, 0, 0, 4, ""]
    assert run(server, "puts", *put("Two!!", if_version="0")) == ["conflict", version, 0, 0, 4, "there"]
    assert client.hgetall(keys.pending_key(TAG)) == {NAME: "4", "": "4"}
    assert client.hget(keys.document_key(NAME, TAG), "title") == "Moby"
    assert run(server, "deletes", *DELETE) == ["deleted", version]
    assert run(server, "deletes", *DELETE) == ["missing", ""]
    assert not client.exists(*document_keys(NAME, TAG)[:8])


def changed(metadata: str, if_version: str = "*") -> tuple[Any, ...]:
    fields = pack_fields(json.loads(metadata))
    return stored.set_metadata(NAME, TAG, if_version, metadata, fields).command()


PASSAGE = pack_passages([PassageVector(0, 1, b"\0\0\x80\x3fabcd")])


def indexed(version: str) -> tuple[Any, ...]:
    """The script by which a worker indexes the text `One.`."""
    made = stored.IndexedText("s", "a", 1, b"", b"\1\1\1\3one")
    return stored.index_document(NAME, TAG, version, made, pack_fields({"a": 1})).command()


def test_metadata_are_replaced_without_the_text(server: Server, client: redis.Redis) -> None:
    """The module and Python compute the same version. The change is in the index, the record and the files."""
    assert run(server, "changes", *changed("{}")) == ["missing", ""]
    client.set(keys.paragraphs_key(NAME, TAG), "One.")
    assert run(server, "changes", *changed("{}")) == ["busy", ""]
    before = run(server, "puts", *put("One."))[1]
    pending = stored.document_version("Moby", '{"a":2}', "One.")
    assert run(server, "changes", *changed('{"a":2}', before)) == ["stored", pending]
    assert client.hget(keys.document_key(NAME, TAG), "tokenized") is None
    assert client.hget(keys.pending_key(TAG), NAME) == "4"
    assert run(server, "changes", *changed('{"a":1}', pending)) == ["stored", before]
    assert client.execute_command(*indexed(before)) == ["stored"]
    client.hset(keys.tokens_key(NAME, TAG), "0", "tokens")
    epoch = int(client.get(keys.epoch_key(TAG, "books")))

    metadata = '{"b":["x","ä"],"c":{"d":1.5}}'
    version = stored.document_version("Moby", metadata, "One.")
    assert run(server, "changes", *changed(metadata, "0")) == ["conflict", before]
    assert run(server, "changes", *changed(metadata, before)) == ["stored", version]
    assert run(server, "changes", *changed(metadata)) == ["unchanged", version]
    assert int(client.get(keys.epoch_key(TAG, "books"))) == epoch + 1

    def check() -> None:
        record = client.hgetall(keys.document_key(NAME, TAG))
        assert record["version"] == record["tokenized"] == version and record["metadata"] == metadata
        assert client.get(keys.paragraphs_key(NAME, TAG)) == "One." and not client.exists(keys.pending_key(TAG))
        assert client.hgetall(keys.tokens_key(NAME, TAG)) == {"0": "tokens"}
        found = client.execute_command("QA.INDEX.FIELDS", keys.index_key(TAG, "books"), "NAMES", "a", "b", "c.d")
        assert found == [0, 1, 1]

    check()
    for reload in ("RELOAD", "LOADAOF"):
        client.execute_command("DEBUG", reload)
        check()
    client.set(keys.paragraphs_key(NAME, TAG), "Two.")
    assert run(server, "changes", *changed("{}")) == ["busy", version]
    client.hdel(keys.collections_key(TAG), "books")
    assert run(server, "changes", *changed("{}")) == ["no_collection", version]


def embedded(version: str, passages: bytes = PASSAGE, splitter: str = "s", done: int = 0) -> tuple[Any, ...]:
    made = stored.Embedding(b"encoder1", 4, done, done + 1, passages)
    return stored.attach_vectors(NAME, TAG, version, splitter, made).command()


def vectors_of(client: redis.Redis) -> list[Any]:
    found = client.execute_command("QA.INDEX.INFO", keys.index_key(TAG, "books"))
    return list(dict(zip(found[::2], found[1::2], strict=True))["vectors"]) if found else []


def test_vectors_are_attached_to_the_indexed_version(server: Server, client: redis.Redis) -> None:
    version = run(server, "puts", *put("One."))[1]
    assert run(server, "embeds", *embedded(version)) == ["stale"], "it is not indexed yet"
    assert client.execute_command(*indexed(version)) == ["stored"]
    for stale in (embedded("0" * 16), embedded(version, splitter="t"), embedded(version, done=1)):
        assert run(server, "embeds", *stale) == ["stale"]
    assert vectors_of(client) == []
    for _ in range(2):  # a repeated call replaces the same vectors
        assert run(server, "embeds", *embedded(version)) == ["stored"]
        assert len(vectors_of(client)) == 1
    for reload in ("RELOAD", "LOADAOF"):
        client.execute_command("DEBUG", reload)
        assert dict(zip(*[iter(vectors_of(client)[0])] * 2, strict=True))["documents"] == 1
    run(server, "puts", *put("Two."))
    assert vectors_of(client) == []


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("passages", "error"),
    [
        (pack_passages([PassageVector(0, 2, b"\0\0\0\0abcd")]), "passage 0 ends at sentence 2"),
        (pack_passages([PassageVector(0, 1, b"\0\0\x80\xbfabcd")]), "passage 0 has the scale -1"),
        (PASSAGE[:-1], "not a multiple of 16"),
        (bytes(2**20 + 8), "they must have 1048576 at most"),
    ],
)
def test_faulty_vectors_change_nothing(server: Server, client: redis.Redis, passages: bytes, error: str) -> None:
    version = client.execute_command(*put("One."))[1]
    client.execute_command(*indexed(version))
    with pytest.raises(redis.ResponseError, match=error):
        run(server, "embeds", *embedded(version, passages))
    assert vectors_of(client) == []


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("metadata", "fields", "error"),
    [
        ("{" * 33 + "}" * 33, b"", "must be a JSON object"),
        ("[]", b"", "must be a JSON object"),
        (b"\xff", b"", "not valid UTF-8"),
        ('{"a":"' + "x" * 65_536 + '"}', b"", "the limit is 65536"),
        ("{}", b"\1", "the fields are not valid"),
        ("{}", b"\1\0\1x\xff\xff", "the fields are not valid"),
    ],
)
def test_faulty_metadata_change_nothing(
    server: Server, client: redis.Redis, metadata: str | bytes, fields: bytes, error: str
) -> None:
    client.execute_command(*put("One."))
    before = client.hgetall(keys.document_key(NAME, TAG))
    with pytest.raises(redis.ResponseError, match=error):
        run(server, "changes", "QA.SETMETADATA", keys.paragraphs_key(NAME, TAG), "*", metadata, fields)
    assert client.hgetall(keys.document_key(NAME, TAG)) == before


@pytest.mark.hostile
def test_each_command_has_its_own_right(server: Server) -> None:
    for user, command in (
        ("deletes", put("One.")),
        ("puts", DELETE),
        ("puts", changed("{}")),
        ("puts", embedded("0" * 16)),
        ("puts", ("QA.PUTANSWER", ANSWER, "x", 9)),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            run(server, user, *command)


def test_the_script_is_the_one_of_the_package(server: Server, client: redis.Redis) -> None:
    client.execute_command(*put("One."))
    client.execute_command(*changed("{}"))
    client.execute_command(*embedded("0" * 16))
    client.execute_command(*DELETE)
    client.execute_command("QA.PUTANSWER", ANSWER, "x", 100)
    client.execute_command("QA.DELANSWER", ANSWER)
    names = ("put_document", "set_metadata", "embed_document", "delete_document", "store_whole_answer", "drop_answers")
    for name in names:
        assert client.script_exists(client.script_load(load(name))) == [True]
    client.script_flush()
    assert client.execute_command(*put("Two."))[0] == "stored"
    header = (ROOT / "native" / "build" / "lua_scripts.h").read_text()
    assert all(f"LUA_{name}[]" in header for name in ("put_document", "drop_answers"))


@pytest.mark.hostile
def test_no_script_and_no_other_database_gets_these_rights(server: Server, client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="not allowed from script"):
        client.eval("return redis.call('QA.DELDOCUMENT', KEYS[1], '*')", 1, f"paragraphs:d:{{{TAG}}}")


TEXTS = ["", "moby", "moby:{}", "moby:{a}:{b}", "%", "x%/y:{06S}", "a}:{06S}"]
ANSWERS = ["", "x", "{}:x", "{06S}", "{06S}:", "a{06S}:x"]


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("key", "commands"),
    [
        *((f"paragraphs:books%/{name}", [put("x"), DELETE, changed("{}"), embedded("0" * 16)]) for name in TEXTS),
        *((f"answer:{name}", [("QA.PUTANSWER", "", "x", 1), ("QA.DELANSWER", "")]) for name in ANSWERS),
        *((f"collections:{name}", [("QA.DELCOLLECTION", "", "books")]) for name in ("", "{}", "x{06S}", "{a}{b}")),
    ],
)
def test_a_key_of_another_form_is_refused(client: redis.Redis, key: str, commands: list[tuple[Any, ...]]) -> None:
    for name, _, *rest in commands:
        with pytest.raises(redis.ResponseError, match=f"the key must be {key.partition(':')[0]}:"):
            client.execute_command(name, key, *rest)
    assert client.keys() == [keys.collections_key(TAG)]


@pytest.mark.hostile
@pytest.mark.parametrize("name", ["default", "", "a:b", "Books", "{06S}", 65 * "a"])
def test_an_invalid_name_of_a_collection_is_refused(client: redis.Redis, name: str) -> None:
    with pytest.raises(redis.ResponseError, match="not the default collection"):
        client.execute_command("QA.DELCOLLECTION", keys.collections_key(TAG), name)


@pytest.mark.hostile
def test_only_keys_of_answers_are_deleted_with_a_document(server: Server, client: redis.Redis) -> None:
    """The script deletes the keys in the set of a document's answers, with the rights of the module."""
    own = f"bertqa{{{TAG}}}_{NAME}:{{{TAG}}}:0_Why?"
    named = f"bertqa@tiny{{{TAG}}}_{NAME}:{{{TAG}}}:1_Why?"
    others = ["secret", f"bertqa{{{TAG}}}_other:{{{TAG}}}:0_{NAME}", f"bertqa{{{TAG}}}_{NAME}2:{{{TAG}}}:0_x"]
    client.mset(dict.fromkeys([own, named, *others], "x"))
    client.sadd(keys.answers_key(NAME, TAG), own, named, *others)
    assert run(server, "puts", *put("One."))[0] == "stored"
    assert client.exists(own, named) == 0 and client.exists(*others) == 3


def test_whole_answers_stay_within_the_limit(server: Server, client: redis.Redis) -> None:
    client.config_set("qa.whole-answers-bytes", 10_000)
    for number in range(20):
        assert run(server, "keeps", "QA.PUTANSWER", f"answer:{{{TAG}}}:{number}", 1000 * "x", 100) == 1
    left = client.keys("answer:*")
    assert 3 < len(left) < 10 and f"answer:{{{TAG}}}:19" in left
    assert client.zcard(keys.whole_answer_list_key(TAG)) == len(left)
    assert run(server, "keeps", "QA.DELANSWER", *left) == len(left)
    assert client.keys("kept*") == []


def reads(text: str) -> bool:
    """Whether Python's strict parsers accept a text as metadata within the limits."""
    try:
        value = json.loads(text, parse_int=check_integer)
        return isinstance(orjson.loads(text), dict) and fault_of(value) is None
    except (ValueError, RecursionError):
        return False


def mutated(seed: int) -> Iterator[str]:
    """Variants of JSON texts: a part is deleted, doubled or replaced."""
    chance = random.Random(seed)
    texts = [
        '{"a":[1,-2.5e-3,true,null,"x\\ud83d\\ude00\\n"],"b":{"c":{}}}',
        '{"n": 18446744073709551615, "m" : -9223372036854775808}',
        "{" + '"a":{' * 31 + "}" * 32,
        '{"e":1e308,"z":[[],[0.0]],"k\\"":"\\/\\b"}',
    ]
    parts = [*'"{}[],:0-1e. \\', "\\u", "\\ud800", "9" * 20, "1e999", "NaN", "\n", "\x01"]
    for _ in range(400):
        text = chance.choice(texts)
        for _ in range(chance.choice((0, 1, 1, 1, 2))):
            first = chance.randrange(1, len(text))
            last = min(len(text), first + chance.choice((0, 0, 1, 2)))
            text = text[:first] + chance.choice(["", text[first:last] * 2, *parts]) + text[last:]
        yield text


@pytest.mark.hostile
def test_metadata_that_some_parser_refuses_are_refused_at_the_write(server: Server, client: redis.Redis) -> None:
    """A fixed fault: `1e999` was stored, and every request that read the document failed."""
    chosen = ['{"a":1e999}', '{"a":-1e999}', '{"a":NaN}', '{"a":Infinity}', "{}", '{"a":1e308}', "{", '{"a":01}']
    chosen.append('{"a":"\\ud800"}')
    seen = {True: 0, False: 0}
    with server.client(username="puts", password="pw") as connection:
        for text in [*chosen, *mutated(37)]:
            arguments = list(put("One."))
            arguments[5] = text
            try:
                accepted = connection.execute_command(*arguments)[0] in ("stored", "unchanged")
            except redis.ResponseError as error:
                assert str(error).startswith("the metadata must be a JSON object"), (text, error)
                accepted = False
            assert accepted == reads(text), text
            seen[accepted] += 1
    assert min(seen.values()) > 50


@pytest.mark.hostile
def test_no_caller_chooses_the_limit_of_whole_answers(server: Server, client: redis.Redis) -> None:
    """A fixed fault: the limit was an argument. A caller could evict all answers, or store any number of bytes."""
    assert run(server, "keeps", "QA.PUTANSWER", ANSWER, "x", 100) == 1
    with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
        run(server, "keeps", "QA.PUTANSWER", ANSWER, "y", 100, 0)
    client.config_set("qa.whole-answers-bytes", 1000)
    with pytest.raises(redis.ResponseError, match=r"the answer has 1001 bytes, the limit is 1000 \(qa.whole-answers"):
        run(server, "keeps", "QA.PUTANSWER", ANSWER, 1001 * "x", 100)
    assert client.get(ANSWER) == "x"


@pytest.mark.hostile
@pytest.mark.parametrize("seconds", ["x", "", "0", "-1", "1.5", "1073741825", "1" * 400_000])
def test_a_wrong_time_to_live_changes_nothing(server: Server, client: redis.Redis, seconds: str) -> None:
    with pytest.raises(redis.ResponseError, match=r"the seconds must be an integer from 1 to 1073741824$"):
        run(server, "keeps", "QA.PUTANSWER", ANSWER, "x", seconds)
    assert client.keys() == [keys.collections_key(TAG)]


def test_an_empty_text_leaves_the_pending_documents_of_others(server: Server, client: redis.Redis) -> None:
    """A fixed fault: the server refused the number -0, and the scripts removed the notes of the whole partition."""
    other = stored.put_document(stored.check_document("other", "A text."), TAG).command()
    assert client.execute_command(*other)[0] == "stored"
    arguments = list(put("Call me Ishmael."))
    arguments[8] = ""
    for version in ("0" * 16, "1" * 16):
        arguments[6] = version
        assert run(server, "puts", *arguments)[0] == "stored"
    assert run(server, "deletes", "QA.DELDOCUMENT", arguments[1], "*")[0] == "deleted"
    assert client.hgetall(keys.pending_key(TAG)) == {"other": "7", "": "7"}


def test_a_server_whose_memory_is_full_refuses_documents_and_answers(server: Server, client: redis.Redis) -> None:
    client.config_set("maxmemory", 1)
    for user, command in (("puts", put("Call me Ishmael.")), ("keeps", ("QA.PUTANSWER", ANSWER, "x", 60))):
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            run(server, user, *command)
    assert run(server, "deletes", "QA.DELDOCUMENT", put("Call me Ishmael.")[1], "*")[0] == "missing"


def test_writes_are_replicated_and_survive_a_kill(server: Server, client: redis.Redis) -> None:
    own = {"replicaof": f"127.0.0.1 {server.port}"}
    with Server(server.binary, own, worker=fake_worker("functions")) as replica, replica.client() as reader:
        eventually(lambda: reader.info("replication")["master_link_status"] == "up")
        version = client.execute_command(*put("One."))[1]
        client.execute_command(*indexed(version))
        version = client.execute_command(*changed('{"b":2}'))[1]
        client.execute_command("QA.PUTANSWER", ANSWER, "x", 1000)
        eventually(lambda: reader.get(ANSWER) == "x")
        names = sorted(client.keys())
        assert sorted(reader.keys()) == names
        assert reader.hget(keys.document_key(NAME, TAG), "version") == version
        index = keys.index_key(TAG, "books")
        assert reader.execute_command("QA.INDEX.FIELDS", index, "NAMES", "a", "b") == [0, 1]
        digests = [each.execute_command("DEBUG", "DIGEST-VALUE", index) for each in (client, reader)]
        assert digests[0] == digests[1]
        assert reader.get(keys.epoch_key(TAG, "books")) == client.get(keys.epoch_key(TAG, "books"))
        with pytest.raises(redis.exceptions.ReadOnlyError):
            reader.execute_command(*put("Two."))
    server.stop(signal.SIGKILL)
    log = b"".join(path.read_bytes() for path in server.directory.glob("appendonlydir/*incr*"))
    assert (
        log.count(b"QA.PUTDOCUMENT") == log.count(b"QA.SETMETADATA") == 0
        and log.count(b"MULTI") == log.count(b"EXEC") >= 2
    )
    server.start()
    with server.client() as again:
        assert sorted(again.keys()) == names
        assert again.get(keys.paragraphs_key(NAME, TAG)) == "One."
        assert again.hget(keys.document_key(NAME, TAG), "tokenized") == version
        assert again.execute_command("QA.INDEX.FIELDS", index, "NAMES", "a", "b") == [0, 1]


def test_the_commands_work_in_a_transaction(client: redis.Redis) -> None:
    pipeline: Any = client.pipeline(transaction=True)
    pipeline.execute_command(*put("One."))
    pipeline.execute_command(*DELETE)
    assert [reply[0] for reply in pipeline.execute()] == ["stored", "deleted"]


def test_a_migrating_slot_refuses_the_commands(server_binary: Path) -> None:
    settings = {"cluster-enabled": "yes"}
    with (
        Server(server_binary, settings, worker=fake_worker("functions", "--bare")) as source,
        Server(server_binary, settings, worker=fake_worker("functions", "--bare")) as target,
        source.client() as here,
        target.client() as there,
    ):
        here.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, keys.SLOTS - 1)
        here.execute_command("CLUSTER", "MEET", "127.0.0.1", target.port)
        eventually(lambda: "cluster_state:ok" in str(there.execute_command("CLUSTER", "INFO")))
        document = stored.check_document("d", "One.")
        command = stored.put_document(document, TAG).command()
        eventually(lambda: here.execute_command(*command)[0] == "stored", 30, ignore=redis.RedisError)
        ids = [client.execute_command("CLUSTER", "MYID") for client in (here, there)]
        there.execute_command("CLUSTER", "SETSLOT", keys.slot(TAG), "IMPORTING", ids[0])
        here.execute_command("CLUSTER", "SETSLOT", keys.slot(TAG), "MIGRATING", ids[1])
        for again in (command, stored.delete_document("d", TAG).command()):
            with pytest.raises(redis.ResponseError, match=r"TRYAGAIN|migrating"):
                here.execute_command(*again)
        missing = stored.put_document(stored.check_document("e", "One."), TAG).command()
        with pytest.raises(redis.exceptions.AskError):
            here.execute_command(*missing)
        there.execute_command("ASKING")
        with pytest.raises(redis.ResponseError, match=r"TRYAGAIN|migrating"):
            there.execute_command(*missing)
        assert here.get(keys.paragraphs_key("d", TAG)) == "One."


def test_a_collection_leaves_the_list_only_if_it_is_being_deleted(server: Server, client: redis.Redis) -> None:
    listed = keys.collections_key(TAG)
    client.execute_command(*put("One."))
    assert client.execute_command("QA.DELCOLLECTION", listed, "books") == 1
    assert client.hget(listed, "books") == "ready" and client.exists(keys.epoch_key(TAG, "books"))
    client.hset(listed, "books", "deleting")
    assert client.execute_command("QA.DELCOLLECTION", listed, "books") == 1
    assert not client.exists(listed, keys.epoch_key(TAG, "books"), keys.index_key(TAG, "books"))
