"""The command `qa-cluster kafka` on a real cluster: answers, documents, SIGTERM, and wrong usage."""

from __future__ import annotations

import asyncio
import re
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import httpx
import orjson
import pytest

from qa_cluster.config import Settings
from qa_cluster.errors import AccessDenied, QAError
from qa_cluster.integrations.kafka.program import Adapter, AdapterOptions
from qa_cluster.integrations.kafka.properties import KafkaProperties
from qa_cluster.integrations.kafka.retries import Verdict, verdict_on
from qa_cluster.integrations.kafka.session import SessionOptions
from tests.adapters.kafka.broker import Broker
from tests.harness.certificates import Authority
from tests.harness.commands import run_here
from tests.harness.polling import eventually
from tests.harness.programs import binary_or_skip, chosen_servers
from tests.harness.system import TOOL, System
from tests.harness.tiny_readers import tiny_reader

SECRET = "s3cret-of-the-test"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("reader")
    tiny_reader(folder, "tiny", last=False)
    binary = binary_or_skip(chosen_servers()[0])
    with System(binary, shards=1, QA_READER=str(folder), QA_ENCODER="none", QA_START_TIMEOUT_MS="300000") as running:
        yield running


class Command:
    """A running `qa-cluster kafka ..` with metrics."""

    def __init__(self, system: System, broker: Broker, *arguments: str) -> None:
        self._log = system.folder / f"{arguments[2]}.log"
        command = [TOOL, "kafka", *arguments, "--brokers", broker.address, "--create-topics", "--metrics-port", "0"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, env=system.environment, stdout=log, stderr=log)

    def log(self) -> str:
        return self._log.read_text()

    def metrics(self) -> str:
        address = re.findall(r"metrics are on (http://\S+)", self.log())[-1]
        return httpx.get(address).text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM if kind is None else signal.SIGKILL)
        assert self.process.wait(60) == 0 or kind is not None, self.log()


@pytest.mark.parametrize("service", [False, True], ids=["cluster", "service"])
def test_documents_and_answers(system: System, broker: Broker, service: bool) -> None:
    name, more = "service" if service else "cluster", []
    if service:
        system.start_service()
        more = ["--service", f"http://127.0.0.1:{system.port}"]
    to = ["--to", f"answers-{name}", "--exactly-once", "--group", f"group-{name}"]
    with (
        Command(system, broker, "ingest", "--from", f"documents-{name}", *more) as ingest,
        Command(system, broker, "answer", "--from", f"questions-{name}", *to, *more) as answer,
    ):
        eventually(lambda: "assigned: documents" in ingest.log() and "assigned: questions" in answer.log())
        document = orjson.dumps({"text": f"Ada {name} wrote the first program.", "metadata": {"year": 1843}})
        bob = orjson.dumps({"text": "Bob."})
        broker.write(f"documents-{name}", [(b"ada", document), (b"bob", bob), (b"bob", None)])
        eventually(lambda: 'outcome="deleted"} 1' in ingest.metrics())
        assert 'outcome="stored"} 2' in ingest.metrics()
        asked = orjson.dumps({"question": f"Who is {name}?", "filter": "year=1843"})
        broker.write(f"questions-{name}", [(b"k", asked)])
        (message,) = broker.read(f"answers-{name}", 1)
        result = orjson.loads(message.value())
        assert (result["answers"][0]["answer"], result["answers"][0]["document_id"]) == ("Ada", "ada")
        lag = f'qa_kafka_lag_messages{{topic="questions-{name}",partition="0"}} 0'
        eventually(lambda: lag in answer.metrics())
    if service:
        system.stop_service()


def test_a_refused_key_makes_no_message_a_dead_letter() -> None:
    """A revoked key is an error of the installation; a key without the right may be an error of the message."""
    unknown, without_right = AccessDenied("the key is revoked"), AccessDenied("the key does not allow the collection")
    unknown.http_status = 401
    assert verdict_on(unknown, names_target=True) is Verdict.UNTIL_SUCCESS
    assert verdict_on(without_right, names_target=True) is Verdict.DEAD_LETTER


@pytest.mark.parametrize("trusted", [True, False])
async def test_the_service_may_have_a_certificate_of_a_private_authority(tmp_path: Path, trusted: bool) -> None:
    authority = Authority(tmp_path / "made")
    pair = authority.sign("service", ["IP:127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0, ssl=context) as server:
        settings = Settings(service_tls_ca=str(authority.cert) if trusted else "")
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        options = AdapterOptions(settings, SessionOptions("questions", "group", "dead"), service=url)
        async with Adapter(options, KafkaProperties({}))._client() as client:
            with pytest.raises(QAError) as refused:
                await client.ask("Who?", timeout=5)
    assert ("is not trusted" in str(refused.value)) != trusted


def test_wrong_usage(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text(f"bootstrap.servers={broker.address}\nsasl.password={SECRET}\nx\n")
    usual = ("kafka", "ingest", "--from", "absent", "--service", "http://127.0.0.1:1")
    for arguments, code, said in (
        ((), 2, "no Kafka broker is given"),
        (("--brokers", broker.address), 2, "topic 'absent' does not exist"),
        (("--brokers", broker.address, "--set-kafka", f"sasl.password={SECRET}"), 2, "put secrets into a file"),
        (("--brokers", broker.address, "--set-kafka", "group.id=x"), 2, "use --group"),
        (("--kafka-config", str(tmp_path / "client.properties")), 2, "line 3: must have the form NAME=VALUE"),
        (("--brokers", broker.address, "--create-topics", "--api-key-file", "/none"), 2, "/none: cannot be read"),
    ):
        done = run_here((*usual, *arguments), tmp_path)
        assert (done.returncode, said in " ".join(done.stderr.split())) == (code, True), done.stderr
        assert SECRET not in done.stdout + done.stderr
