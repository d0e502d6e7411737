"""docs/access.md against the running server: categories, administrators, keys, and the worker's credentials."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.programs import ROOT
from tests.harness.servers import Pending, Server
from tests.harness.workers import fake_worker
from tests.module.registrations import run

ROW = re.compile(r"^\| `((?:AI|RG|QA|QA\.INDEX)\.[A-Z_]+)` \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
TABLE = {
    name: (sorted(categories.split()), right)
    for name, categories, right in ROW.findall((ROOT / "docs" / "access.md").read_text())
}
# Commands that run with the rights of the module, if the user may write the key.
WRITES = {
    *("QA.PUTDOCUMENT", "QA.SETMETADATA", "QA.EMBEDDOCUMENT", "QA.DELDOCUMENT"),
    *("QA.PUTANSWER", "QA.DELANSWER", "QA.DELCOLLECTION"),
}
TENSOR = ["FLOAT", "1", "VALUES", "1"]


@pytest.fixture(scope="module")
def guarded(shared_binary: Path) -> Iterator[Server]:
    """A server with an administrator and three other users."""
    settings = {"slowlog-log-slower-than": 0, "latency-monitor-threshold": 1}
    with Server(shared_binary, settings, worker=fake_worker("functions")) as server:
        server.wait_ready()
        with server.client() as client:
            for name, rules in {
                "noadmin": ["~*", "+@all", "-@admin"],
                "tenant": ["~t:*", "+@all"],
                "reads": ["%R~t:*", "+@all"],
                "reader": ["~*", "-@all", "+@read"],
            }.items():
                client.execute_command("ACL", "SETUSER", name, "on", ">pw", *rules)
        yield server


def knows_categories(server: Server) -> bool:
    return "valkey" in server.binary.name


def commands(server: Server) -> dict[str, list[str]]:
    with server.client(protocol=2) as client:
        client.response_callbacks.clear()
        names = client.execute_command("COMMAND", "LIST", "FILTERBY", "MODULE", "qa")
        return {entry[0].upper(): sorted(entry[6]) for entry in client.execute_command("COMMAND", "INFO", *names)}


def test_the_table_matches_the_server(guarded: Server) -> None:
    actual = commands(guarded)
    assert sorted(actual) == sorted(TABLE)
    if not knows_categories(guarded):
        assert not any(actual.values())  # the server has no categories, so the last column of the table lists commands
        return
    lines = [f"| `{name}` | {' '.join(found)} |" for name, found in actual.items() if TABLE[name][0] != found]
    assert lines == []
    for name, categories in actual.items():
        worker = name.startswith("QA.") and not name.startswith("QA.INDEX.") and name not in WRITES
        admin = "@admin" in categories
        assert TABLE[name][1] == ("the worker" if worker else "administrators" if admin else "by name"), name


def refusal(client: Any, *words: str) -> str:
    """The error of a command; redis-py removes some error codes."""
    try:
        client.execute_command(*words)
    except redis.exceptions.NoPermissionError as error:
        return f"NOPERM {error}"
    except redis.ResponseError as error:
        return str(error)
    return "no error"


ADMINISTRATORS = {
    "AI.SCRIPTSTORE": ["t:s", "CPU", "ENTRY_POINTS", "1", "f", "SOURCE", "x"],
    "AI.SCRIPTSET": ["t:s", "CPU", "SOURCE", "x"],
    "RG.PYEXECUTE": ["x"],
    "RG.UNREGISTER": ["id-echo"],
    "RG.PAUSEREGISTRATIONS": ["id-echo"],
    "RG.UNPAUSEREGISTRATIONS": ["id-echo"],
    "RG.CLEARREGISTRATIONSSTATS": [],
    "RG.CONFIGSET": ["a", "b"],
    "RG.FROMPRIMARY": ["CONFIG", "SET", "qa.max-queue", "7"],
    "RG.REFRESHCLUSTER": [],
    "RG.NETWORKTEST": [],
    "RG.ABORTEXECUTION": ["1-1"],
    "RG.DROPEXECUTION": ["1-1"],
    "RG.GETEXECUTION": ["1-1"],
    "RG.GETRESULTS": ["1-1"],
    "RG.GETRESULTSBLOCKING": ["1-1"],
}


def test_every_administrators_command_is_tried() -> None:
    assert sorted(ADMINISTRATORS) == sorted(name for name, row in TABLE.items() if row[1] == "administrators")


@pytest.mark.hostile
@pytest.mark.parametrize("name", sorted(ADMINISTRATORS))
def test_others_cannot_administer(guarded: Server, name: str) -> None:
    with guarded.client(username="noadmin", password="pw") as client:
        assert "NOPERM" in refusal(client, name, *ADMINISTRATORS[name])
    with guarded.client() as client:
        assert "NOPERM" not in refusal(client, "RG.NETWORKTEST")


@pytest.mark.hostile
def test_scripts_are_shown_to_administrators_only(guarded: Server) -> None:
    with guarded.client(username="noadmin", password="pw") as client:
        assert "NOPERM" in refusal(client, "RG.PYDUMPSESSIONS", "VERBOSE", "sources", "SESSIONS", "a")
        assert "NOPERM" not in refusal(client, "RG.PYDUMPSESSIONS", "SESSIONS", "SOURCES")
    with guarded.client() as client:
        assert "NOPERM" not in refusal(client, "RG.PYDUMPSESSIONS", "SOURCES")


ASKED = "bertqa{t}_me:{t}:0_What is my salary?"
# Commands that show the names of all keys, even to users whose key patterns exclude them.
LISTING = [
    *("SCAN 0", "KEYS *", "RANDOMKEY", "MONITOR", "SLOWLOG GET", "CLIENT TRACKING ON BCAST"),
    *("PSUBSCRIBE __key*", "CLUSTER GETKEYSINSLOT 0 9", "EVAL return{redis.call('SCAN',0)} 0"),
]


@pytest.mark.hostile
@pytest.mark.parametrize("role", ["asks questions", "runs models on its own keys"])
def test_users_cannot_list_the_questions_of_others(guarded: Server, role: str) -> None:
    (rules,) = re.findall(rf"^\| {role} \| `([^`]+)`", (ROOT / "docs" / "access.md").read_text(), re.MULTILINE)
    with guarded.client() as client:
        client.set(ASKED, "{}")
        client.execute_command("ACL", "SETUSER", "curious", "reset", "on", ">pw", *rules.split())
    with guarded.client(username="curious", password="pw") as client:
        told = {command: refusal(client, *command.split()) for command in LISTING}
    assert {command for command, error in told.items() if "NOPERM" not in error} == set()
    with guarded.client(username="reader", password="pw") as client:
        assert ASKED in [str(name) for name in client.scan_iter()]  # @read alone allows SCAN


@pytest.mark.hostile
def test_only_the_worker_runs_internal_commands(guarded: Server) -> None:
    names = [name for name, row in TABLE.items() if row[1] == "the worker" and name != "QA.HELLO"]
    assert len(names) > 10
    with guarded.client() as client:
        for name in names:
            told = [refusal(client, name, *words) for words in (["a"], ["a", "b"])]
            assert any("internal to the worker" in error for error in told), (name, told)
            assert "no error" not in told


def test_categories_allow_and_forbid_commands(guarded: Server) -> None:
    with guarded.client(username="reader", password="pw") as client:
        if knows_categories(guarded):
            assert client.execute_command("RG.PYSTATS")
            assert "empty" in refusal(client, "AI.TENSORGET", "t:none", "VALUES")
        else:
            assert "NOPERM" in refusal(client, "RG.PYSTATS")
        assert "NOPERM" in refusal(client, "AI.TENSORSET", "t:x", *TENSOR)
        assert "NOPERM" in refusal(client, "RG.TRIGGER", "echo")


OTHERS_KEYS = [
    "AI.TENSORSET secret FLOAT 1 VALUES 1",
    "AI.TENSORGET secret VALUES",
    "AI.MODELSTORE secret ONNX CPU BLOB x",
    "AI.MODELSET secret ONNX CPU BLOB x",
    "AI.MODELGET secret META",
    "AI.MODELDEL secret",
    "AI.MODELEXECUTE secret INPUTS 1 t:a OUTPUTS 1 t:b",
    "AI.MODELEXECUTE t:m INPUTS 2 t:a secret OUTPUTS 1 t:b",
    "AI.MODELEXECUTE t:m INPUTS 1 t:a OUTPUTS 2 t:b secret",
    "AI.MODELRUN t:m INPUTS t:a OUTPUTS secret",
    "AI.SCRIPTSTORE secret CPU ENTRY_POINTS 1 f SOURCE x",
    "AI.SCRIPTSET secret CPU SOURCE x",
    "AI.SCRIPTGET secret",
    "AI.SCRIPTDEL secret",
    "AI.SCRIPTEXECUTE secret f",
    "AI.SCRIPTEXECUTE t:s f KEYS 1 secret",
    "AI.SCRIPTEXECUTE t:s f INPUTS 1 secret",
    "AI.SCRIPTEXECUTE t:s f INPUTS 1 t:a OUTPUTS 1 secret",
    "AI.SCRIPTRUN t:s f INPUTS secret OUTPUTS t:b",
    "AI.INFO secret",
    "AI.DAGEXECUTE LOAD 1 secret |> AI.TENSORGET secret VALUES",
    "AI.DAGEXECUTE PERSIST 1 secret |> AI.TENSORSET secret FLOAT 1 VALUES 1",
    "AI.DAGEXECUTE ROUTING secret |> AI.TENSORSET a FLOAT 1 VALUES 1",
    "AI.DAGEXECUTE LOAD 1 t:a |> AI.MODELEXECUTE secret INPUTS 1 t:a OUTPUTS 1 b",
    "AI.DAGEXECUTE LOAD 1 t:a |> AI.SCRIPTEXECUTE secret f INPUTS 1 t:a OUTPUTS 1 b",
    "AI.DAGEXECUTE LOAD 1 t:a |> AI.SCRIPTEXECUTE t:s f KEYS 1 secret INPUTS 1 t:a OUTPUTS 1 b",
    "AI.DAGEXECUTE_RO LOAD 1 secret |> AI.TENSORGET secret VALUES",
    "RG.TRIGGERONKEY echo secret",
    *(
        f"QA.INDEX.{words}"
        for words in (
            "PUT secret d - -",
            "DEL secret d",
            "LOAD secret 0 x",
            "RANK secret 1 0 TERMS 0",
            "STATS secret TERMS 0",
            "LIST secret 0 1",
            "GET secret d",
            "INFO secret",
            "WATCH secret q 1 0 0 0 0 0 0 TERMS 0 DOCUMENTS 0",
            "WATCHED secret q",
        )
    ),
    "RG.INNERHOOK GET secret",
    "QA.PUTDOCUMENT secret * d - {} 0123456789abcdef 1 x -",
    "QA.EMBEDDOCUMENT secret 0123456789abcdef s encoder1 4 0 1 x",
    "QA.DELDOCUMENT secret *",
    "QA.PUTANSWER secret x 1",
    "QA.DELANSWER secret",
    "QA.DELANSWER t:mine secret",
    "QA.DELCOLLECTION secret x",
    "RG.INNERHOOK MGET t:a secret",
]


@pytest.mark.hostile
@pytest.mark.parametrize("command", OTHERS_KEYS)
def test_no_command_reaches_keys_outside_the_patterns(guarded: Server, command: str) -> None:
    with guarded.client(username="tenant", password="pw") as client:
        assert "NOPERM" in refusal(client, *command.split())
        assert "NOPERM" not in refusal(client, *command.replace("secret", "t:mine").split())


@pytest.mark.parametrize("command", ["AI.TENSORGET", "AI.MODELGET", "AI.SCRIPTGET", "AI.INFO"])
def test_the_right_to_read_a_key_is_enough_to_read_it(guarded: Server, command: str) -> None:
    with guarded.client(protocol=2) as client:
        client.response_callbacks.clear()
        assert client.execute_command("COMMAND", "INFO", command)[0][3:6] == [1, 1, 1]
        assert client.execute_command("COMMAND", "GETKEYS", command, "t:none") == ["t:none"]
    with guarded.client(username="reads", password="pw") as client:
        assert re.search("empty|cannot find", refusal(client, command, "t:none"))
        assert "NOPERM" in refusal(client, command, "secret")
        refusal(client, command)  # a command without its key is refused


@pytest.mark.hostile
@pytest.mark.parametrize(
    "command",
    [
        "AI.TENSORSET t:x FLOAT 1 VALUES 1",
        "AI.MODELDEL t:m",
        "AI.SCRIPTDEL t:s",
        "AI.MODELSTORE t:m ONNX CPU BLOB x",
        "AI.MODELEXECUTE t:m INPUTS 1 t:a OUTPUTS 1 t:b",
    ],
)
def test_the_right_to_read_a_key_does_not_allow_writing(guarded: Server, command: str) -> None:
    with guarded.client(username="reads", password="pw") as client:
        assert "NOPERM" in refusal(client, *command.split())
        assert client.get("t:none") is None


def observed(server: Server) -> str:
    """All texts about the worker that an administrator can see."""
    with server.client(protocol=2) as client:
        client.response_callbacks.clear()
        orders = "ACL LIST,ACL USERS,ACL LOG,CLIENT LIST,SLOWLOG GET 1000,LATENCY LATEST,INFO everything,CONFIG GET *"
        return "\n".join(str(client.execute_command(*order.split())) for order in orders.split(","))


@pytest.mark.hostile
def test_credentials_of_the_worker_are_invisible(guarded: Server) -> None:
    """Any 64 hexadecimal digits could be the token, so none may be visible while a new worker connects."""
    token = re.compile(r"\b[0-9a-f]{64}\b")
    with Pending(guarded, "MONITOR") as monitor:
        assert monitor.reply() == b"+OK\r\n"
        worker = guarded.field("worker_number")
        guarded.signal_worker(9)
        eventually(lambda: guarded.field("worker_number") > worker)
        guarded.wait_ready()
        assert run(guarded, ["ACL", "WHOAMI"]) == ["qa-worker"]
        seen = ""
        while "whoami" not in seen.lower() and "INFO" not in seen[-2000:]:
            seen += monitor.reply().decode(errors="replace")
    process = Path("/proc") / str(guarded.field("worker_pid"))
    places = {
        "monitor": seen,
        "server": re.sub(r"sha256_hash.*|#[0-9a-f]{64}", "", observed(guarded)),
        "log": guarded.output(),
        "argv": (process / "cmdline").read_text(),
        "environment": (process / "environ").read_text(),
    }
    assert {place: found for place, text in places.items() if (found := token.findall(text))} == {}
    assert "QA.HELLO" not in seen.upper()
    with guarded.client() as client:
        assert client.execute_command("ACL", "WHOAMI") == "default"
        assert "qa-worker" not in client.execute_command("ACL", "USERS")
        with pytest.raises(redis.AuthenticationError):
            client.execute_command("AUTH", "qa-worker", "")
        before = client.execute_command("ACL", "LIST")
        assert len([line for line in before if "qa-worker" in line]) == 0


@pytest.mark.hostile
def test_a_user_with_the_workers_name_gets_no_rights(guarded: Server) -> None:
    with guarded.client() as client:
        client.execute_command("ACL", "SETUSER", "qa-worker", "on", ">pw", "~none", "-@all", "+ping")
        with guarded.client(username="qa-worker", password="pw") as impostor:
            assert "NOPERM" in refusal(impostor, "QA.SESSIONS")
            assert "NOPERM" in refusal(impostor, "GET", "secret")
        assert run(guarded, ["SET", "still", "1"]) == ["OK"]
        client.execute_command("ACL", "DELUSER", "qa-worker")
        guarded.wait_ready()
        assert run(guarded, ["GET", "still"]) == ["1"]


# Roles of docs/access.md for users. The tests check every command with keys of qa-cluster.
ROLES = {
    role: re.findall(r"\([^)]*\)|\S+", rules.replace("\\|", "|"))
    for role, rules in re.findall(
        r"^\| ([a-z][^|]+) \| `([^`]*)`",
        (ROOT / "docs" / "access.md").read_text().partition("## Functions")[0],
        re.MULTILINE,
    )
    if re.search(r"[+~(]", rules)
}
ADMINISTER = {"deploys functions and TorchScripts"}
INTERNAL = [f"{name}:{{t}}" for name in ("pending", "failures", "layout", "kept", "kept-bytes", "kept-whole", "flight")]
INTERNAL += ["index:{t}", "epoch:{t}", "index:book:{t}", "epoch:books2:{t}"]
OF_OTHERS = [
    "document:d:{t}",
    "paragraphs:d:{t}",
    "paragraphs:book%/d:{t}",
    "bertqa{t}_x:{t}:0_books%/",
    "answer:{t}:x",
]
OF_OTHERS += ["collections:{t}", "api-keys:{t}", "bert-qa{06S}", "qa:partitions", "secret"]
# The keys that each role of the service and of clients may read or write. Other roles reach no such key.
SERVICE = {
    "connect, list readers": {"bert-qa{06S}", "qa:partitions"},
    "rank sentences": {*INTERNAL},
    "complete words": {"index:{t}", "index:book:{t}"},
    "search": {
        "paragraphs:d:{t}",
        "paragraphs:book%/d:{t}",
        "document:d:{t}",
        "epoch:{t}",
        "epoch:books2:{t}",
        "flight:{t}",
    },
    "store answers": {"answer:{t}:x", "index:{t}", "index:book:{t}"},
    "check the fields of filters": {"index:{t}", "index:book:{t}", "pending:{t}", "layout:{t}"},
    "read and list documents": {*INTERNAL, *OF_OTHERS},
    "write and remove documents": {*INTERNAL, *OF_OTHERS},
    "create and remove collections": {"collections:{t}", "answer:{t}:x", *OF_OTHERS},
    "check API keys": {"api-keys:{t}"},
    "asks questions": {"bertqa{t}_x:{t}:0_books%/"},
}


def probes(server: Server) -> list[tuple[str, bool, list[str]]]:
    """Every command with a key at a fixed position: its name, whether it writes, and its words with KEY as the key."""
    with server.client(protocol=2) as client:
        client.response_callbacks.clear()
        found = []
        for name, arity, flags, first, *rest in client.execute_command("COMMAND"):
            children = rest[-1] if len(rest) > 6 and isinstance(rest[-1], list) else []
            for each, least, marks, place in [(e[0], e[1], e[2], e[3]) for e in children] or [
                (name, arity, flags, first)
            ]:
                if place > 0:
                    path = each.split("|")
                    words = [*path, *["1"] * (max(abs(least), place + 1) - len(path))]
                    words[place] = "KEY"
                    found.append((each, "write" in [str(mark) for mark in marks], words))
        return found


@pytest.mark.hostile
@pytest.mark.parametrize("role", sorted(ROLES.keys() - ADMINISTER))
def test_a_role_reaches_no_more_keys_than_it_needs(guarded: Server, role: str) -> None:
    """No role writes an internal key or reaches keys of others. The test tries every command with every kind of key."""
    tried = probes(guarded)
    assert len(tried) > 150
    reached: dict[str, list[str]] = {}
    written = []
    with guarded.client() as client:
        client.execute_command("ACL", "SETUSER", "walked", "reset", "on", ">pw", "-@all", *ROLES[role])
        for key in [*INTERNAL, *OF_OTHERS]:
            pipeline = client.pipeline(transaction=False)
            for _, _, words in tried:
                pipeline.execute_command("ACL", "DRYRUN", "walked", *[key if word == "KEY" else word for word in words])
            for (name, writes, _), said in zip(tried, pipeline.execute(raise_on_error=False), strict=True):
                if str(said) in ("OK", "b'OK'"):
                    reached.setdefault(key, []).append(name)
                    if writes and key in INTERNAL:
                        written.append((name, key))
    assert written == []
    assert {key: names for key, names in reached.items() if key not in SERVICE.get(role, ())} == {}


def test_the_tables_of_roles_are_complete() -> None:
    assert len(ROLES) >= 17 and ROLES.keys() > ADMINISTER and SERVICE.keys() < ROLES.keys()
