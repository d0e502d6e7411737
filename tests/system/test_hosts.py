"""Three hosts with separate addresses, TLS and passwords. Each runs a primary and the replica of another primary.

One host is disconnected and reconnected while clients ask questions.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import redis

from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.cluster.nodes.connect import server_client
from qa_cluster.cluster.nodes.formation import incomplete
from qa_cluster.cluster.nodes.node import nodes_of
from qa_cluster.config import Settings
from qa_cluster.errors import QAError
from qa_cluster.topology import Address
from tests.harness.certificates import Authority, tls_or_skip
from tests.harness.hosts import Host, Hosts
from tests.harness.polling import eventually
from tests.harness.programs import MODULE
from tests.harness.system import SMALL_BATCHES, TOOL

from .load import FACTS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

PASSWORD = "of all servers"
PRIMARY, REPLICA = 7000, 7001
QUESTION_SECONDS = 30


@dataclass
class Asked:
    """The outcomes of questions: the times of right answers, the wrong answers, and the errors."""

    right: list[tuple[float, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    partial: int = 0
    errors: list[str] = field(default_factory=list)

    def all_right_since(self, moment: float) -> bool:
        """Whether every question has had a right answer after this moment."""
        return {name for when, name in self.right if when > moment} == set(FACTS)


class Elsewhere:
    """The cluster on the hosts."""

    def __init__(self, hosts: list[Host], server: Path, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.authority = Authority(folder / "made")
        client = self.authority.sign("client", (), usage="clientAuth")
        # primaries first, then replicas; each host has the replica of the previous host's primary
        ring = [*hosts[1:], hosts[0]]
        self.addresses = [Address(host.address, PRIMARY) for host in hosts]
        self.addresses += [Address(host.address, REPLICA) for host in ring]
        self.settings = replace(
            Settings(),
            cluster_url="rediss://" + ",".join(map(str, self.addresses)),
            cluster_password=PASSWORD,
            cluster_tls_ca=str(self.authority.cert),
            cluster_tls_cert=str(client.cert),
            cluster_tls_key=str(client.key),
            request_timeout=QUESTION_SECONDS,
        )
        self.environment = {
            "QA_SERVER": str(server),
            "QA_MODULE_PATH": str(MODULE),
            "QA_CLUSTER_PASSWORD": PASSWORD,
            "QA_CLUSTER_TLS_CA": str(self.authority.cert),
            "QA_CLUSTER_TLS_CERT": str(client.cert),
            "QA_CLUSTER_TLS_KEY": str(client.key),
            "QA_WORKER_THREADS": "1",
            "QA_START_TIMEOUT_MS": "300000",
            "QA_SHARDS": "3",
            "QA_REPLICAS": "1",
            **SMALL_BATCHES,
        }

    def options(self, host: Host, port: int) -> list[str]:
        """The options of `node` and `check` for a server."""
        pair = self.authority.sign(f"{host.name}-{port}", [f"IP:{host.address}"])
        where = ["--host", host.address, "--port", str(port), "--announce", host.address]
        return [*where, "--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]

    def start(self) -> None:
        for host in self.hosts:
            for port in (PRIMARY, REPLICA):
                data = self.folder / f"{host.address}-{port}"
                command = [TOOL, "--data-dir", str(data), "node", *self.options(host, port)]
                host.start(command, self.environment, self.folder / f"{data.name}.log")

    def client(self, address: Address) -> redis.Redis:
        return server_client(self.settings, self.settings.cluster_url, address, socket_timeout=5)

    def whole(self) -> bool:
        """Whether every server sees all six servers, and no replica lags."""
        for address in self.addresses:
            with self.client(address) as client:
                if incomplete(client, len(self.addresses)):
                    return False
        return True

    def primary_addresses(self, asked: Address) -> set[str]:
        """The live primaries with slots in the view of a server."""
        with self.client(asked) as client:
            return {node.address for node in nodes_of(client) if node.is_primary and not node.failed}

    @contextmanager
    def asking(self) -> Iterator[Asked]:
        """Ask all questions with full and with partial coverage, until the end of the block."""
        asked, over = Asked(), threading.Event()
        with ClusterClient(self.settings) as client:
            for name, (text, _) in FACTS.items():
                client.put_document(name, text, timeout=60)
            answers = {name: self.answer(client, question) for name, (_, question) in FACTS.items()}

        def run(coverage: str) -> None:
            with ClusterClient(self.settings) as client:
                while not over.is_set():
                    for name, (_, question) in FACTS.items():
                        try:
                            result = client.ask(question, coverage=coverage, timeout=QUESTION_SECONDS, cache="refresh")
                        except QAError as error:
                            asked.errors.append(f"{coverage}: {error!r}")
                            continue
                        best = result.best
                        if best is not None and (best.document_id, best.answer) == answers[name]:
                            if coverage == "full":
                                asked.right.append((time.monotonic(), name))
                        elif result.index.partial and coverage == "partial":
                            asked.partial += 1
                        else:
                            asked.wrong.append(f"{coverage}: {question} {best}")

        threads = [threading.Thread(target=run, args=(coverage,)) for coverage in ("full", "partial")]
        for thread in threads:
            thread.start()
        try:
            yield asked
        finally:
            over.set()
            for thread in threads:
                thread.join(120)

    @staticmethod
    def answer(client: ClusterClient, question: str) -> tuple[str, str]:
        best = client.ask(question, timeout=QUESTION_SECONDS).best
        assert best is not None, question
        return best.document_id, best.answer


@pytest.fixture
def elsewhere(server_binary: Path, tmp_path: Path) -> Iterator[Elsewhere]:
    tls_or_skip(server_binary)
    with Hosts(3) as hosts:
        made = Elsewhere(hosts.all, server_binary, tmp_path)
        made.start()
        yield made


def on(host: Host, elsewhere: Elsewhere, *words: str) -> str:
    done = host.run([TOOL, "--data-dir", str(elsewhere.folder / "cli"), *words], elsewhere.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_host_is_disconnected_and_reconnected_while_questions_are_asked(elsewhere: Elsewhere) -> None:
    first, second, third = elsewhere.hosts
    url = elsewhere.settings.cluster_url
    on(first, elsewhere, "up", "--form", "--cluster-url", url)
    eventually(elsewhere.whole, 300, 0.2, (redis.RedisError, QAError))
    primaries = {f"{host.address}:{PRIMARY}" for host in elsewhere.hosts}
    assert elsewhere.primary_addresses(elsewhere.addresses[0]) == primaries

    # `check` reports that this host reaches the other servers and their cluster buses
    found = json.loads(on(second, elsewhere, "check", "--json", "--cluster-url", url, *elsewhere.options(second, 7002)))
    assert [made["said"] for made in found["checks"] if made["what"].startswith("server 10.")] == [
        "answers, with the module; its cluster bus can be reached"
    ] * 6

    with elsewhere.asking() as asked:
        eventually(lambda: asked.all_right_since(0), 120)
        third.cut_off()
        begun = time.monotonic()
        # the first host has the replica of the lost primary
        promoted = f"{first.address}:{REPLICA}"
        left = {f"{first.address}:{PRIMARY}", f"{second.address}:{PRIMARY}", promoted}
        ignored = (redis.RedisError, QAError)
        eventually(lambda: elsewhere.primary_addresses(elsewhere.addresses[0]) == left, 120, 0.1, ignored)
        took_over = time.monotonic()
        eventually(lambda: asked.all_right_since(took_over), 240)
        right_again = time.monotonic()
        assert writes_are_refused(third, elsewhere)
        with ClusterClient(elsewhere.settings) as client:
            client.put_document("gadget", "The gadget of the hosts weighs 112 grams.", timeout=60)
            assert elsewhere.answer(client, "How much does the gadget of the hosts weigh?")[0] == "gadget"
        third.join_again()
        back = time.monotonic()
        eventually(elsewhere.whole, 240, 0.2, ignored)
        assert elsewhere.primary_addresses(elsewhere.addresses[2]) == left
        eventually(lambda: asked.all_right_since(back), 240)
    assert asked.wrong == []
    with ClusterClient(elsewhere.settings) as client:
        assert elsewhere.answer(client, "How much does the gadget of the hosts weigh?")[0] == "gadget"
    for host in elsewhere.hosts:  # each host connects to its own server first
        said = on(host, elsewhere, "ask", FACTS["honey"][1], "--cluster-url", f"rediss://{host.address}:{PRIMARY}")
        assert "bees" in said
    print(
        f"\nhosts: a replica took over after {took_over - begun:.1f} s, every question was right"
        f" {right_again - begun:.1f} s after the disconnection; {len(asked.right)} right answers, {asked.partial}"
        f" partial ones, {len(asked.errors)} errors: {set(asked.errors)}"
    )


def writes_are_refused(host: Host, elsewhere: Elsewhere) -> bool:
    """Whether the disconnected primary refuses writes, because it cannot reach the majority."""
    path = elsewhere.folder / f"{host.address}-{PRIMARY}" / "node" / "server.sock"
    with redis.Redis(unix_socket_path=str(socket_of(path)), password=PASSWORD) as client:
        try:
            client.execute_command("SET", "{anywhere}", "x")
        except redis.exceptions.ClusterDownError:
            return True
        except redis.ResponseError as error:
            return "CLUSTERDOWN" in str(error)
    return False


def socket_of(near: Path) -> Path:
    """The path of a server's Unix socket, from its configuration."""
    text = (near.parent / "server.conf").read_text()
    line = next(line for line in text.splitlines() if line.startswith("unixsocket "))
    return Path(line.split('"')[1])
