"""Users share the worker by the cost of their jobs, not by their number of connections, names or jobs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Pending, Server, execute
from tests.harness.workers import fake_worker

from .registrations import register, trigger

READ = "read"  # an own function
CALL = "call"  # a user function
REFUSED = b"-OVERLOADED queue is full: 4 jobs, limit 4 (qa.max-queue), try again later"
EVICTED = REFUSED.replace(b", try", b", and others have fewer jobs, try")


class Asker(Pending):
    """A named connection of a user, which waits for one command."""

    def __init__(self, server: Server, user: str, name: str, *words: str) -> None:
        super().__init__(server, "AUTH", user, "p")
        assert self.reply().startswith(b"+OK")
        if name:
            self.send("CLIENT", "SETNAME", name)
            assert self.reply().startswith(b"+OK")
        self.send(*words)

    def send(self, *words: str) -> None:
        parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
        self.socket.sendall((f"*{len(words)}\r\n" + "".join(parts)).encode())


def stop_before_ready(server: Server) -> None:
    """Stop a worker before it takes jobs. If a worker has taken jobs already, stop the next worker."""
    while True:
        pid = server.signal_worker(signal.SIGSTOP)
        execute(server, "PING")  # the server has read all earlier commands
        if server.field("worker_state") != "ready":
            return
        os.kill(pid, signal.SIGKILL)
        eventually(lambda pid=pid: server.field("worker_pid") not in (0, pid), pause=0.001)  # type: ignore[misc]


class Crowd:
    """Askers that disconnect at the end."""

    def __init__(self, server: Server, stack: ExitStack) -> None:
        self._server, self._stack = server, stack
        self.all: list[Asker] = []

    def ask(self, user: str, word: str, value: str, *more: str, name: str = "", count: int = 1, of: str = READ) -> None:
        """`count` connections of a user send a trigger, one after the other."""
        for _ in range(count):
            before = sum(self._server.fields("in_flight", "queued_clients"))
            asker = Asker(self._server, user, name, "RG.TRIGGER", of, word, value, *more)
            self.all.append(self._stack.enter_context(asker))
            if word == "held":  # other jobs may have ended meanwhile
                eventually(lambda before=before: sum(self._server.fields("in_flight", "queued_clients")) == before + 1)

    def replies(self) -> list[bytes]:
        return [asker.reply() for asker in self.all]


def prepared(binary: Path, **settings: object) -> Server:
    names = {f"qa.{name.replace('_', '-')}": value for name, value in settings.items()}
    patient = dict.fromkeys(("qa.job-timeout-ms", "qa.hook-timeout-ms", "qa.worker-silence-ms"), 600_000)
    return Server(binary, {"qa.atomic-lease-ms": 60_000} | patient | names, worker=fake_worker("functions"))


def add_users(server: Server) -> None:
    for user in ("alice", "bob", "carol"):
        execute(server, "ACL", "SETUSER", user, "on", ">p", "~*", "+@all")


@pytest.fixture
def server(server_binary: Path) -> Iterator[Server]:
    """The worker gets jobs of up to four sentences, or of one sentence per user while several users are active."""
    with prepared(server_binary, worker_ahead=4, shared_ahead=1, function_threads=1) as running:
        running.wait_ready()
        register(running, "own", trigger("id-read", READ, own=True, cost_from=3))
        register(running, "users", trigger("id-call", CALL))
        add_users(running)
        yield running


@pytest.fixture
def crowd(server: Server) -> Iterator[Crowd]:
    with ExitStack() as stack:
        yield Crowd(server, stack)


def ahead(server: Server) -> tuple[int, int, int]:
    """Jobs that the worker has, their cost, and queued jobs."""
    in_flight, cost, queued = server.fields("in_flight", "worker_ahead", "queued_clients")
    return int(in_flight), int(cost), int(queued)


def settled(server: Server, expected: tuple[int, int, int]) -> None:
    """Waits until the worker has taken the jobs that it may take."""
    eventually(lambda: ahead(server) == expected)
    execute(server, "PING")
    assert ahead(server) == expected


@pytest.mark.hostile
@pytest.mark.parametrize("by", ["user", "name"])
def test_a_user_with_many_connections_shares_the_worker_with_another_user(
    server: Server, crowd: Crowd, by: str
) -> None:
    second = ("bob", "") if by == "user" else ("alice", "other")
    crowd.ask("alice", "held", "first", name="one", count=4)
    crowd.ask("alice", "held", "second", name="one", count=6)
    settled(server, (4, 4, 6))
    crowd.ask(second[0], "held", "mine", name=second[1])
    settled(server, (4, 4, 7))
    server.let_go("first")
    eventually(lambda: ahead(server) == (2, 2, 5))  # each user has one job at the worker
    server.let_go("mine")
    eventually(lambda: ahead(server) == (1, 1, 5))  # the other user still counts as active
    crowd.ask(second[0], "held", "again", name=second[1])
    settled(server, (2, 2, 5))
    server.let_go("second")
    server.let_go("again")
    assert all(reply.startswith(b"*3") for reply in crowd.replies())
    assert server.field("queue_users") == (2 if by == "user" else 1)


def test_turns_are_by_sentences(server: Server, crowd: Crowd) -> None:
    execute(server, "CONFIG", "SET", "qa.worker-ahead", "1")
    crowd.ask("carol", "held", "gate")
    sentences = ["s"] * 7
    crowd.ask("alice", "note", "long", "word", *sentences, count=4)  # after `long`, 8 sentences
    crowd.ask("bob", "note", "short", count=30)
    eventually(lambda: ahead(server) == (1, 1, 34))
    server.let_go("gate")
    crowd.replies()
    with server.client() as client:
        noted = client.lrange("noted", 0, -1)
    runs = [(word, len(list(group))) for word, group in groupby(noted)]
    assert noted.count("long") == 4
    assert all(length == 1 for word, length in runs if word == "long"), runs
    assert [length for word, length in runs[1:-1] if word == "short"] == [8, 8, 8], runs


@pytest.mark.parametrize("how", ["name", "setting"])
def test_bulk_work_waits_for_other_work_for_a_limited_time(server: Server, crowd: Crowd, how: str) -> None:
    name = "bulk:import" if how == "name" else ""
    execute(server, "CONFIG", "SET", "qa.worker-ahead", "1", "qa.bulk-users", "carol alice" * (how == "setting"))
    crowd.ask("bob", "held", "gate")
    crowd.ask("alice", "note", "bulk", name=name, count=3)
    crowd.ask("bob", "note", "short", count=20)
    eventually(lambda: ahead(server) == (1, 1, 23))
    assert server.field("queued_bulk") == 3
    server.let_go("gate")
    crowd.replies()
    with server.client() as client:
        noted = client.lrange("noted", 0, -1)
    runs = [(word, len(list(group))) for word, group in groupby(noted)]
    assert [length for word, length in runs if word == "bulk"] == [1, 1, 1], runs
    assert [length for word, length in runs if word == "short"][1:-1] == [8], runs


def test_a_name_with_the_prefix_of_bulk_is_not_bulk_work(server: Server, crowd: Crowd) -> None:
    crowd.ask("alice", "held", "go", name="bulky", count=5)
    settled(server, (4, 4, 1))
    assert server.field("queued_bulk") == 0
    crowd.ask("alice", "held", "go", name="bulk")
    assert server.field("queued_bulk") == 1
    server.let_go()
    crowd.replies()


def test_user_functions_share_in_the_same_way(server: Server, crowd: Crowd) -> None:
    crowd.ask("alice", "held", "hers", count=8, of=CALL)
    settled(server, (2, 0, 6))  # 2 x qa.function-threads: the fixture was another active user
    crowd.ask("bob", "held", "his", count=3, of=CALL)
    settled(server, (4, 0, 7))
    server.let_go("hers")
    eventually(lambda: ahead(server) == (2, 0, 1))
    server.let_go("his")
    assert len(crowd.replies()) == 11


def test_a_client_that_disconnects_frees_capacity(server: Server, crowd: Crowd) -> None:
    crowd.ask("alice", "held", "go", count=6)
    crowd.ask("bob", "held", "go", count=2)
    for asker in crowd.all:
        asker.hang_up()
    eventually(lambda: ahead(server)[::2] == (0, 0))
    server.let_go()
    eventually(lambda: ahead(server) == (0, 0, 0))  # the worker has stopped these jobs
    crowd.all.clear()
    crowd.ask("carol", "note", "x")
    assert crowd.replies()


def test_jobs_of_a_lost_worker_are_retried_and_count_once(server: Server, crowd: Crowd) -> None:
    crowd.ask("alice", "held", "go", count=3)
    server.signal_worker(signal.SIGKILL)
    eventually(lambda: server.field("worker_restarts") == 1)
    server.wait_ready()
    eventually(lambda: ahead(server) == (3, 3, 0))
    server.let_go()
    assert len(crowd.replies()) == 3
    eventually(lambda: ahead(server) == (0, 0, 0))


def test_a_full_queue_evicts_from_the_user_with_the_most_jobs(server_binary: Path) -> None:
    with prepared(server_binary, max_queue=4, worker_start_ms=600_000) as server, ExitStack() as stack:
        stop_before_ready(server)
        add_users(server)

        def send(user: str) -> Asker:
            return stack.enter_context(Asker(server, user, "", "RG.GETRESULTS", "x"))

        hers = []
        for number in range(4):
            hers.append(send("alice"))
            eventually(lambda number=number: server.field("queued_clients") == number + 1)
        his = [send("bob"), send("bob")]
        assert [hers[number].reply().strip() for number in (3, 2)] == [EVICTED] * 2
        eventually(lambda: server.field("queue_pushed_out") == 2)
        assert [send(user).reply().strip() for user in ("bob", "alice")] == [REFUSED] * 2  # both users have two jobs
        assert server.field("jobs_command")["refused"] == 4
        server.signal_worker(signal.SIGCONT)
        assert all(b"RG.GETRESULTS" in asker.reply() for asker in (*hers[:2], *his))


def test_a_full_queue_evicts_from_the_longest_ordered_queue(server_binary: Path) -> None:
    """Ordered calls that wait for an earlier call fill the queue of functions, but no user's turn counts them."""
    with prepared(server_binary, max_queue=4) as server, ExitStack() as stack:
        server.wait_ready()
        register(server, "users", trigger("id-order", "order", in_order=True), trigger("id-call", CALL))
        add_users(server)

        def send(user: str, word: str) -> Asker:
            return stack.enter_context(Asker(server, user, "", "RG.TRIGGER", word, "held", "go"))

        hers = []
        for number in range(5):  # one call runs
            hers.append(send("alice", "order"))
            eventually(lambda number=number: sum(server.fields("in_flight", "queued_clients")) == number + 1)
        assert send("alice", "order").reply().strip() == REFUSED
        his = send("bob", CALL)
        assert hers[4].reply().strip() == EVICTED
        server.let_go("go")
        assert all(asker.reply().startswith(b"*") for asker in (*hers[:4], his))
        eventually(lambda: ahead(server) == (0, 0, 0))


