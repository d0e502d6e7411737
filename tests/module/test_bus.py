"""Messages between servers count only once, and only if a server of the same cluster has signed them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from qa_cluster.keys import SLOTS
from tests.harness.clusters import Cluster, meet
from tests.harness.polling import eventually
from tests.harness.servers import Server, bus_key_file, execute
from tests.harness.workers import fake_worker
from tests.module.bus_packets import ALL, key_of, send, signed
from tests.module.registrations import dump, run, wait_for_bus

pytestmark = pytest.mark.hostile

WORKER_KIND, ADMIN_KIND = 1, 2
MINUTE_US = 60_000_000


def node_id(server: Server) -> str:
    return str(execute(server, "CLUSTER MYID"))


def refused(server: Server) -> int:
    return int(server.field("bus_messages_refused"))


def received(server: Server) -> int:
    return int(server.field("bus_messages_received"))


@contextmanager
def two(binary: Path, *own: dict[str, object]) -> Iterator[Cluster]:
    with Cluster(binary, worker=fake_worker("functions"), size=2, own=own) as cluster:
        for node in cluster.nodes:
            node.wait_ready()
        yield cluster


@pytest.fixture(scope="module")
def pair(shared_binary: Path) -> Iterator[Cluster]:
    """Two shards that share a key."""
    with two(shared_binary) as cluster:
        wait_for_bus(cluster)
        yield cluster


def now() -> int:
    return time.time_ns() // 1000


def signed_now(payload: bytes, sender: str, **of: Any) -> bytes:
    """A message of a server of the cluster, or with another key, kind, age or receiver."""
    key, kind, receiver = of.get("key") or key_of(bus_key_file()), of.get("kind", ADMIN_KIND), of.get("receiver", ALL)
    return signed(key, kind, now() - of.get("age_us", 0), payload, sender=sender, receiver=receiver)


FORGED: dict[str, Callable[[bytes, str], bytes]] = {
    "unsigned": lambda payload, sender: payload,
    "cut": lambda payload, sender: signed_now(b"", sender)[:-1],
    "another key": lambda payload, sender: signed_now(payload, sender, key=secrets.token_bytes(32)),
    "another sender": lambda payload, sender: signed_now(payload, "0" * 40),
    "another receiver": lambda payload, sender: signed_now(payload, sender, receiver=b"f" * 40),
    "another kind": lambda payload, sender: signed_now(payload, sender, kind=WORKER_KIND),
    "of yesterday": lambda payload, sender: signed_now(payload, sender, age_us=24 * 60 * MINUTE_US),
    "of the future": lambda payload, sender: signed_now(payload, sender, age_us=-3 * MINUTE_US),
    "another payload": lambda payload, sender: signed_now(b"Uid-echo", sender)[:-8] + payload,
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=list(FORGED))
def test_a_message_without_a_signature_of_the_cluster_changes_nothing(
    pair: Cluster, forge: Callable[[bytes, str], bytes]
) -> None:
    first, second = pair.nodes
    before = refused(second)
    send(second, node_id(first), ADMIN_KIND, forge(b"Uid-do", node_id(first)))
    eventually(lambda: refused(second) > before)
    assert "id-do" in dump(second)


def test_a_signed_message_counts_once(pair: Cluster) -> None:
    """The original message clears the statistics of the shard. Replays of the message have no effect."""
    first, second = pair.nodes

    def triggered() -> int:
        return int(dump(second)["id-echo"]["RegistrationData"]["numTriggered"])

    message = signed(key_of(bus_key_file()), ADMIN_KIND, now() + 500_000, b"C", sender=node_id(first))
    execute(second, "RG.TRIGGER", "echo", "1")
    assert triggered() >= 1
    send(second, node_id(first), ADMIN_KIND, message)
    eventually(lambda: triggered() == 0)
    execute(second, "RG.TRIGGER", "echo", "1")
    before = refused(second)
    send(second, node_id(first), ADMIN_KIND, message)
    eventually(lambda: refused(second) > before)
    assert triggered() == 1
    time.sleep(0.6)  # the server ignores messages of the sender until its clock passes the time of the forged message


def test_messages_of_a_node_outside_the_cluster_are_ignored(pair: Cluster, tmp_path: Path) -> None:
    (tmp_path / "bus.key").write_text(secrets.token_hex(32))
    settings = {"cluster-enabled": "yes", "qa.bus-key-file": tmp_path / "bus.key"}
    first, second = pair.nodes
    with Server(first.binary, settings, worker=fake_worker("functions")) as foreign:
        foreign.wait_ready()
        target = node_id(first)
        meet(foreign, first)
        # the server refuses commands until it knows the owners of the slots
        eventually(lambda: execute(foreign, "CLUSTER INFO")["cluster_state"] == "ok")
        before = refused(first)

        def reaches() -> bool:
            sent = run(foreign, ["QA.SEND", target, "cos\nsystem\n(S'true'\ntR."])
            return sent == ["OK"] and refused(first) > before

        eventually(reaches, ignore=redis.RedisError)
        before = refused(first)

        def clears() -> bool:  # repeatedly, because the bus of a young cluster loses messages
            return execute(foreign, "RG.CLEARREGISTRATIONSSTATS") == "OK" and refused(first) > before

        execute(first, "RG.TRIGGER", "echo")
        eventually(clears, pause=0.5, ignore=redis.RedisError)
        assert execute(foreign, "RG.UNREGISTER", "id-do") == "OK"
        assert int(dump(first)["id-echo"]["RegistrationData"]["numTriggered"]) >= 1
        assert "id-do" in dump(first)
        assert "id-do" in dump(second)
        assert foreign.field("bus_messages_received") == 0
    assert refused(first) > 0


def test_a_change_of_the_key_loses_no_message(server_binary: Path, tmp_path: Path) -> None:
    old, new = secrets.token_hex(32), secrets.token_hex(32)
    paths = [tmp_path / name for name in ("first.key", "second.key")]
    for path in paths:
        path.write_text(old + "\n")
    with two(server_binary, *({"qa.bus-key-file": path} for path in paths)) as cluster:
        wait_for_bus(cluster)
        # the file is empty while it is being written
        for text in (f"{old}\n{new}\n", "", f"{new}\n{old}\n", f"{new}\n"):
            for path in paths:
                path.write_text(text)
                refusals = [refused(node) for node in cluster.nodes]
                before = [received(node) for node in cluster.nodes]
                time.sleep(1.1)  # a server checks its file once a second without a visible sign
                for node, other in (cluster.nodes, reversed(cluster.nodes)):
                    assert run(node, ["QA.SEND", node_id(other), "hello"]) == ["OK"]
                for node, count in zip(cluster.nodes, before, strict=True):
                    eventually(
                        partial(lambda node, count: int(node.field("bus_messages_received")) > count, node, count)
                    )
                assert [refused(node) for node in cluster.nodes] == refusals


def test_a_password_of_the_cluster_is_a_key(server_binary: Path) -> None:
    settings = {"qa.bus-key-file": "", "requirepass": "a secret of the cluster", "masterauth": "of replication"}
    with Server(server_binary, settings, worker=fake_worker("functions")) as server:
        assert key_source(server, "a secret of the cluster") == "password"


def key_source(server: Server, password: str) -> str:
    with server.client(password=password) as client:
        return str(client.info("modules")["qa_bus_key"])


@contextmanager
def home(path: Path, monkeypatch: pytest.MonkeyPatch, mode: int = 0o700) -> Iterator[Path]:
    """Servers that start within the block have this home folder."""
    path.mkdir(mode=mode)
    path.chmod(mode)
    with monkeypatch.context() as patched:
        patched.setenv("HOME", str(path))
        yield path


WITHOUT_FILE: dict[str, object] = {"qa.bus-key-file": ""}


def test_servers_of_one_user_need_no_setting(
    server_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server creates the key in the home folder of its user."""
    with home(tmp_path / "home", monkeypatch) as folder, two(server_binary, WITHOUT_FILE, WITHOUT_FILE) as cluster:
        assert [node.field("bus_key") for node in cluster.nodes] == ["user"] * 2
        wait_for_bus(cluster)
        [file] = folder.iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        assert len(file.read_text()) == 65


