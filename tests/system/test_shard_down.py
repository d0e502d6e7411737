"""One of three shards without replicas is killed or stopped: answers, refusals, and the recovery."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

import pytest
import redis

from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.errors import QAError
from qa_cluster.keys import PARTITIONS_KEY, partition_of, slot
from tests.harness.polling import eventually
from tests.harness.processes import lives
from tests.harness.programs import binary_or_skip, chosen_servers
from tests.harness.system import WORDS_ONLY, System

PARTITIONS = 12
FACTS = {
    "Who wrote the first program?": "{name} wrote the first program.",
    "What do owls hunt?": "Owls hunt {name}.",
    "Where does the Nile flow?": "The Nile flows into the {name}.",
}
LONG_MS = 120_000
"""Only a request that waits for the lost shard would take this long."""


@pytest.fixture(scope="module", params=chosen_servers())
def system(request: pytest.FixtureRequest) -> Iterator[System]:
    """A separate system, because its shards are killed. Each shard has one document about a different subject."""
    with System(binary_or_skip(request.param), **WORDS_ONLY) as made:
        made.start_service()
        with ClusterClient(made.url) as client:
            for number, (text, name) in enumerate(zip(FACTS.values(), ("Ada", "mice", "Mediterranean"), strict=True)):
                client.put_document(id_on(number), text.format(name=name))
        yield made


def id_on(number: int) -> str:
    """A document id that belongs to this shard."""
    found = (f"doc-{n}" for n in range(1000))
    return next(name for name in found if slot(partition_of(name, PARTITIONS)) * 3 // 16384 == number)


def ask(system: System, question: str, **options: Any) -> tuple[int, dict[str, Any]]:
    given = {"timeout_ms": LONG_MS} | options
    query = "".join(f"&{name}={value}" for name, value in given.items())
    status, _, body = system.http(f"/qa?question={quote(question)}{query}")
    return status, json.loads(body)


def kept(system: System, question: str) -> bool:
    """Whether the near cache of the service answers. This needs change reports from every server."""
    status, found = ask(system, question, cache="only")
    return (status, found.get("cache", {}).get("tier")) == (200, "near")


def near(system: System, question: str) -> dict[str, Any]:
    """The answer of the near cache, or an empty dictionary if another cache or no cache answers."""
    status, found = ask(system, question)
    return found if (status, found.get("cache", {}).get("tier")) == (200, "near") else {}


def gone(system: System, address: str) -> bool:
    """Whether the service answers without the shard, and names it as missing."""
    _, found = ask(system, "Is anything missing?", cache="off")
    return bool(found.get("index", {}).get("missing") == [address])


def noticed(system: System, address: str) -> bool:
    """Whether the service has detected the lost shard, and names it in a partial answer or in a refusal.

    The service refuses if the other servers refuse. They may detect the lost shard earlier than the service.
    """
    status, found = ask(system, "Is anything missing?", cache="off")
    if status == 503:
        return f"shard {address} is down" in found["detail"]
    return bool(found.get("index", {}).get("missing") == [address])


@contextmanager
def down(system: System, number: int, how: signal.Signals) -> Iterator[str]:
    """Take a shard down, wait until the service has detected it, and yield the shard's address.

    After the block, the shard works again.
    """
    host, port = system.addresses[number]
    pid = system.server_pid(number)
    system.may_end()
    os.kill(pid, how)
    try:
        eventually(lambda: noticed(system, f"{host}:{port}"))
        yield f"{host}:{port}"
    finally:
        if how is signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
        else:
            with suppress(ProcessLookupError):
                eventually(lambda: not lives(pid))
            system.cli("up")
        system.watch()
        # the servers may still mark a resumed shard as failing, and the shard loads its reader last
        eventually(system.whole, 120, ignore=(redis.RedisError, QAError))
        eventually(lambda: ask(system, "Is all there again?", coverage="full", cache="off")[0] == 200, 120)
        eventually(lambda: not ask(system, "Is all there again?", cache="off")[1]["index"]["partial"], 120)


HOWS = [signal.SIGKILL, signal.SIGSTOP]


@pytest.mark.parametrize("how", HOWS, ids=["killed", "stopped"])
def test_the_other_shards_answer_and_the_result_names_the_missing_shard(system: System, how: signal.Signals) -> None:
    questions = list(FACTS)
    whole = {question: ask(system, question)[1] for question in questions}
    assert all(found["answerable"] and not found["index"]["partial"] for found in whole.values())
    for question in questions:
        eventually(lambda question=question: ask(system, question) and kept(system, question))
    with down(system, 1, how) as address:
        # cached and new answers of the remaining shards
        for question in (questions[0], questions[2]):
            eventually(lambda question=question: kept(system, question))
            found = eventually(lambda question=question: near(system, question))  # type: ignore[misc]
            assert not found["index"]["partial"]
            status, found = ask(system, question, cache="off")
            assert (status, found["answers"][0]["answer"]) == (200, whole[question]["answers"][0]["answer"])
            assert found["index"] == found["index"] | {"partial": True, "missing": [address], "shards_answered": 2}
        # cached answers of a stopped shard are valid until its last confirmation expires
        found = eventually(lambda: None if (found := ask(system, questions[1])[1])["answerable"] else found)
        assert (found["index"]["partial"], found["cache"]["ttl_s"]) == (True, 0)
        status, _, body = system.http(f"/search?q=owls+hunt&timeout_ms={LONG_MS}")
        assert (status, json.loads(body)["index"]["missing"]) == (200, [address])
        # the service refuses requests that need the shard, and the error names the shard
        for path in (
            f"/qa?question=owls&coverage=full&timeout_ms={LONG_MS}",
            f"/search?q=owls&coverage=full&timeout_ms={LONG_MS}",
        ):
            status, headers, body = system.http(path)
            assert (status, headers["retry-after"]) == (503, "1")
            assert f"shard {address} is down" in json.loads(body)["detail"]
        written = json.dumps({"text": "Owls hunt at night."}).encode()
        status, _, body = system.http(f"/documents/{id_on(1)}?timeout_ms={LONG_MS}", written, "PUT")
        assert (status, address in json.loads(body)["detail"]) == (503, True)
    # the service has not cached partial answers
    for question in questions:
        status, found = ask(system, question)
        assert (status, found["answers"][0]["answer"]) == (200, whole[question]["answers"][0]["answer"])
        assert (found["index"]["partial"], found["index"]["missing"]) == (False, [])


def test_the_error_names_the_setting_if_all_servers_refuse_for_one_lost_shard(system: System) -> None:
    """With the servers' default for cluster-require-full-coverage, all servers refuse."""
    others = [system.nodes[0], system.nodes[2]]
    hinted = "cluster-require-full-coverage is yes: while one shard is down, the other shards will refuse"
    for node in system.nodes:
        node.config_set("cluster-require-full-coverage", "yes")
    assert hinted in flat(system.cli("status").stderr)
    try:
        with down(system, 1, signal.SIGSTOP) as address:
            eventually(lambda: all(node.cluster("INFO")["cluster_state"] == "fail" for node in others))
            eventually(lambda: noticed(system, address))
            status, found = ask(system, "Who refuses?", cache="off")
            assert status == 503
            assert f"shard {address} is down" in found["detail"]
            assert "set cluster-require-full-coverage to no" in found["detail"]
            for node in others:
                node.config_set("cluster-require-full-coverage", "no")
            eventually(lambda: gone(system, address))
    finally:
        for node in system.nodes:
            node.config_set("cluster-require-full-coverage", "no")
    assert hinted not in flat(system.cli("status", check=False).stderr)