def test_an_evicted_hooked_read_gets_the_error(server_binary: Path) -> None:
    with prepared(server_binary, max_queue=4) as server, ExitStack() as stack:
        server.wait_ready()
        add_users(server)
        server.signal_worker(signal.SIGSTOP)

        def read(user: str) -> Asker:
            before = sum(server.fields("in_flight", "queued_clients"))
            asker = stack.enter_context(Asker(server, user, "", "GET", f"hook:none:{before}"))
            eventually(lambda: sum(server.fields("in_flight", "queued_clients")) == min(before + 1, full))
            return asker

        full, hers = 1000, []
        while server.field("queued_clients") < 4:
            hers.append(read("alice"))
        full = len(hers)
        his = read("bob")
        assert hers[-1].reply().startswith(b"-OVERLOADED queue is full: 4 jobs")
        server.signal_worker(signal.SIGCONT)
        assert {asker.reply() for asker in (*hers[:-1], his)} == {b"$-1\r\n"}


def test_invalid_settings_have_clear_errors(server: Server) -> None:
    with server.client() as client:
        with pytest.raises(redis.ResponseError, match="must be between 1 and 65536"):
            client.config_set("qa.shared-ahead", 0)
        with pytest.raises(redis.ResponseError, match=r"qa\.bulk-users has a zero byte after: a"):
            client.execute_command("CONFIG", "SET", "qa.bulk-users", b"a\x00b")
        client.config_set("qa.bulk-users", "a b")
        assert client.config_get("qa.bulk-users") == {"qa.bulk-users": "a b"}