def test_the_password_of_replication_is_not_a_key(
    server_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`masterauth` is no secret: a server sends it to any server that claims to be its primary."""
    both = {"requirepass": "known", "masterauth": "known"}
    with home(tmp_path / "home", monkeypatch), Server(server_binary, WITHOUT_FILE | both) as server:
        assert key_source(server, "known") == "user"


@pytest.mark.parametrize("kind", ["folder of all", "file of all", "link"])
def test_a_key_that_others_could_have_made_is_not_used(
    server_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with home(tmp_path / "home", monkeypatch, 0o777 if kind == "folder of all" else 0o700) as folder:
        key = folder / ".qa-cluster-bus.key"
        if kind == "file of all":
            key.write_text("k" * 64)
            key.chmod(0o644)
        elif kind == "link":
            (tmp_path / "elsewhere").write_text("k" * 64)
            key.symlink_to(tmp_path / "elsewhere")
        with Server(server_binary, WITHOUT_FILE) as server:
            assert server.field("bus_key") == "server"
            assert (server.directory / key.name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [None, "too short\n"])
def test_servers_without_a_key_say_what_to_set(
    server_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    path = tmp_path / "bus.key"
    if content is not None:
        path.write_text(content)
    settings: dict[str, object] = {"qa.bus-key-file": "" if content is None else path, "cluster-enabled": "yes"}
    with (
        home(tmp_path / "home", monkeypatch, 0o777),
        Server(server_binary, settings, worker=fake_worker("functions")) as server,
    ):
        server.wait_ready()
        assert server.field("bus_key") == ("server" if content is None else "none")
        # A server whose cluster is down unblocks its clients with an error.
        execute(server, "CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
        eventually(lambda: "cluster_state:ok" in str(execute(server, "CLUSTER", "INFO")))
        (reply,) = run(server, ["QA.SEND", "0" * 40, "hello"])
        assert "add the line `qa.bus-key-file FILE` to the configuration of every server" in reply
        if content is not None:
            assert "no line of at least 32 characters" in server.output()


def test_a_signed_message_of_any_content_does_no_harm(pair: Cluster) -> None:
    first, second = pair.nodes
    sequence = now()
    for number, payload in enumerate((b"", b"U", b"O", b"O 1", b"Ox id", b"O9223372036854775808 id", b"?", bytes(5))):
        message = signed(key_of(bus_key_file()), ADMIN_KIND, sequence + number, payload, sender=node_id(first))
        send(second, node_id(first), ADMIN_KIND, message)
    assert execute(second, "PING")
    assert "id-do" in dump(second)