@pytest.mark.one_server("what the commands do; the other tests here have both")
def test_the_command_line_answers_refuses_and_exits_as_documented(system: System) -> None:
    home = slot(PARTITIONS_KEY) * 3 // 16384  # new processes connect to this server first
    with down(system, home, signal.SIGKILL) as address:
        question = list(FACTS)[next(n for n in range(3) if n != home)]
        answers_without(system, question, address)
        done = system.cli("ask", question, check=False)
        assert f"the result is partial: 1 of 3 shards did not answer ({address}); run" in flat(done.stderr)
        for command in (("ask", question, "--coverage", "full"), ("search", "owls", "--coverage", "full")):
            done = system.cli(*command, check=False)
            assert (done.returncode, f"shard {address} is down" in flat(done.stderr)) == (3, True)
        stores_nothing_and_is_not_ready(system, address)


@pytest.mark.one_server("what the service and the commands do; the other tests here have both")
def test_the_command_line_answers_without_a_silent_shard(system: System) -> None:
    """Each process needs some seconds to detect the silent shard."""
    lost = (slot(PARTITIONS_KEY) * 3 // 16384 + 1) % 3
    with down(system, lost, signal.SIGSTOP) as address:
        answers_without(system, list(FACTS)[next(n for n in range(3) if n != lost)], address)
        stores_nothing_and_is_not_ready(system, address)


def answers_without(system: System, question: str, address: str) -> None:
    """Check that `qa-cluster ask` answers and names the missing shard."""
    done = system.cli("ask", question, "--json", check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["answerable"], found["index"]["missing"]) == (True, [address])


def stores_nothing_and_is_not_ready(system: System, address: str) -> None:
    """Check that `qa-cluster ingest` and `status` name the shard that is down."""
    file = system.folder / "more.txt"
    file.write_text("Moths fly at night.")
    done = system.cli("ingest", str(file), check=False)
    assert (done.returncode, f"nothing was stored; shard {address}" in flat(done.stderr)) == (3, True)
    done = system.cli("status", check=False)
    assert done.returncode == 3
    assert "ready to answer" not in done.stdout


def flat(text: str) -> str:
    """The text of wrapped output in one line."""
    return " ".join(text.split())


def test_a_shard_that_cannot_save_is_named_by_status_and_ingest(system: System) -> None:
    """A server that cannot save its data refuses writes and functions with MISCONF."""
    assert ask(system, "What do owls hunt?")[0] == 200
    node = system.nodes[1]
    block = system.folder / "data" / "node-1" / "dump.rdb"
    block.mkdir()  # a file cannot replace a folder, so each save fails
    node.config_set("save", "3600 1000000")
    node.bgsave()
    eventually(lambda: node.info("persistence")["rdb_last_bgsave_status"] == "err")
    done = system.cli("status", "--json", check=False)
    assert done.returncode == 3
    problems = {shard["address"]: shard["problems"] for shard in json.loads(done.stdout)["shards"]}
    address = "{}:{}".format(*system.addresses[1])
    assert any("cannot write: saving to disk fails (MISCONF" in text for text in problems[address])
    assert not problems["{}:{}".format(*system.addresses[0])]
    file = system.folder / "more.txt"
    file.write_text("Moths fly at night.")
    done = system.cli("ingest", str(file), check=False)
    assert done.returncode == 1
    assert f"nothing was stored; shard {address}: cannot write: saving to disk fails (MISCONF" in flat(done.stderr)
    written = json.dumps({"text": "Owls hunt at night."}).encode()
    status, _, body = system.http(f"/documents/{id_on(1)}", written, "PUT")
    assert (status, f"shard {address} cannot write" in json.loads(body)["detail"]) == (503, True)
    # Functions may write, so this shard refuses them and cannot read. New answers leave the shard out, and cached
    # answers are still served.
    assert eventually(lambda: near(system, "What do owls hunt?"))["answerable"]
    status, found = ask(system, "What do owls hunt?", cache="off")
    assert (status, found["index"]["missing"]) == (200, [address])
    status, found = ask(system, "What do owls hunt?", cache="off", coverage="full")
    assert (status, f"shard {address} cannot write" in found["detail"]) == (503, True)
    # the shard can still rank, and it has no matching sentence, so nothing is missing
    _, found = ask(system, next(iter(FACTS)), cache="off", coverage="full")
    assert (found["answerable"], found["index"]["missing"]) == (True, [])
    block.rmdir()
    node.config_set("save", "")
    eventually(lambda: system.cli("ingest", str(file), check=False).returncode == 0)
